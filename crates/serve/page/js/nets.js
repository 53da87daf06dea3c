/** Control networks, each with its image. */

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

/** Dispatches `change` when a network comes or goes. */
export class Nets extends EventTarget {
  #units = [];

  /** `names` are those that the server has. */
  constructor(names) {
    super();
    this.names = names;
    this.list = h("div", { class: "chips" });
    const add = h("button", { type: "button", onclick: () => this.#add() }, "Add a network");
    this.element = h("div", { class: "content" }, this.list, add);
  }

  get state() {
    return this.#units.length ? String(this.#units.length) : "";
  }

  /** The field of a request. */
  async request() {
    const controls = await Promise.all(this.#units.map((unit) => unit.request()));
    return controls.length ? { controls } : {};
  }

  /** Removes all: settings of an image do not have the images of its networks. */
  clear() {
    this.#units = [];
    this.#draw();
  }

  #add() {
    const unit = new Unit(this.names, () => {
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
  constructor(names, remove) {
    this.net = select(names);
    this.slot = new Slot("Control image");
    this.slot.element.title = "Without an image the input image is used.";
    const number = (value, most) => h("input", { type: "number", min: 0, max: most, step: 0.05, value });
    this.weight = number(1, 2);
    this.start = number(0, 1);
    this.end = number(1, 1);
    this.mode = select(MODES);
    this.resize = select(RESIZE);
    const button = h("button", { type: "button", class: "quiet", onclick: remove }, "Remove this network");
    this.element = h(
      "div",
      { class: "unit" },
      field("Network", this.net),
      this.slot.element,
      h(
        "div",
        { class: "rows" },
        field("Weight", this.weight),
        field("Mode", this.mode),
        field("Start", this.start),
        field("End", this.end),
        field("Resize", this.resize),
      ),
      button,
    );
  }

  async request() {
    const control = { net: this.net.value, mode: this.mode.value, resize: this.resize.value };
    for (const name of ["weight", "start", "end"]) control[name] = Number(this[name].value);
    if (this.slot.file) control.image = await dataUrl(this.slot.file);
    return control;
  }
}
