/** The large image: what is being made, the image that was selected, or two images that are compared. */

import { comparison } from "./compare.js";
import { byId, h } from "./dom.js";
import { sizeClass } from "./files.js";
import { report } from "./messages.js";

/** Images that were begun with, which are kept for comparisons until the page is left. */
const MOST_BEFORE = 30;

/** Dispatches `change` when it shows another image; `record` is that image, or null. */
export class Stage extends EventTarget {
  record = null;
  /** The list that the image is from: `records`, `file(record)`. */
  source = null;
  /** The job whose previews are shown; null while an image is. */
  live = null;
  #follows = true;
  #other = null;
  #before = new Map();
  #urls = [];
  #shown = 0;

  /** Whether two images are compared. */
  get compares() {
    return this.#other !== null;
  }

  /** `actions` has `details(source, record)`, `seed(record)` and the queue `jobs()`. */
  constructor(actions) {
    super();
    this.actions = actions;
    this.place = byId("stage");
    this.figure = h("figure", {});
    this.text = h("p", { class: "text" });
    this.facts = h("p", { class: "muted" });
    const button = (text, act, more = {}) => h("button", { type: "button", onclick: act, ...more }, text);
    this.details = button("Details", () => this.open(), { id: "details" });
    this.seed = button("Use this seed", () => this.actions.seed(this.record));
    this.compare = button("Compare", () => this.#toggle(), { id: "compare", "aria-pressed": "false" });
    this.swap = button("Swap", () => this.#swap());
    this.follow = button("Show the running job", () => this.followJobs(), { class: "quiet" });
    this.hint = h("p", { class: "hint" }, "Select another image to compare with.");
    const bar = h("div", { class: "actions" }, this.follow, this.swap, this.compare, this.seed, this.details);
    this.caption = h("div", { class: "caption" }, h("div", {}, this.text, this.facts, this.hint), bar);
    this.place.append(this.figure, this.caption);
    this.place.addEventListener("keydown", (event) => this.#key(event));
    this.#draw();
  }

  /** Shows previews and new images from now on, until an image is selected. */
  followJobs() {
    this.#follows = true;
    this.#end();
    const job = this.actions.jobs().find(({ status, preview }) => status === "running" && preview);
    if (job) this.preview(job);
    else this.#draw();
  }

  /** Shows the last preview of a job, where jobs are followed. */
  preview(job) {
    if (!this.#follows || !job.preview || (this.live && this.live !== job && !this.live.isOver)) return this.#draw();
    const isNew = this.live !== job;
    this.live = job;
    if (isNew) this.#set(h("img", { class: "live", alt: "Preview" }));
    this.figure.querySelector(".live").src = job.preview;
    if (isNew) this.#changed();
  }

  /** Shows an image that is done, where jobs are followed. */
  async made(source, record) {
    if (this.#follows && !this.#other) await this.#show(source, record);
  }

  /** A job has ended: without an image of it, the last image is shown again. */
  async ended(job) {
    // The image of a job that is done follows in a moment.
    if (this.live !== job || job.status === "done") return this.#draw();
    this.live = null;
    if (this.record) await this.#show(this.source, this.record);
    else this.#set();
    this.#changed();
  }

  /** Shows an image that was selected, or compares with it. */
  async select(source, record) {
    if (this.#other && this.record) {
      this.#other = { source, record };
      await this.#showBoth();
      return this.#changed();
    }
    this.#follows = false;
    await this.#show(source, record);
  }

  /** The image is removed: shows the one next to it, if there is one. */
  async forget(record, next) {
    if (this.#other?.record === record) this.#end();
    if (this.record !== record) return;
    this.#end();
    this.record = null;
    if (next) await this.#show(this.source, next);
    else this.#set();
    this.#changed();
  }

  /** Keeps the file that an image was made from. */
  keepBefore(record, file) {
    this.#before.set(record, file);
    if (this.#before.size > MOST_BEFORE) this.#before.delete(this.#before.keys().next().value);
  }

  /** Shows the image with all its settings. */
  open() {
    if (this.record) this.actions.details(this.source, this.record);
  }

  async #show(source, record) {
    this.live = null;
    Object.assign(this, { source, record });
    const turn = ++this.#shown;
    try {
      const url = await this.#addressOf(source, record);
      if (turn !== this.#shown || this.live) return;
      const image = h("img", { src: url, alt: record.request.prompt || "No prompt", class: sizeClass(record) });
      const about = "Show the image with its settings";
      this.#set(h("button", { type: "button", class: "canvas", "aria-label": about, onclick: () => this.open() }, image));
    } catch (error) {
      report(error);
    }
    this.#changed();
  }

  async #addressOf(source, record) {
    const url = URL.createObjectURL(await source.file(record));
    this.#urls.push(url);
    return url;
  }

  /** The image to compare with: the one that it was made from, else its neighbor in the list. */
  #partner() {
    const before = this.#before.get(this.record);
    if (before) return { file: before, name: "the input image" };
    const { records } = this.source;
    const at = records.indexOf(this.record);
    const record = records[at + 1] ?? records[at - 1];
    return record && { source: this.source, record };
  }

  #toggle() {
    if (this.#other) {
      this.#end();
      return this.#show(this.source, this.record);
    }
    this.#other = this.#partner() ?? null;
    if (!this.#other) return report("There is no other image to compare with.");
    return this.#showBoth();
  }

  async #showBoth() {
    const turn = ++this.#shown;
    try {
      const { source, record, file } = this.#other;
      const before = file ? URL.createObjectURL(file) : await this.#addressOf(source, record);
      if (file) this.#urls.push(before);
      const after = await this.#addressOf(this.source, this.record);
      const both = this.swapped ? [after, before] : [before, after];
      if (turn === this.#shown) this.#set(comparison(...both));
    } catch (error) {
      this.#end();
      report(error);
    }
    this.#draw();
  }

  #swap() {
    this.swapped = !this.swapped;
    return this.#showBoth();
  }

  #end() {
    this.#other = null;
    this.swapped = false;
  }

  /** Puts an element into the figure. Addresses of images that are not shown any more are given back. */
  #set(element) {
    const hadFocus = this.figure.contains(document.activeElement);
    this.figure.replaceChildren(...(element ? [element] : []));
    const html = [...this.figure.querySelectorAll("img")].map((image) => image.src);
    this.#urls = this.#urls.filter((url) => html.includes(url) || URL.revokeObjectURL(url));
    if (hadFocus) this.figure.querySelector("button, input")?.focus();
  }

  #changed() {
    this.#draw();
    this.dispatchEvent(new Event("change"));
  }

  #draw() {
    const { live, record } = this;
    this.place.hidden = !live && !record;
    // The queue has the prompt and the progress of a job.
    this.caption.hidden = Boolean(live);
    const { prompt } = record?.request ?? {};
    this.text.textContent = prompt || "No prompt";
    this.text.title = prompt ?? "";
    const { width, height, seed, model } = record ?? {};
    const facts = [width && `${width} × ${height}`, seed !== undefined && seed !== null && `seed ${seed}`, model];
    this.facts.textContent = facts.filter(Boolean).join(" · ");
    const compares = Boolean(this.#other);
    this.hint.hidden = this.swap.hidden = !compares;
    this.compare.setAttribute("aria-pressed", String(compares));
    this.compare.textContent = compares ? "End comparison" : "Compare";
    this.seed.hidden = seed === undefined || seed === null;
    const runs = this.actions.jobs().some(({ status, preview }) => status === "running" && preview);
    this.follow.hidden = !runs;
  }

  #key(event) {
    if (this.live || this.#other || !this.record || !event.target.closest(".canvas")) return;
    const { records } = this.source;
    const next = records[records.indexOf(this.record) + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0)];
    if (!next || next === this.record) return;
    event.preventDefault();
    this.select(this.source, next);
  }
}
