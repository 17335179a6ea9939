// Why two pictures are said to show the same thing or not: their matches, and one laid onto the other.

import { h, icon, put } from "./dom.js";
import { whole } from "./numbers.js";
import { CROSS, readings, verdict, worker } from "./parts.js";

/** {element, open({source, query, hit})}. */
export function whyDialog() {
  const work = worker();
  const body = h("div.why-body");
  const title = h("h2", { id: "why-title" });
  const close = h("button.icon-button", { type: "button", "aria-label": "Close", onclick: () => element.close() }, icon(CROSS));
  const element = h("dialog.why", { "aria-labelledby": "why-title" }, h("div.card-head", {}, title, close), work.element, body);
  element.addEventListener("close", () => work.cancel());
  element.addEventListener("click", (event) => event.target === element && element.close());

  function open({ source, query, hit }) {
    put(title, "Why ", h("span.quiet", {}, `${query.name} and ${hit.name}`));
    put(body, h("div.why-pair", {}, [query, hit].map((picture) => h("img", { src: picture.thumb, alt: picture.name }))));
    element.showModal();
    work.run("api/images/why", { source, query: query.id, hit: hit.id }, { done: show });
  }

  function show(found) {
    put(body,
      h("div.why-words", {}, verdict(found.verdict, found.probability), h("p", {}, found.words ?? "")),
      found.why ? h("figure", {}, h("img.why-picture", { src: found.why, alt: "Matches between both pictures" }), h("figcaption.quiet.small-words", {}, "Matches that agree on one geometry")) : null,
      found.warp ? h("figure", {}, h("img.why-picture", { src: found.warp, alt: "The hit laid onto the query" }), h("figcaption.quiet.small-words", {}, "The hit laid onto the query by the flow")) : null,
      readings([["matches", whole(found.matches)], ["agree", whole(found.inliers)]]));
  }

  return { element, open };
}
