/** The images of the session as tiles. Only those in sight are read and decoded. */

import { byId, h } from "./dom.js";
import { sizeClass } from "./files.js";
import { report } from "./messages.js";
import { focusTile, moveFocus } from "./tiles.js";

/** How far outside of the window tiles have their images. */
const MARGIN = "600px";

export class Gallery {
  /** The newest first. */
  records = [];
  #tiles = new Map();

  /** `open` shows a record. */
  constructor(store, open) {
    Object.assign(this, { store, open });
    this.list = byId("gallery");
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.#seen(entry)), {
      rootMargin: MARGIN,
    });
    this.list.addEventListener("keydown", (event) => moveFocus(this.list, event));
    byId("gallery-clear").addEventListener("click", () => this.clear());
  }

  /** Shows what the store has. */
  async load() {
    this.records = (await this.store.all()).reverse();
    this.list.append(...this.records.map((record) => this.#tile(record)));
    this.#count();
  }

  /** Adds an image at the front; returns its record. */
  async add(record, file) {
    const kept = await this.store.add(record, file);
    this.records.unshift(kept);
    this.list.prepend(this.#tile(kept));
    this.#count();
    return kept;
  }

  /** The file of a record. */
  async file(record) {
    const file = await this.store.file(record.key);
    if (!file) throw new Error("The browser has dropped this image.");
    return file;
  }

  async remove(record) {
    await this.store.remove(record.key);
    const at = this.records.indexOf(record);
    this.records = this.records.filter((other) => other !== record);
    const tile = this.#tiles.get(record.key);
    this.#tiles.delete(record.key);
    this.#hide(tile);
    this.watcher.unobserve(tile);
    tile.remove();
    this.#count();
    await this.removed?.(record, this.records[at] ?? this.records[at - 1]);
  }

  async clear() {
    if (!confirm(`Remove all ${this.records.length} images from this browser?`)) return;
    await this.store.clear();
    for (const tile of this.#tiles.values()) this.#hide(tile);
    this.watcher.disconnect();
    this.#tiles.clear();
    this.records = [];
    this.list.replaceChildren();
    this.#count();
    this.cleared?.();
  }

  /** The number of images, and what belongs to the list alone. */
  drawHead() {
    const count = this.records.length;
    byId("gallery-count").textContent = count ? String(count) : "";
    byId("gallery-clear").hidden = count === 0;
  }

  #tile(record) {
    const about = `Image of ${record.request.prompt || "no prompt"}, seed ${record.seed}`;
    const button = h("button", {
      type: "button",
      "aria-label": about,
      tabindex: "-1",
      onclick: () => this.open(record),
    });
    const tile = h("li", { class: "tile" }, button);
    tile.record = record;
    this.#tiles.set(record.key, tile);
    this.watcher.observe(tile);
    return tile;
  }

  #seen({ target, isIntersecting }) {
    if (isIntersecting) this.#show(target);
    else this.#hide(target);
  }

  async #show(tile) {
    if (tile.shown) return;
    tile.shown = true;
    const { record } = tile;
    const file = await this.store.file(record.key).catch(report);
    // It may have gone out of sight in the meantime.
    if (!file || !tile.shown || tile.url) return;
    tile.url = URL.createObjectURL(file);
    tile.firstElementChild.replaceChildren(h("img", { src: tile.url, alt: "", class: sizeClass(record) }));
  }

  #hide(tile) {
    tile.shown = false;
    if (!tile.url) return;
    URL.revokeObjectURL(tile.url);
    tile.url = null;
    tile.firstElementChild.replaceChildren();
  }

  #count() {
    const count = this.records.length;
    if (!this.list.hidden) this.drawHead();
    byId("empty").hidden = count > 0;
    // One tile is reached by Tab, the others by arrow keys.
    if (!this.list.querySelector('[tabindex="0"]')) this.list.querySelector("button")?.setAttribute("tabindex", "0");
  }

  /** Marks the tile of a record. */
  mark(record) {
    this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.#tiles.get(record?.key)?.firstElementChild.setAttribute("aria-current", "true");
  }

  /** Puts the focus on the tile of a record. */
  focus(record) {
    const tile = this.#tiles.get(record.key);
    if (tile) focusTile(this.list, tile.firstElementChild);
  }
}
