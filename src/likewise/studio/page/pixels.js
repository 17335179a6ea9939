// Pixels: where did this point go? Two photos, the flow between them, the warp, and the matches.

import { get, post } from "./api.js";
import { h, latest, put } from "./dom.js";
import { chooser, sent } from "./drops.js";
import { figure, fixed, share, whole } from "./numbers.js";
import { pair } from "./pair.js";
import { card, choice, failed, head, readings, slider, toggle, verdict, worker } from "./parts.js";
import { loupes, wheel, wipe } from "./viewers.js";

export function mount(panel) {
  const state = { a: null, b: null, result: null, radius: 5 };
  const work = worker();
  const view = pair({ asked, dropped: take });
  const before = wipe();
  const near = loupes();
  const samples = h("div.samples", { role: "group", "aria-label": "Samples" });
  const figures = h("div", { "aria-live": "polite" });
  const point = h("div.point", { "aria-live": "polite" });
  const legend = h("div.legend");
  const reason = h("p.quiet.small-words");
  const flow = h("div.flow");
  const beforeChoice = choice({
    label: "Show over a",
    options: [["warp", "b warped to a"], ["confidence", "confidence"]],
    value: "warp",
    chosen: overlay,
  });

  const radius = slider({
    label: "Search radius",
    low: 1,
    high: 30,
    step: 0.5,
    value: state.radius,
    show: (x) => `${fixed(x, 1)} px`,
    hint: "Stage 1 looks for a match this near to where the flow says it is",
    moved: (x) => {
      state.radius = x;
      if (state.result) askMatches({ key: state.result.key, radius: x });
    },
  });
  const askMatches = latest(
    (body) => post("api/pixels/match", body),
    drawMatches,
    (error) => put(reason, error.message),
  );
  const askPoint = latest(
    (body) => post("api/pixels/point", body),
    drawPoint,
    (error) => put(point, failed(error.message)),
  );

  // ------------------------------------------------------------------------------------------------------------ layout

  const choose = h(
    "div.row",
    {},
    ["a", "b"].map((side) =>
      chooser({ words: `Choose ${side}`, label: `Choose photo ${side}`, taken: (files) => take(side, files) })
    ),
    h("button", { type: "button", onclick: swap, title: "a becomes b, b becomes a" }, "Swap"),
  );
  const left = h(
    "div.main-column",
    {},
    card("Matches", h("div", {}, view.element, h("div.under", {}, radius.element, legend), reason), {
      side: choose,
      name: "matches",
    }),
    h(
      "div.two.last",
      {},
      card(
        "Before and after",
        h(
          "div",
          {},
          before.element,
          h("p.quiet.small-words.after-words", {}, "Drag the edge, or move it with the arrow keys."),
        ),
        { side: beforeChoice },
      ),
      card("Flow", flow),
    ),
  );
  const right = h(
    "aside.side-column",
    { "aria-label": "Figures" },
    card("Figures", figures, { name: "figures-card" }),
    card("One point", h("div", {}, point, near.element), { name: "point-card" }),
  );
  put(
    panel,
    head(
      "Where did this point go?",
      "Two photos of one place, in other light and from elsewhere: a motion vector for each pixel, and its round-trip consistency, for which no ground truth is needed.",
      samples,
    ),
    work.element,
    h("div.columns", {}, left, right),
  );
  blank();
  work.begin(begin);

  // ------------------------------------------------------------------------------------------------------------- steps

  async function begin() {
    const found = await get("api/pixels/samples");
    put(samples, h("span.quiet", {}, "Samples"), found.map((sample) => sampleButton(sample)));
    if (found.length && !state.a && !state.b) start(found[0]);
  }

  function sampleButton(sample) {
    const pictures = [sample.a, sample.b].map((p) => h("img", { src: p.thumb, alt: "", width: 40, height: 30 }));
    return h(
      "button.sample",
      {
        type: "button",
        title: sample.words,
        data: { sample: sample.name },
        onclick: () => start(sample),
      },
      pictures,
      h("span", {}, sample.name),
    );
  }

  function start({ a, b, name }) {
    Object.assign(state, { a, b });
    for (const button of samples.querySelectorAll("button")) {
      button.setAttribute("aria-current", String(button.dataset.sample === name));
    }
    compare();
  }

  async function take(side, files) {
    try {
      work.tell(h("p.work-words", {}, `Sending ${files[0].name} …`));
      const [one, two] = [await sent(files.slice(0, 1)), await sent(files.slice(1, 2))];
      const pictures = two.length ? [one[0], two[0]] : one; // of a video by itself, two of its frames
      work.tell();
      if (pictures.length > 1) [state.a, state.b] = pictures;
      else state[side] = pictures[0];
      start({ ...state, name: null });
    } catch (error) {
      work.tell(failed(error.message));
    }
  }

  function swap() {
    if (state.a && state.b) start({ a: state.b, b: state.a, name: null });
  }

  function compare() {
    blank();
    view.pictures(state.a, state.b);
    if (!state.a || !state.b) return;
    work.run("api/pixels/compare", { a: state.a.id, b: state.b.id }, { done: compared, partial: compared });
  }

  /** The pair is aligned; comes a second time with the verdict, and then all but the figures stays as it is. */
  function compared(result) {
    const again = state.result?.key === result.key;
    state.result = result;
    if (again) {
      put(figures, measured(result));
      return;
    }
    panel.dataset.key = result.key;
    const [ha, wa] = result.size_a;
    view.sizes(result.size_a, result.size_b);
    put(figures, measured(result));
    put(
      flow,
      h(
        "div.flow-picture",
        {},
        h("img", { src: result.images.flow, alt: "The flow, each vector as a colour" }),
        wheel(result.images.wheel, result.largest),
      ),
    );
    overlay("warp");
    beforeChoice.querySelector("input[value=warp]").checked = true;
    near.pictures(state.a.url, state.b.url, result.size_a, result.size_b);
    askMatches({ key: result.key, radius: state.radius });
    view.point(Math.round(wa * 0.5), Math.round(ha * 0.5));
  }

  function overlay(what) {
    if (!state.result) return;
    const { images } = state.result;
    const words = what === "warp" ? ["a", "b warped to a"] : ["a", "confidence: bright is sure"];
    before.show(images.a, images[what], words);
  }

  function asked(x, y) {
    if (state.result) askPoint({ key: state.result.key, x, y });
  }

  // ----------------------------------------------------------------------------------------------------------- drawing

  function blank() {
    state.result = null;
    view.clear();
    delete panel.dataset.key;
    put(figures, h("p.quiet", {}, "The figures come with the comparison."));
    put(point, h("p.quiet", {}, "Click a point of a."));
    put(flow, h("div.hollow"));
    put(legend);
    put(reason);
    near.clear();
  }

  function drawMatches(found, asked) {
    if (asked.key !== state.result?.key) return;
    view.matches(found.matches);
    const drawn = found.matches.length;
    const counts = { stage1: 0, stage2: 0, outlier: 0 };
    for (const row of found.matches) counts[row[5] ? `stage${row[4]}` : "outlier"] += 1;
    const marks = [["stage1", "near the flow"], ["stage2", "elsewhere"], ["outlier", "outliers"]];
    const pressed = Object.fromEntries(
      [...legend.querySelectorAll("button")].map((b) => [b.dataset.group, b.getAttribute("aria-pressed") === "true"]),
    );
    put(
      legend,
      marks.map(([name, words]) => {
        const button = toggle({
          mark: name,
          words: h("span", {}, words, " ", h("b", {}, whole(counts[name]))),
          on: pressed[name] ?? true,
          switched: (on) => view.shown(name, on),
        });
        button.dataset.group = name;
        return button;
      }),
    );
    const kind = found.kind
      ? `${whole(found.inliers)} of ${whole(found.total)} matches are inliers of one ${
        found.kind === "fundamental" ? "fundamental matrix" : found.kind
      }`
      : `${whole(found.total)} matches, no geometric model`;
    const more = drawn < found.total ? `; ${whole(drawn)} drawn` : "";
    put(reason, `${kind}${more}.`, found.reason ? ` ${found.reason}` : null);
    reason.dataset.total = found.total;
  }

  function drawPoint(found, { key, x, y }) {
    if (key !== state.result?.key) return;
    view.answer(found);
    near.look([x, y], found.inside ? [found.x, found.y] : null);
    const spot = (p) => `${fixed(p[0], 1)}, ${fixed(p[1], 1)}`;
    put(
      point,
      readings([
        ["in a", spot([x, y])],
        ["in b", found.inside ? spot([found.x, found.y]) : "outside of b"],
        ["confidence", share(found.confidence)],
        ["round-trip error", `${figure(found.error)} px`, "how far the point is from its place after going to b and back"],
      ]),
      h("meter.confidence", { min: 0, max: 1, value: found.confidence ?? 0, "aria-label": "confidence" }),
    );
  }

  return {};
}

function measured(result) {
  const rows = [
    [
      "both show the same?",
      result.verdict ? verdict(result.verdict, result.probability) : "…",
      "from the distance of the embeddings, the local similarity and the inliers; as in a search",
    ],
    ["aligned", share(result.aligned), "the share of a's pixels whose place in b is sure"],
    ["round-trip consistency", share(result.cycle_consistency), "the share of a's pixels that are inside b and return to their place"],
    ["size of a", `${result.size_a[1]} × ${result.size_a[0]}`],
    ["size of b", `${result.size_b[1]} × ${result.size_b[0]}`],
    ["model", result.model],
  ];
  const steps = result.steps?.length
    ? h(
      "details",
      { open: true },
      h("summary", {}, `${result.steps.length} ${result.steps.length === 1 ? "step" : "steps"}`),
      h("ol.steps", {}, result.steps.map((step) => h("li", {}, step))),
    )
    : null;
  const headline = result.reason
    ? h("p.headline", {}, `no alignment: ${result.reason}`)
    : h(
      "p.headline",
      { title: "the median distance of a pixel from its place after going to b and back" },
      h("span.headline-figure", {}, figure(result.distance)),
      " px round-trip error",
    );
  return [
    headline,
    readings(rows),
    steps,
  ];
}
