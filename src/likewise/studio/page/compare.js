// Compare: do two photos show the same? The evidence of the pair at once; and, when asked for, where every pixel went.

import { get, post } from "./api.js";
import { h, latest, put } from "./dom.js";
import { chooser, sent } from "./drops.js";
import { evidenceReadings, pairView } from "./lightbox.js";
import { figure, fixed, share } from "./numbers.js";
import { card, choice, failed, head, readings, verdict, worker } from "./parts.js";

export function mount(panel) {
  const state = { a: null, b: null, evidence: null, flow: null, begun: false };
  const [work, aligning] = [worker(), worker()];
  const view = pairView({ asked, dropped: take });
  const samples = h("div.samples", { role: "group", "aria-label": "Samples" });
  const said = h("div.said", { "aria-live": "polite" });
  const point = h("div.point", { "aria-live": "polite" });
  const flow = h("div.flow");
  const pointCard = card("One point", point, { name: "point-card" });
  const askPoint = latest(
    (body) => post("api/pixels/point", body),
    drawPoint,
    (error) => put(point, failed(error.message)),
  );
  const chooseRow = h(
    "div.row",
    {},
    ["a", "b"].map((side) => chooser({ words: `Choose ${side}`, label: `Choose photo ${side}`, taken: (files) => take(side, files) })),
    h("button", { type: "button", onclick: swap, title: "a becomes b, b becomes a" }, "Swap"),
  );
  put(
    panel,
    head(
      "Do these two show the same?",
      "Two photos, in other light or from elsewhere: the verdict, the matches that one geometry explains, and one photo warped to the other.",
      samples,
    ),
    work.element,
    h(
      "div.columns",
      {},
      h(
        "div.main-column",
        {},
        card("Photos", h("div", {}, view.element, h("div.under", {}, view.tools, chooseRow)), { name: "photos" }),
        card("Every pixel", h("div", {}, aligning.element, flow), { name: "last" }),
      ),
      h("aside.side-column", { "aria-label": "Evidence" }, card("Verdict", said, { name: "said-card" }), pointCard),
    ),
  );
  blank();

  // ------------------------------------------------------------------------------------------------------------- steps

  async function begin() {
    const found = await get("api/pixels/samples");
    put(samples, h("span.quiet", {}, "Samples"), found.map(sampleButton));
    if (found.length && !state.a && !state.b) start(found[0]);
  }

  function sampleButton(sample) {
    const pictures = [sample.a, sample.b].map((p) => h("img", { src: p.thumb, alt: "", width: 40, height: 30 }));
    const attributes = { type: "button", title: sample.words, data: { sample: sample.name }, onclick: () => start(sample) };
    return h("button.sample", attributes, pictures, h("span", {}, sample.name));
  }

  function start({ a, b, name = null }) {
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
      start(state);
    } catch (error) {
      work.tell(failed(error.message));
    }
  }

  function swap() {
    if (state.a && state.b) start({ a: state.b, b: state.a });
  }

  function compare() {
    aligning.cancel();
    blank();
    view.show(state);
    if (!state.a || !state.b) return;
    work.run("api/images/why", { a: state.a.id, b: state.b.id }, { done: compared });
  }

  function compared(found) {
    Object.assign(state, { a: found.a, b: found.b, evidence: found });
    view.show(state);
    put(said, h("p.verdict-line", {}, verdict(found.verdict, found.probability)), h("p.said-words", {}, found.words), evidenceReadings(found));
    panel.dataset.pair = `${found.a.id} ${found.b.id}`;
    offer();
  }

  // ------------------------------------------------------------------------------------------------------- every pixel

  function offer() {
    put(
      flow,
      h("p.quiet.small-words", {}, "Where did every pixel of a go? A dense flow, with its round-trip consistency; takes some seconds."),
      h("button.primary.align", { type: "button", onclick: align }, "Align every pixel"),
    );
  }

  function align() {
    put(flow);
    aligning.run("api/pixels/compare", { a: state.a.id, b: state.b.id }, { done: aligned });
  }

  function aligned(result) {
    state.flow = result;
    panel.dataset.key = result.key;
    const trusted = !result.reason && state.evidence?.verdict !== "different";
    const pictures = { flow: "Flow", confidence: "Confidence" };
    const image = h("img", { alt: "The flow, each vector as a colour" });
    const legend = wheel(result.images.wheel, result.largest);
    const turn = (name) => {
      image.src = result.images[name];
      image.alt = name === "flow" ? "The flow, each vector as a colour" : "The confidence, from blue (none) to yellow (sure)";
      legend.hidden = name !== "flow";
    };
    turn("flow");
    const figures = h(
      "div",
      {},
      result.reason
        ? h("p.headline", {}, `Not aligned: ${result.reason}.`)
        : h("p.headline", { title: "the median distance of a pixel from its place after going to b and back" }, h("span.headline-figure", {}, figure(result.distance)), " px round-trip error"),
      readings([
        ["aligned", share(result.aligned), "the share of a's pixels whose place in b is sure"],
        ["round-trip consistency", share(result.cycle_consistency), "the share of a's pixels that are inside b and return to their place"],
        ["model", result.model],
      ]),
      result.steps?.length
        ? h("details", {}, h("summary", {}, `${result.steps.length} ${result.steps.length === 1 ? "step" : "steps"}`), h("ol.steps", {}, result.steps.map((step) => h("li", {}, step))))
        : null,
      legend,
    );
    const show = choice({ label: "Show", value: "flow", options: Object.entries(pictures), chosen: turn });
    put(flow, h("div.two", {}, h("div.flow", {}, show, image), figures));
    if (trusted) view.warp(result.images.warp, "b, warped to a by the flow; grey is not sure");
    pointCard.hidden = false;
    asked(0.5, 0.5);
  }

  function asked(x, y) {
    if (!state.flow) return;
    const [height, width] = state.flow.sizes[0];
    view.mark([x, y], null);
    askPoint({ key: state.flow.key, x: x * width - 0.5, y: y * height - 0.5 });
  }

  function drawPoint(found, { key, x, y }) {
    if (key !== state.flow?.key) return;
    const [[ha, wa], [hb, wb]] = state.flow.sizes;
    view.mark([(x + 0.5) / wa, (y + 0.5) / ha], found.inside ? [(found.x + 0.5) / wb, (found.y + 0.5) / hb] : null);
    const spot = (p) => `${fixed(p[0], 1)}, ${fixed(p[1], 1)}`;
    put(
      point,
      readings([
        ["in a", spot([x, y])],
        ["in b", found.inside ? spot([found.x, found.y]) : "outside of b"],
        ["confidence", share(found.confidence)],
        ["round-trip error", `${figure(found.error)} px`, "how far the point is from its place after going to b and back"],
      ]),
      h("p.quiet.small-words", {}, "Click another point of a."),
    );
  }

  function blank() {
    Object.assign(state, { evidence: null, flow: null });
    delete panel.dataset.pair;
    delete panel.dataset.key;
    put(said, h("p.quiet", {}, "The verdict comes with two photos."));
    put(flow, h("p.quiet.small-words", {}, "First come the matches."));
    pointCard.hidden = true;
  }

  return {
    /** #compare/a/b leads to two photos of the session. */
    shown(rest) {
      const [a, b] = rest.split("/");
      const first = !state.begun;
      state.begun = true;
      if (a && b && panel.dataset.pair !== `${a} ${b}`) work.run("api/images/why", { a, b }, { done: compared });
      if (first) work.begin(a && b ? async () => put(samples, (await get("api/pixels/samples")).map(sampleButton)) : begin);
    },
  };
}

/** The key to a flow's colours, as the server draws it; `largest` is the length in pixels that its rim stands for. */
function wheel(url, largest) {
  const words = "Colour wheel: hue is the direction of motion, strength is its length";
  const rim = typeof largest === "number" ? `rim ${figure(largest)} px` : "rim: longest motion";
  return h(
    "div.wheel",
    {},
    h("img.wheel-disc", { src: url, alt: words }),
    h("div", {}, h("b", {}, "hue"), " direction", h("br"), h("b", {}, "white"), " at rest", h("br"), rim),
  );
}
