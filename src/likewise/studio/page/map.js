// The collection as a map: similar images lie together, or each where it was taken. Drag to move, wheel or pinch to come nearer.

import { h, ink, put } from "./dom.js";
import { whole as spelled } from "./numbers.js";

const EARTH = 111_320; // metres of a degree of latitude

/** {element, pictures(list), mark(id), shown()}; `chosen` gets the picture that was clicked. Geographic: by `place`, not x and y. */
export function map({ chosen, geographic = false }) {
  const canvas = h("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label":
      `Map of the ${geographic ? "places" : "collection"}: arrow keys go from image to image, plus and minus zoom, shift and arrows move the map, Enter searches`,
  });
  const said = h("p.map-said.small-words", { "aria-live": "polite" });
  const peek = h("div.map-peek", { hidden: true });
  const tools = h(
    "div.map-tools",
    {},
    h("button.icon-button", { type: "button", "aria-label": "Nearer", onclick: () => zoomed(1.5) }, "+"),
    h("button.icon-button", { type: "button", "aria-label": "Farther", onclick: () => zoomed(1 / 1.5) }, "−"),
    h("button.icon-button", { type: "button", "aria-label": "Whole map", onclick: whole }, "⤢"),
  );
  const frame = h("div.map-frame", {}, canvas, tools, peek);
  const element = h("div.map", {}, frame, said);
  const view = { zoom: 1, x: 0.5, y: 0.5 };
  const state = { pictures: [], spots: new Map(), images: new Map(), mark: null, at: null, width: 0, height: 0, degree: 1 };
  const mostZoom = geographic ? 4000 : 60;
  let waiting = false;

  // ------------------------------------------------------------------------------------------------------- coordinates

  const margin = () => (state.width < 600 ? 32 : 56);
  const inner = () => ({ width: state.width - 2 * margin(), height: state.height - 2 * margin() });
  const place = ({ id }) => at(...state.spots.get(id));
  const at = (x, y) => [
    state.width / 2 + (x - view.x) * view.zoom * inner().width,
    state.height / 2 + (y - view.y) * view.zoom * inner().height,
  ];
  const side = () => (state.width < 600 ? 52 : 76);

  /** Every picture's place in the unit square: as it is given, or by latitude and longitude with one scale for both. */
  function lay() {
    if (!geographic) {
      state.spots = new Map(state.pictures.map((p) => [p.id, [p.x, p.y]]));
      return;
    }
    const ends = (n) => state.pictures.reduce(([low, high], { place: p }) => [Math.min(low, p[n]), Math.max(high, p[n])], [Infinity, -Infinity]);
    const [[south, north], [west, east]] = [ends(0), ends(1)];
    const [lat, lon] = [(south + north) / 2, (west + east) / 2];
    const shrink = Math.max(0.02, Math.cos((lat * Math.PI) / 180)); // of a degree of longitude
    const { width, height } = inner();
    const least = 20 / EARTH; // photos of one spot: 20 m are shown
    const scale = Math.min(width / Math.max(least, (east - west) * shrink), height / Math.max(least, north - south)); // px a degree
    Object.assign(state, { degree: scale, lat, lon, shrink });
    state.spots = new Map(state.pictures.map(({ id, place: [y, x] }) => [id, spotOf(y, x)]));
  }
  const spotOf = (lat, lon) => [
    0.5 + ((lon - state.lon) * state.shrink * state.degree) / inner().width,
    0.5 - ((lat - state.lat) * state.degree) / inner().height,
  ];

  function whole() {
    Object.assign(view, { zoom: 1, x: 0.5, y: 0.5 });
    redraw();
  }

  function zoomed(factor, [px, py] = [state.width / 2, state.height / 2]) {
    const zoom = Math.max(1, Math.min(mostZoom, view.zoom * factor));
    const shift = (p, middle, length) => ((p - middle) / length) * (1 / view.zoom - 1 / zoom);
    view.x += shift(px, state.width / 2, inner().width);
    view.y += shift(py, state.height / 2, inner().height);
    view.zoom = zoom;
    moved(0, 0);
  }

  function moved(dx, dy) {
    view.x = Math.max(0, Math.min(1, view.x - dx / view.zoom / inner().width));
    view.y = Math.max(0, Math.min(1, view.y - dy / view.zoom / inner().height));
    redraw();
  }

  function under([px, py]) {
    const half = side() / 2;
    const hit = state.drawn?.findLast(({ x, y }) => Math.abs(px - x) < half && Math.abs(py - y) < half);
    return hit?.picture ?? null;
  }

  // ----------------------------------------------------------------------------------------------------------- drawing

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function draw() {
    if (!state.width) return;
    const dots = devicePixelRatio || 1;
    const context = canvas.getContext("2d");
    const inks = Object.fromEntries(["now", "accent", "line", "quiet", "surface", "ink"].map((name) => [name, ink(element, name)]));
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.clearRect(0, 0, state.width, state.height);
    if (geographic && state.pictures.length) drawGrid(context, inks);
    state.drawn = [];
    const hidden = [];
    const first = (p) => (p === state.at ? 0 : p.id === state.mark ? 1 : 2);
    for (const picture of [...state.pictures].sort((p, q) => first(p) - first(q))) {
      const [x, y] = place(picture);
      if (x < -40 || y < -40 || x > state.width + 40 || y > state.height + 40) continue;
      const near = state.drawn.find((one) => Math.abs(one.x - x) < side() + 4 && Math.abs(one.y - y) < side() + 4);
      if (near) {
        near.more += Math.abs(near.x - x) < side() / 2 && Math.abs(near.y - y) < side() / 2 ? 1 : 0;
        hidden.push([x, y]);
      } else state.drawn.push({ picture, x, y, more: 0 });
    }
    context.fillStyle = inks.accent;
    for (const [x, y] of hidden) dot(context, x, y, 2.5);
    for (const one of state.drawn.toReversed()) drawOne(context, one, inks);
    if (geographic && state.pictures.length) drawScale(context, inks);
    Object.assign(canvas.dataset, {
      zoom: view.zoom.toFixed(3),
      centre: `${view.x.toFixed(4)} ${view.y.toFixed(4)}`,
      shown: state.drawn.length,
    });
  }

  /** One picture, framed, readable: what would cover it is a dot, and counted where it lies behind. */
  function drawOne(context, { picture, x, y, more }, inks) {
    const picked = picture === state.at || picture.id === state.mark;
    const image = imageOf(picture);
    if (!image.complete || !image.naturalWidth) {
      context.fillStyle = inks.accent;
      return dot(context, x, y, 5);
    }
    const wide = side() * (picked ? 1.15 : 1);
    const ratio = image.naturalWidth / image.naturalHeight;
    const [w, h2] = ratio > 1 ? [wide, wide / ratio] : [wide * ratio, wide];
    context.fillStyle = picture.id === state.mark ? inks.now : picture === state.at ? inks.accent : inks.surface;
    const frame = picked ? 4 : 2;
    context.fillRect(x - w / 2 - frame, y - h2 / 2 - frame, w + 2 * frame, h2 + 2 * frame);
    context.drawImage(image, x - w / 2, y - h2 / 2, w, h2);
    if (!more) return undefined;
    const words = `+${spelled(more)}`;
    context.font = "600 11px system-ui, sans-serif";
    const room = context.measureText(words).width + 8;
    context.fillStyle = "rgb(0 0 0 / 72%)";
    context.fillRect(x + w / 2 - room, y + h2 / 2 - 16, room, 16);
    context.fillStyle = "#fff";
    context.fillText(words, x + w / 2 - room + 4, y + h2 / 2 - 4);
    return undefined;
  }

  function dot(context, x, y, r) {
    context.beginPath();
    context.arc(x, y, r, 0, 2 * Math.PI);
    context.fill();
  }

  /** Lines of latitude and longitude, about 140 px apart, with their degrees. */
  function drawGrid(context, inks) {
    context.strokeStyle = inks.line;
    context.fillStyle = inks.quiet;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    const px = state.degree * view.zoom;
    const [x0, y0] = at(...spotOf(state.lat, state.lon));
    const lines = (perDegree, origin, middle, length, each) => {
      const step = nice(140 / perDegree);
      const digits = Math.max(0, Math.ceil(-Math.log10(step)));
      const low = origin - middle / perDegree;
      for (let v = Math.ceil(low / step) * step; (v - low) * perDegree < length; v += step) each((v - low) * perDegree, v, digits);
    };
    const stroke = (from, to) => {
      context.beginPath();
      context.moveTo(...from);
      context.lineTo(...to);
      context.stroke();
    };
    lines(px * state.shrink, state.lon, x0, state.width, (x, v, digits) => {
      stroke([x, 0], [x, state.height]);
      context.fillText(`${Math.abs(v).toFixed(digits)}° ${v < 0 ? "W" : "E"}`, x + 4, 13);
    });
    lines(px, -state.lat, y0, state.height, (y, v, digits) => {
      stroke([0, y], [state.width, y]);
      if (y < state.height - 40) context.fillText(`${Math.abs(v).toFixed(digits)}° ${v > 0 ? "S" : "N"}`, 4, y - 4);
    });
  }

  /** A bar of a round length, in metres or kilometres. */
  function drawScale(context, inks) {
    const px = (state.degree * view.zoom) / EARTH; // of a metre
    const metres = nice(50 / px); // at most 125 px
    const [x, y] = [16, state.height - 16];
    const words = metres >= 1000 ? `${spelled(metres / 1000)} km` : `${metres >= 1 ? spelled(metres) : metres.toPrecision(1)} m`;
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = inks.surface;
    context.fillRect(x - 8, y - 24, Math.max(metres * px, context.measureText(words).width) + 16, 34);
    context.strokeStyle = context.fillStyle = inks.ink;
    context.lineWidth = 2;
    context.strokeRect(x, y - 1, metres * px, 1);
    context.fillText(words, x, y - 8);
    canvas.dataset.scale = words;
  }

  function imageOf(picture) {
    if (!state.images.has(picture.id)) {
      const image = new Image();
      image.addEventListener("load", redraw);
      image.src = picture.thumb;
      state.images.set(picture.id, image);
    }
    return state.images.get(picture.id);
  }

  function look(picture) {
    if (picture === state.at) return;
    state.at = picture;
    put(said, picture ? [h("b", {}, picture.name), picture.time ? ` · ${picture.time}` : ""] : "\u00a0");
    peek.hidden = !picture;
    if (picture) {
      const [x, y] = place(picture);
      peek.classList.toggle("right", x < state.width / 2 && y > state.height / 2); // never above what it shows
      put(peek, h("img", { src: picture.thumb, alt: picture.name }));
    }
    canvas.style.cursor = picture ? "pointer" : "grab";
    redraw();
  }

  // ---------------------------------------------------------------------------------------------------------- pointers

  const fingers = new Map();
  let dragged = 0;
  const local = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, local(event));
    dragged = fingers.size > 1 ? 99 : 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = local(event);
    const was = fingers.get(event.pointerId);
    if (!was) return look(under(now));
    fingers.set(event.pointerId, now);
    dragged += Math.hypot(now[0] - was[0], now[1] - was[1]);
    if (fingers.size === 2) return pinch(event.pointerId, was, now);
    if (dragged > 4) moved(now[0] - was[0], now[1] - was[1]);
    return undefined;
  });
  for (const type of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(type, (event) => {
      const clicked = fingers.delete(event.pointerId) && type === "pointerup" && dragged <= 4;
      const picture = clicked && under(local(event));
      if (!picture) return;
      look(picture);
      chosen(picture);
    });
  }
  canvas.addEventListener("pointerleave", () => fingers.size || document.activeElement === canvas || look(null));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomed(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), local(event));
  }, { passive: false });

  function pinch(id, was, now) {
    const other = [...fingers].find(([key]) => key !== id)[1];
    const far = (p) => Math.max(8, Math.hypot(p[0] - other[0], p[1] - other[1]));
    zoomed(far(now) / far(was), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
    moved((now[0] - was[0]) / 2, (now[1] - was[1]) / 2);
  }

  // --------------------------------------------------------------------------------------------------------------- keys

  const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  canvas.addEventListener("keydown", (event) => {
    const way = WAYS[event.key];
    const plain = {
      "+": () => zoomed(1.5),
      "=": () => zoomed(1.5),
      "-": () => zoomed(1 / 1.5),
      0: whole,
      Enter: () => state.at && chosen(state.at),
      " ": () => state.at && chosen(state.at),
    }[event.key];
    if (!way && !plain) {
      return;
    }
    event.preventDefault();
    if (plain) plain();
    else if (event.shiftKey) moved(-60 * way[0], -60 * way[1]);
    else step(way);
  });

  /** The nearest picture in that direction; the map follows. */
  function step([wx, wy]) {
    const from = state.at ?? state.pictures.find((p) => p.id === state.mark) ?? state.pictures[0];
    if (!from) return;
    const [x0, y0] = place(from);
    const ahead = state.pictures.filter((p) => p !== from).map((picture) => {
      const [x, y] = place(picture);
      const [along, aside] = [(x - x0) * wx + (y - y0) * wy, Math.abs((x - x0) * wy) + Math.abs((y - y0) * wx)];
      return { picture, along, cost: along + 2 * aside };
    }).filter(({ along, cost }) => along > 0.5 && cost < 3 * along + 40);
    ahead.sort((p, q) => p.cost - q.cost);
    look(ahead[0]?.picture ?? from);
    follow();
  }

  function follow() {
    const [x, y] = place(state.at);
    const edge = 30;
    moved(
      x < edge ? edge - x : x > state.width - edge ? state.width - edge - x : 0,
      y < edge ? edge - y : y > state.height - edge ? state.height - edge - y : 0,
    );
  }

  function fit() {
    const width = frame.clientWidth;
    if (!width) return;
    const dots = devicePixelRatio || 1;
    Object.assign(state, { width, height: Math.max(320, Math.min(0.62 * innerHeight, 0.9 * width)) });
    Object.assign(canvas, { width: width * dots, height: state.height * dots });
    canvas.style.height = `${state.height}px`;
    lay();
    draw();
  }
  new ResizeObserver(fit).observe(frame);
  addEventListener("colours", redraw);
  put(said, "\u00a0");

  return {
    element,
    shown: fit,
    pictures(list) {
      Object.assign(state, { pictures: list, at: null });
      if (state.width) lay();
      whole();
    },
    mark(id) {
      state.mark = id;
      redraw();
    },
  };
}

/** 1, 2 or 5 times a power of ten, at least x. */
function nice(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * ([1, 2, 5].find((n) => n * power >= x) ?? 10);
}
