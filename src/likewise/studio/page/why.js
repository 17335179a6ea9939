// Why two pictures are said to show the same thing or not: their matches, and one laid onto the other.

import { h, icon, put } from "./dom.js";
import { CROSS, verdict, worker } from "./parts.js";
import { wipe } from "./wipe.js";

/** {element, open({source, query, hit})}. */
export function whyDialog() {
  const work = worker();
  const body = h("div.why-body");
  const title = h("h2", { id: "why-title" });
  const close = h(
    "button.icon-button",
    { type: "button", "aria-label": "Close", onclick: () => element.close() },
    icon(CROSS),
  );
  const element = h(
    "dialog.why",
    { "aria-labelledby": "why-title" },
    h("div.card-head", {}, title, close),
    work.element,
    body,
  );
  element.addEventListener("close", () => work.cancel());
  element.addEventListener("click", (event) => event.target === element && element.close());

  function open({ source, query, hit }) {
    put(title, "Why ", h("span.quiet", {}, `${query.name} and ${hit.name}`));
    put(
      body,
      h("div.why-pair", {}, [query, hit].map((picture) => h("img", { src: picture.thumb, alt: picture.name }))),
    );
    element.showModal();
    work.run("api/images/why", { source, query: query.id, hit: hit.id }, { done: (found) => show(found, query) });
  }

  function show(found, query) {
    const laid = wipe();
    if (found.warp) laid.show(query.url, found.warp, ["the query", "the hit, laid onto it"]);
    put(
      body,
      h(
        "div.why-words",
        { data: { matches: found.matches, agree: found.inliers } },
        verdict(found.verdict, found.probability),
        h("p", {}, found.words ?? ""),
      ),
      found.why
        ? h(
          "figure",
          {},
          h("img.why-picture", { src: found.why, alt: "Matches between both pictures" }),
          h("figcaption.quiet.small-words", {}, "Matches that agree on one geometry"),
        )
        : null,
      found.warp
        ? h(
          "figure.why-laid",
          {},
          laid.element,
          h("figcaption.quiet.small-words", {}, "Before and after: drag the edge, or move it with the arrow keys"),
        )
        : null,
    );
  }

  return { element, open };
}
