// Ways to look at two images: an edge between before and after, what lies around a point, the key to a flow's colours.

import { h } from "./dom.js";
import { figure } from "./numbers.js";

// ------------------------------------------------------------------------------------------------------ before and after

/** Two images of one size in one frame, and an edge that is dragged or moved with the arrow keys: {element, show(before, after, words), set(part)}. */
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

// --------------------------------------------------------------------------------------------------------------- loupes

const SIDE = 128;
/** So many of an image's pixels are seen across a loupe, as a share of its longest side. */
const SHARE = 0.09;

/** What lies around a point of a and around its place in b, enlarged. */
export function loupes() {
  const canvases = ["a", "b"].map((name) =>
    h("canvas.loupe", { width: 2 * SIDE, height: 2 * SIDE, role: "img", "aria-label": `Around the point in ${name}` })
  );
  const element = h(
    "div.loupes",
    { hidden: true },
    canvases.map((canvas, i) => h("figure", {}, canvas, h("figcaption", {}, "ab"[i]))),
  );
  const images = [new Image(), new Image()];
  let sizes = null;
  let spots = [null, null];
  images.forEach((image) => image.addEventListener("load", draw));

  function draw() {
    if (!sizes) return;
    canvases.forEach((canvas, i) => drawOne(canvas, images[i], sizes[i], spots[i], SHARE * Math.max(...sizes[0])));
  }

  return {
    element,
    pictures(a, b, sizeA, sizeB) {
      sizes = [sizeA, sizeB];
      images[0].src = a;
      images[1].src = b;
    },
    look(a, b) {
      spots = [a, b];
      element.hidden = false;
      draw();
    },
    clear() {
      sizes = null;
      element.hidden = true;
    },
  };
}

function drawOne(canvas, image, [height, width], spot, across) {
  const context = canvas.getContext("2d");
  const side = canvas.width;
  context.clearRect(0, 0, side, side);
  if (!spot || !image.complete || !image.naturalWidth) return;
  const scale = image.naturalWidth / width;
  const [x, y] = [(spot[0] + 0.5) * scale, ((spot[1] + 0.5) * image.naturalHeight) / height];
  const cut = across * scale;
  context.imageSmoothingEnabled = cut > side / 4;
  context.drawImage(image, x - cut / 2, y - cut / 2, cut, cut, 0, 0, side, side);
  for (const [colour, thick] of [["#000a", 5], ["#fff", 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.beginPath();
    context.arc(side / 2, side / 2, 14, 0, 2 * Math.PI);
    context.stroke();
  }
}

// ---------------------------------------------------------------------------------------------------------------- wheel

/** The key to a flow's colours, as the server draws it; `largest` is the length in pixels that its rim stands for. */
export function wheel(url, largest) {
  const words = "Colour wheel: hue is the direction of motion, strength is its length";
  const rim = typeof largest === "number" ? `rim ${figure(largest)} px` : "rim: longest motion";
  return h(
    "div.wheel",
    {},
    h("img.wheel-disc", { src: url, alt: words }),
    h("div", {}, h("b", {}, "hue"), " direction", h("br"), h("b", {}, "white"), " at rest", h("br"), rim),
  );
}
