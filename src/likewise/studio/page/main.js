// The shell: tabs that can be linked, colours, and whether the server is there. A tab's module is loaded when it is first shown.

import { get, onPresence, watch } from "./api.js";
import { h, icon, put } from "./dom.js";

const TITLES = {
  find: "Find",
  duplicates: "Duplicates",
  compare: "Compare",
  albums: "Albums",
  generators: "Generators",
  runs: "Runs",
};
const NAMES = Object.keys(TITLES);
const opened = new Map();

// ---------------------------------------------------------------------------------------------------------------- tabs

function route() {
  const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  return NAMES.includes(name) ? { name, rest: rest.join("/") } : { name: NAMES[0], rest: "" };
}

async function show() {
  const { name, rest } = route();
  for (const other of NAMES) {
    const tab = document.getElementById(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    document.getElementById(`panel-${other}`).hidden = other !== name;
  }
  document.title = `${TITLES[name]} · likewise studio`;
  if (!opened.has(name)) opened.set(name, open(name));
  const tab = await opened.get(name);
  if (route().name === name) tab?.shown?.(rest);
}

async function open(name) {
  const panel = document.getElementById(`panel-${name}`);
  try {
    const { mount } = await import(`./${name}.js`);
    return mount(panel);
  } catch (error) {
    opened.delete(name);
    put(panel, h("p.failed", { role: "alert" }, `This tab could not be opened: ${error.message}`));
    return null;
  }
}

function keys(event) {
  const here = NAMES.indexOf(event.target.id.replace("tab-", ""));
  const steps = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: NAMES.length - 1 };
  if (event.key === " ") {
    event.preventDefault();
    event.target.click();
  }
  if (!(event.key in steps)) return;
  event.preventDefault();
  const name = NAMES[(steps[event.key] + NAMES.length) % NAMES.length];
  location.hash = name;
  document.getElementById(`tab-${name}`).focus();
}

// ------------------------------------------------------------------------------------------------------------- colours

const SUN =
  "M8 4.8a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4M8 .8v1.7M8 13.5v1.7M.8 8h1.7M13.5 8h1.7M2.9 2.9l1.2 1.2M11.9 11.9l1.2 1.2M13.1 2.9l-1.2 1.2M4.1 11.9l-1.2 1.2";
const MOON = "M13.5 9.6A6 6 0 0 1 6.4 2.5a6 6 0 1 0 7.1 7.1Z";
const HALF = "M8 1.8a6.2 6.2 0 1 0 0 12.4ZM8 1.8a6.2 6.2 0 0 1 0 12.4";
const COLOURS = {
  system: { next: "light", path: HALF, words: "Colours: as the system has them" },
  light: { next: "dark", path: SUN, words: "Colours: light" },
  dark: { next: "system", path: MOON, words: "Colours: dark" },
};

function colours(name, keep) {
  const root = document.documentElement;
  if (name === "system") delete root.dataset.colours;
  else root.dataset.colours = name;
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", COLOURS[name].words);
  button.title = COLOURS[name].words;
  put(button, icon(COLOURS[name].path));
  if (!keep) return;
  try {
    localStorage.setItem("likewise-colours", name);
  } catch {
    // A browser that keeps nothing forgets it.
  }
  dispatchEvent(new Event("colours"));
}

// -------------------------------------------------------------------------------------------------------------- server

function said(here) {
  const gone = document.getElementById("gone");
  gone.hidden = here;
  put(
    gone,
    here ? null : "The studio's server does not answer. Was it stopped? Start ",
    here ? null : h("code", {}, "likewise studio"),
    here
      ? null
      : " again and open the address that it prints; this page continues by itself if the same server is back.",
  );
}

async function about() {
  try {
    const { version } = await get("api/about");
    put(document.getElementById("about"), `v${version} · local`);
  } catch {
    // The banner tells it.
  }
}

document.querySelector(".tabs").addEventListener("keydown", keys);
document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
document.getElementById("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.colours ?? "system";
  colours(COLOURS[now].next, true);
});
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault()); // a miss opens no file
colours(document.documentElement.dataset.colours ?? "system", false);
onPresence(said);
addEventListener("hashchange", show);
about();
show();
watch();
