/** The prompts that were sent, to be used again. */

import { dialog, field, h } from "./dom.js";
import { keep, kept } from "./kept.js";

const PLACE = "kiln-history";
/** Prompts that are kept. */
const MOST = 100;

/** Keeps the prompts of a request as the newest ones. */
export function remember({ prompt = "", negative_prompt = "" }) {
  if (!prompt.trim()) return;
  const isOther = (entry) => entry.prompt !== prompt || entry.negative_prompt !== negative_prompt;
  keep(PLACE, [{ prompt, negative_prompt }, ...kept(PLACE).filter(isOther)].slice(0, MOST));
}

/** Lists the prompts; calls `use` with the one that is chosen. */
export function openHistory(use) {
  const entries = kept(PLACE).filter(({ prompt }) => typeof prompt === "string");
  const item = (entry) => {
    const { prompt, negative_prompt: negative } = entry;
    const take = () => {
      element.close();
      use(entry);
    };
    const button = h(
      "button",
      { type: "button", onclick: take },
      h("span", { class: "text" }, prompt),
      negative && h("span", { class: "text muted" }, `Not: ${negative}`),
    );
    return { row: h("li", {}, button), text: `${prompt} ${negative}`.toLowerCase() };
  };
  const items = entries.map(item);
  const search = h("input", {
    type: "search",
    oninput: () => {
      const words = search.value.toLowerCase().split(/\s+/);
      items.forEach(({ row, text }) => (row.hidden = !words.every((word) => text.includes(word))));
    },
  });
  const clear = () => {
    if (!confirm("Remove all prompts from this list?")) return;
    keep(PLACE, []);
    element.close();
  };
  const none = entries.length === 0 && h("p", { class: "muted" }, "Prompts that were sent appear here.");
  const content = h(
    "div",
    { class: "body" },
    h("h2", {}, "Prompt history"),
    entries.length > 0 && field("Search", search),
    none,
    h("ul", { class: "history" }, ...items.map(({ row }) => row)),
    h(
      "div",
      { class: "bar" },
      entries.length > 0 && h("button", { type: "button", class: "quiet", onclick: clear }, "Clear"),
      h("button", { type: "button", onclick: () => element.close() }, "Close"),
    ),
  );
  const element = dialog({ class: "small", "aria-label": "Prompt history" }, content);
}
