/** Networks with images: ControlNets, and IP-Adapters, for which an image is a prompt. */

import { field, h, select } from "./dom.js";
import { dataUrl } from "./files.js";
import { Slot } from "./slot.js";

const MODES = [
  ["balanced", "Balanced"],
  ["prompt", "The prompt counts more"],
  ["control", "The network counts more"],
];
const RESIZE = [
  ["stretch", "Stretch"],
  ["crop", "Crop"],
  ["fill", "Fill"],
];

const BLOCKS = [
  ["", "All"],
  ["style", "Style (SDXL)"],
  ["layout", "Layout (SDXL)"],
];

/** The field of a request, that of a network's name, and words for people. */
export const CONTROLS = {
  field: "controls",
  name: "net",
  what: "network",
  slot: "Control image",
  hint: "Without an image the input image is used.",
};
export const IP_ADAPTERS = { field: "ip_adapters", name: "model", what: "image prompt", slot: "Image", needsImage: true };

/** Dispatches `change` when a network comes or goes. */
export class Nets extends EventTarget {
  #units = [];

  /** `names` are those that the server has, of a `kind` above. */
  constructor(names, kind) {
    super();
    Object.assign(this, { names, kind });
    this.list = h("div", { class: "chips" });
    const article = kind.needsImage ? "an" : "a";
    const add = h("button", { type: "button", onclick: () => this.#add() }, `Add ${article} ${kind.what}`);
    this.element = h("div", { class: "content" }, this.list, add);
  }

  get state() {
    return this.#units.length ? String(this.#units.length) : "";
  }

  /** The field of a request. */
  async request() {
    const all = await Promise.all(this.#units.map((unit) => unit.request()));
    return all.length ? { [this.kind.field]: all } : {};
  }

  /** Removes all: settings of an image do not have the images of its networks. */
  clear() {
    this.#units = [];
    this.#draw();
  }

  #add() {
    const unit = new Unit(this.names, this.kind, () => {
      this.#units = this.#units.filter((other) => other !== unit);
      this.#draw();
    });
    this.#units.push(unit);
    this.#draw();
  }

  #draw() {
    this.list.replaceChildren(...this.#units.map((unit) => unit.element));
    this.dispatchEvent(new Event("change"));
  }
}

/** One network. */
class Unit {
  constructor(names, kind, remove) {
    this.kind = kind;
    this.net = select(names);
    this.slot = new Slot(kind.slot);
    this.slot.element.title = kind.hint ?? "";
    const number = (value, most) => h("input", { type: "number", min: 0, max: most, step: 0.05, value });
    this.weight = number(1, 2);
    this.start = number(0, 1);
    this.end = number(1, 1);
    this.mode = select(MODES);
    this.resize = select(RESIZE);
    this.blocks = select(BLOCKS);
    const own = kind.needsImage
      ? [field("Blocks", this.blocks)]
      : [field("Mode", this.mode), field("Resize", this.resize)];
    const button = h("button", { type: "button", class: "quiet", onclick: remove }, `Remove this ${kind.what}`);
    this.element = h(
      "div",
      { class: "unit" },
      field("Network", this.net),
      this.slot.element,
      h(
        "div",
        { class: "rows" },
        field("Weight", this.weight),
        own[0],
        field("Start", this.start),
        field("End", this.end),
        own[1],
      ),
      button,
    );
  }

  async request() {
    const { kind, slot } = this;
    if (kind.needsImage && !slot.file) throw new Error(`The ${kind.what} ${this.net.value} has no image.`);
    const made = { [kind.name]: this.net.value };
    if (!kind.needsImage) Object.assign(made, { mode: this.mode.value, resize: this.resize.value });
    else if (this.blocks.value) made.blocks = this.blocks.value;
    for (const name of ["weight", "start", "end"]) made[name] = Number(this[name].value);
    if (slot.file) made.image = await dataUrl(slot.file);
    return made;
  }
}
