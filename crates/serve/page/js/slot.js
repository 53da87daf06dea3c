/** A place for an image: dropped, chosen or pasted. */

import { h } from "./dom.js";
import { bitmap, choose, imageOf, show } from "./files.js";
import { report } from "./messages.js";

/** Dispatches `change` when an image comes or goes. */
export class Slot extends EventTarget {
  /** The image file. */
  file = null;
  /** Its width and height in pixels. */
  size = null;

  /** `name` says what the image is for. */
  constructor(name) {
    super();
    this.name = name;
    this.actions = h("div", { class: "actions" });
    this.element = h("div", {
      class: "slot",
      ondragover: (event) => {
        event.preventDefault();
        this.element.firstElementChild.classList.add("over");
      },
      ondragleave: () => this.element.firstElementChild.classList.remove("over"),
      ondrop: (event) => {
        event.preventDefault();
        event.stopPropagation();
        document.body.classList.remove("dropping");
        this.set(imageOf(event.dataTransfer));
      },
    });
    this.#draw();
  }

  /** Takes an image file; what is none is reported. */
  async set(file) {
    if (!file) return;
    try {
      const pixels = await bitmap(file);
      this.size = [pixels.width, pixels.height];
      pixels.close();
      this.file = file;
    } catch (error) {
      report(error);
    }
    this.#changed();
  }

  clear() {
    this.file = null;
    this.size = null;
    this.#changed();
  }

  #changed() {
    this.#draw();
    this.dispatchEvent(new Event("change"));
  }

  #draw() {
    const select = () => choose((file) => this.set(file));
    if (!this.file) {
      const text = `${this.name}: drop it here, or click to choose one`;
      this.element.replaceChildren(h("button", { type: "button", class: "drop", onclick: select }, text));
      return;
    }
    const image = h("img", { alt: this.name });
    show(image, this.file);
    const remove = h("button", { type: "button", class: "quiet", onclick: () => this.clear() }, "Remove");
    const other = h("button", { type: "button", class: "quiet", onclick: select }, "Replace");
    const actions = h("div", { class: "actions" }, this.actions, other, remove);
    this.element.replaceChildren(h("div", { class: "shown" }, image), actions);
  }
}
