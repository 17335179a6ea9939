// Duplicates: which photos are copies of one another? What each copy is, why, and which to keep. No file is touched.

import { h, put } from "./dom.js";
import { lightbox } from "./lightbox.js";
import { bytes, whole } from "./numbers.js";
import { basename, card, collections, empty, head, worker } from "./parts.js";

const SHOWN = 60;
const count = (n, one, many) => `${whole(n)} ${n === 1 ? one : many}`;

export function mount(panel) {
  const state = { result: null, shown: SHOWN };
  const work = worker();
  const groups = h("div.groups");
  const summary = h("p.quiet", { "aria-live": "polite" });
  const more = h("button", { type: "button", hidden: true, onclick: () => draw(state.shown + SHOWN) }, "Show more");
  const save = h(
    "div.row.exports",
    { hidden: true },
    h("span.quiet.small-words", {}, "Save the list:"),
    h("button.small", { type: "button", onclick: () => download("duplicates.csv", "text/csv", csv(state.result)) }, "CSV"),
    h("button.small", { type: "button", onclick: () => download("duplicates.json", "application/json", JSON.stringify(listed(state.result), null, 2)) }, "JSON"),
  );
  const box = lightbox();
  const source = collections(open);
  put(
    panel,
    head(
      "Which photos are copies?",
      "Saved again, resized, cropped, turned, mirrored, framed or captioned: each with what was done to it, and the one to keep. likewise never deletes a file.",
      source.element,
    ),
    work.element,
    card("Groups", h("div", {}, summary, groups, h("div.more", {}, more)), { side: save, name: "groups-card" }),
    box.element,
  );
  work.begin(source.begin);

  function open(name) {
    state.result = null;
    save.hidden = more.hidden = true;
    put(summary);
    put(groups);
    work.run("api/images/duplicates", { source: name }, { done: show, partial: show });
  }

  function show(result) {
    state.result = result;
    const groups_ = result.groups;
    const copies = groups_.reduce((sum, group) => sum + group.copies.length - 1, 0);
    const spare = groups_.flatMap((group) => group.copies.filter((copy) => copy.picture.id !== group.keep)).reduce((sum, copy) => sum + copy.bytes, 0);
    const among = `${count(result.count, "photo", "photos")} in “${result.source}”`;
    const said = groups_.length
      ? `${count(groups_.length, "group", "groups")} with ${count(copies, "copy", "copies")} (${bytes(spare)}) among ${among}.`
      : `No copies among ${among}${result.done ? "." : " so far."}`;
    put(summary, said, result.done ? null : " Files that are equal; all others are still being compared.");
    panel.dataset.state = result.done ? "done" : "partial";
    save.hidden = !groups_.length;
    draw(SHOWN);
    if (result.done && !groups_.length) put(groups, empty("No copies", "No two photos of this collection are copies of one another."));
  }

  function draw(many) {
    state.shown = many;
    const all = state.result.groups;
    put(groups, all.slice(0, many).map(drawGroup));
    more.hidden = all.length <= many;
    put(more, `Show ${whole(Math.min(SHOWN, all.length - many))} more of ${whole(all.length)} groups`);
  }

  function drawGroup(group, n) {
    const drawn = h("section.group", { "aria-label": `Group ${n + 1}` });
    const redraw = () => put(drawn, group.copies.map((copy, i) => drawCopy(group, copy, i, redraw)));
    redraw();
    return drawn;
  }

  function drawCopy(group, copy, i, redraw) {
    const { picture } = copy;
    const kept = picture.id === group.keep;
    const best = group.copies.find((one) => one.picture.id === group.keep).picture;
    const others = group.copies.filter((one) => one.picture.id !== group.keep).map((one) => ({ a: best, b: one.picture }));
    const keep = () => {
      group.keep = picture.id;
      redraw();
    };
    const look = () => box.open(others, Math.max(0, others.findIndex(({ b }) => b.id === picture.id)));
    return h(
      `figure.copy${kept ? ".kept" : ""}`,
      { data: { id: picture.id } },
      h("button.hit-picture", { type: "button", title: "Look at both", onclick: look }, h("img", { src: picture.thumb, alt: picture.name, loading: "lazy" })),
      h(
        "figcaption",
        {},
        h("p.clip.hit-name", { title: picture.name }, basename(picture.name)),
        h("p.what", {}, kept ? h("span.verdict.same", {}, "keep") : copy.what || "copy"),
        h("p.quiet.small-words", {}, `${picture.width} × ${picture.height} · ${bytes(copy.bytes)}${picture.time ? ` · ${picture.time.slice(0, 10)}` : ""}`),
        kept || !copy.why ? null : h("p.quiet.small-words", {}, copy.why),
        kept ? null : h("button.small", { type: "button", onclick: keep }, "Keep this one"),
      ),
    );
  }

  return { shown: source.shown };
}

/** The list as it is saved: a row a photo. */
function listed({ folder, groups }) {
  const path = (name) => (name.startsWith("/") ? name : `${folder}/${name}`);
  return groups.flatMap((group, n) =>
    group.copies.map(({ picture, what, why, bytes: size }) => ({
      group: n + 1,
      keep: picture.id === group.keep,
      path: path(picture.name),
      what,
      why,
      width: picture.width,
      height: picture.height,
      bytes: size,
      taken: picture.time ?? "",
    }))
  );
}

export function csv(result) {
  const rows = listed(result);
  const cell = (value) => (/[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  return [Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
