/** Styles: snippets of prompts with names, kept by the browser. Those that are chosen are added when a job is sent. */

import { field, h } from "./dom.js";
import { keep, kept } from "./kept.js";
import { notify, report } from "./messages.js";

const PLACE = "kiln-styles";
/** Where a style has the prompt, as in AUTOMATIC1111; without this the style follows it. */
const HERE = "{prompt}";
/** Styles above which there is a search. */
const MANY = 8;

/** Dispatches `change` when a style is chosen, added or removed. */
export class Styles extends EventTarget {
  #chosen = new Set();
  /** Each `{ name, prompt, negative_prompt }`. */
  #all = kept(PLACE).filter(({ name }) => typeof name === "string");

  constructor(settings) {
    super();
    this.settings = settings;
    this.search = h("input", { type: "search", oninput: () => this.#filter() });
    this.searchField = field("Search styles", this.search);
    this.list = h("ul", { class: "styles" });
    this.name = h("input", { type: "text", maxlength: 100 });
    const save = h("button", { type: "button", onclick: () => this.#save() }, "Save the prompts");
    this.name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.#save();
    });
    const hint = h("p", { class: "hint" }, "A style is added to the prompts, or put around them: “{prompt}, oil painting”.");
    const load = h("button", { type: "button", class: "quiet", onclick: () => this.#choose() }, "Import styles.csv");
    this.element = h(
      "div",
      { class: "content" },
      this.searchField,
      this.list,
      h("div", { class: "two" }, field("Name of a new style", this.name), save),
      hint,
      load,
    );
    this.#draw();
  }

  get state() {
    return [...this.#chosen].join(", ");
  }

  /** The prompts of a request with the styles that are chosen. */
  apply(request) {
    const made = { ...request };
    for (const chosen of this.#chosen) {
      const style = this.#all.find(({ name }) => name === chosen);
      made.prompt = merged(made.prompt ?? "", style.prompt);
      const negative = merged(made.negative_prompt ?? "", style.negative_prompt);
      if (negative) made.negative_prompt = negative;
    }
    return made;
  }

  /** Takes no style any more: the prompts of an image have its styles already. */
  clear() {
    this.#chosen.clear();
    this.#draw();
  }

  /** Adds the styles of a file of AUTOMATIC1111. */
  async load(file) {
    const styles = stylesOf(await file.text());
    if (!styles.length) return report(`${file.name} has no styles: a table with the columns name, prompt and negative_prompt.`);
    this.#add(styles);
    notify(`${styles.length} styles were imported.`);
  }

  #choose() {
    const input = h("input", { type: "file", accept: ".csv,text/csv" });
    input.addEventListener("change", () => input.files[0] && this.load(input.files[0]).catch(report));
    input.click();
  }

  #save() {
    const name = this.name.value.trim();
    const [prompt, negative] = ["prompt", "negative_prompt"].map((option) => this.settings.get(option) ?? "");
    if (!name || !(prompt || negative)) return report("A style needs a name, and a prompt to save.");
    this.#add([{ name, prompt, negative_prompt: negative }]);
    this.name.value = "";
  }

  #add(styles) {
    const names = new Set(styles.map(({ name }) => name));
    this.#all = [...this.#all.filter(({ name }) => !names.has(name)), ...styles];
    this.#all.sort((a, b) => a.name.localeCompare(b.name));
    this.#store();
  }

  #store() {
    if (!keep(PLACE, this.#all)) report("The browser does not keep the styles after this visit.");
    this.#draw();
  }

  #draw() {
    this.list.replaceChildren(...this.#all.map((style) => this.#row(style)));
    this.list.hidden = this.#all.length === 0;
    this.searchField.hidden = this.#all.length <= MANY;
    this.#filter();
    this.dispatchEvent(new Event("change"));
  }

  #row({ name, prompt, negative_prompt: negative }) {
    const toggle = () => {
      if (!this.#chosen.delete(name)) this.#chosen.add(name);
      this.#draw();
      [...this.list.children].find((row) => row.dataset.name === name)?.firstElementChild.focus();
    };
    const title = [prompt, negative && `Not: ${negative}`].filter(Boolean).join("\n");
    const use = h("button", { type: "button", title, "aria-pressed": String(this.#chosen.has(name)), onclick: toggle }, name);
    const remove = () => {
      if (!confirm(`Remove the style ${name}?`)) return;
      this.#all = this.#all.filter((other) => other.name !== name);
      this.#chosen.delete(name);
      this.#store();
    };
    const drop = h("button", { type: "button", class: "quiet icon", "aria-label": `Remove ${name}`, onclick: remove }, "✕");
    return h("li", { "data-name": name }, use, drop);
  }

  #filter() {
    const text = this.search.value.toLowerCase();
    for (const row of this.list.children) row.hidden = !row.dataset.name.toLowerCase().includes(text);
  }
}

/** A prompt with a style. */
export function merged(prompt, style = "") {
  if (!style) return prompt;
  if (style.includes(HERE)) return style.replaceAll(HERE, () => prompt);
  return prompt.trim() ? `${prompt.trim().replace(/,$/, "")}, ${style}` : style;
}

/** The styles in the text of a styles.csv. */
export function stylesOf(text) {
  const [head = [], ...rows] = table(text.replace(/^\uFEFF/, ""));
  const names = head.map((name) => name.trim().toLowerCase());
  const at = (...known) => names.findIndex((name) => known.includes(name));
  const columns = [at("name"), at("prompt", "text"), at("negative_prompt")];
  if (columns[0] < 0 || columns[1] < 0) return [];
  const styles = rows.map((row) => {
    const [name, prompt, negative] = columns.map((column) => row[column]?.trim() ?? "");
    return { name, prompt, negative_prompt: negative };
  });
  // Some files have lines that are heads, without prompts.
  return styles.filter(({ name, prompt, negative_prompt: negative }) => name && (prompt || negative));
}

/** The rows of a table of comma-separated values. */
function table(text) {
  const rows = [[]];
  // A value in quotes, with quotes doubled in it, or a plain one; then what ends it.
  for (const [whole, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|\r|$)/g)) {
    if (!whole) break;
    rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (end === "") break;
    if (end !== ",") rows.push([]);
  }
  return rows;
}
