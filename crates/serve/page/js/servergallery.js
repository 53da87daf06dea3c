/** The images in the server's folder: those of all browsers, with search, selection, download and deletion. */

import * as api from "./api.js";
import { byId, field, h } from "./dom.js";
import { sizeClass } from "./files.js";
import { notify, report } from "./messages.js";
import { moveFocus } from "./tiles.js";

/** Images that are asked for at once. */
const PART = 60;
/** The longer side of thumbnails in pixels. */
const SIDE = 384;
/** Milliseconds without a key after which a search begins. */
const PAUSE = 300;
/** Images of one ZIP file. */
const MOST_ZIP = 1000;

export class ServerGallery {
  /** The newest first, as far as they were asked for. */
  records = [];
  /** Deletion is asked about, since it cannot be undone and is for all. */
  confirms = true;
  #tiles = new Map();
  #selected = new Set();
  #next = null;
  #turn = 0;
  #selects = false;

  /** `open` shows a record; `mayDelete` says whether images can be deleted. */
  constructor(open, mayDelete) {
    Object.assign(this, { open, mayDelete });
    this.remove = mayDelete ? (record) => this.#delete([record]) : undefined;
    this.list = h("ul", { class: "tiles", onkeydown: (event) => moveFocus(this.list, event) });
    let waits;
    this.search = h("input", {
      type: "search",
      oninput: () => {
        clearTimeout(waits);
        waits = setTimeout(() => this.load(), PAUSE);
      },
    });
    const button = (text, act, more = {}) => h("button", { type: "button", onclick: act, ...more }, text);
    this.select = button("Select", () => this.#setSelects(!this.#selects), { "aria-pressed": "false" });
    this.all = button("Select all shown", () => this.#selectAll());
    this.zip = button("Download ZIP", () => this.#download(), { class: "primary" });
    this.drop = button("Delete", () => this.#deleteSelected());
    this.more = button("More", () => this.#load());
    this.none = h("p", { class: "muted none" });
    const searchField = field("Search prompts", this.search);
    this.bar = h("div", { class: "tools" }, searchField, this.select, this.all, this.zip, this.drop);
    this.element = h("div", { class: "server" }, this.bar, this.none, this.list, this.more);
    byId("places").after(this.element);
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.#seen(entry)), {
      rootMargin: "400px",
    });
    this.watcher.observe(this.more);
    this.#draw();
  }

  /** Begins again with the newest image. */
  async load() {
    this.#next = null;
    this.records = [];
    this.#tiles.forEach((tile) => this.#forget(tile));
    this.#tiles.clear();
    this.#selected.clear();
    this.list.replaceChildren();
    await this.#load(true);
  }

  async #load(first = false) {
    if (!first && !this.#next) return;
    const turn = ++this.#turn;
    const before = this.#next;
    this.#next = null;
    try {
      const part = await api.gallery({ limit: PART, search: this.search.value.trim(), before });
      if (turn !== this.#turn) return;
      this.#next = part.next;
      this.total = part.total;
      const made = part.images.filter(({ name }) => !this.#tiles.has(name)).map(recordOf);
      this.records.push(...made);
      this.list.append(...made.map((record) => this.#tile(record)));
    } catch (error) {
      report(error);
    }
    this.#draw();
  }

  /** The file of a record. */
  file(record) {
    return api.galleryImage(record.key);
  }

  /** The record with all settings of its file. */
  async complete(record, file) {
    if (record.isComplete) return;
    const found = await api.settings(file).catch(() => null);
    Object.assign(record, { isComplete: true }, found && { request: found.request, model: found.model });
  }

  #tile(record) {
    const about = `Image of ${record.request.prompt || "no prompt"}, seed ${record.seed ?? "unknown"}`;
    const first = this.#tiles.size === 0;
    const act = () => (this.#selects ? this.#toggle(record) : this.open(record));
    const button = h("button", { type: "button", "aria-label": about, tabindex: first ? "0" : "-1", onclick: act });
    const tile = h("li", { class: "tile" }, button);
    tile.record = record;
    this.#tiles.set(record.key, tile);
    this.watcher.observe(tile);
    return tile;
  }

  async #seen({ target, isIntersecting }) {
    if (target === this.more) return isIntersecting && this.#load();
    if (!isIntersecting || target.url) return;
    target.url = "waits";
    try {
      const url = URL.createObjectURL(await api.galleryImage(target.record.key, SIDE));
      if (!target.isConnected) return URL.revokeObjectURL(url);
      target.url = url;
      target.firstElementChild.replaceChildren(h("img", { src: url, alt: "", class: sizeClass(target.record) }));
    } catch {
      target.firstElementChild.textContent = "No preview";
    }
  }

  #forget(tile) {
    this.watcher.unobserve(tile);
    if (tile.url) URL.revokeObjectURL(tile.url);
    tile.remove();
  }

  #setSelects(on) {
    this.#selects = on;
    this.#selected.clear();
    this.#draw();
  }

  #toggle(record) {
    if (!this.#selected.delete(record)) this.#selected.add(record);
    this.#draw();
  }

  #selectAll() {
    this.records.forEach((record) => this.#selected.add(record));
    this.#draw();
  }

  async #download() {
    const names = [...this.#selected].map(({ key }) => key);
    if (names.length > MOST_ZIP) return report(`A ZIP file has at most ${MOST_ZIP} images.`);
    this.zip.disabled = true;
    try {
      const url = URL.createObjectURL(await api.galleryZip(names));
      h("a", { href: url, download: "kiln-images.zip" }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } catch (error) {
      report(error);
    }
    this.#draw();
  }

  async #deleteSelected() {
    const chosen = [...this.#selected];
    const what = chosen.length === 1 ? "this image" : `these ${chosen.length} images`;
    if (!confirm(`Delete ${what} from the server's folder? This cannot be undone.`)) return;
    this.drop.disabled = true;
    await this.#delete(chosen).catch(report);
    notify(chosen.length === 1 ? "The image was deleted." : `${chosen.length} images were deleted.`);
  }

  async #delete(records) {
    for (const record of records) {
      await api.galleryRemove(record.key);
      const at = this.records.indexOf(record);
      this.records.splice(at, 1);
      this.#selected.delete(record);
      this.#forget(this.#tiles.get(record.key));
      this.#tiles.delete(record.key);
      this.total -= 1;
      await this.removed?.(record, this.records[at] ?? this.records[at - 1]);
    }
    this.#draw();
  }

  /** Marks the tile of a record. */
  mark(record) {
    for (const { firstElementChild: button, record: own } of this.#tiles.values())
      if (own === record) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
  }

  /** Puts the focus on the tile of a record. */
  focus(record) {
    this.#tiles.get(record.key)?.firstElementChild.focus();
  }

  #draw() {
    const count = this.#selected.size;
    for (const { firstElementChild: button, record } of this.#tiles.values()) {
      if (this.#selects) button.setAttribute("aria-pressed", String(this.#selected.has(record)));
      else button.removeAttribute("aria-pressed");
    }
    this.select.setAttribute("aria-pressed", String(this.#selects));
    this.select.textContent = this.#selects ? "End selection" : "Select";
    this.all.hidden = this.zip.hidden = !this.#selects;
    this.drop.hidden = !this.#selects || !this.mayDelete;
    this.zip.disabled = this.drop.disabled = count === 0;
    this.zip.textContent = count ? `Download ZIP (${count})` : "Download ZIP";
    this.drop.textContent = count ? `Delete (${count})` : "Delete";
    this.more.hidden = !this.#next;
    this.none.hidden = this.records.length > 0 || this.#next !== null;
    this.none.textContent = this.search.value ? "No prompt has these words." : "The server's folder has no images.";
    if (!this.element.hidden) byId("gallery-count").textContent = this.total ? String(this.total) : "";
  }
}

/** A record of an image as the server lists it. */
function recordOf({ name, width, height, seed, model, prompt, negative_prompt: negative }) {
  const request = { prompt, ...(negative && { negative_prompt: negative }), ...(seed !== null && { seed }) };
  return { key: name, width: width ?? undefined, height: height ?? undefined, seed, model, request, parameters: null };
}
