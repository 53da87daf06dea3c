/** The form: all settings of a request, in sections. */

import { control, mark } from "./controls.js";
import { byId, h } from "./dom.js";
import { GridSettings } from "./gridsettings.js";
import { Input } from "./input.js";
import { fullLabel } from "./labels.js";
import { Loras } from "./loras.js";
import { Nets } from "./nets.js";
import { weightKeys } from "./prompt.js";

/** Options with a place in the form, besides those of `Input`. */
const BASICS = ["width", "height", "steps", "cfg_scale", "sampler", "scheduler", "seed"];
const HIRES = ["hires_scale", "hires_upscaler", "hires_strength", "hires_steps"];
const PROMPTS = ["prompt", "negative_prompt"];
/** Options that the page does not show: the number of images has an input of its own. */
const HIDDEN = ["batch_count", "batch_size", "loras", "controls", "init", "mask"];
const GROUPS = {
  prompt: "Prompt",
  image: "Image",
  sampling: "Sampler and guidance",
  input: "Input image",
  hires: "Second pass",
};

export class Form {
  /** `model` returns the model that is chosen. */
  constructor(settings, capabilities, model) {
    Object.assign(this, { settings, capabilities, model });
    this.count = byId("count");
    this.count.max = String(capabilities.limits.images);
    this.input = new Input(settings);
    this.loras = new Loras(capabilities.loras);
    this.nets = new Nets(capabilities.controls ?? []);
    this.grid = new GridSettings(settings);
    PROMPTS.forEach((name) => this.#prompt(byId(name), name));
    byId("basics").append(...this.#basics());
    byId("sections").append(...this.#sections().filter(Boolean));
    for (const part of [this.input, this.loras, this.nets, this.grid])
      part.addEventListener("change", () => this.changed());
    settings.addEventListener("change", () => this.changed());
    this.changed();
  }

  /** Puts the model's defaults into the placeholders. */
  showDefaults() {
    const model = this.model();
    for (const name of ["width", "height", "steps", "cfg_scale"]) {
      const input = byId("basics").querySelector(`[data-option="${name}"]`);
      if (input) input.placeholder = String(model[name]);
    }
    if (this.input.slot.size) this.#showSize(this.input.slot.size);
  }

  /** Everything that the form says, but not the number of images. */
  async request() {
    const request = { ...this.settings.all(), prompt: this.settings.get("prompt") ?? "" };
    if (this.capabilities.models.length > 1) request.model = this.model().id;
    Object.assign(request, this.loras.request(), await this.nets.request(), await this.input.request());
    return request;
  }

  /** Takes over a request; returns sentences about what could not be taken. */
  fill(request) {
    const said = { ...request };
    // The form has one number of images, and an image's settings are about one.
    delete said.batch_count;
    delete said.batch_size;
    this.settings.fill(said);
    const missing = this.loras.fill(said).map((name) => `The server does not have the LoRA ${name}.`);
    if (said.controls?.length) missing.push("The settings name control networks; their images are not in the file.");
    this.nets.clear();
    return missing;
  }

  /** Whether all inputs can be sent; goes to the first that cannot. */
  check() {
    const wrong = byId("form").querySelector(":invalid:not(fieldset)");
    if (!wrong) return true;
    this.#reveal(wrong);
    return false;
  }

  /** Shows an error of the server at its input. */
  blame({ param, message }) {
    const input = param && byId("form").querySelector(`[data-option="${param}"], #${CSS.escape(param)}`);
    if (!input) return;
    mark(input, message);
    input.addEventListener("input", () => mark(input, ""), { once: true });
    input.addEventListener("change", () => mark(input, ""), { once: true });
    this.#reveal(input);
  }

  #reveal(input) {
    input.closest("details")?.setAttribute("open", "");
    input.focus();
    input.reportValidity();
  }

  /** Says in the heads of the sections what is on. */
  changed() {
    for (const { state, section } of this.parts ?? []) section.querySelector(".state").textContent = state();
    this.showDefaults();
  }

  #prompt(area, name) {
    area.dataset.option = name;
    area.addEventListener("input", () => this.settings.set(name, area.value));
    this.settings.watch(name, (value = "") => {
      if (area.value !== value) area.value = value;
    });
    weightKeys(area);
  }

  #basics() {
    const made = (name, more) => control(this.settings, name, more);
    const swap = h(
      "button",
      {
        type: "button",
        class: "icon",
        title: "Swap width and height",
        "aria-label": "Swap width and height",
        onclick: () => {
          const { width, height } = { ...this.model(), ...this.settings.all() };
          this.settings.set("width", height);
          this.settings.set("height", width);
        },
      },
      "⇄",
    );
    const seed = made("seed");
    const random = h(
      "button",
      {
        type: "button",
        class: "icon",
        title: "Random seed",
        "aria-label": "Random seed",
        onclick: () => this.settings.set("seed", undefined),
      },
      "⚄",
    );
    const input = seed.querySelector("input");
    const pair = h("div", { class: "with" });
    input.replaceWith(pair);
    pair.append(input, random);
    seed.classList.add("wide");
    return [
      h("div", { class: "size wide" }, made("width"), swap, made("height")),
      made("steps"),
      made("cfg_scale"),
      made("sampler"),
      made("scheduler"),
      seed,
    ];
  }

  #sections() {
    const { loras, controls = [] } = this.capabilities;
    this.parts = [];
    const sections = [
      this.#section("Input image", this.input.element, () => this.input.state),
      loras.length && this.#section("LoRAs", this.loras.element, () => this.loras.state),
      controls.length && this.#section("ControlNet", this.nets.element, () => this.nets.state),
      this.settings.row("hires_scale") && this.#hires(),
      this.#section("Grid", this.grid.element, () => this.grid.state),
      this.#more(),
    ];
    return sections;
  }

  #section(title, content, state) {
    const head = h("summary", {}, h("span", {}, title), h("span", { class: "state" }));
    const section = h("details", { class: "section" }, head, content);
    this.parts.push({ state, section });
    return section;
  }

  #hires() {
    const fields = [
      control(this.settings, "hires_scale", { wide: true }),
      control(this.settings, "hires_upscaler", { wide: true }),
      control(this.settings, "hires_strength", { slide: true }),
      control(this.settings, "hires_steps", { wide: true }),
    ];
    fields[0].querySelector("input").placeholder = "off";
    const state = () => {
      const { hires_scale: scale, hires_size: size } = this.settings.all();
      return scale ? `× ${scale}` : (size ?? "");
    };
    return this.#section("Hires fix", h("div", { class: "content" }, h("div", { class: "rows" }, ...fields)), state);
  }

  /** All other options, in their groups, made when they are first looked at. */
  #more() {
    const shown = new Set([...BASICS, ...HIRES, ...PROMPTS, ...HIDDEN, ...Input.options]);
    const rest = [...this.settings.rows.values()].filter((row) => !shown.has(row.name));
    const content = h("div", { class: "content options" });
    const set = () => rest.filter((row) => this.settings.get(row.name) !== undefined).length;
    const section = this.#section("More options", content, () => (set() ? String(set()) : ""));
    section.addEventListener("toggle", () => {
      if (content.childElementCount) return;
      for (const [group, title] of Object.entries(GROUPS)) {
        const rows = rest.filter((row) => row.group === group);
        if (!rows.length) continue;
        const help = (row) => row.help.replaceAll("`", "");
        const field = (row) => control(this.settings, row.name, { label: fullLabel(row.name), help: help(row) });
        content.append(h("h2", {}, title), ...rows.map(field));
      }
    });
    return section;
  }

  /** An input image says the size where none is typed. */
  #showSize([width, height]) {
    const multiple = this.model().size_multiple;
    const down = (side) => String(Math.max(multiple, Math.floor(side / multiple) * multiple));
    byId("basics").querySelector('[data-option="width"]').placeholder = down(width);
    byId("basics").querySelector('[data-option="height"]').placeholder = down(height);
  }
}
