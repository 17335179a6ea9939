// Figures as people read them: three digits that count, a thin space in thousands, real minus signs.

const known = (x) => typeof x === "number" && Number.isFinite(x);

/** Three significant digits; "–" where there is no number. */
export function figure(x, digits = 3) {
  if (!known(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return minus(x.toExponential(digits - 1).replace("e", " e").replace("e+", "e"));
  if (size >= 1000) return whole(x);
  return minus(x.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))));
}

/** A share as per cent; what is not quite all or nothing is never rounded to it. */
export function share(x) {
  if (!known(x)) return "–";
  const percent = 100 * x;
  if (percent > 0 && percent < 1) return `${percent < 0.1 ? "< 0.1" : percent.toFixed(1)} %`;
  if (percent < 100 && percent > 99) return `${percent > 99.9 ? "> 99.9" : percent.toFixed(1)} %`;
  return `${Math.round(percent)} %`;
}

export function whole(x) {
  return known(x) ? minus(Math.round(x).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f")) : "–";
}

export function fixed(x, digits = 2) {
  return known(x) ? minus(x.toFixed(digits)) : "–";
}

export function seconds(x) {
  if (!known(x)) return "–";
  return x < 1 ? `${whole(1000 * x)} ms` : `${figure(x)} s`;
}

export function bytes(x) {
  if (!known(x)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = x < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(x) / 3));
  return `${figure(x / 1000 ** power)} ${units[power]}`;
}

/** How long ago a time was; takes seconds since 1970 or an ISO string. */
export function ago(time, now = Date.now()) {
  const then = typeof time === "number" ? 1000 * time : Date.parse(time);
  if (!Number.isFinite(then)) return "–";
  const past = Math.max(0, (now - then) / 1000);
  if (past < 5) return "now";
  if (past < 60) return `${Math.round(past)} s ago`;
  if (past < 3600) return `${Math.round(past / 60)} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86400)} days ago`;
}

function minus(text) {
  return text.replace(/-/g, "\u2212");
}
