// Find: where is this place? A photo, the photos that show the same, verified, and why; the collection to choose from.

import { post } from "./api.js";
import { h, put } from "./dom.js";
import { chooser, droppable, sent } from "./drops.js";
import { lightbox } from "./lightbox.js";
import { map } from "./map.js";
import { figure, whole } from "./numbers.js";
import { basename, card, choice, collections, empty, failed, head, verdict, worker } from "./parts.js";

const HITS = 24;
const VERIFIED = 10;
const count = (n, one, many) => `${whole(n)} ${n === 1 ? one : many}`;

export function mount(panel) {
  const state = { source: null, ready: false, pictures: [], query: null, waiting: null, view: "gallery", mapped: false };
  const [opening, searching, mapping] = [worker(), worker(), worker()];
  const about = h("p.quiet.small-words", { "aria-live": "polite" });
  const gallery = h("div.gallery", { role: "list", "aria-label": "Gallery" });
  const tries = h("div.gallery.tries-row", { role: "list", "aria-label": "Sample queries" });
  const similar = map({ chosen: search });
  const places = map({ chosen: search, geographic: true });
  const views = { gallery, map: h("div", {}, mapping.element, similar.element), places: places.element };
  const answer = h("div.answer", { "aria-live": "polite" });
  const asked = h("div.asked");
  const results = card("Results", h("div", {}, searching.element, asked, answer), { name: "results" });
  const ask = card("Search with a photo", h("div", {}, h("div.ask-row", {}, pick(), h("p.quiet", {}, "or drop one anywhere here, or click one below.")), tries), { name: "ask" });
  const box = lightbox({ search, heard });
  const source = collections(open);
  const switcher = choice({
    label: "View",
    value: "gallery",
    options: [["gallery", "Gallery"], ["map", "Map", "similar photos lie together"], ["places", "Places", "where photos were taken"]],
    chosen: turn,
  });
  const placesOption = switcher.querySelectorAll("label")[2];
  placesOption.hidden = true;
  const dates = ["since", "until"].map((name) => h("input", { type: "date", "aria-label": name === "since" ? "Taken from" : "Taken until", onchange: filter }));
  const clear = h("button.small", { type: "button", onclick: () => dates.forEach((one) => (one.value = "")) || filter() }, "All dates");
  const filters = h("div.row.dates", { hidden: true }, h("span.quiet", {}, "Taken"), dates[0], h("span.quiet", {}, "to"), dates[1], clear);

  droppable(panel, take);
  put(
    panel,
    head(
      "Find the same place",
      "In another season, by night, years apart, cropped or turned: the most probable first, each verified by its geometry and ready to be looked at.",
      source.element,
    ),
    h(
      "div.main-column",
      {},
      results,
      ask,
      card("Collection", h("div", {}, opening.element, h("div.collection-bar", {}, about, filters), ...Object.values(views)), { side: switcher, name: "collection" }),
    ),
    box.element,
  );
  results.hidden = true;
  turn("gallery");
  opening.begin(source.begin);

  // ------------------------------------------------------------------------------------------------------------- steps

  function pick(words = "Choose a photo", name = "primary") {
    return chooser({ words, taken: take, label: "Search with a photo of your own", name });
  }

  async function open(name) {
    Object.assign(state, { source: name, ready: false, pictures: [], query: null, waiting: null, mapped: false });
    results.hidden = filters.hidden = placesOption.hidden = true;
    if (state.view === "places") turn("gallery");
    put(about, "Listing the photos …");
    for (const place of [gallery, tries]) put(place);
    for (const chart of [similar, places]) chart.pictures([]);
    dates.forEach((one) => (one.value = ""));
    try {
      const listed = await post("api/images/gallery", { source: name });
      if (state.source !== name || state.ready) return;
      state.pictures = listed.pictures;
      const nothing = empty("The collection is empty", "There is no photo in this folder.");
      put(about, listed.count ? `${count(listed.count, "photo", "photos")}: can be searched when they are indexed.` : "");
      put(gallery, listed.count ? listed.pictures.map(tile) : nothing);
      put(tries, listed.queries.map(tile));
      tries.hidden = !listed.queries.length;
      if (!listed.count) return;
    } catch (error) {
      opening.tell(failed(error.message));
      return;
    }
    opening.run("api/images/open", { source: name }, { done: opened });
  }

  function opened(result) {
    if (state.source !== result.source) return;
    const same = state.pictures.map((p) => p.id).join() === result.pictures.map((p) => p.id).join();
    Object.assign(state, { ready: true, pictures: result.pictures });
    if (!same) put(gallery, result.pictures.map(tile)); // else what is loaded stays
    const times = result.pictures.map((p) => p.time?.slice(0, 10)).filter(Boolean).sort();
    const located = result.pictures.filter((p) => p.place).length;
    filters.hidden = !times.length;
    for (const one of dates) [one.min, one.max] = [times[0] ?? "", times.at(-1) ?? ""];
    const from = times.length ? ` Taken ${times[0] === times.at(-1) ? `on ${times[0]}` : `${times[0]} to ${times.at(-1)}`}.` : "";
    state.words = `${result.words}.${from}`;
    placesOption.hidden = !located;
    if (!located && state.view === "places") turn("gallery");
    filter();
    if (state.view === "map") turn("map");
    if (state.waiting) search(state.waiting);
  }

  function turn(name) {
    state.view = name;
    switcher.querySelector(`input[value=${name}]`).checked = true;
    for (const [other, element] of Object.entries(views)) element.hidden = other !== name;
    if (name === "map") spread();
    similar.shown();
    places.shown();
  }

  /** The map is drawn when somebody looks at it: after everything else. */
  function spread() {
    if (state.mapped || !state.ready) return;
    state.mapped = true;
    const { source: name } = state;
    mapping.run("api/images/map", { source: name }, {
      done: (spots) => {
        if (state.source !== name) return;
        for (const picture of state.pictures) [picture.x, picture.y] = spots[picture.id] ?? [];
        filter();
      },
    });
  }

  /** Show what was taken between the dates; a search knows them too. */
  function filter() {
    const [since, until] = dates.map((one) => one.value);
    const on = Boolean(since || until);
    const fits = ({ time }) => !on || (time && time.slice(0, 10) >= (since || "0") && time.slice(0, 10) <= (until || "9"));
    const shown = state.pictures.filter(fits);
    const ids = new Set(shown.map((picture) => picture.id));
    for (const button of gallery.querySelectorAll(".thumb")) button.parentElement.hidden = !ids.has(button.dataset.id);
    similar.pictures(shown.filter((p) => typeof p.x === "number"));
    places.pictures(shown.filter((p) => p.place));
    clear.hidden = !on;
    const undated = state.pictures.filter((p) => !p.time).length;
    put(about, on ? `${whole(shown.length)} of ${state.words}${undated ? ` ${count(undated, "has", "have")} no date.` : ""}` : state.words ?? "");
    if (on !== state.filtered || on) state.query && search(state.query);
    state.filtered = on;
  }

  async function take(files) {
    results.hidden = false;
    put(answer);
    searching.tell(h("p.work-words", {}, `Sending ${files[0].name} …`));
    try {
      const [picture] = await sent(files.slice(0, 1));
      searching.tell();
      search(picture);
    } catch (error) {
      searching.tell(failed(error.message));
    }
  }

  function search(picture) {
    results.hidden = false;
    for (const button of panel.querySelectorAll("button.thumb")) {
      button.setAttribute("aria-current", String(button.dataset.id === picture.id));
    }
    similar.mark(picture.id);
    places.mark(picture.id);
    drawAsked(picture);
    if (results.getBoundingClientRect().top < 0 || results.getBoundingClientRect().top > innerHeight / 2) {
      results.scrollIntoView({ block: "start" });
    }
    if (!state.ready) {
      state.waiting = picture;
      put(answer, h("p.quiet", {}, "The collection is still being indexed; the search begins when that is done."));
      return;
    }
    Object.assign(state, { query: picture, waiting: null });
    answer.classList.add("stale");
    answer.dataset.state = "asked";
    const [since, until] = dates.map((one) => one.value);
    const body = { source: state.source, query: picture.id, k: HITS, verify: VERIFIED, since, until };
    searching.run("api/images/search", body, {
      done: (result) => drawAnswer(result, true),
      partial: (result) => drawAnswer(result, false),
    });
  }

  // ----------------------------------------------------------------------------------------------------------- drawing

  function drawAsked(picture) {
    put(
      asked,
      h("img", { src: picture.thumb, alt: `Query: ${picture.name}` }),
      h(
        "div",
        {},
        h("p.query-name", { title: picture.name }, basename(picture.name)),
        h("p.quiet.small-words.summary", {}, "…"),
        pick("Another photo", "small"),
      ),
    );
  }

  function tile(picture, n) {
    const image = h("img", { src: picture.thumb, alt: picture.name, loading: "lazy", draggable: "false" });
    const button = h("button.thumb", {
      type: "button",
      title: picture.name,
      tabindex: n ? "-1" : "0",
      data: { id: picture.id },
      onclick: () => search(picture),
      onkeydown: roam,
    }, image);
    return h("div", { role: "listitem" }, button);
  }

  function drawAnswer(result, done) {
    state.result = result;
    answer.classList.toggle("stale", !done);
    Object.assign(answer.dataset, { query: result.query.id, state: done ? "done" : "partial" });
    const of = (name) => result.hits.filter((hit) => hit.verified && hit.verdict === name);
    const [same, unsure, different] = ["same", "unsure", "different"].map(of);
    const rest = result.hits.filter((hit) => !hit.verified);
    const verified = result.hits.length - rest.length;
    const found = same.length ? `${count(same.length, "photo shows", "photos show")} the same` : "No photo was verified as the same";
    const doubt = unsure.length ? `, ${count(unsure.length, "is", "are")} unsure` : "";
    const told = done
      ? `${found}${doubt}. ${whole(verified)} of ${whole(result.hits.length)} verified, in ${figure(result.seconds, 2)} s.`
      : `${count(result.hits.length, "similar photo", "similar photos")}; verifying the best …`;
    put(asked.querySelector(".summary"), told);
    const similarWords = done ? "Similar, not verified" : "Similar photos";
    put(
      answer,
      section("The same", "verified, most probable first", same),
      section("Unsure", "verified, but the evidence is not enough", unsure),
      section(similarWords, "by appearance alone; open one to verify it", rest),
      different.length
        ? h(
          "details.others",
          { open: !same.length && !unsure.length && !rest.length },
          h("summary", {}, `${count(different.length, "photo", "photos")} verified as different`),
          h("ol.hits", {}, different.map(drawHit)),
        )
        : null,
      result.hits.length ? null : empty("Nothing to compare with", "No other photo of this collection was taken between these dates."),
    );
  }

  const section = (title, words, hits) =>
    hits.length
      ? h("section.found", { "aria-label": title }, h("h3", {}, title, " ", h("span.quiet", {}, `${whole(hits.length)} · ${words}`)), h("ol.hits", {}, hits.map(drawHit)))
      : null;

  function drawHit(hit) {
    const { picture } = hit;
    const look = () => {
      const order = [...answer.querySelectorAll(".hit")].map((one) => one.dataset.id);
      const hits = order.map((id) => state.result.hits.find((one) => one.picture.id === id));
      box.open(hits.map((one) => ({ a: state.result.query, b: one.picture })), order.indexOf(picture.id));
    };
    const folder = picture.name.split("/").slice(0, -1).join("/");
    const fit = hit.inliers ? `${whole(hit.inliers)} of ${whole(hit.matches)} matches are inliers` : "no common geometry";
    return h(
      `li.hit${hit.verified ? `.is-${hit.verdict}` : ""}`,
      { data: { id: picture.id } },
      h("button.hit-picture", { type: "button", title: `Look at ${picture.name} beside the query`, onclick: look }, h("img", { src: picture.thumb, alt: picture.name, loading: "lazy" })),
      h("p.clip.hit-name", { title: picture.name }, basename(picture.name)),
      h("p.clip.quiet.hit-where", {}, [folder, picture.time].filter(Boolean).join(" · ")),
      h("div.hit-foot", {}, verdict(hit.verified ? hit.verdict : null, hit.probability), h("button.small", { type: "button", data: { why: picture.id }, onclick: look }, hit.verified ? "Why?" : "Verify")),
      hit.verified ? h("p.hit-words.quiet", {}, hit.relation || fit) : null,
    );
  }

  /** A hit that was verified just now says so on its card, in its place. */
  function heard({ a, b }, found) {
    const hit = a.id === state.result?.query.id && state.result.hits.find(({ picture }) => picture.id === b.id);
    if (!hit || hit.verified) return;
    const { verdict: word, probability, inliers, matches, relation } = found;
    Object.assign(hit, { verified: true, verdict: word, probability, inliers, matches, relation });
    answer.querySelector(`.hit[data-id="${b.id}"]`)?.replaceWith(drawHit(hit));
  }

  return {
    shown() {
      source.shown();
      similar.shown();
      places.shown();
    },
  };
}

/** Arrow keys among the pictures of a gallery; one of them is in the order of Tab. */
function roam(event) {
  const all = [...event.currentTarget.closest(".gallery").querySelectorAll("[role=listitem]:not([hidden]) button.thumb")];
  const here = all.indexOf(event.currentTarget);
  const top = all[0].getBoundingClientRect().top;
  const across = all.filter((button) => Math.abs(button.getBoundingClientRect().top - top) < 4).length;
  const steps = {
    ArrowRight: here + 1,
    ArrowLeft: here - 1,
    ArrowDown: here + across,
    ArrowUp: here - across,
    Home: 0,
    End: all.length - 1,
  };
  const next = all[steps[event.key]];
  if (!next) return;
  event.preventDefault();
  all[here].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
