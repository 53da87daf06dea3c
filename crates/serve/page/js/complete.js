/** Completion of names in a prompt: LoRAs in a tag, and words with vectors of their own. */

import { h, newId } from "./dom.js";
import { replace } from "./prompt.js";

/** Names that are offered at once. */
const MOST = 8;
/** The text before the cursor that begins a tag, or a word of at least three letters. */
const TAG = /<lora:([^:<>]*)$/;
const WORD = /([^\s,()<>[\]{}|:]{3,})$/;

/** Offers names below a text area while they are typed. */
export function completeNames(area, { loras = [], embeddings = [] }) {
  if (!loras.length && !embeddings.length) return;
  const list = h("ul", { class: "names", role: "listbox", id: newId("names"), "aria-label": "Names", hidden: true });
  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", list.id);
  area.after(list);
  let offer = null;
  let active = -1;

  const mark = (at) => {
    active = at;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    if (at < 0) area.removeAttribute("aria-activedescendant");
    else area.setAttribute("aria-activedescendant", list.children[at].id);
  };
  const close = () => {
    list.hidden = true;
    offer = null;
    mark(-1);
  };
  const take = (name) => {
    const { start, end, made } = offer;
    close();
    replace(area, start, end, made(name));
    area.focus();
  };
  const show = () => {
    offer = offerAt(area, loras, embeddings);
    if (!offer) return close();
    const item = (name) =>
      h("li", { role: "option", id: newId("name"), onpointerdown: (event) => (event.preventDefault(), take(name)) }, name);
    list.replaceChildren(...offer.names.map(item));
    list.hidden = false;
    // Enter ends a line unless a name was chosen; in a tag there are no lines.
    mark(offer.isTag ? 0 : -1);
  };

  area.addEventListener("input", show);
  area.addEventListener("blur", close);
  area.addEventListener("keydown", (event) => {
    if (!offer || event.ctrlKey || event.metaKey || event.altKey) return;
    const count = offer.names.length;
    if (event.key === "ArrowDown") mark((active + 1) % count);
    else if (event.key === "ArrowUp") mark((active + count - 1 + (active < 0)) % count);
    else if (event.key === "Tab" || (event.key === "Enter" && active >= 0)) take(offer.names[Math.max(0, active)]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** The names for the text before the cursor, and what they replace; null where there are none. */
function offerAt(area, loras, embeddings) {
  const { selectionStart: end, selectionEnd } = area;
  if (end !== selectionEnd) return null;
  const before = area.value.slice(Math.max(0, end - 200), end);
  const tag = TAG.exec(before);
  const typed = (tag ?? WORD.exec(before))?.[1];
  if (typed === undefined) return null;
  const text = typed.toLowerCase();
  const begins = (name) => name.toLowerCase().startsWith(text);
  const has = (name) => (tag ? name.toLowerCase().includes(text) : begins(name) && name !== typed);
  const names = (tag ? loras : embeddings).filter(has).sort((a, b) => begins(b) - begins(a));
  if (!names.length) return null;
  const made = (name) => (tag ? `${name}:1>` : name);
  return { start: end - typed.length, end, names: names.slice(0, MOST), isTag: Boolean(tag), made };
}
