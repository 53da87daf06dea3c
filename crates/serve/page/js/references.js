/** Reference images: those that a model changes or combines as the prompt says. */

import { h } from "./dom.js";
import { dataUrl } from "./files.js";
import { Slot } from "./slot.js";

/** Dispatches `change` when an image comes or goes. */
export class References extends EventTarget {
  #slots = [];

  /** `model` returns the model that is chosen. */
  constructor(model) {
    super();
    this.model = model;
    this.hint = h("p", { class: "muted" });
    this.list = h("div", { class: "chips" });
    this.element = h("div", { class: "content" }, this.hint, this.list);
    this.#grow();
  }

  /** The most images of the model; 0 if it takes none. */
  get most() {
    return this.model().references ?? 0;
  }

  get state() {
    const { length } = this.#files();
    return length ? String(length) : "";
  }

  /** The field of a request. */
  async request() {
    const files = this.#files().slice(0, this.most);
    return files.length ? { references: await Promise.all(files.map(dataUrl)) } : {};
  }

  /** Removes all: settings of an image do not have its reference images. */
  clear() {
    this.#slots = [];
    this.#grow();
  }

  /** Says what the model does with the images. */
  describe() {
    this.hint.textContent = this.model().edits
      ? "The model changes these images as the prompt says, or combines them."
      : "The model sees these images next to the prompt.";
  }

  #files() {
    return this.#slots.map(({ file }) => file).filter(Boolean);
  }

  /** One empty place follows the images, as long as the model takes more. */
  #grow() {
    this.#slots = this.#slots.filter(({ file }) => file);
    if (this.#slots.length < Math.max(this.most, 1)) {
      const slot = new Slot(`Reference image ${this.#slots.length + 1}`);
      slot.addEventListener("change", () => this.#grow());
      this.#slots.push(slot);
    }
    this.list.replaceChildren(...this.#slots.map(({ element }) => element));
    this.dispatchEvent(new Event("change"));
  }
}
