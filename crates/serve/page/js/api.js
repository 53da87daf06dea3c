/** The server's own API, `/v1`. */

import { events } from "./events.js";

/** The place of the key: it goes with the tab. */
const KEY = "kiln-key";

/** An answer that is an error, or no answer. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, param, retryAfter });
  }
}

/** Asks for a key; returns null where none is given. */
let askForKey = async () => null;

/** Sets the function that asks for a key. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Whether a key is in use. */
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

let asking = null;

/** Asks for a key once, however many requests need it. */
function newKey() {
  asking ??= askForKey(hasKey()).then((key) => {
    asking = null;
    if (key === null) return false;
    sessionStorage.setItem(KEY, key);
    return true;
  });
  return asking;
}

/** Sends a request. Throws an `ApiError` for answers that are errors. */
async function send(method, path, { body, type, signal } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = new Headers();
    if (key !== null) headers.set("authorization", `Bearer ${key}`);
    if (type) headers.set("content-type", type);
    const answer = await fetch(path, { method, headers, body, signal }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is it running?");
    });
    if (answer.ok) return answer;
    // Another request may have asked for the key in the meantime.
    if (answer.status === 401 && (sessionStorage.getItem(KEY) !== key || (await newKey()))) continue;
    throw await refused(answer);
  }
}

/** The error in an answer. */
async function refused(answer) {
  const { error } = await answer.json().catch(() => ({}));
  const retryAfter = Number(answer.headers.get("retry-after")) || null;
  const message = plain(error?.message) ?? `The server answered ${answer.status}.`;
  return new ApiError(message, { status: answer.status, param: error?.param ?? null, retryAfter });
}

/** A message of the server, which has fields between backticks. */
export const plain = (message) => message?.replaceAll("`", "");

const json = async (...request) => (await send(...request)).json();

/** What the server has and allows. */
export const capabilities = () => json("GET", "v1/capabilities");

/** Adds a job. */
export const submit = (job) => json("POST", "v1/jobs", { body: JSON.stringify(job), type: "application/json" });

/** A job. */
export const job = (id) => json("GET", `v1/jobs/${id}`);

/** Cancels a job, or forgets one that is finished. */
export const remove = (id) => json("DELETE", `v1/jobs/${id}`);

/** Ends a job with its running images as they are. */
export const finish = (id) => json("POST", `v1/jobs/${id}/finish`);

/** Moves a job that waits before another one. */
export const move = (id, before) =>
  json("POST", `v1/jobs/${id}/move`, { body: JSON.stringify({ before }), type: "application/json" });

/** The file of an image. */
export const image = async (id) => (await send("GET", `v1/images/${id}`)).blob();

/** The settings in an image file. */
export const settings = (file) => json("POST", "v1/settings", { body: file, type: file.type || "image/png" });

/** The lengths of prompts in tokens. */
export const tokens = (texts, signal) =>
  json("POST", "v1/tokens", { body: JSON.stringify(texts), type: "application/json", signal });

/** A part of the gallery of the server. */
export function gallery({ limit, search, before }) {
  const query = new URLSearchParams({ limit });
  if (search) query.set("search", search);
  if (before) query.set("before", before);
  return json("GET", `v1/gallery?${query}`);
}

/** An image of that gallery: its file, or a thumbnail of at most `side` pixels. */
export async function galleryImage(name, side) {
  const size = side ? `?side=${side}` : "";
  return (await send("GET", `v1/gallery/${encodeURIComponent(name)}${size}`)).blob();
}

/** Deletes an image of that gallery. */
export const galleryRemove = (name) => json("DELETE", `v1/gallery/${encodeURIComponent(name)}`);

/** Images of that gallery in a ZIP file. */
export async function galleryZip(names) {
  const body = JSON.stringify({ names });
  return (await send("POST", "v1/gallery/zip", { body, type: "application/json" })).blob();
}

/** An image file, larger. */
export async function upscale(file, { scale, upscaler }) {
  const query = new URLSearchParams({ scale, upscaler });
  return (await send("POST", `v1/upscale?${query}`, { body: file, type: file.type || "image/png" })).blob();
}

/** The events of a job, each with `name` and `data`, until it is finished. */
export async function* follow(id, signal) {
  const answer = await send("GET", `v1/jobs/${id}/events`, { signal });
  yield* events(answer.body);
}
