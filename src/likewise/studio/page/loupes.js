// What lies around a point of a and around its place in b, enlarged.

import { h } from "./dom.js";

const SIDE = 128;
/** So many of a picture's pixels are seen across a loupe, as a share of its longest side. */
const SHARE = 0.09;

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
