// The collection as a map: similar images lie together. Drag to move, wheel or pinch to come nearer, click to search.

import { h, ink, put } from "./dom.js";

const HEIGHT = 420;
const MOST_ZOOM = 40;
/** A picture is drawn as such when it is at least this wide on the map, else as a dot. */
const LEAST_PIXELS = 14;

/** {element, pictures(list), mark(id), shown()}; `chosen` gets the picture that was clicked. */
export function map({ chosen }) {
  const canvas = h("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label":
      "Map of the collection: arrow keys go from image to image, plus and minus zoom, shift and arrows move the map, Enter searches",
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
  const state = { pictures: [], images: new Map(), mark: null, at: null, width: 0 };
  let waiting = false;

  // ------------------------------------------------------------------------------------------------------- coordinates

  const inner = () => ({ width: state.width - 60, height: HEIGHT - 60 });
  const place = (
    { x, y },
  ) => [
    state.width / 2 + (x - view.x) * view.zoom * inner().width,
    HEIGHT / 2 + (y - view.y) * view.zoom * inner().height,
  ];
  const size = () =>
    Math.max(
      4,
      Math.min(
        72,
        (Math.sqrt((inner().width * inner().height) / Math.max(1, state.pictures.length)) * 0.62) *
          Math.sqrt(view.zoom),
      ),
    );

  function whole() {
    Object.assign(view, { zoom: 1, x: 0.5, y: 0.5 });
    redraw();
  }

  function zoomed(factor, [px, py] = [state.width / 2, HEIGHT / 2]) {
    const zoom = Math.max(1, Math.min(MOST_ZOOM, view.zoom * factor));
    const shift = (p, middle, length) => ((p - middle) / length) * (1 / view.zoom - 1 / zoom);
    view.x += shift(px, state.width / 2, inner().width);
    view.y += shift(py, HEIGHT / 2, inner().height);
    view.zoom = zoom;
    moved(0, 0);
  }

  function moved(dx, dy) {
    view.x = Math.max(0, Math.min(1, view.x - dx / view.zoom / inner().width));
    view.y = Math.max(0, Math.min(1, view.y - dy / view.zoom / inner().height));
    redraw();
  }

  function under([px, py]) {
    const reach = Math.max(12, size() * 0.75);
    let best = null;
    let least = reach;
    for (const picture of state.pictures) {
      const [x, y] = place(picture);
      const far = Math.hypot(x - px, y - py);
      if (far < least) [best, least] = [picture, far];
    }
    return best;
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
    const inks = { now: ink(element, "now"), accent: ink(element, "accent"), line: ink(element, "line") };
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.clearRect(0, 0, state.width, HEIGHT);
    const side = size();
    const order = [
      ...state.pictures.filter((p) => p !== state.at && p.id !== state.mark),
      ...state.pictures.filter((p) => p.id === state.mark),
      ...(state.at ? [state.at] : []),
    ];
    for (const picture of order) drawOne(context, picture, side, inks);
    canvas.dataset.zoom = view.zoom.toFixed(3);
    canvas.dataset.centre = `${view.x.toFixed(4)} ${view.y.toFixed(4)}`;
  }

  function drawOne(context, picture, side, inks) {
    const [x, y] = place(picture);
    if (x < -side || y < -side || x > state.width + side || y > HEIGHT + side) return;
    const picked = picture === state.at || picture.id === state.mark;
    const image = side >= LEAST_PIXELS || picked ? imageOf(picture) : null;
    const wide = picked ? Math.max(side, 40) : side;
    if (!image?.complete || !image.naturalWidth) return dot(context, x, y, picked ? 6 : 3.5, inks.accent);
    const ratio = image.naturalWidth / image.naturalHeight;
    const [w, h2] = ratio > 1 ? [wide, wide / ratio] : [wide * ratio, wide];
    context.drawImage(image, x - w / 2, y - h2 / 2, w, h2);
    context.lineWidth = picked ? 3 : 1;
    context.strokeStyle = picture.id === state.mark ? inks.now : picture === state.at ? inks.accent : inks.line;
    context.strokeRect(x - w / 2, y - h2 / 2, w, h2);
    return undefined;
  }

  function dot(context, x, y, r, colour) {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(x, y, r, 0, 2 * Math.PI);
    context.fill();
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
    put(said, picture ? [h("b", {}, picture.name), picture.label ? ` · ${picture.label}` : ""] : "\u00a0");
    peek.hidden = !picture;
    if (picture) {
      const [x, y] = place(picture);
      peek.classList.toggle("right", x < state.width / 2 && y > HEIGHT / 2); // never above what it shows
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
      y < edge ? edge - y : y > HEIGHT - edge ? HEIGHT - edge - y : 0,
    );
  }

  function fit() {
    const width = frame.clientWidth;
    if (!width) return;
    const dots = devicePixelRatio || 1;
    state.width = width;
    Object.assign(canvas, { width: width * dots, height: HEIGHT * dots });
    canvas.style.height = `${HEIGHT}px`;
    draw();
  }
  new ResizeObserver(fit).observe(frame);
  addEventListener("colours", redraw);
  put(said, "\u00a0");

  return {
    element,
    shown: fit,
    pictures(list) {
      Object.assign(state, { pictures: list, images: new Map(), at: null });
      whole();
    },
    mark(id) {
      state.mark = id;
      redraw();
    },
  };
}
