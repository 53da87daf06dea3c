/** A grid of images over one or two options. */

import { byId, h } from "./dom.js";
import { png, show, sizeClass } from "./files.js";
import { axisText } from "./gridsettings.js";

/** The side of a cell, and the room of heads, in pixels of the saved image. */
const CELL = 512;
const HEAD = 48;

export class Grid {
  #cells = [];

  /** `open` shows a record. */
  constructor(axes, open) {
    Object.assign(this, { axes, open });
    const [columns, rows] = axes;
    const head = ({ name }, value, scope) => h("th", { scope }, name === null ? "" : axisText({ name }, value));
    const top = h("tr", {}, h("td"), ...columns.values.map((value) => head(columns, value, "col")));
    const body = rows.values.map((row, y) => {
      const cells = columns.values.map((_, x) => this.#cell(x, y));
      return h("tr", {}, head(rows, row, "row"), ...cells);
    });
    this.save = h("button", { type: "button", onclick: () => this.#save() }, "Save as an image");
    const close = h("button", { type: "button", class: "quiet", onclick: () => this.#close() }, "Close");
    const bar = h("div", { class: "bar" }, h("h2", {}, "Grid"), this.save, close);
    const table = h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Grid of images" },
      h("table", {}, top, ...body),
    );
    byId("grid").replaceChildren(h("div", { class: "grid-result" }, bar, table));
    byId("grid").hidden = false;
  }

  /** The columns and rows of all cells. */
  get places() {
    return this.#cells.map(({ x, y }) => ({ x, y }));
  }

  /** Shows a preview in a cell. */
  preview(i, url) {
    const cell = this.#cells[i];
    if (!cell.record && cell.image.getAttribute("src") !== url) cell.image.src = url;
    cell.image.hidden = false;
  }

  /** Puts an image into its cell. */
  set(i, record, file) {
    const cell = this.#cells[i];
    cell.record = record;
    cell.file = file;
    show(cell.image, file);
    cell.image.hidden = false;
    cell.image.className = sizeClass(record);
    cell.button.disabled = false;
  }

  #cell(x, y) {
    const image = h("img", { alt: "", hidden: true });
    const cell = { x, y, image, record: null };
    const about = `Column ${x + 1}, row ${y + 1}`;
    cell.button = h(
      "button",
      { type: "button", "aria-label": about, disabled: true, onclick: () => this.open(cell.record) },
      image,
    );
    this.#cells.push(cell);
    return h("td", {}, cell.button);
  }

  #close() {
    byId("grid").replaceChildren();
    byId("grid").hidden = true;
  }

  /** Draws the cells with their heads, and has the browser save the image. */
  async #save() {
    const [columns, rows] = this.axes;
    const left = rows.name === null ? 0 : HEAD * 4;
    const top = columns.name === null ? 0 : HEAD;
    const first = this.#cells.find(({ record }) => record)?.record ?? { width: CELL, height: CELL };
    const scale = Math.min(1, CELL / Math.max(first.width, first.height));
    const [w, hgt] = [Math.max(96, first.width * scale), Math.max(96, first.height * scale)];
    const canvas = h("canvas", { width: left + w * columns.values.length, height: top + hgt * rows.values.length });
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    Object.assign(context, {
      fillStyle: "#222",
      font: "16px system-ui, sans-serif",
      textAlign: "center",
      textBaseline: "middle",
    });
    context.imageSmoothingEnabled = w <= first.width;
    if (top)
      columns.values.forEach((value, x) =>
        context.fillText(axisText(columns, value), left + (x + 0.5) * w, top / 2, w - 8),
      );
    if (left)
      rows.values.forEach((value, y) =>
        context.fillText(axisText(rows, value), left / 2, top + (y + 0.5) * hgt, left - 8),
      );
    for (const { x, y, file } of this.#cells) {
      if (!file) continue;
      const pixels = await createImageBitmap(file);
      context.drawImage(pixels, left + x * w, top + y * hgt, w, hgt);
      pixels.close();
    }
    const url = URL.createObjectURL(await png(canvas));
    h("a", { href: url, download: "kiln-grid.png" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
}
