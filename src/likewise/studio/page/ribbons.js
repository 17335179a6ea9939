// A transport plan as bands between two columns of pictures. A band's width at a picture is the share of that picture's
// mass that goes along it, so the bands of a picture fill its height.

import { h, put, s } from "./dom.js";
import { share } from "./numbers.js";

/** Bands below this share of the whole mass are not drawn. */
const LEAST = 2e-4;

/** {element, columns, names(a, b), pictures(a, b), plan(matrix)}; `noticed` gets {picture, partners} or null. */
export function ribbons({ noticed }) {
  const columns = {
    a: h("div.album", { data: { side: "a" }, role: "list", "aria-label": "Album a" }),
    b: h("div.album", { data: { side: "b" }, role: "list", "aria-label": "Album b" }),
  };
  const titles = { a: h("h3", {}, "album a"), b: h("h3", {}, "album b") };
  const drawing = s("svg.bands", { "aria-hidden": "true" });
  const element = h(
    "div.ribbons",
    {},
    h("div.ribbon-heads", {}, titles.a, titles.b),
    h("div.ribbon-body", {}, columns.a, drawing, columns.b),
  );
  const state = { a: [], b: [], plan: null, order: null, tiles: { a: [], b: [] }, chosen: null };

  function pictures(a, b) {
    Object.assign(state, { a, b, plan: null, order: null, chosen: null });
    for (const side of ["a", "b"]) {
      state.tiles[side] = state[side].map((picture, i) => tile(side, picture, i));
      put(
        columns[side],
        state.tiles[side].length ? state.tiles[side] : h("p.frame-empty", {}, `Drop photos for album ${side} here`),
      );
    }
    element.style.setProperty("--count", String(Math.max(1, a.length, b.length)));
    put(drawing);
    noticed(null);
  }

  function tile(side, picture, i) {
    const choose = (on) => {
      state.chosen = on ? { side, i } : null;
      draw();
      tell();
    };
    const image = h("img", { src: picture.thumb, alt: picture.name, draggable: "false" });
    const label = h("span.tile-mass");
    const button = h("button.tile", { type: "button", title: picture.name }, image, label);
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && choose(true));
    button.addEventListener(
      "pointerleave",
      (event) => event.pointerType === "mouse" && choose(document.activeElement === button),
    );
    button.addEventListener("focus", () => choose(true));
    button.addEventListener("blur", () => choose(false));
    button.addEventListener("keydown", (event) => roam(event, side, button));
    return h("div", { role: "listitem" }, button);
  }

  function roam(event, side, button) {
    const buttons = (name) => [...columns[name].querySelectorAll("button")];
    const here = buttons(side).indexOf(button);
    const targets = {
      ArrowUp: buttons(side)[here - 1],
      ArrowDown: buttons(side)[here + 1],
      ArrowLeft: side === "b" ? buttons("a")[here] ?? buttons("a").at(-1) : null,
      ArrowRight: side === "a" ? buttons("b")[here] ?? buttons("b").at(-1) : null,
    };
    if (!(event.key in targets)) return;
    event.preventDefault();
    targets[event.key]?.focus();
  }

  function plan(matrix) {
    state.plan = matrix;
    if (!state.order) arrange(matrix);
    draw();
    tell();
  }

  /** Put the pictures in an order in which few bands cross: each at the mean place of its partners, a few times. */
  function arrange(matrix) {
    const across = transposed(matrix);
    let [a, b] = [matrix.map((_, i) => i), across.map((_, j) => j)];
    for (let n = 0; n < 6; n++) {
      b = sorted(across, b, a);
      a = sorted(matrix, a, b);
    }
    state.order = { a, b };
    for (const side of ["a", "b"]) columns[side].append(...state.order[side].map((i) => state.tiles[side][i]));
  }

  function draw() {
    if (!state.plan) return;
    const frame = drawing.getBoundingClientRect();
    if (!frame.width) return;
    drawing.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    const box = (side) =>
      state.tiles[side].map((tile) => tile.getBoundingClientRect()).map(({ top, height }) => ({
        top: top - frame.top,
        height,
      }));
    const bands = stacked(state.plan, state.order, box("a"), box("b"));
    put(drawing, bands.sort((p, q) => p.mass - q.mass).map((band) => drawn(band, frame.width, state.chosen)));
    drawing.dataset.bands = bands.length;
    label();
  }

  /** The masses of the chosen picture, beside its partners. */
  function label() {
    const chosen = state.chosen;
    for (const side of ["a", "b"]) {
      state.tiles[side].forEach((tile, i) => {
        const mass = chosen && chosen.side !== side ? part(chosen, i) : null;
        tile.querySelector(".tile-mass").textContent = mass !== null && mass > 0.001 ? share(mass) : "";
        tile.classList.toggle("faint", chosen !== null && !(chosen.side === side ? chosen.i === i : mass > 0.001));
      });
    }
  }

  const row = ({ side, i }) => (side === "a" ? state.plan[i] : state.plan.map((line) => line[i]));
  const part = (chosen, j) => row(chosen)[j] / (row(chosen).reduce((sum, m) => sum + m, 0) || 1);

  function tell() {
    if (!state.chosen || !state.plan) return noticed(null);
    const { side, i } = state.chosen;
    const other = side === "a" ? "b" : "a";
    const partners = state[other].map((picture, j) => ({ picture, mass: part(state.chosen, j) })).sort((p, q) =>
      q.mass - p.mass
    );
    return noticed({ picture: state[side][i], partners: partners.filter(({ mass }) => mass > 0.001) });
  }

  new ResizeObserver(draw).observe(element);
  return {
    element,
    columns,
    pictures,
    plan,
    names(a, b) {
      if (a) titles.a.textContent = a;
      if (b) titles.b.textContent = b;
    },
  };
}

const transposed = (matrix) => matrix[0].map((_, j) => matrix.map((line) => line[j]));

function sorted(matrix, mine, other) {
  const place = new Map(other.map((j, n) => [j, n]));
  const middle = (i) => {
    const sum = matrix[i].reduce((total, mass) => total + mass, 0) || 1;
    return matrix[i].reduce((total, mass, j) => total + mass * place.get(j), 0) / sum;
  };
  return [...mine].sort((p, q) => middle(p) - middle(q));
}

/** Each band's two ends: [top, height] on either side, stacked in the order of the pictures that it leads to. */
function stacked(plan, order, boxesA, boxesB) {
  const sumA = plan.map((line) => line.reduce((t, m) => t + m, 0) || 1);
  const sumB = transposed(plan).map((line) => line.reduce((t, m) => t + m, 0) || 1);
  const bands = new Map();
  for (const i of order.a) {
    let top = boxesA[i].top;
    for (const j of order.b) {
      const height = (plan[i][j] / sumA[i]) * boxesA[i].height;
      if (plan[i][j] > LEAST) {
        bands.set(`${i},${j}`, {
          i,
          j,
          mass: plan[i][j],
          part: Math.max(plan[i][j] / sumA[i], plan[i][j] / sumB[j]),
          from: [top, height],
        });
      }
      top += height;
    }
  }
  for (const j of order.b) {
    let top = boxesB[j].top;
    for (const i of order.a) {
      const height = (plan[i][j] / sumB[j]) * boxesB[j].height;
      const band = bands.get(`${i},${j}`);
      if (band) band.to = [top, height];
      top += height;
    }
  }
  return [...bands.values()];
}

function drawn({ i, j, part, mass, from, to }, width, chosen) {
  const mine = chosen && (chosen.side === "a" ? chosen.i === i : chosen.i === j);
  const [top0, top1, end0, end1] = [from[0], to[0], from[0] + from[1], to[0] + to[1]].map((v) => v.toFixed(1));
  const half = (width / 2).toFixed(1);
  const d =
    `M0 ${top0}C${half} ${top0} ${half} ${top1} ${width} ${top1}V${end1}C${half} ${end1} ${half} ${end0} 0 ${end0}Z`;
  const name = chosen ? (mine ? "band.mine" : "band.off") : "band";
  return s(`path.${name}`, {
    d,
    "fill-opacity": chosen ? (mine ? 0.75 : 0.04) : (0.1 + 0.6 * part).toFixed(3),
    data: { from: i, to: j, mass: mass.toPrecision(4) },
  });
}
