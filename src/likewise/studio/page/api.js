// Every request of the page. All addresses are relative: they stay below the token, on the server's own origin.

/** A refusal by the server: `message` is its sentence. */
export class Refusal extends Error {}

/** The server does not answer. */
export class Gone extends Error {}

const LOST = "The server went away before the work was done.";
const listeners = new Set();
let there = true;

/** Be told when the server goes away (false) and when it is back (true). */
export function onPresence(listener) {
  listeners.add(listener);
}

function presence(now) {
  if (now === there) return;
  there = now;
  for (const listener of listeners) listener(now);
}

async function reach(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    presence(false);
    throw new Gone("The server does not answer.");
  }
  presence(true);
  if (!response.ok) throw new Refusal(await sentence(response));
  return response;
}

async function sentence(response) {
  const text = await response.text();
  try {
    const { error, detail } = JSON.parse(text);
    return String(error ?? (typeof detail === "string" ? detail : text));
  } catch {
    return text.slice(0, 300) || `The server answered ${response.status}.`;
  }
}

export async function get(path, signal) {
  return (await reach(path, { signal })).json();
}

export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await reach(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

/** Send one file as it is; returns the server's images: one, or the frames of a video. */
export async function upload(file, signal) {
  const video = file.type.startsWith("video/") || /\.(mp4|mov|mkv|webm|avi)$/i.test(file.name);
  const headers = { "X-Name": encodeURIComponent(file.name), "Content-Type": "application/octet-stream" };
  const options = { method: "POST", headers, body: file, signal };
  return (await reach(video ? "api/videos" : "api/pictures", options)).json();
}

/**
 * Heavy work: reads the server's lines as they come. `on` gets waiting, working and partial lines; the result is
 * returned. Aborting the signal closes the connection, and that cancels the work.
 */
export async function job(path, body, { signal, on }) {
  const headers = { "Content-Type": "application/json" };
  const response = await reach(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  let last = null;
  for await (const line of lines(response.body, signal)) {
    last = JSON.parse(line);
    if (last.state !== "done" && last.state !== "failed") on(last);
  }
  if (last?.state === "failed") throw new Refusal(last.error);
  if (last?.state === "done") return last.result;
  presence(false);
  throw new Gone(LOST);
}

async function* lines(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) if (part.trim()) yield part;
    }
  } catch {
    if (signal?.aborted) throw new DOMException("cancelled", "AbortError");
    presence(false);
    throw new Gone(LOST);
  }
  if (rest.trim()) yield rest;
}

/** Ask now and then whether the server is there, more often while it is not. */
export function watch() {
  const look = async () => {
    try {
      if (!document.hidden || !there) await reach("api/about");
    } catch {
      // presence() has told it.
    }
    setTimeout(look, there ? 5000 : 1500);
  };
  setTimeout(look, 5000);
}
