// Elements in one line. Text is always text: nothing from a server or a file name is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: h("button.primary", {onclick}, "Start"). Classes follow the name; null children are left out. */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return filled(element, attributes, children);
}

/** An SVG element: s("path.ribbon", {d}). */
export function s(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return filled(element, attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) set(element, key, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else if (key === "data") Object.assign(element.dataset, value);
  else if (key in element && typeof value === "boolean") element[key] = value;
  else element.setAttribute(key, value);
}

/** Put these children in the place of what an element holds. */
export function put(element, ...children) {
  element.replaceChildren(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** An icon drawn with strokes, 16 × 16. */
export function icon(path) {
  return s("svg.icon", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, s("path", { d: path }));
}

/** Call `run` once, `wait` ms after the last call. */
export function settled(run, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), wait);
  };
}

/**
 * Live controls: at most one request at a time, and always the latest value last. What was asked in between is dropped.
 * `ask` takes the value and returns a promise; `show` gets the answers in order; `fail` the error.
 */
export function latest(ask, show, fail) {
  let busy = false;
  let next = null;
  async function go(value) {
    busy = true;
    try {
      show(await ask(value), value);
    } catch (error) {
      fail(error);
    }
    busy = false;
    if (next) {
      const { value: newer } = next;
      next = null;
      go(newer);
    }
  }
  return (value) => {
    if (busy) next = { value };
    else go(value);
  };
}

/** Whether motion is welcome. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** A colour of the style sheet by name, as a canvas takes it: light or dark is decided. */
export function ink(element, name) {
  const probe = h("i", { hidden: true });
  probe.style.color = `var(--${name})`;
  element.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
