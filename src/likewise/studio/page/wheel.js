// The key to the flow's colours: Middlebury's wheel (Baker et al., 2011), as likewise.plot draws it.

import { h } from "./dom.js";
import { figure } from "./numbers.js";

/** Steps from red to yellow, green, cyan, blue, magenta and back to red. */
const ARCS = [15, 6, 4, 11, 13, 6];
const CORNERS = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]];

const HUES = ARCS.flatMap((steps, i) =>
  Array.from({ length: steps }, (_, n) => {
    const part = Math.floor((255 * n) / steps) / 255;
    const [from, to] = [CORNERS[i], CORNERS[(i + 1) % 6]];
    return from.map((c, k) => (to[k] >= c ? c + part * (to[k] - c) : 1 - part));
  })
);

/** The colour [r, g, b] in 0 … 255 of a vector whose full length is 1: hue is direction, white is no motion. */
export function colour(x, y) {
  const turn = (Math.atan2(-y, -x) / Math.PI + 1) / 2;
  const place = turn * (HUES.length - 1);
  const low = Math.floor(place);
  const part = place - low;
  const r = Math.hypot(x, y);
  return HUES[low].map((c, k) => {
    const hue = (1 - part) * c + part * HUES[(low + 1) % HUES.length][k];
    return Math.floor(255 * (r <= 1 ? 1 - r * (1 - hue) : 0.75 * hue));
  });
}

/** The disc with arrows' meaning in words; `largest` is the length in pixels that its rim stands for. */
export function wheel(largest, side = 72) {
  const canvas = h("canvas.wheel-disc", {
    width: 2 * side,
    height: 2 * side,
    role: "img",
    "aria-label": "Colour wheel: hue is the direction of motion, strength is its length",
  });
  paint(canvas);
  const rim = typeof largest === "number" ? `rim ${figure(largest)} px` : "rim: longest motion";
  return h(
    "div.wheel",
    {},
    canvas,
    h("div", {}, h("b", {}, "hue"), " direction", h("br"), h("b", {}, "white"), " at rest", h("br"), rim),
  );
}

function paint(canvas) {
  const side = canvas.width;
  const context = canvas.getContext("2d");
  const data = context.createImageData(side, side);
  for (let j = 0; j < side; j++) {
    for (let i = 0; i < side; i++) {
      const [x, y] = [((i + 0.5) * 2) / side - 1, ((j + 0.5) * 2) / side - 1];
      const rim = Math.max(0, Math.min(1, ((1 - Math.hypot(x, y)) * side) / 2));
      data.data.set([...colour(Math.min(1, x), Math.min(1, y)), 255 * rim], 4 * (j * side + i));
    }
  }
  context.putImageData(data, 0, 0);
}
