/** LoRAs with their weights. */

import { field, h, select } from "./dom.js";

/** LoRAs from which on there is a search. */
const MANY = 6;

/** Dispatches `change` when a LoRA comes or goes. */
export class Loras extends EventTarget {
  /** Each `{ name, text, unet }`. */
  #chosen = [];

  /** `names` are those that the server has, `notes` what their files say: `{ name, base, trigger, words }`. */
  constructor(names, notes = []) {
    super();
    this.names = names;
    this.notes = new Map(notes.map((note) => [note.name, note]));
    this.list = h("ul", { class: "chips" });
    const add = select([["", "Add a LoRA …"], ...names], {
      "aria-label": "Add a LoRA",
      "data-option": "loras",
      onchange: () => {
        this.#add({ name: add.value, text: 1, unet: 1 });
        add.value = "";
      },
    });
    this.input = add;
    const filter = () => {
      const text = search.value.toLowerCase();
      const found = names.filter((name) => name.toLowerCase().includes(text));
      add.replaceChildren(
        h("option", { value: "" }, text ? `Add one of ${found.length} …` : "Add a LoRA …"),
        ...found.map((name) => h("option", { value: name }, name)),
      );
      return found;
    };
    const enter = (event) => {
      if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const [name] = filter();
      if (!name || !search.value) return;
      this.#add({ name, text: 1, unet: 1 });
      search.value = "";
      filter();
    };
    const search = h("input", { type: "search", placeholder: "Enter adds the first", oninput: filter, onkeydown: enter });
    const searchField = field("Search LoRAs", search);
    searchField.hidden = names.length < MANY;
    this.element = h("div", { class: "content" }, searchField, this.list, h("div", { class: "field" }, add));
  }

  get state() {
    return this.#chosen.length ? String(this.#chosen.length) : "";
  }

  /** The field of a request. */
  request() {
    const one = ({ name, text, unet }) => ({ lora: { named: name }, text, unet });
    return this.#chosen.length ? { loras: this.#chosen.map(one) } : {};
  }

  /** Takes over the LoRAs of a request; returns the names that the server does not have. */
  fill({ loras = [] }) {
    const all = loras.map((lora) => (typeof lora === "string" ? parse(lora) : plain(lora)));
    this.#chosen = all.filter(({ name }) => this.names.includes(name));
    this.#draw();
    return all.map(({ name }) => name).filter((name) => !this.names.includes(name));
  }

  #add(lora) {
    if (lora.name && !this.#chosen.some(({ name }) => name === lora.name)) this.#chosen.push(lora);
    this.#draw();
  }

  #draw() {
    this.list.replaceChildren(...this.#chosen.map((lora) => this.#chip(lora)));
    this.list.hidden = this.#chosen.length === 0;
    this.dispatchEvent(new Event("change"));
  }

  /** The model that a LoRA is for, and the words of its training. */
  #about(name) {
    const { base, trigger, words = [] } = this.notes.get(name) ?? {};
    const said = [...new Set([trigger, ...words])].filter(Boolean);
    const text = [base && `For ${base}.`, said.length && `Words: ${said.join(", ")}`].filter(Boolean).join(" ");
    return text ? [h("small", { class: "about" }, text)] : [];
  }

  #chip(lora) {
    const set = (input, other) => {
      lora.text = lora.unet = Number(input.value);
      other.value = input.value;
    };
    const weight = { min: -2, max: 2, step: 0.05, value: lora.unet, "aria-label": `Weight of ${lora.name}` };
    const bar = h("input", { ...weight, type: "range", oninput: () => set(bar, number) });
    const number = h("input", { ...weight, type: "number", oninput: () => number.value && set(number, bar) });
    const remove = () => {
      this.#chosen = this.#chosen.filter((other) => other !== lora);
      this.#draw();
    };
    const button = h(
      "button",
      { type: "button", class: "quiet icon", "aria-label": `Remove ${lora.name}`, onclick: remove },
      "✕",
    );
    const name = h("span", { class: "name", title: lora.name }, lora.name);
    return h("li", { class: "chip" }, name, bar, number, button, ...this.#about(lora.name));
  }
}

/** A LoRA as text: `ink`, `ink:0.8` or `ink:0.8:0.5`. */
function parse(text) {
  const [name, first = "1", second = first] = text.split(":");
  return { name, text: Number(first), unet: Number(second) };
}

/** A LoRA as a request has it. */
function plain({ lora, text = 1, unet = 1 }) {
  return { name: lora.named ?? lora.file ?? "", text, unet };
}
