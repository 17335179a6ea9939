// Images: which images are like this one? A collection, a query, its ranked neighbours, and why they are the same or not.

import { get, post } from "./api.js";
import { h, icon, put } from "./dom.js";
import { chooser, droppable, sent } from "./drops.js";
import { map } from "./map.js";
import { figure, seconds, whole } from "./numbers.js";
import { card, choice, CROSS, empty, failed, head, verdict, worker } from "./parts.js";
import { wipe } from "./viewers.js";

const NEIGHBOURS = 12;
const VERIFIED = 3;

export function mount(panel) {
  const state = { source: null, pictures: [], byId: new Map(), query: null, view: "gallery", duplicates: null };
  const work = worker();
  const select = h("select", { "aria-label": "Collection" });
  const about = h("p.quiet.small-words");
  const gallery = h("div.gallery", { role: "list", "aria-label": "Gallery" });
  const tries = h("div.tries", { hidden: true });
  const chart = map({ chosen: (picture) => search(picture) });
  const groups = h("div.duplicates");
  const views = { gallery, map: chart.element, duplicates: groups };
  const query = h("div.query");
  const hits = h("ol.hits", { "aria-label": "Ranked neighbours" });
  const timing = h("span.quiet.small-words");
  const why = whyDialog();
  const switchView = choice({
    label: "View",
    value: "gallery",
    options: [["gallery", "Gallery"], ["map", "Map"], ["duplicates", "Duplicates"]],
    chosen: turn,
  });

  select.addEventListener("change", () => open(select.value));
  droppable(panel, (files) => take(files));
  const pick = chooser({ words: "Choose a photo", taken: take, label: "Search with a photo of your own" });
  put(
    panel,
    head(
      "Which images are like this one?",
      "A shortlist by embedding, re-ranked by local similarity, verified by the inliers of one geometry.",
      h("label.field.inline-field", {}, h("span", {}, "Collection"), select),
    ),
    work.element,
    h(
      "div.columns.images-columns",
      {},
      h(
        "aside.collection-column",
        { "aria-label": "Collection" },
        card("Collection", h("div", {}, tries, about, gallery, chart.element, groups), { side: switchView }),
      ),
      h(
        "div.main-column",
        { data: { results: "" } },
        card("Query", query, { side: pick, name: "query-card" }),
        card("Neighbours", hits, { side: timing, name: "hits-card" }),
      ),
    ),
    why.element,
  );
  put(query, h("p.quiet", {}, "Click an image of the collection, or drop a photo anywhere in this tab."));
  put(hits, h("li.wide", {}, empty("No query yet", "Ranked neighbours appear here.")));
  turn("gallery");
  work.begin(begin);

  // ------------------------------------------------------------------------------------------------------------- steps

  async function begin() {
    const sources = await get("api/images/sources");
    put(
      select,
      sources.map(({ name, words, count }) =>
        h("option", { value: name, title: words }, typeof count === "number" ? `${name} (${whole(count)})` : name)
      ),
    );
    if (sources.length) open(sources[0].name);
  }

  function open(source) {
    Object.assign(state, { source: null, duplicates: null, query: null });
    put(about, "The collection is being opened.");
    put(gallery);
    drawQueries([]);
    chart.pictures([]);
    work.run("api/images/open", { source }, { done: opened, partial: listed });
  }

  /** The pictures are known; they cannot be searched yet. */
  function listed(result) {
    state.pictures = result.pictures;
    state.byId = new Map(result.pictures.map((picture) => [picture.id, picture]));
    const shown = result.pictures.length < result.count ? `; ${whole(result.pictures.length)} of them shown` : "";
    put(about, result.words || `${whole(result.count)} images`, shown);
    put(gallery, result.pictures.map((picture, n) => tile(picture, n)));
    drawQueries(result.queries ?? []);
  }

  function opened(result) {
    listed(result);
    state.source = result.source;
    chart.pictures(result.pictures);
    turn(state.view);
    const first = state.waiting ?? result.queries?.[0] ?? result.pictures[0];
    delete state.waiting;
    if (first) search(first, { quiet: true });
    else put(hits, h("li.wide", {}, empty("The collection is empty", "There is no image in this folder.")));
  }

  function turn(name) {
    state.view = name;
    for (const [other, element] of Object.entries(views)) element.hidden = other !== name;
    if (name === "map") chart.shown();
    if (name === "duplicates") duplicates();
  }

  async function take(files) {
    try {
      const opening = !state.source; // then the strip belongs to the collection that is being opened
      if (!opening) work.tell(h("p.work-words", {}, `Sending ${files[0].name} …`));
      const [picture] = await sent(files.slice(0, 1));
      if (!opening) work.tell();
      search(picture);
    } catch (error) {
      work.tell(failed(error.message));
    }
  }

  function search(picture, { quiet = false } = {}) {
    if (!state.source) {
      state.waiting = picture;
      put(about, `The collection is still being opened; then ${picture.name} is searched for.`);
      return;
    }
    state.query = picture;
    for (const button of panel.querySelectorAll("button.thumb")) {
      button.setAttribute("aria-current", String(button.dataset.id === picture.id));
    }
    chart.mark(picture.id);
    put(
      query,
      h("img", { src: picture.thumb, alt: `Query: ${picture.name}` }),
      h(
        "div",
        {},
        h("p.query-name", {}, picture.name),
        h("p.quiet.small-words", {}, `${picture.width} × ${picture.height}`),
        h("p.quiet.small-words", {}, "Another: click any image, or drop a photo anywhere in this tab."),
      ),
    );
    put(timing, "searching …");
    hits.classList.add("stale");
    const body = { source: state.source, query: picture.id, k: NEIGHBOURS, verify: VERIFIED };
    work.run("api/images/search", body, {
      done: (result) => drawHits(result, true),
      partial: (result) => drawHits(result, false),
    });
    if (!quiet && matchMedia("(max-width: 900px)").matches) {
      panel.querySelector("[data-results]").scrollIntoView({ behavior: "smooth", block: "start" });
    }
  }

  async function duplicates() {
    if (!state.source || state.duplicates) return;
    put(groups, h("p.quiet", {}, "Looking for near-duplicates …"));
    try {
      state.duplicates = (await post("api/images/duplicates", { source: state.source })).groups;
    } catch (error) {
      put(groups, failed(error.message));
      return;
    }
    const drawn = state.duplicates.map((ids) => ids.map((id) => state.byId.get(id)).filter(Boolean)).filter((group) =>
      group.length > 1
    );
    put(
      groups,
      drawn.length
        ? drawn.map((group, n) =>
          h(
            "section.group",
            { "aria-label": `Group ${n + 1}` },
            h("h3", {}, `${group.length} near-duplicates`),
            h("div.gallery", {}, group.map((picture, i) => tile(picture, i))),
          )
        )
        : empty("No near-duplicates", "No two images of this collection are nearly the same."),
    );
  }

  // ----------------------------------------------------------------------------------------------------------- drawing

  function tile(picture, n) {
    const image = h("img", { src: picture.thumb, alt: picture.name, loading: "lazy", draggable: "false" });
    const button = h("button.thumb", {
      type: "button",
      title: picture.name,
      tabindex: n ? "-1" : "0",
      data: { id: picture.id },
    }, image);
    button.addEventListener("click", () => search(picture));
    button.addEventListener("keydown", roam);
    return h("div", { role: "listitem" }, button);
  }

  /** Pictures that are worth searching with, above the collection. */
  function drawQueries(list) {
    tries.hidden = !list.length;
    put(
      tries,
      h("h3", {}, "Try these: places of the collection in other views"),
      h(
        "div.gallery.tries-row",
        { role: "list", "aria-label": "Sample queries" },
        list.map((picture, n) => tile(picture, n)),
      ),
    );
  }

  function drawHits(result, done) {
    hits.classList.toggle("stale", !done);
    put(hits, result.hits.map((hit) => drawHit(hit, result.query, done)));
    hits.dataset.query = result.query.id;
    hits.dataset.state = done ? "done" : "partial";
    const { shortlist, rerank, verify } = result.seconds ?? {};
    const parts = [["shortlist", shortlist], ["re-rank", rerank], ["verify", verify]].filter(([, time]) =>
      typeof time === "number"
    );
    put(timing, parts.map(([name, time]) => `${name} ${seconds(time)}`).join(" · "), done ? "" : " …");
  }

  function drawHit(hit, asked, done) {
    const picture = typeof hit.picture === "object" && hit.picture
      ? hit.picture
      : state.byId.get(hit.picture) ?? { thumb: "", name: hit.name, id: hit.picture };
    const name = picture.name ?? hit.name;
    const open = h(
      "button.hit-picture",
      {
        type: "button",
        title: `Search with ${name}`,
        onclick: () => search(picture),
      },
      h("img", { src: picture.thumb, alt: name }),
      h("span.rank", {}, hit.rank),
    );
    const reason = h("button.small", {
      type: "button",
      data: { why: picture.id },
      onclick: () => why.open({ source: state.source, query: asked, hit: picture }),
    }, "Why?");
    const verified = typeof hit.inliers === "number";
    const inliers = verified ? h("span.quiet", {}, `${whole(hit.inliers)} inliers of ${whole(hit.matches)} matches`) : null;
    return h(
      `li.hit${hit.verdict && verified ? `.is-${hit.verdict}` : ""}`,
      { data: { rank: hit.rank } },
      open,
      h("p.clip.hit-name", { title: name }, name),
      h(
        "dl.hit-figures",
        {},
        h("div", {}, h("dt", {}, "distance"), h("dd", {}, figure(hit.distance))),
        h("div", {}, h("dt", { title: "Sinkhorn divergence between local features: smaller is closer" }, "local distance"), h("dd", {}, figure(hit.local_distance))),
      ),
      h(
        "div.hit-foot",
        {},
        done || hit.verdict ? verdict(hit.verdict, hit.probability) : h("span.verdict.none", {}, "…"),
        reason,
      ),
      inliers,
    );
  }

  return {
    shown() {
      if (state.view === "map") chart.shown();
    },
  };
}

/** Arrow keys among the pictures of a gallery; one of them is in the order of Tab. */
function roam(event) {
  const all = [...event.currentTarget.closest(".gallery").querySelectorAll("button.thumb")];
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

/** Why two images are said to show the same thing or not: their matches, and one warped to the other. */
// {element, open({source, query, hit})}
function whyDialog() {
  const work = worker();
  const body = h("div.why-body");
  const title = h("h2", { id: "why-title" });
  const close = h(
    "button.icon-button",
    { type: "button", "aria-label": "Close", onclick: () => element.close() },
    icon(CROSS),
  );
  const element = h(
    "dialog.why",
    { "aria-labelledby": "why-title" },
    h("div.card-head", {}, title, close),
    work.element,
    body,
  );
  element.addEventListener("close", () => work.cancel());
  element.addEventListener("click", (event) => event.target === element && element.close());

  function open({ source, query, hit }) {
    put(title, "Why ", h("span.quiet", {}, `${query.name} and ${hit.name}`));
    put(
      body,
      h("div.why-pair", {}, [query, hit].map((picture) => h("img", { src: picture.thumb, alt: picture.name }))),
    );
    element.showModal();
    work.run("api/images/why", { source, query: query.id, hit: hit.id }, { done: (found) => show(found, query) });
  }

  function show(found, query) {
    const warped = wipe();
    if (found.warp) warped.show(query.url, found.warp, ["the query", "the hit, warped to it"]);
    put(
      body,
      h(
        "div.why-words",
        { data: { matches: found.matches, inliers: found.inliers } },
        verdict(found.verdict, found.probability),
        h("p", {}, found.words ?? ""),
      ),
      found.why
        ? h(
          "figure",
          {},
          h("img.why-picture", { src: found.why, alt: "Matches between both images" }),
          h("figcaption.quiet.small-words", {}, "Inliers of one geometry"),
        )
        : null,
      found.warp
        ? h(
          "figure.why-warped",
          {},
          warped.element,
          h("figcaption.quiet.small-words", {}, "Before and after: drag the edge, or move it with the arrow keys"),
        )
        : null,
    );
  }

  return { element, open };
}
