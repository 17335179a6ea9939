// Files from a person: chosen in a dialogue or dropped on an element.

import { Refusal, upload } from "./api.js";
import { h } from "./dom.js";

const TYPES = "image/*,video/*";

/**
 * A button that opens the file chooser. `taken` gets a list of files.
 */
export function chooser({ words, several = false, taken, label = null, name = "choose" }) {
  const input = h("input", {
    type: "file",
    accept: TYPES,
    hidden: true,
    multiple: several,
    tabindex: "-1",
    "aria-label": label ?? words,
  });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) taken(files);
  });
  const button = h(`button.${name}`, { type: "button", "aria-label": label, onclick: () => input.click() }, words);
  return h("span.chooser", {}, button, input);
}

/** Let files be dropped on an element; it carries the class `over` while one hangs above it. */
export function droppable(element, taken) {
  let depth = 0;
  const over = (now) => element.classList.toggle("over", now);
  element.addEventListener("dragenter", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    depth += 1;
    over(true);
  });
  element.addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  element.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) over(false);
  });
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    over(false);
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length) taken(files);
  });
}

const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Send files one after the other; `each` is told how many are sent. Returns the server's pictures. */
export async function sent(files, each = () => {}) {
  const { pictures, refused } = await sentSome(files, each);
  if (refused.length) throw refused[0];
  return pictures;
}

/** The same where one bad file does not spoil the others: {pictures, refused}; throws where every file is refused. */
export async function sentSome(files, each = () => {}) {
  const pictures = [];
  const refused = [];
  for (const [done, file] of files.entries()) {
    each(done, files.length);
    try {
      pictures.push(...(await upload(file)));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      refused.push(error);
    }
  }
  if (!pictures.length && refused.length) throw refused[0];
  return { pictures, refused };
}
