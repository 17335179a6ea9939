// Two pictures side by side (one above the other on a phone), the lines of their matches, and one point in both.

import { h, put, s } from "./dom.js";
import { droppable } from "./drops.js";

/** Of more matches than this only some get a line; each has its dots. */
const LINES = 120;
const GROUPS = ["outlier", "stage2", "stage1"]; // drawn in this order: what matters most lies above

/**
 * {element, pictures(a, b), sizes(a, b), matches(rows), shown(group, on), point(x, y), answer(found), clear()}.
 * `asked(x, y)` gets a point of a, in its own pixels; `dropped(side, files)` gets files.
 */
export function pair({ asked, dropped }) {
  const sides = { a: frame("a", dropped), b: frame("b", dropped) };
  const layers = Object.fromEntries(GROUPS.map((name) => [name, s(`g.${name}`, { data: { group: name } })]));
  const marks = s("g.marks");
  const overlay = s("svg.pair-lines", { "aria-hidden": "true" }, ...GROUPS.map((name) => layers[name]), marks);
  const element = h("div.pair", {}, sides.a.element, sides.b.element, overlay);
  const state = { a: null, b: null, rows: [], at: null, found: null };

  const place = (name, x, y) => {
    const [height, width] = state[name];
    const box = sides[name].image.getBoundingClientRect();
    const frame = element.getBoundingClientRect();
    return [
      box.left - frame.left + ((x + 0.5) / width) * box.width,
      box.top - frame.top + ((y + 0.5) / height) * box.height,
    ];
  };

  function draw() {
    const { width, height } = element.getBoundingClientRect();
    if (!width) return;
    overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const name of GROUPS) drawGroup(name);
    drawMarks();
  }

  function drawGroup(name) {
    const rows = state.a && state.b ? state.rows.filter((row) => group(row) === name) : [];
    const every = Math.max(1, Math.ceil(state.rows.length / LINES));
    const [lines, dots] = [[], []];
    rows.forEach(([xa, ya, xb, yb], n) => {
      const [from, to] = [place("a", xa, ya), place("b", xb, yb)].map((p) => p.map((v) => v.toFixed(1)).join(" "));
      if (n % every === 0) lines.push(`M${from}L${to}`);
      dots.push(`M${from}h0M${to}h0`);
    });
    put(
      layers[name],
      s("path.halo", { d: dots.join("") }),
      s("path.line", { d: lines.join("") }),
      s("path.dot", { d: dots.join("") }),
    );
    layers[name].dataset.count = rows.length;
  }

  function drawMarks() {
    put(marks);
    if (!state.at || !state.a) return;
    const from = place("a", ...state.at);
    marks.append(cross(from, "asked"));
    if (!state.found?.inside) return;
    const to = place("b", state.found.x, state.found.y);
    marks.prepend(s("path.mark-line", { d: `M${from}L${to}` }));
    marks.append(cross(to, "found", 1 - state.found.confidence));
  }

  function at(x, y) {
    const [height, width] = state.a;
    state.at = [Math.max(0, Math.min(width - 1, x)), Math.max(0, Math.min(height - 1, y))];
    state.found = null;
    drawMarks();
    asked(...state.at);
  }

  sides.a.stage.addEventListener("click", (event) => {
    if (!state.a) return;
    const box = sides.a.image.getBoundingClientRect();
    const [height, width] = state.a;
    at(((event.clientX - box.left) / box.width) * width - 0.5, ((event.clientY - box.top) / box.height) * height - 0.5);
  });
  sides.a.stage.addEventListener("keydown", (event) => state.a && moveByKey(event, state, at));
  new ResizeObserver(draw).observe(element);
  for (const side of Object.values(sides)) side.image.addEventListener("load", draw);

  return {
    element,
    sides,
    point: at,
    pictures(a, b) {
      sides.a.show(a);
      sides.b.show(b);
    },
    sizes(a, b) {
      [state.a, state.b] = [a, b];
      draw();
    },
    matches(rows) {
      state.rows = rows;
      draw();
    },
    shown(name, on) {
      layers[name].classList.toggle("off", !on);
    },
    answer(found) {
      state.found = found;
      drawMarks();
    },
    clear() {
      Object.assign(state, { a: null, b: null, rows: [], at: null, found: null });
      draw();
    },
  };
}

const group = ([, , , , stage, inlier]) => (inlier ? `stage${stage}` : "outlier");

function moveByKey(event, state, at) {
  const [height, width] = state.a;
  const step = Math.max(1, (event.shiftKey ? 0.05 : 0.01) * Math.max(height, width));
  const [x, y] = state.at ?? [width / 2, height / 2];
  const places = {
    ArrowLeft: [x - step, y],
    ArrowRight: [x + step, y],
    ArrowUp: [x, y - step],
    ArrowDown: [x, y + step],
    Enter: [x, y],
    " ": [x, y],
  };
  if (!(event.key in places)) return;
  event.preventDefault();
  at(...places[event.key]);
}

/** A ring with a cross; `doubt` in [0, 1] widens it. */
function cross([x, y], name, doubt = 0) {
  const r = 7 + 16 * doubt;
  return s(
    `g.mark.${name}`,
    { transform: `translate(${x} ${y})`, data: { mark: name } },
    s("circle.mark-back", { r }),
    s("circle", { r }),
    s("path", { d: `M${-r - 4} 0H-3M3 0H${r + 4}M0 ${-r - 4}V-3M0 3V${r + 4}` }),
  );
}

/** One picture: its frame takes files and shows its name; an empty one says what to do. */
function frame(name, dropped) {
  const image = h("img", { alt: "", draggable: "false", hidden: true });
  const hollow = h("p.frame-empty", {}, `Drop photo ${name} here`);
  const stage = h(
    "div.frame-stage",
    name === "a"
      ? {
        tabindex: "0",
        role: "application",
        "aria-label": "Photo a: click a point, or move it with the arrow keys, to see where it is in b",
      }
      : {},
    image,
    hollow,
  );
  const title = h("span.frame-name", {}, `photo ${name}`);
  const element = h("figure.frame", { data: { side: name } }, stage, h("figcaption", {}, h("b", {}, name), title));
  droppable(element, (files) => dropped(name, files));
  const show = (picture) => {
    image.hidden = !picture;
    hollow.hidden = Boolean(picture);
    title.textContent = picture ? `${picture.name} · ${picture.width} × ${picture.height}` : `photo ${name}`;
    if (!picture) return;
    image.src = picture.url;
    image.alt = `Photo ${name}: ${picture.name}`;
    image.style.aspectRatio = `${picture.width} / ${picture.height}`;
  };
  return { element, stage, image, show };
}
