// Runs: what is being trained or harvested, read from the run directories, as it goes.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { h, put } from "./dom.js";
import { ago, bytes, whole } from "./numbers.js";
import { card, empty, failed, head } from "./parts.js";

const EVERY = 2000;
const NOT_CURVES = new Set(["step", "time", "epoch"]);

export function mount(panel) {
  const state = { runs: [], id: null, lines: [], next: 0, metric: null, about: null, wanted: "" };
  const list = h("div.run-list", { role: "listbox", "aria-label": "Runs" });
  const detail = h("div.run-detail");
  const problem = h("div");
  const curve = chart({ label: "Metric by step", height: 280 });
  const nothing = h("p.quiet.nothing-logged");
  const select = h("select", { "aria-label": "Metric" });
  const log = h("input", { type: "checkbox" });
  const title = h("h2");
  const progress = h("progress", { max: 1, "aria-label": "steps done" });
  const stateLine = h("div.run-state", { "aria-live": "polite" });
  const checkpoints = h("div");
  const start = h("button.primary", { type: "button", onclick: begin }, "Start the sample run");
  select.addEventListener("change", () => {
    state.metric = select.value;
    drawCurve();
  });
  log.addEventListener("change", drawCurve);
  put(
    panel,
    head(
      "What is running?",
      "Training and harvest runs, read from their run directories: curves as they grow, the configuration, the checkpoints.",
      h("div.row", {}, start),
    ),
    problem,
    h(
      "div.columns.runs-columns",
      {},
      h("aside.side-column", { "aria-label": "Runs" }, card("Runs", list)),
      h("div.main-column", {}, detail),
    ),
  );
  put(
    detail,
    empty("No run chosen", "Choose a run, or start the sample run: a small training in a process of its own."),
  );
  cycle();

  async function cycle() {
    for (;;) {
      if (!panel.hidden && !document.hidden) await refresh();
      await new Promise((done) => setTimeout(done, EVERY));
    }
  }

  async function refresh() {
    try {
      state.runs = await get("api/runs/list");
      if (!state.id && state.runs.length) {
        choose((state.runs.find((run) => run.id === state.wanted) ?? state.runs[0]).id);
      } else if (state.id) await follow();
      drawList();
      put(problem);
    } catch (error) {
      put(problem, failed(error.message));
    }
  }

  async function begin() {
    start.disabled = true;
    put(start, "Starting …");
    try {
      const { id } = await post("api/runs/sample", {});
      state.runs = await get("api/runs/list");
      choose(id);
    } catch (error) {
      put(problem, failed(error.message));
    }
    start.disabled = false;
    put(start, "Start the sample run");
  }

  function choose(id) {
    Object.assign(state, { id, lines: [], next: 0, about: null });
    history.replaceState(null, "", `#runs/${encodeURIComponent(id)}`);
    drawList();
    return follow();
  }

  async function follow() {
    const id = state.id;
    const found = await post("api/runs/read", { id, since: state.next });
    if (id !== state.id) return;
    const first = state.about?.id !== found.id;
    state.lines.push(...found.lines);
    state.next = found.next;
    state.about = found;
    if (first) drawFrame();
    drawState();
    drawMetrics();
    drawCurve();
  }

  // ----------------------------------------------------------------------------------------------------------- drawing

  function drawList() {
    if (!state.runs.length) {
      return put(
        list,
        empty("No runs yet", "A run directory appears here as soon as a training or a harvest writes to it."),
      );
    }
    const had = list.contains(document.activeElement);
    put(list, state.runs.map((run) => entry(run)));
    if (had) list.querySelector("[aria-selected=true]")?.focus();
    return list;
  }

  function entry(run) {
    const chosen = run.id === state.id;
    const button = h(
      "button.run",
      {
        type: "button",
        role: "option",
        "aria-selected": String(chosen),
        tabindex: chosen ? "0" : "-1",
        data: { run: run.id, state: run.state },
      },
      h("span.run-name.clip", {}, run.name),
      badge(run.state),
      h(
        "span.quiet.small-words.clip",
        {},
        `${run.kind} · step ${whole(run.step)}${run.steps ? ` of ${whole(run.steps)}` : ""}`,
      ),
      h("span.quiet.small-words.run-when", {}, ago(run.updated)),
    );
    button.addEventListener("click", () => choose(run.id));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const next = step && state.runs[state.runs.indexOf(run) + step];
      if (!next) return;
      event.preventDefault();
      choose(next.id);
      list.querySelector("[aria-selected=true]")?.focus();
    });
    return button;
  }

  function drawFrame() {
    const pick = h("div.row", {}, h("label.inline", {}, log, " log"), select);
    put(
      detail,
      h("section.card.run-head", {}, h("div.card-head", {}, title, stateLine), progress),
      card("Curve", h("div", {}, nothing, curve.element), { side: pick }),
      h("div.two", {}, card("Configuration", table(state.about.config)), card("Checkpoints", checkpoints)),
    );
    state.metric = null;
  }

  function drawState() {
    const { about } = state;
    const run = state.runs.find((one) => one.id === state.id) ?? {};
    put(title, about.name ?? run.name ?? state.id);
    const steps = `step ${whole(about.step)}${about.steps ? ` of ${whole(about.steps)}` : ""}`;
    const cancel = about.state === "running" && h("button.small", { type: "button", onclick: stop }, "Cancel");
    put(stateLine, badge(about.state), h("span.quiet", {}, steps), cancel);
    progress.hidden = !about.steps;
    if (about.steps) progress.value = Math.min(1, (about.step ?? 0) / about.steps);
    const rows = about.checkpoints.map((file) =>
      h(
        "tr",
        {},
        h("td.clip", {}, file.name),
        h("td.number", {}, ago(file.updated)),
        h("td.number", {}, bytes(file.bytes)),
      )
    );
    put(
      checkpoints,
      rows.length ? h("table", {}, h("tbody", {}, rows)) : h("p.quiet", {}, "None yet."),
      about.error ? failed(about.error) : null,
    );
  }

  async function stop(event) {
    event.target.disabled = true;
    try {
      await post("api/runs/cancel", { id: state.id });
      await refresh();
    } catch (error) {
      put(problem, failed(error.message));
    }
  }

  function drawMetrics() {
    const names = [
      ...new Set(
        state.lines.flatMap((line) =>
          Object.keys(line).filter((key) => !NOT_CURVES.has(key) && typeof line[key] === "number")
        ),
      ),
    ];
    if (!names.includes(state.metric)) {
      state.metric = names.find((name) => /loss|objective/.test(name)) ?? names[0] ?? null;
    }
    if (names.join() === [...select.options].map((option) => option.value).join()) return;
    put(select, names.map((name) => h("option", { value: name, selected: name === state.metric }, name)));
  }

  function drawCurve() {
    nothing.hidden = state.metric !== null;
    curve.element.hidden = state.metric === null;
    if (state.metric === null) {
      const running = state.about?.state === "running";
      put(nothing, running ? "Its first step is under way; the curve begins with it." : "Nothing was logged.");
      return;
    }
    const points = state.lines.filter((line) => state.metric in line).map((
      line,
    ) => [line.step, typeof line[state.metric] === "number" ? line[state.metric] : NaN]);
    curve.draw({
      series: [{ name: state.metric, tone: 1, points }],
      x: { label: "step" },
      y: { log: log.checked && points.some((p) => p[1] > 0) },
    });
  }

  return {
    shown(rest) {
      if (rest && rest !== state.id) {
        state.wanted = rest;
        if (state.runs.some((run) => run.id === rest)) choose(rest);
      } else if (state.id) history.replaceState(null, "", `#runs/${encodeURIComponent(state.id)}`);
    },
  };
}

function badge(state) {
  return h(`span.badge.${state}`, {}, state);
}

function table(config) {
  const rows = Object.entries(flat(config ?? {})).map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))
  );
  return rows.length ? h("div.scroll", {}, h("table.config", {}, h("tbody", {}, rows))) : h("p.quiet", {}, "None.");
}

/** Nested settings as dotted names. */
function flat(values, before = "") {
  const found = {};
  for (const [name, value] of Object.entries(values)) {
    if (value && typeof value === "object" && !Array.isArray(value)) {
      Object.assign(found, flat(value, `${before}${name}.`));
    } else found[before + name] = typeof value === "string" ? value : JSON.stringify(value);
  }
  return found;
}
