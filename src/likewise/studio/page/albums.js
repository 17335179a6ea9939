// Albums: how alike are two albums? Their photos in two columns, joined by bands as wide as the mass between them.

import { get, post } from "./api.js";
import { h, latest, put } from "./dom.js";
import { chooser, droppable, sentSome } from "./drops.js";
import { figure, share, whole } from "./numbers.js";
import { card, choice, failed, head, readings, slider, worker } from "./parts.js";
import { ribbons } from "./ribbons.js";

export function mount(panel) {
  const state = { a: [], b: [], key: null, gamma: null, metric: null, wanted: null, scale: null, sample: null };
  const work = worker();
  const left = h("div", { "aria-live": "polite" });
  const bands = ribbons({ noticed });
  const controls = h("div.controls");
  const figures = h("div", { "aria-live": "polite" });
  const one = h("div.noticed", { "aria-live": "polite" });
  const askPlan = latest((body) => post("api/sets/plan", body), drawPlan, (error) => work.tell(failed(error.message)));

  const pick = (side) =>
    chooser({
      words: `Choose ${side}`,
      label: `Choose photos for album ${side}`,
      several: true,
      taken: (files) => take(side, files),
    });
  const back = h("button", { type: "button", onclick: () => state.sample && open(state.sample) }, "Samples");
  for (const side of ["a", "b"]) droppable(bands.columns[side], (files) => take(side, files));
  put(
    panel,
    head(
      "How alike are two albums?",
      "Each photo's mass goes to the photos most similar to it; the cost of that transport is the distance. Hover, focus or tap a photo to see where its mass goes.",
    ),
    work.element,
    left,
    h(
      "div.columns",
      {},
      h(
        "div.main-column",
        {},
        card("Transport plan", bands.element, { side: h("div.row", {}, pick("a"), pick("b"), back), name: "plan" }),
      ),
      h(
        "aside.side-column",
        { "aria-label": "Controls and figures" },
        card("Controls", controls, { name: "controls-card" }),
        card("Figures", figures),
        card("One photo", one),
      ),
    ),
  );
  put(figures, h("p.quiet", {}, "The figures come with the comparison."));
  noticed(null);
  work.begin(begin);

  async function begin() {
    state.sample = (await get("api/sets/samples")).albums;
    if (!state.a.length && !state.b.length) open(state.sample);
  }

  function tellLeft(side, refused) {
    const files = refused.length === 1 ? "One file was" : `${whole(refused.length)} files were`;
    const why = refused.map((error) => h("li", {}, error.message));
    put(left, refused.length ? h("div.left-out", {}, h("p", {}, `${files} left out of album ${side}:`), h("ul", {}, why)) : null);
  }

  function open([a, b]) {
    put(left);
    Object.assign(state, { a: a.pictures, b: b.pictures });
    bands.names(a.name, b.name);
    compare();
  }

  async function take(side, files) {
    try {
      const { pictures, refused } = await sentSome(
        files,
        (done, all) => work.tell(h("p.work-words", {}, `Sending photo ${done + 1} of ${all} …`)),
      );
      work.tell();
      tellLeft(side, refused);
      state[side] = pictures;
      bands.names(side === "a" ? "your album a" : null, side === "b" ? "your album b" : null);
      compare();
    } catch (error) {
      work.tell(failed(error.message));
    }
  }

  function compare() {
    state.key = null;
    bands.pictures(state.a, state.b);
    if (!state.a.length || !state.b.length) return;
    work.run("api/sets/compare", { a: state.a.map((p) => p.id), b: state.b.map((p) => p.id) }, { done: compared });
  }

  /** The albums can be planned; the learned metric follows, and γ stays as it was set. */
  function compared(result) {
    if (state.key !== result.key) Object.assign(state, { key: result.key, gamma: null });
    state.scale = result.scale;
    const names = result.metrics.map((metric) => metric.name);
    state.metric = names.find((name) => name === state.wanted) ?? names.find((name) => name === "learned") ?? names[0];
    drawControls(result);
    ask();
    if (!names.includes("learned")) work.run("api/sets/learn", { key: result.key }, { done: compared });
  }

  const ask = () => askPlan({ key: state.key, gamma: state.gamma, metric: state.metric });

  function drawControls({ gamma, metrics }) {
    const words = h("p.quiet.small-words");
    const say = () => put(words, metrics.find((metric) => metric.name === state.metric)?.words ?? "");
    const smooth = slider({
      label: "Smoothing γ",
      low: gamma.low,
      high: gamma.high,
      value: state.gamma ?? gamma.auto,
      log: true,
      step: "any",
      show: (x) => figure(x),
      ends: ["sharp", "smooth"],
      hint: "Small γ: near to exact transport, few bands. Large γ: mass is spread.",
      moved: (x) => {
        state.gamma = x;
        ask();
      },
    });
    const auto = h("button.small", {
      type: "button",
      onclick: () => {
        state.gamma = null;
        smooth.set(gamma.auto);
        ask();
      },
    }, "Automatic γ");
    const metric = choice({
      label: "Metric",
      value: state.metric,
      options: metrics.map((m) => [m.name, m.name, m.words]),
      chosen: (name) => {
        state.metric = state.wanted = name;
        say();
        ask();
      },
    });
    say();
    put(controls, smooth.element, auto, metric, words);
  }

  function drawPlan(found, asked) {
    if (asked.key !== state.key) return;
    bands.plan(found.plan);
    panel.dataset.gamma = found.gamma;
    const heavy = found.plan.flat().filter((mass) => mass > 1e-3).length;
    put(
      figures,
      h("p.headline", {}, h("span.headline-figure", {}, figure(found.distance)), " distance"),
      h("p.scale", { title: state.scale.reference }, state.scale.sentence || `no scale: ${state.scale.reason}`),
      readings([
        ["γ", figure(found.gamma)],
        ["metric", found.metric],
        ["bands above 0.1 %", whole(heavy), "pairs of photos that share more than a thousandth of the mass"],
        ["iterations", whole(found.iterations)],
        ["converged", found.converged ? "yes" : "not yet"],
      ]),
    );
  }

  function noticed(what) {
    if (!what) {
      return put(one, h("p.quiet", {}, "Hover, focus or tap a photo: only its bands stay, with their masses."));
    }
    const rows = what.partners.slice(0, 6).map(({ picture, mass }) =>
      h("li", {}, h("img", { src: picture.thumb, alt: "" }), h("span.clip", {}, picture.name), h("b", {}, share(mass)))
    );
    return put(one, h("p", {}, h("b", {}, what.picture.name), " sends its mass to"), h("ol.partners", {}, rows));
  }

  return {};
}
