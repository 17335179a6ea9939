// Two photos looked at together: side by side with the lines of their inliers, or one wiped over the other, zoomed as one.

import { h, icon, put, s } from "./dom.js";
import { droppable } from "./drops.js";
import { choice, CROSS, names, readings, verdict, worker } from "./parts.js";

/** Of more inliers than this only some get a line; each has its dots. */
const LINES = (width) => (width < 600 ? 36 : 90);
const MOST_ZOOM = 16;
const DRAG = 4; // px: what moves less is a click

/**
 * {element, tools, show({a, b, evidence}), warp(url), mark(from, to), clear()}.
 * `asked(x, y)` gets a point of a as shares of its width and height; `dropped(side, files)` gets files.
 */
export function pairView({ asked = null, dropped = null, label = "Both photos" } = {}) {
  const panes = Object.fromEntries(["a", "b", "warp"].map((name) => [name, pane(name, dropped)]));
  const lines = s("svg.duo-lines", { "aria-hidden": "true" });
  const handle = h("div.wipe-handle", {
    role: "slider",
    tabindex: "0",
    "aria-label": "Edge between a and b",
    "aria-valuemin": "0",
    "aria-valuemax": "100",
  }, h("i"));
  const element = h("div.duo", {
    tabindex: "0",
    role: "application",
    "aria-label": `${label}: plus and minus zoom, arrows move, L shows lines, W wipes`,
  }, panes.a.element, panes.b.element, panes.warp.element, lines, handle);
  const modes = choice({
    label: "View",
    value: "side",
    options: [["side", "Side by side"], ["wipe", "Wipe", "b warped to a, behind an edge that you drag"]],
    chosen: turn,
  });
  const button = (words, name, run) => h("button.icon-button", { type: "button", "aria-label": name, title: name, onclick: run }, words);
  const linesButton = h("button.lines", { type: "button", "aria-pressed": "true", onclick: () => strew() }, "Lines");
  const tools = h(
    "div.row.duo-tools",
    {},
    modes,
    linesButton,
    h("span.row.zooms", {}, button("−", "Farther", () => zoomBy(1 / 1.5)), button("+", "Nearer", () => zoomBy(1.5)), button("⤢", "Whole photos", whole_)),
  );
  const view = { zoom: 1, x: 0.5, y: 0.5 };
  const state = { a: null, b: null, evidence: null, mode: "side", lines: true, part: 0.5, mark: null, warp: null };
  turn("side");

  // ------------------------------------------------------------------------------------------------------- coordinates

  const trusted = () => state.evidence?.points?.length && state.evidence.verdict !== "different";

  /** Where a point of a is in b, both as shares: by the homography, or as the inliers around it moved. */
  function follow([x, y]) {
    if (!trusted()) return [x, y];
    const { sizes: [[ha, wa], [hb, wb]], points, model, matrix: m } = state.evidence;
    if (model === "homography") {
      const [u, v, w] = m.map((row) => row[0] * (x * wa - 0.5) + row[1] * (y * ha - 0.5) + row[2]);
      return [(u / w + 0.5) / wb, (v / w + 0.5) / hb];
    }
    let [all, dx, dy] = [0, 0, 0];
    for (const [xa, ya, xb, yb] of points) {
      const weight = 1 / ((xa / wa - x) ** 2 + (ya / ha - y) ** 2 + 1e-3) ** 2;
      all += weight;
      dx += weight * (xb / wb - xa / wa);
      dy += weight * (yb / hb - ya / ha);
    }
    return [x + dx / all, y + dy / all];
  }

  /** How the panes look at their photos: {name: {x, y, zoom}}. The farther in, the more b follows a. */
  function looks() {
    const { zoom, x, y } = view;
    const here = { x, y, zoom };
    const t = Math.min(1, (zoom - 1) / 0.6);
    const there = follow([x, y]).map((v) => Math.max(-0.1, Math.min(1.1, v)));
    const b = { x: 0.5 + t * (there[0] - 0.5), y: 0.5 + t * (there[1] - 0.5), zoom: zoom * ratio() ** t };
    return { a: here, warp: here, b };
  }

  /** By how much b is enlarged so that what both show has one size on the screen. */
  function ratio() {
    if (!trusted() || state.evidence.model !== "homography") return 1;
    const [one, two] = [panes.a.box(), panes.b.box()];
    const step = 0.02;
    const [p, q, r] = [[view.x, view.y], [view.x + step, view.y], [view.x, view.y + step]].map(follow);
    const [ux, uy, vx, vy] = [q[0] - p[0], q[1] - p[1], r[0] - p[0], r[1] - p[1]];
    const grown = Math.sqrt(Math.abs(ux * vy - uy * vx)) / step; // shares of b for a share of a
    const sizes = Math.sqrt((one.wide * one.high) / (two.wide * two.high || 1));
    return Math.max(0.2, Math.min(5, sizes / (grown || 1)));
  }

  const place = (name, look, x, y) => {
    const { left, top, width, height, wide, high } = panes[name].box();
    return [left + width / 2 + (x - look.x) * wide * look.zoom, top + height / 2 + (y - look.y) * high * look.zoom];
  };
  const within = (name, [x, y]) => {
    const { left, top, width, height } = panes[name].box();
    return x >= left && y >= top && x <= left + width && y <= top + height;
  };

  // ----------------------------------------------------------------------------------------------------------- drawing

  function draw() {
    if (!element.clientWidth) return;
    const all = looks();
    for (const [name, one] of Object.entries(panes)) one.look(all[name]);
    panes.warp.element.style.clipPath = `inset(0 0 0 ${(100 * state.part).toFixed(2)}%)`;
    handle.style.left = `${(100 * state.part).toFixed(2)}%`;
    handle.setAttribute("aria-valuenow", String(Math.round(100 * state.part)));
    lines.setAttribute("viewBox", `0 0 ${element.clientWidth} ${element.clientHeight}`);
    put(lines, drawLines(all), drawMark(all));
    element.dataset.zoom = view.zoom.toFixed(2);
    element.classList.toggle("near", view.zoom > 1);
  }

  function drawLines(all) {
    const { evidence } = state;
    if (!evidence?.points || !state.lines || state.mode !== "side") return [];
    const [[ha, wa], [hb, wb]] = evidence.sizes;
    const seen = evidence.points
      .map(([xa, ya, xb, yb]) => [place("a", all.a, (xa + 0.5) / wa, (ya + 0.5) / ha), place("b", all.b, (xb + 0.5) / wb, (yb + 0.5) / hb)])
      .filter(([p, q]) => within("a", p) && within("b", q));
    const every = Math.max(1, Math.ceil(seen.length / LINES(element.clientWidth)));
    const spot = (p) => p.map((v) => v.toFixed(1)).join(" ");
    const dots = seen.map(([p, q]) => `M${spot(p)}h0M${spot(q)}h0`).join("");
    const joined = seen.filter((_, n) => n % every === 0).map(([p, q]) => `M${spot(p)}L${spot(q)}`).join("");
    lines.dataset.count = seen.length;
    return [s("path.halo", { d: dots }), s("path.line", { d: joined }), s("path.dot", { d: dots })];
  }

  function drawMark(all) {
    if (!state.mark || state.mode !== "side") return null;
    const { from, to } = state.mark;
    const ends = [["a", from], ["b", to]].filter(([, spot]) => spot).map(([name, spot]) => [name, place(name, all[name], ...spot)]);
    return s("g.marks", {}, ends.length > 1 ? s("path.mark-line", { d: `M${ends[0][1]}L${ends[1][1]}` }) : null, ends.map(([name, p]) => cross(p, name)));
  }

  // ------------------------------------------------------------------------------------------------------------ moving

  function whole_() {
    Object.assign(view, { zoom: 1, x: 0.5, y: 0.5 });
    draw();
  }

  function moveTo(x, y) {
    const { width, height, wide, high } = panes.a.box();
    const room = (seen, all) => Math.min(0.5, seen / (2 * all * view.zoom || 1));
    const hold = (v, edge) => Math.max(edge, Math.min(1 - edge, v));
    Object.assign(view, { x: hold(x, room(width, wide)), y: hold(y, room(height, high)) });
    draw();
  }

  /** Nearer or farther; what lies at this distance from a pane's middle stays where it is. */
  function zoomBy(factor, [dx, dy] = [0, 0]) {
    const zoom = Math.max(1, Math.min(MOST_ZOOM, view.zoom * factor));
    const { wide, high } = panes.a.box();
    const [x, y] = [view.x + (dx / wide) * (1 / view.zoom - 1 / zoom), view.y + (dy / high) * (1 / view.zoom - 1 / zoom)];
    view.zoom = zoom;
    moveTo(x, y);
  }

  const shift = (dx, dy) => {
    const { wide, high } = panes.a.box();
    moveTo(view.x - dx / (wide * view.zoom), view.y - dy / (high * view.zoom));
  };

  function wipeTo(part) {
    state.part = Math.max(0, Math.min(1, part));
    draw();
  }

  const local = (event) => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const fromMiddle = (spot) => {
    const { left, top, width, height } = panes[state.mode === "side" && within("b", spot) ? "b" : "a"].box();
    return [spot[0] - left - width / 2, spot[1] - top - height / 2];
  };

  const fingers = new Map();
  let dragged = 0;
  let edge = false;
  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    element.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, local(event));
    dragged = fingers.size > 1 ? 99 : 0;
    edge = state.mode === "wipe" && (view.zoom === 1 || event.target.closest(".wipe-handle") !== null);
    if (edge) handle.focus({ preventScroll: true });
    if (edge) wipeTo(local(event)[0] / element.clientWidth);
  });
  element.addEventListener("pointermove", (event) => {
    const was = fingers.get(event.pointerId);
    if (!was) return;
    const now = local(event);
    fingers.set(event.pointerId, now);
    dragged += Math.hypot(now[0] - was[0], now[1] - was[1]);
    if (fingers.size === 2) pinch(event.pointerId, was, now);
    else if (edge) wipeTo(now[0] / element.clientWidth);
    else if (dragged > DRAG) shift(now[0] - was[0], now[1] - was[1]);
  });
  for (const type of ["pointerup", "pointercancel"]) {
    element.addEventListener(type, (event) => {
      const clicked = fingers.delete(event.pointerId) && type === "pointerup" && dragged <= DRAG && !edge;
      if (clicked && asked && state.a) point(local(event));
    });
  }
  element.addEventListener("wheel", (event) => {
    if (!state.a) return;
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), fromMiddle(local(event)));
  }, { passive: false });
  element.addEventListener("dblclick", (event) => zoomBy(view.zoom > 3 ? 0 : 2, fromMiddle(local(event))));

  function pinch(id, was, now) {
    const other = [...fingers].find(([key]) => key !== id)[1];
    const far = (p) => Math.max(8, Math.hypot(p[0] - other[0], p[1] - other[1]));
    zoomBy(far(now) / far(was), fromMiddle([(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]));
    shift((now[0] - was[0]) / 2, (now[1] - was[1]) / 2);
  }

  function point(spot) {
    if (!within("a", spot)) return;
    const { left, top, width, height, wide, high } = panes.a.box();
    const x = view.x + (spot[0] - left - width / 2) / (wide * view.zoom);
    const y = view.y + (spot[1] - top - height / 2) / (high * view.zoom);
    if (x >= 0 && y >= 0 && x <= 1 && y <= 1) asked(x, y);
  }

  element.addEventListener("keydown", (event) => {
    const onEdge = event.target === handle;
    const step = event.shiftKey ? 0.1 : 0.02;
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const edges = { Home: 0, End: 1, PageUp: state.part + 0.1, PageDown: state.part - 0.1 };
    const plain = {
      "+": () => zoomBy(1.5),
      "=": () => zoomBy(1.5),
      "-": () => zoomBy(1 / 1.5),
      0: whole_,
      l: () => strew(),
      w: () => state.warp && turn(state.mode === "wipe" ? "side" : "wipe"),
    }[event.key.toLowerCase()];
    if (onEdge && way) wipeTo(state.part + (way[0] - way[1]) * step);
    else if (onEdge && event.key in edges) wipeTo(edges[event.key]);
    else if (way && view.zoom > 1) shift(-60 * way[0], -60 * way[1]);
    else if (plain) plain();
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(element);
  for (const one of Object.values(panes)) one.image.addEventListener("load", draw);

  // ------------------------------------------------------------------------------------------------------------ states

  function turn(mode) {
    state.mode = element.dataset.mode = mode;
    modes.querySelector(`input[value=${mode}]`).checked = true;
    handle.hidden = panes.warp.element.hidden = mode !== "wipe";
    panes.b.element.hidden = mode === "wipe";
    linesButton.disabled = mode === "wipe" || !state.evidence?.points?.length;
    draw();
  }

  function strew(on = !state.lines) {
    state.lines = on;
    linesButton.setAttribute("aria-pressed", String(on));
    draw();
  }

  /** The picture behind the edge; null where there is none that can be trusted. */
  function warp(url, words = "b, warped to a") {
    state.warp = url;
    panes.warp.show(url && state.a ? { ...state.a, url, name: words } : null, words);
    modes.querySelector("input[value=wipe]").disabled = !url;
    modes.querySelectorAll("label")[1].title = url ? "b warped to a, behind an edge that you drag" : "b is warped to a only where a homography joins them";
    turn(url ? state.mode : "side");
  }

  function show({ a, b, evidence = null }) {
    if (a?.id !== state.a?.id || b?.id !== state.b?.id) {
      Object.assign(view, { zoom: 1, x: 0.5, y: 0.5 });
      state.part = 0.5;
      state.mark = null;
    }
    Object.assign(state, { a, b, evidence });
    delete lines.dataset.count;
    const [one, two] = a && b ? names(a, b) : [a?.name, b?.name];
    const tall = [a, b].map((p) => (p?.width ? p.height / p.width : 0.75));
    element.style.setProperty("--tall", Math.max(...tall).toFixed(3));
    panes.a.show(a, `a · ${one}`);
    panes.b.show(b, `b · ${two}`);
    warp(evidence?.warp ?? null);
  }

  return {
    element,
    tools,
    show,
    warp,
    mark(from, to) {
      state.mark = from ? { from, to } : null;
      draw();
    },
  };
}

/** A ring with a cross. */
function cross([x, y], name) {
  return s(
    "g.mark",
    { transform: `translate(${x} ${y})`, data: { mark: name } },
    s("circle.mark-back", { r: 8 }),
    s("circle", { r: 8 }),
    s("path", { d: "M-12 0H-3M3 0H12M0 -12V-3M0 3V12" }),
  );
}

/** One photo in its frame: {element, image, show(picture, tag), box(), look({x, y, zoom})}. */
function pane(name, dropped) {
  const image = h("img", { alt: "", draggable: "false", hidden: true });
  const tag = h("span.tag");
  const hollow = h("p.duo-empty", {}, dropped ? `Drop photo ${name} here` : "");
  const element = h("div.duo-pane", { data: { side: name } }, image, hollow, tag);
  if (dropped && name !== "warp") droppable(element, (files) => dropped(name, files));
  let size = [4, 3];

  function show(picture, words) {
    image.hidden = !picture;
    hollow.hidden = Boolean(picture);
    tag.textContent = picture ? words : "";
    if (!picture) return;
    if (picture.width) size = [picture.width, picture.height];
    if (image.getAttribute("src") !== picture.url) image.src = picture.url;
    image.alt = picture.name;
  }

  /** The pane in its frame, and how large the whole photo is in it. */
  function box() {
    const { offsetLeft: left, offsetTop: top, offsetWidth: width, offsetHeight: height } = element;
    const fit = Math.min(width / size[0], height / size[1]) || 1;
    return { left, top, width, height, wide: size[0] * fit, high: size[1] * fit };
  }

  function look({ x, y, zoom }) {
    const { width, height, wide, high } = box();
    Object.assign(image.style, {
      width: `${wide}px`,
      height: `${high}px`,
      transform: `translate(${width / 2 - x * wide * zoom}px, ${height / 2 - y * high * zoom}px) scale(${zoom})`,
    });
  }
  return { element, image, show, box, look };
}

// ------------------------------------------------------------------------------------------------------------- lightbox

/** What the evidence says, in figures with names. */
export function evidenceReadings(found) {
  const share = (x) => `${Math.round(100 * x)} %`;
  const models = { homography: "a plane, or a camera that turned", fundamental: "two views" };
  return readings([
    ["geometry", models[found.model] ?? "none"],
    found.relation ? ["second photo", found.relation] : null,
    found.shared ? ["shared", `${share(found.shared[0])} of a, ${share(found.shared[1])} of b`] : null,
    found.model === "homography" ? ["scale", `${found.scale.toFixed(2)} ×`] : null,
  ].filter(Boolean));
}

/**
 * The dialogue in which a pair is looked at: {element, open(pairs, at)}; a pair is {a, b}. `heard(pair, found)` gets the
 * evidence; `search(picture)`, where it is given, is offered.
 */
export function lightbox({ heard = () => {}, search = null } = {}) {
  const state = { pairs: [], at: 0 };
  const work = worker();
  const view = pairView();
  const title = h("h2.clip", { id: "lightbox-title" });
  const badge = h("span");
  const words = h("p.lightbox-words", { "aria-live": "polite" });
  const figures = h("div.lightbox-figures");
  const button = (path, name, run) => h("button.icon-button", { type: "button", "aria-label": name, title: name, onclick: run }, icon(path));
  const [before, after] = [
    button("M10 3L5 8l5 5", "Previous pair", () => go(state.at - 1)),
    button("M6 3l5 5-5 5", "Next pair", () => go(state.at + 1)),
  ];
  const offered = h("div.row");
  const element = h(
    "dialog.lightbox",
    { "aria-labelledby": "lightbox-title" },
    h("div.lightbox-head", {}, title, badge, h("span.row", {}, before, after, button(CROSS, "Close", () => element.close()))),
    h("div.lightbox-bar", {}, view.tools, words),
    work.element,
    view.element,
    h("div.lightbox-foot", {}, figures, offered),
  );
  element.addEventListener("close", () => work.cancel());
  element.addEventListener("click", (event) => event.target === element && element.close());
  element.addEventListener("keydown", (event) => {
    const steps = { PageUp: -1, PageDown: 1 };
    if (!(event.key in steps) || event.target.closest(".wipe-handle")) return;
    event.preventDefault();
    go(state.at + steps[event.key]);
  });

  function go(at) {
    if (!(at in state.pairs)) return;
    state.at = at;
    const { a, b } = state.pairs[at];
    before.disabled = at === 0;
    after.disabled = at === state.pairs.length - 1;
    delete element.dataset.shown;
    const [one, two] = names(a, b);
    put(title, one, h("span.quiet", {}, " and "), two);
    title.title = `${a.name} and ${b.name}`;
    put(badge);
    put(words, "Verifying …");
    put(figures);
    const leave = (run) => () => {
      element.close();
      run();
    };
    put(
      offered,
      search && h("button", { type: "button", onclick: leave(() => search(b)) }, "Search with b"),
      h("button", { type: "button", onclick: leave(() => (location.hash = `compare/${a.id}/${b.id}`)) }, "Open in Compare"),
    );
    view.show({ a, b });
    work.run("api/images/why", { a: a.id, b: b.id }, {
      done: (found) => {
        put(badge, verdict(found.verdict, found.probability));
        put(words, found.words);
        put(figures, evidenceReadings(found));
        view.show({ a: found.a, b: found.b, evidence: found });
        element.dataset.shown = `${found.a.id} ${found.b.id}`;
        heard(state.pairs[at], found);
      },
    });
  }

  return {
    element,
    open(pairs, at = 0) {
      state.pairs = pairs;
      if (!element.open) element.showModal();
      go(at);
      view.element.focus({ preventScroll: true });
    },
  };
}
