// The controls that every tab shares: sliders, choices, readings, the state of heavy work.

import { get, Gone, job } from "./api.js";
import { h, icon, put } from "./dom.js";
import { whole } from "./numbers.js";

export const CROSS = "M4 4l8 8M12 4l-8 8";
export const PLUS = "M8 3v10M3 8h10";

/** The head of a tab: its question, and what the tab does in one sentence. */
export function head(question, words, ...more) {
  return h("header.head", {}, h("div", {}, h("h1", {}, question), h("p.lead", {}, words)), ...more);
}

/** A card with a title; `side` stands at the right of it. */
export function card(title, body, { side = null, name = "" } = {}) {
  const head = h("div.card-head", {}, h("h2", {}, title), side);
  return h(`section.card${name ? `.${name}` : ""}`, { "aria-label": title }, head, body);
}

/** Figures with names: readings([["cycle error", "0.41 px", "hint"], …]). */
export function readings(rows) {
  const list = h("dl.readings");
  for (const [name, value, hint] of rows) {
    list.append(h("div", { title: hint }, h("dt", {}, name), h("dd", { data: { reading: name } }, value)));
  }
  return list;
}

let made = 0;

/**
 * A slider with its value beside it. `log` slides the logarithm. `moved` is called while it moves.
 * Returns {element, value, set}: the value is in the user's own units.
 */
export function slider({ label, low, high, step, value, show, moved, log = false, ends = null, hint = null }) {
  const id = `slider-${++made}`;
  const forth = (x) => (log ? Math.log10(x) : x);
  const back = (t) => (log ? 10 ** t : t);
  const input = h("input", { type: "range", id, min: forth(low), max: forth(high), step: step ?? "any" });
  const output = h("output", { for: id });
  const draw = () => {
    const now = back(Number(input.value));
    output.textContent = show(now);
    input.setAttribute("aria-valuetext", show(now));
    const part = (Number(input.value) - Number(input.min)) / (Number(input.max) - Number(input.min) || 1);
    input.style.setProperty("--part", `${100 * part}%`);
  };
  input.addEventListener("input", () => {
    draw();
    moved(back(Number(input.value)));
  });
  const set = (x) => {
    input.value = String(forth(x));
    draw();
  };
  set(value);
  const foot = ends && h("div.slider-ends", { "aria-hidden": "true" }, ends.map((word) => h("span", {}, word)));
  const element = h("div.slider", { title: hint }, h("label", { for: id }, label), output, input, foot);
  return { element, input, set, value: () => back(Number(input.value)) };
}

/** One of a few: radio buttons that look like one control. `options` is [[value, words, hint?], …]. */
export function choice({ label, options, value, chosen }) {
  const name = `choice-${++made}`;
  const group = h("fieldset.choice", {}, h("legend", {}, label));
  for (const [option, words, hint] of options) {
    const input = h("input", { type: "radio", name, value: option, checked: option === value });
    input.addEventListener("change", () => chosen(option));
    group.append(h("label", { title: hint }, input, h("span", {}, words)));
  }
  return group;
}

/** A sentence where there is nothing yet. */
export function empty(title, words, ...more) {
  return h("div.empty", {}, h("p.empty-title", {}, title), h("p", {}, words), ...more);
}

/** The server's sentence, with a way to try again. */
export function failed(message, again = null) {
  const button = again && h("button", { type: "button", onclick: again }, "Try again");
  return h("div.failed", { role: "alert" }, h("p", {}, message), button);
}

/**
 * The place where heavy work is told: its queue place, its words, how far it is, a button that cancels it, its error.
 * run(path, body, {done, partial}): `done` gets the result. New work takes the place of what still runs.
 */
export function worker() {
  const element = h("div.work", { "aria-live": "polite", hidden: true });
  let current = null;

  async function run(path, body, { done, partial = () => {} }) {
    current?.abort();
    const control = new AbortController();
    current = control;
    const tell = begun(element, control);
    const hear = (line) => (line.state === "partial" ? partial(line.result) : tell(line));
    try {
      const result = await job(path, body, { signal: control.signal, on: (line) => current === control && hear(line) });
      if (current !== control) return;
      element.hidden = true;
      done(result);
    } catch (error) {
      if (current === control) ended(element, error, () => run(path, body, { done, partial }));
    } finally {
      if (current === control) current = null;
    }
  }

  const tell = (...children) => {
    put(element, children);
    element.hidden = !children.length;
  };
  /** The first request of a tab; where it fails, its error with a way to try again. */
  const begin = async (task) => {
    try {
      await task();
    } catch (error) {
      const again = () => {
        tell();
        begin(task);
      };
      tell(failed(error.message, again));
    }
  };
  return { element, run, begin, tell, cancel: () => current?.abort() };
}

function begun(element, control) {
  const words = h("span.work-words", {}, "Asking …");
  const bar = h("progress", { max: 1, "aria-label": "how far the work is" });
  const cancel = h("button.small", { type: "button", onclick: () => control.abort() }, icon(CROSS), "Cancel");
  put(element, h("div.work-row", {}, words, cancel), bar);
  element.hidden = false;
  return (line) => {
    words.textContent = spoken(line);
    if (typeof line.done === "number") bar.value = line.done;
    else bar.removeAttribute("value");
  };
}

function ended(element, error, again) {
  const restart = h("button.small", { type: "button", onclick: again }, "Start again");
  if (error.name === "AbortError") put(element, h("div.work-row", {}, h("span.work-words", {}, "Cancelled."), restart));
  else put(element, failed(error.message, error instanceof Gone ? again : null));
}

function spoken(line) {
  if (line.state === "waiting") {
    if (!line.ahead) return "Waiting: next in the queue";
    return `Waiting: ${line.ahead} ${line.ahead === 1 ? "job" : "jobs"} ahead in the queue`;
  }
  const words = line.words ? line.words[0].toUpperCase() + line.words.slice(1) : "Working";
  return typeof line.done === "number" ? `${words} · ${Math.round(100 * line.done)} %` : `${words} …`;
}

/** A coloured word for a verdict, with its probability. */
export function verdict(name, probability) {
  if (!name) return h("span.verdict.none", {}, "not verified");
  const words = { title: "verified: probability that both show the same" };
  return h(`span.verdict.${name}`, words, name, " ", h("span.verdict-share", {}, rounded(probability)));
}

/** A photo's own name, without its folders. */
export const basename = (name) => name.split("/").pop();

/** The names of two photos; with their folders where they are called the same. */
export function names(a, b) {
  const parts = basename(a.name) === basename(b.name) && a.name !== b.name ? 2 : 1;
  return [a, b].map(({ name }) => name.split("/").slice(-parts).join("/"));
}

const chosen = { source: null };

/** The collection that Find and Duplicates look at, chosen in either: {element, begin(), shown()}; `open` gets its name. */
export function collections(open) {
  const select = h("select", { "aria-label": "Collection" });
  select.addEventListener("change", () => go(select.value));

  function go(name) {
    chosen.source = select.value = name;
    open(name);
  }

  async function begin() {
    const sources = await get("api/images/sources");
    const named = ({ name, count }) => (typeof count === "number" ? `${name} (${whole(count)})` : name);
    put(select, sources.map((source) => h("option", { value: source.name, title: source.words }, named(source))));
    go(chosen.source ?? sources[0].name);
  }

  return {
    element: h("label.field.inline-field", {}, h("span", {}, "Collection"), select),
    begin,
    shown: () => chosen.source && select.value && select.value !== chosen.source && go(chosen.source),
  };
}

/** A probability as per cent that never claims to be sure. */
function rounded(p) {
  if (typeof p !== "number") return "";
  if (p < 0.005) return "<\u202f1 %";
  return p > 0.995 ? ">\u202f99 %" : `${Math.round(100 * p)} %`;
}
