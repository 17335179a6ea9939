// Generators: what does this model cover? A generator's samples while ρ and ψ slide, their quality and diversity.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { h, latest, put, settled } from "./dom.js";
import { figure, fixed, share, whole } from "./numbers.js";
import { card, empty, failed, head, readings, slider, worker } from "./parts.js";

const SHOWN = 36;

export function mount(panel) {
  const state = { open: null, rho: 0, psi: 1, seed: 0 };
  const work = worker();
  const select = h("select", { id: "generator", "aria-label": "Generator" });
  const about = h("p.quiet.small-words");
  const grid = h("img.grid-picture", { alt: "Samples of the generator", hidden: true });
  const sliders = h("div.controls");
  const gauge = h("div.gauge", { "aria-live": "polite" });
  const now = h("div", { "aria-live": "polite" });
  const ends = h("div.two.last");
  const quality = chart({ label: "Precision and recall by ρ", height: 205, picked: (x) => move(x) });
  const distance = chart({ label: "Fréchet distance by ρ", height: 195, picked: (x) => move(x) });
  const speed = h("span.quiet.small-words");
  let rho = null;
  const measure = settled(rested, 350);
  const ask = latest(
    (body) => post("api/distributions/grid", body),
    drawGrid,
    (error) => work.tell(failed(error.message)),
  );

  select.addEventListener("change", () => open(select.value));
  const again = h("button.small", {
    type: "button",
    onclick: () => {
      state.seed += 1;
      draw();
    },
  }, "Resample");
  put(
    panel,
    head(
      "What does this model cover?",
      "Each latent counts by the volume that the generator makes of it, to the power ρ: below 0 towards the modes, above 0 towards what is rarely made. Nothing is trained; a bank of latents is resampled.",
    ),
    work.element,
    h(
      "div.columns",
      {},
      h(
        "div.main-column",
        {},
        h(
          "div.two.two-grid",
          {},
          card("Samples", h("div.grid-frame", {}, grid), { side: speed, name: "samples-card" }),
          card(
            "Quality and diversity",
            h(
              "div",
              {},
              quality.element,
              distance.element,
              h("p.quiet.small-words", {}, "Click a curve to go to its ρ."),
            ),
          ),
        ),
        ends,
      ),
      h(
        "aside.side-column",
        { "aria-label": "Controls and figures" },
        card(
          "Controls",
          h("div.controls", {}, h("label.field", {}, h("span", {}, "Generator"), select), sliders, about),
          { name: "controls-card" },
        ),
        card("Effective sample size", gauge),
        card("Current setting", now),
      ),
    ),
  );
  put(ends, h("div.hollow"), h("div.hollow"));
  put(gauge, h("p.quiet", {}, "How much of the bank carries the weight."));
  put(now, h("p.quiet", {}, "Measured when the curve is."));
  work.begin(begin);

  async function begin() {
    const generators = await get("api/distributions/generators");
    if (!generators.length) return work.tell(empty("No generator", "Give one on the command line."));
    put(select, generators.map(({ name, words }) => h("option", { value: name, title: words }, name)));
    open(generators[0].name);
  }

  function open(name) {
    state.open = null;
    work.run("api/distributions/open", { name }, {
      done: (result) => {
        opened(result);
        work.run("api/distributions/measure", { key: result.key }, { done: opened, partial: opened });
      },
    });
  }

  /** The generator as far as it is measured; comes several times while its bank and its curve grow. */
  function opened(result) {
    const before = state.open;
    state.open = result;
    put(about, result.words);
    drawCurves(result);
    if (before?.modes !== result.modes || before?.antimodes !== result.antimodes) drawEnds(result);
    if (before?.key !== result.key) first(result);
    else if (before.n !== result.n) draw();
    else if (!before.curve.length && result.curve.length) measure();
  }

  function first(result) {
    state.rho = Math.max(result.rho[0], Math.min(result.rho[1], state.rho));
    state.psi = Math.max(result.psi[0], Math.min(result.psi[1], state.psi));
    drawSliders(result);
    draw();
  }

  function drawEnds(result) {
    put(
      ends,
      end(
        "Modes",
        result.modes,
        "where the generator folds most latents onto little: its smoothest, most typical outputs",
      ),
      end("Anti-modes", result.antimodes, "where it stretches: rare, rich, often broken outputs"),
    );
  }

  function end(title, url, words) {
    return card(
      title,
      h(
        "figure.end",
        {},
        url ? h("img", { src: url, alt: `${title} of the generator` }) : empty("None", ""),
        h("figcaption.quiet.small-words", {}, words),
      ),
    );
  }

  function drawSliders({ rho: [low, high], psi: [narrow, wide] }) {
    rho = slider({
      label: "Polarity ρ",
      low,
      high,
      step: 0.1,
      value: state.rho,
      show: (x) => fixed(x, 1),
      ends: ["modes", "0", "anti-modes"],
      moved: (x) => {
        state.rho = x;
        draw();
      },
    });
    const psi = slider({
      label: "Truncation ψ",
      low: narrow,
      high: wide,
      step: 0.01,
      value: state.psi,
      show: (x) => fixed(x, 2),
      ends: ["narrow", "whole latent"],
      moved: (x) => {
        state.psi = x;
        draw();
      },
    });
    const plain = h("button.small", {
      type: "button",
      onclick: () => {
        psi.set(state.psi = wide);
        move(0);
      },
    }, "Plain sampling");
    put(sliders, rho.element, psi.element, h("div.row", {}, plain, again));
  }

  function move(x) {
    state.rho = Math.round(10 * x) / 10;
    rho?.set(state.rho);
    draw();
  }

  function draw() {
    if (!state.open) return;
    for (const one of [quality, distance]) one.mark(state.rho);
    ask({ key: state.open.key, rho: state.rho, psi: state.psi, seed: state.seed, n: SHOWN });
    measure();
  }

  /** When the sliders rest: the current setting, measured. */
  async function rested() {
    if (!state.open?.curve.length) return;
    const asked = { key: state.open.key, rho: state.rho, psi: state.psi };
    try {
      const point = await post("api/distributions/point", asked);
      if (asked.rho !== state.rho || asked.psi !== state.psi) return;
      drawPoint(point, "measured here");
      const values = { precision: point.precision, recall: point.recall, "Fréchet distance": point.frechet };
      for (const one of [quality, distance]) one.mark(state.rho, values);
    } catch (error) {
      put(now, failed(error.message));
    }
  }

  function drawCurves({ curve }) {
    const line = (name, words, tone) => ({ name: words, tone, points: curve.map((row) => [row.rho, row[name]]) });
    const axis = { label: "ρ", low: state.open.rho[0], high: state.open.rho[1] };
    const found = curve.map((row) => row.frechet).filter((x) => x > 0);
    const steep = Math.max(...found) > 50 * Math.min(...found);
    quality.draw({
      series: [line("precision", "precision", 1), line("recall", "recall", 2)],
      x: axis,
      y: { low: 0, high: 1 },
    });
    distance.draw({ series: [line("frechet", "Fréchet distance", 3)], x: axis, y: steep ? { log: true } : { low: 0 } });
  }

  function drawGrid(found, asked) {
    if (asked.key !== state.open?.key) return;
    grid.src = found.image;
    grid.hidden = false;
    grid.alt = `${SHOWN} samples at ρ = ${fixed(asked.rho, 1)}, ψ = ${fixed(asked.psi, 2)}`;
    put(speed, typeof found.ms === "number" ? `${whole(found.ms)} ms` : "");
    drawGauge(found.ess);
  }

  function drawPoint(point, words) {
    put(
      now,
      readings([
        ["ρ, ψ", `${fixed(point.rho, 1)}, ${fixed(point.psi, 2)}`],
        ["precision", figure(point.precision), "the share of samples that lie where the reference does"],
        ["recall", figure(point.recall), "the share of the reference that the samples cover"],
        ["Fréchet", figure(point.frechet), "smaller is closer"],
      ]),
      h("p.quiet.small-words", {}, words),
    );
  }

  function drawGauge(ess) {
    const { n } = state.open;
    const weak = ess * n < 100;
    put(
      gauge,
      h("p.headline", {}, h("span.headline-figure", {}, share(ess)), ` of ${whole(n)} latents`),
      h("div.gauge-bar", {
        role: "meter",
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-valuenow": Math.round(100 * ess),
        "aria-label": "effective sample size",
      }, bar(ess, weak)),
      h(
        "p.quiet.small-words",
        {},
        weak
          ? `About ${whole(Math.max(1, ess * n))} latents carry the weight: expect repeats.`
          : `As good as ${whole(ess * n)} independent draws.`,
      ),
    );
  }

  function bar(ess, weak) {
    const fill = h(`i${weak ? ".weak" : ""}`);
    fill.style.width = `${Math.max(0.5, 100 * ess)}%`;
    return fill;
  }

  return {};
}
