/** The number of tokens of the prompts, counted by the server while they are typed. */

import * as api from "./api.js";
import { byId } from "./dom.js";

/** Milliseconds without a key after which tokens are counted. */
const PAUSE = 350;
/** Tokens of a chunk where nothing was counted yet. */
const ROOM = 75;
const NAMES = ["prompt", "negative_prompt"];

/** Shows `n/75` above both prompts. `model` returns the name of the model. Returns what counts again. */
export function countTokens(settings, model) {
  let waits = null;
  let stop = null;
  let last = "";
  const show = (name, { tokens, room }) => {
    const place = byId(`${name}-tokens`);
    place.textContent = `${tokens}/${room}`;
    place.title = `${tokens} tokens; the model reads them in chunks of ${ROOM}`;
  };
  const count = async () => {
    const texts = Object.fromEntries(NAMES.map((name) => [name, settings.get(name) ?? ""]));
    const body = { ...texts, model: model() };
    if (JSON.stringify(body) === last) return;
    last = JSON.stringify(body);
    stop?.abort();
    if (NAMES.every((name) => !texts[name].trim())) return NAMES.forEach((name) => show(name, { tokens: 0, room: ROOM }));
    stop = new AbortController();
    try {
      const counts = await api.tokens(body, stop.signal);
      NAMES.forEach((name) => show(name, counts[name]));
    } catch (error) {
      // A text that is too long, or a server without this route: there is no number.
      if (error.name !== "AbortError") NAMES.forEach((name) => (byId(`${name}-tokens`).textContent = ""));
    }
  };
  const soon = () => {
    clearTimeout(waits);
    waits = setTimeout(count, PAUSE);
  };
  settings.addEventListener("change", ({ detail }) => NAMES.includes(detail) && soon());
  count();
  return soon;
}
