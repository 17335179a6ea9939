// Before and after: two pictures of one size in one frame, and an edge that is dragged or moved with the arrow keys.

import { h } from "./dom.js";

/** Returns {element, show(before, after, words), set(part)}. */
export function wipe() {
  const before = h("img", { alt: "", draggable: "false" });
  const after = h("img.wipe-after", { alt: "", draggable: "false" });
  const tags = [h("span.tag.tag-left"), h("span.tag.tag-right")];
  const handle = h("div.wipe-handle", {
    role: "slider",
    tabindex: "0",
    "aria-label": "Edge between before and after",
    "aria-valuemin": "0",
    "aria-valuemax": "100",
  }, h("i"));
  const element = h("div.wipe", {}, before, after, ...tags, handle);
  let part = 0.5;

  function set(now) {
    part = Math.max(0, Math.min(1, now));
    const percent = `${(100 * part).toFixed(2)}%`;
    after.style.clipPath = `inset(0 0 0 ${percent})`;
    handle.style.left = percent;
    handle.setAttribute("aria-valuenow", String(Math.round(100 * part)));
    handle.setAttribute("aria-valuetext", `${Math.round(100 * part)} % ${tags[0].textContent}`);
  }

  const follow = (event) => {
    const box = element.getBoundingClientRect();
    set((event.clientX - box.left) / box.width);
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    element.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    follow(event);
  });
  element.addEventListener("pointermove", (event) => element.hasPointerCapture(event.pointerId) && follow(event));
  handle.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 0.1 : 0.02;
    const places = {
      ArrowLeft: part - step,
      ArrowDown: part - step,
      ArrowRight: part + step,
      ArrowUp: part + step,
      Home: 0,
      End: 1,
      PageUp: part + 0.1,
      PageDown: part - 0.1,
    };
    if (!(event.key in places)) return;
    event.preventDefault();
    set(places[event.key]);
  });

  function show(one, two, words) {
    before.src = one;
    after.src = two;
    [before.alt, after.alt] = words;
    tags.forEach((tag, i) => (tag.textContent = words[i]));
    set(part);
  }
  return { element, show, set };
}
