/** The image to begin with, and the mask on it. */

import { control, toggle } from "./controls.js";
import { h } from "./dom.js";
import { dataUrl, png } from "./files.js";
import { COLOR, sheet } from "./mask.js";
import { paint } from "./painter.js";
import { Slot } from "./slot.js";

/** Dispatches `change` when the image or the mask comes or goes. */
export class Input extends EventTarget {
  mask = null;

  constructor(settings) {
    super();
    this.settings = settings;
    this.slot = new Slot("Input image");
    this.slot.addEventListener("change", () => this.#setMask(null));
    this.paint = h("button", { type: "button", id: "paint", onclick: () => this.openPainter() }, "Paint a mask");
    this.unmask = h(
      "button",
      { type: "button", class: "quiet", onclick: () => this.#setMask(null) },
      "Remove the mask",
    );
    this.slot.actions.append(this.paint, this.unmask);
    const strength = control(settings, "strength", { slide: true });
    const resize = control(settings, "resize_mode", { wide: true });
    this.fields = h("div", { class: "rows" }, strength, resize);
    this.maskFields = h(
      "fieldset",
      { class: "rows" },
      control(settings, "mask_blur", { slide: true }),
      control(settings, "mask_content"),
      control(settings, "inpaint_area"),
      control(settings, "inpaint_padding"),
      toggle(settings, "mask_invert", "Invert the mask"),
    );
    this.element = h("div", { class: "content" }, this.slot.element, this.fields, this.maskFields);
    this.#changed();
  }

  /** The options that have their place here. */
  static options = [
    "strength",
    "resize_mode",
    "mask_blur",
    "mask_content",
    "inpaint_area",
    "inpaint_padding",
    "mask_invert",
  ];

  /** What is on, in a word; empty where there is no image. */
  get state() {
    if (!this.slot.file) return "";
    return this.mask ? "with a mask" : "on";
  }

  /** Takes an image. */
  set(file) {
    return this.slot.set(file);
  }

  clear() {
    this.slot.clear();
  }

  async openPainter() {
    const { file, size } = this.slot;
    if (!file) return;
    const mask = await paint(file, size, this.mask, this.settings);
    if (mask) this.#setMask(mask.isEmpty ? null : mask);
  }

  /** The fields of a request. */
  async request() {
    const { file } = this.slot;
    if (!file) return {};
    const fields = { init: await dataUrl(file) };
    if (this.mask) fields.mask = await dataUrl(await png(this.mask.canvas()));
    return fields;
  }

  #setMask(mask) {
    this.mask = mask;
    this.#changed();
  }

  #changed() {
    const { file } = this.slot;
    this.fields.hidden = !file;
    this.maskFields.hidden = this.unmask.hidden = !this.mask;
    this.paint.textContent = this.mask ? "Change the mask" : "Paint a mask";
    this.#drawMask();
    this.dispatchEvent(new Event("change"));
  }

  /** Shows the mask on the small image. */
  #drawMask() {
    const shown = this.slot.element.querySelector(".shown");
    shown?.querySelector("canvas")?.remove();
    if (!shown || !this.mask) return;
    const canvas = sheet(this.mask.width, this.mask.height);
    this.mask.draw(canvas.getContext("2d"), COLOR);
    shown.append(canvas);
  }
}
