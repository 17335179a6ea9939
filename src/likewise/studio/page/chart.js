// Lines over two axes in SVG: readable ticks, a legend with the last value, one marked place, a reading under the pointer.

import { h, put, s } from "./dom.js";
import { figure, fixed } from "./numbers.js";

const EDGE = { left: 52, right: 12, top: 10, bottom: 36 };

/** Round numbers between low and high, about `count` of them. */
export function ticks(low, high, count = 5) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((size) => size >= rough - 1e-12);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * span; n++) {
    found.push(Math.round(n * step * 1e12) / 1e12);
  }
  return found;
}

/** Powers of ten between low and high, with 2 and 5 where there is room. */
export function powers(low, high) {
  const found = [];
  const few = Math.log10(high / low) < 2;
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    for (const m of few ? [1, 2, 5] : [1]) {
      if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) found.push(m * 10 ** p);
    }
  }
  return found.length > 1 ? found : ticks(low, high, 4);
}

/**
 * {element, draw({series, x, y}), mark(x, values)}: `values` is what was measured there, by name. A series is {name, tone, points: [[x, y] …]} with gaps where y is no number;
 * x and y are {label, low?, high?, log?}; `picked(x)` makes the chart answer to clicks.
 */
export function chart({ label, height = 200, picked = null }) {
  const drawing = s("svg.chart", { role: "img", "aria-label": label });
  const legend = h("div.chart-legend");
  const element = h("div.chart-box", {}, legend, drawing);
  let given = null;
  let at = null;
  let values = {};
  let scale = null;
  const hover = s("g.chart-hover");

  function redraw() {
    const width = element.clientWidth;
    if (!given || !width) return;
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.style.height = `${height}px`;
    scale = scales(given, width, height);
    put(hover);
    put(drawing, axes(given, scale, width, height), given.series.map((one) => line(one, scale)), marker(), hover);
    put(legend, given.series.map((one) => entry(one, at === null ? valueAt(one, last(one)) : now(one))));
    drawing.setAttribute("aria-label", `${label}. ${legend.textContent}`);
  }

  const now = (one) => values[one.name] ?? valueAt(one, at);
  const held = (py) => Math.max(EDGE.top, Math.min(height - EDGE.bottom, py)); // what lies beyond the axis is shown at its edge

  function marker() {
    if (at === null || !scale) return null;
    const x = scale.x(at);
    const dots = given.series.map((one) => now(one)).filter((y) => Number.isFinite(y));
    return s(
      "g.chart-now",
      {},
      s("path", { d: `M${x} ${EDGE.top}V${height - EDGE.bottom}` }),
      dots.map((y) => s("circle.chart-now-ring", { cx: x, cy: held(scale.y(y)), r: 5 })),
    );
  }

  drawing.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const x = scale.back(event.clientX - drawing.getBoundingClientRect().left);
    const px = scale.x(x);
    put(hover, s("path", { d: `M${px} ${EDGE.top}V${height - EDGE.bottom}` }));
    put(
      legend,
      given.series.map((one) => entry(one, valueAt(one, x))),
      h("span.chart-at", {}, `${given.x.label} ${figure(x)}`),
    );
  });
  drawing.addEventListener("pointerleave", redraw);
  if (picked) {
    drawing.classList.add("pickable");
    drawing.addEventListener(
      "click",
      (event) => picked(scale.back(event.clientX - drawing.getBoundingClientRect().left)),
    );
  }
  new ResizeObserver(redraw).observe(element);
  addEventListener("colours", redraw);

  return {
    element,
    draw(what) {
      given = what;
      redraw();
    },
    mark(x, measured = {}) {
      [at, values] = [x, measured];
      redraw();
    },
  };
}

function scales({ series, x, y }, width, height) {
  const xs = series.flatMap((one) => one.points.map((p) => p[0]));
  const ys = series.flatMap((one) => one.points.map((p) => p[1])).filter((v) =>
    Number.isFinite(v) && (!y.log || v > 0)
  );
  const [x0, x1] = range(xs, x, 0);
  const [y0, y1] = range(ys, y, 0.06);
  const forth = y.log ? Math.log10 : (v) => v;
  const wide = width - EDGE.left - EDGE.right;
  const tall = height - EDGE.top - EDGE.bottom;
  return {
    x0,
    x1,
    y0,
    y1,
    x: (v) => EDGE.left + ((v - x0) / (x1 - x0)) * wide,
    y: (v) => height - EDGE.bottom - ((forth(v) - forth(y0)) / (forth(y1) - forth(y0))) * tall,
    back: (px) => x0 + Math.max(0, Math.min(1, (px - EDGE.left) / wide)) * (x1 - x0),
  };
}

function range(values, { low, high, log }, room) {
  let a = low ?? (values.length ? values.reduce((m, v) => Math.min(m, v), Infinity) : 0);
  let b = high ?? (values.length ? values.reduce((m, v) => Math.max(m, v), -Infinity) : 1);
  if (a === b) [a, b] = log ? [a / 2, b * 2] : [a - (Math.abs(a) || 1) / 2, b + (Math.abs(b) || 1) / 2];
  if (log) return [low ?? a / (b / a) ** room, high ?? b * (b / a) ** room];
  return [low ?? a - room * (b - a), high ?? b + room * (b - a)];
}

function axes({ x, y }, scale, width, height) {
  const floor = height - EDGE.bottom;
  const down = (y.log ? powers : ticks)(scale.y0, scale.y1, Math.max(2, Math.round(height / 55)));
  const along = ticks(scale.x0, scale.x1, Math.max(3, Math.round(width / 110)));
  const names = { down: y.log ? down.map((v) => figure(v, 1)) : written(down), along: written(along) };
  return s(
    "g.axes",
    {},
    down.map((v, n) =>
      s(
        "g",
        {},
        s("path.grid", { d: `M${EDGE.left} ${scale.y(v)}H${width - EDGE.right}` }),
        s("text", { x: EDGE.left - 8, y: scale.y(v) + 4, "text-anchor": "end" }, names.down[n]),
      )
    ),
    along.map((v, n) =>
      s(
        "g",
        {},
        s("path.tick", { d: `M${scale.x(v)} ${floor}v4` }),
        s("text", { x: scale.x(v), y: floor + 17, "text-anchor": "middle" }, names.along[n]),
      )
    ),
    s("path.floor", { d: `M${EDGE.left} ${floor}H${width - EDGE.right}` }),
    s("text.axis-name", { x: (EDGE.left + width - EDGE.right) / 2, y: height - 1, "text-anchor": "middle" }, x.label),
  );
}

/** Ticks in one way of writing: as many decimals as tell them apart. */
function written(values) {
  const tight = Math.max(...values.map(Math.abs)) < 1e-3 || Math.max(...values.map(Math.abs)) >= 1e5;
  const digits = tight
    ? 0
    : [0, 1, 2, 3, 4].find((n) => values.every((v) => Math.abs(v - Number(v.toFixed(n))) < 1e-9)) ?? 4;
  return values.map((v) => (tight ? figure(v, 2) : fixed(v, digits)));
}

function line({ points, tone, name }, scale) {
  let pen = "M";
  const parts = [];
  for (const [x, y] of points) {
    const py = Number.isFinite(y) ? scale.y(y) : NaN;
    if (!Number.isFinite(py)) pen = "M";
    else {
      parts.push(`${pen}${scale.x(x).toFixed(1)} ${py.toFixed(1)}`);
      pen = "L";
    }
  }
  const lone = parts.length === 1 ? "h0" : "";
  return s(`path.chart-line.tone-${tone}`, { d: parts.join("") + lone, data: { series: name, points: parts.length } });
}

function entry(one, y) {
  return h(
    "span.chart-entry",
    {},
    h(`i.mark.tone-${one.tone}`),
    one.name,
    " ",
    h("b", {}, Number.isFinite(y) ? figure(y) : ""),
  );
}

const last = ({ points }) => (points.length ? points[points.length - 1][0] : null);

/** The series at x, straight between its points; null outside of them. */
export function valueAt({ points }, x) {
  const known = points.filter((p) => Number.isFinite(p[1]));
  if (!known.length || x < known[0][0] || x > known[known.length - 1][0]) return null;
  const after = known.findIndex((p) => p[0] >= x);
  const [x1, y1] = known[after];
  if (x1 === x || after === 0) return y1;
  const [x0, y0] = known[after - 1];
  return y0 + ((x - x0) / (x1 - x0)) * (y1 - y0);
}
