/** The dialog in which a mask is painted on an image. */

import { control } from "./controls.js";
import { dialog, field, h } from "./dom.js";
import { show, sizeClass } from "./files.js";
import { COLOR, Mask, drawStroke, sheet } from "./mask.js";

/** The smallest shown side of an image in CSS pixels, if the window has room. */
const USUAL_SIDE = 520;

/** Paints on a copy of `mask`. Returns it, or null where the user has canceled. */
export function paint(file, size, mask, settings) {
  return new Promise((resolve) => {
    const painter = new Painter(file, size, mask, settings);
    const close = (result) => {
      painter.stop();
      element.close();
      resolve(result);
    };
    const done = h("button", { type: "button", class: "primary", onclick: () => close(painter.mask) }, "Use this mask");
    const cancel = h("button", { type: "button", onclick: () => close(null) }, "Cancel");
    const content = h(
      "div",
      { class: "painter" },
      painter.tools,
      painter.easel,
      h("div", { class: "bar" }, cancel, done),
    );
    const element = dialog({ "aria-label": "Paint a mask" }, content);
    element.addEventListener("close", () => close(null));
    painter.fit();
    painter.sheet.focus();
  });
}

class Painter {
  #erases = false;
  #ending = new AbortController();

  constructor(file, [width, height], mask, settings) {
    this.mask = mask?.copy() ?? new Mask(width, height);
    this.brush = Math.max(width, height) / 8;
    this.spot = [width / 2, height / 2];
    this.canvas = sheet(width, height);
    this.canvas.classList.add("paint");
    this.context = this.canvas.getContext("2d");
    this.cursor = sheet(1, 1);
    this.cursor.classList.add("cursor");
    const image = h("img", { alt: "", class: sizeClass({ width, height }) });
    show(image, file);
    const about = "The image. The painted part is made again. Arrow keys move the brush, the space bar paints.";
    this.sheet = h(
      "div",
      { class: "sheet", tabindex: "0", role: "application", "aria-label": about },
      image,
      this.canvas,
      this.cursor,
    );
    this.easel = h("div", { class: "easel" }, this.sheet);
    this.tools = this.#tools(settings);
    this.#listen();
    settings.watch("mask_blur", (sigma) => this.#blur(Number(sigma) || 0));
    this.redraw();
  }

  stop() {
    this.#ending.abort();
  }

  /** Shows the image as large as the window allows, or in a usual size where it is small. */
  fit() {
    const { width, height } = this.mask;
    const room = this.easel.getBoundingClientRect();
    const most = Math.min(room.width / width, (innerHeight * 0.94 - 170) / height);
    this.scale = Math.min(most, Math.max(1, USUAL_SIDE / Math.max(width, height)));
    this.sheet.style.width = `${Math.floor(width * this.scale)}px`;
    this.sheet.style.height = `${Math.floor(height * this.scale)}px`;
    const ratio = devicePixelRatio;
    this.cursor.width = width * this.scale * ratio;
    this.cursor.height = height * this.scale * ratio;
    this.#blur(this.sigma);
    this.#drawCursor();
  }

  redraw() {
    this.mask.draw(this.context, COLOR);
    this.undo.disabled = this.clear.disabled = this.mask.strokes.length === 0;
    this.#drawCursor();
  }

  #tools(settings) {
    const longest = Math.max(this.mask.width, this.mask.height);
    const button = (text, onclick, more = {}) => h("button", { type: "button", onclick, ...more }, text);
    this.eraser = button("Eraser", () => this.#setErases(!this.#erases), { "aria-pressed": "false", title: "E" });
    this.undo = button("Undo", () => this.#undo(), { title: "Ctrl+Z" });
    this.clear = button("Clear", () => this.#change(() => this.mask.clear()));
    const fill = button("Fill", () => this.#change(() => this.mask.fill()));
    this.width = h("input", {
      type: "range",
      min: 1,
      max: longest / 2,
      step: "any",
      value: this.brush,
      title: "[ and ]",
      oninput: () => this.#setBrush(Number(this.width.value)),
    });
    const blur = control(settings, "mask_blur", { label: "Blur" });
    return h("div", { class: "tools" }, field("Brush", this.width), this.eraser, this.undo, this.clear, fill, blur);
  }

  #change(change) {
    change();
    this.redraw();
  }

  /** Adds to the last stroke, and draws no other. */
  #extend(points) {
    const stroke = this.mask.strokes.at(-1);
    if (!stroke) return;
    const from = stroke.points.at(-1);
    points.forEach((point) => this.mask.extend(point));
    drawStroke(this.context, { ...stroke, points: [from, ...points] }, COLOR);
    this.#drawCursor();
  }

  #undo() {
    this.#change(() => this.mask.undo());
  }

  #setErases(erases) {
    this.#erases = erases;
    this.eraser.setAttribute("aria-pressed", String(erases));
  }

  #setBrush(width) {
    this.brush = Math.min(Number(this.width.max), Math.max(1, width));
    this.width.value = String(this.brush);
    this.#drawCursor();
  }

  /** The server blurs the mask; the page shows about what it will be. */
  #blur(sigma) {
    this.sigma = sigma;
    this.canvas.style.filter = sigma ? `blur(${sigma * (this.scale ?? 1)}px)` : "";
  }

  #drawCursor() {
    const context = this.cursor.getContext("2d");
    const ratio = (this.scale ?? 1) * devicePixelRatio;
    const [x, y] = this.spot.map((place) => place * ratio);
    context.clearRect(0, 0, this.cursor.width, this.cursor.height);
    for (const [color, width] of [
      ["#000", 3],
      ["#fff", 1.5],
    ]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.beginPath();
      context.arc(x, y, (this.brush * ratio) / 2, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #listen() {
    const { signal } = this.#ending;
    const on = (target, name, heard) => target.addEventListener(name, heard, { signal });
    on(this.sheet, "pointerdown", (event) => {
      if (event.button !== 0) return;
      this.sheet.setPointerCapture(event.pointerId);
      this.spot = this.#place(event);
      this.#change(() => this.mask.begin(this.spot, this.brush, this.#erases));
    });
    on(this.sheet, "pointermove", (event) => {
      this.spot = this.#place(event);
      if (!this.sheet.hasPointerCapture(event.pointerId)) return this.#drawCursor();
      // A fast hand moves more often than the screen is drawn.
      const moves = event.getCoalescedEvents?.() ?? [];
      this.#extend((moves.length ? moves : [event]).map((move) => this.#place(move)));
    });
    on(this.sheet, "keydown", (event) => this.#key(event));
    on(window, "resize", () => this.fit());
  }

  /** Where a pointer is, in pixels of the image. */
  #place(event) {
    const { left, top, width, height } = this.sheet.getBoundingClientRect();
    return [((event.clientX - left) / width) * this.mask.width, ((event.clientY - top) / height) * this.mask.height];
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (move) {
      const by = this.brush / (event.shiftKey ? 1 : 4);
      const limit = (value, most) => Math.min(most, Math.max(0, value));
      const [x, y] = this.spot;
      this.spot = [limit(x + move[0] * by, this.mask.width), limit(y + move[1] * by, this.mask.height)];
      this.#drawCursor();
    } else if (event.key === " ") {
      this.#change(() => this.mask.begin(this.spot, this.brush, this.#erases));
    } else if (event.key === "z" && (event.ctrlKey || event.metaKey)) {
      this.#undo();
    } else if (event.key === "e") {
      this.#setErases(!this.#erases);
    } else if (event.key === "[" || event.key === "]") {
      this.#setBrush(this.brush * (event.key === "]" ? 1.2 : 1 / 1.2));
    } else {
      return;
    }
    event.preventDefault();
  }
}
