/** The dialog with one image: its settings, and what can be done with it. */

import { dialog, field, h, select, takesText } from "./dom.js";
import { sizeClass } from "./files.js";
import { fullLabel, usualOf, valueText } from "./labels.js";
import { linkOf } from "./link.js";
import { report, notify } from "./messages.js";

/** Fields that are shown above the list. */
const ABOVE = ["prompt", "negative_prompt"];

export class Viewer {
  /**
   * `source` has `records`, `file(record)` and, where images can be removed, `remove(record)`.
   * `page` has `use(record)`, `edit(file)`, `upscale(record, file, how)`, the names `upscalers`, and the `settings`.
   */
  constructor(source, page) {
    Object.assign(this, { source, page });
  }

  async open(record) {
    this.content = h("div", { class: "viewer" });
    this.dialog = dialog({ "aria-label": "Image", onkeydown: (event) => this.#key(event) }, this.content);
    this.dialog.addEventListener("close", () => {
      URL.revokeObjectURL(this.url);
      this.source.focus?.(this.record);
    });
    await this.#show(record);
  }

  async #show(record) {
    this.record = record;
    try {
      this.file = await this.source.file(record);
      await this.source.complete?.(record, this.file);
    } catch (error) {
      report(error);
      return this.dialog.close();
    }
    this.page.shown?.(this.source, record);
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(this.file);
    const image = h("img", { src: this.url, alt: record.request.prompt ?? "", class: sizeClass(record) });
    const hadFocus = this.content.contains(document.activeElement);
    this.content.replaceChildren(h("figure", {}, image), this.#about());
    if (hadFocus || document.activeElement === document.body) this.content.querySelector(".primary")?.focus();
  }

  #about() {
    const { record } = this;
    const { records } = this.source;
    const at = records.indexOf(record);
    const step = (by, text, about) =>
      h(
        "button",
        {
          type: "button",
          class: "icon",
          "aria-label": about,
          disabled: !records[at + by],
          onclick: () => this.#show(records[at + by]),
        },
        text,
      );
    const around =
      records.length > 1 ? h("span", {}, step(-1, "‹", "Newer image"), " ", step(1, "›", "Older image")) : h("span");
    const close = h("button", { type: "button", class: "quiet", onclick: () => this.dialog.close() }, "Close");
    const negative = record.request.negative_prompt;
    return h(
      "div",
      { class: "about" },
      h("div", { class: "bar" }, around, close),
      h("p", { class: "prompt" }, record.request.prompt || "No prompt"),
      negative && h("p", { class: "prompt muted" }, `Not: ${negative}`),
      this.#facts(),
      this.#actions(),
    );
  }

  #facts() {
    const { width, height, model, request } = this.record;
    const facts = Object.entries(request).filter(
      ([name, value]) => !ABOVE.includes(name) && !["width", "height"].includes(name) && !this.#isUsual(name, value),
    );
    const title = (name, value) => this.page.settings.row(name)?.titles?.get(value) ?? valueText(value);
    const rows = facts.map(([name, value]) => [fullLabel(name), title(name, value)]);
    if (width) rows.unshift(["Size", `${width} × ${height}`]);
    if (model) rows.push(["Model", model]);
    return h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }

  /** Whether a value of "More options" is its default, which says nothing about the image. */
  #isUsual(name, value) {
    const row = this.page.settings.row(name);
    return Boolean(row) && !this.page.form.hasPlace(name) && usualOf(row) === valueText(value);
  }

  #actions() {
    const { record, file } = this;
    const then = (act) => () => {
      this.dialog.close();
      act();
    };
    const use = h(
      "button",
      { type: "button", class: "primary", onclick: then(() => this.page.use(record)) },
      "Use these settings",
    );
    const edit = h("button", { type: "button", onclick: then(() => this.page.edit(file)) }, "Start from this image");
    const ending = { "image/jpeg": "jpg", "image/webp": "webp" }[file.type] ?? "png";
    const name = `kiln-${record.seed ?? "image"}.${ending}`;
    const save = h("a", { class: "button", href: this.url, download: name }, "Download");
    const remove = this.source.remove
      ? h("button", { type: "button", onclick: () => this.#remove() }, "Delete")
      : h("span");
    const settings = Object.keys(record.request).length > 0;
    const link = h("button", { type: "button", onclick: () => this.#copyLink() }, "Copy a link to the settings");
    return h(
      "div",
      { class: "actions" },
      settings && use,
      edit,
      settings && link,
      this.#enlarge(),
      h("div", { class: "pair" }, save, remove),
    );
  }

  #enlarge() {
    if (!this.page.upscalers.length) return null;
    const upscaler = select(this.page.upscalers);
    const scale = h("input", { type: "number", min: 1, max: 16, step: 0.5, value: 2 });
    const { record, file } = this;
    const go = async () => {
      button.disabled = true;
      try {
        const made = await this.page.upscale(record, file, { scale: scale.value, upscaler: upscaler.value });
        if (this.dialog.open) await this.#show(made);
        notify(`The image is now ${made.width} × ${made.height}.`);
      } catch (error) {
        report(error);
      }
      button.disabled = false;
    };
    const button = h("button", { type: "button", onclick: go }, "Upscale");
    return h("div", { class: "enlarge" }, field("Upscaler", upscaler), field("Scale", scale), button);
  }

  async #copyLink() {
    const { request, model } = this.record;
    const link = linkOf(this.page.settings.part(request), model);
    // Pages without encryption have no clipboard.
    const copied = await navigator.clipboard?.writeText(link).then(() => true, () => false);
    if (copied) notify("The link is in the clipboard.");
    else prompt("The link with the settings:", link);
  }

  async #remove() {
    const { records } = this.source;
    const at = records.indexOf(this.record);
    const next = records[at + 1] ?? records[at - 1];
    if (this.source.confirms && !confirm("Delete this image from the server's folder? This cannot be undone.")) return;
    await this.source.remove(this.record).catch(report);
    if (next) await this.#show(next);
    else this.dialog.close();
  }

  #key(event) {
    if (takesText(event.target)) return;
    const { records } = this.source;
    const at = records.indexOf(this.record);
    const next = { ArrowLeft: records[at - 1], ArrowRight: records[at + 1] }[event.key];
    if (next) this.#show(next);
    else if (event.key === "Delete" && this.source.remove) this.#remove();
    else return;
    event.preventDefault();
  }
}
