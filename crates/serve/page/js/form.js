/** The form: all settings of a request, in sections. */

import { completeNames } from "./complete.js";
import { control, mark } from "./controls.js";
import { byId, field, h } from "./dom.js";
import { GridSettings } from "./gridsettings.js";
import { Input } from "./input.js";
import { label } from "./labels.js";
import { Loras } from "./loras.js";
import { CONTROLS, IP_ADAPTERS, Nets } from "./nets.js";
import { options } from "./options.js";
import { weightKeys } from "./prompt.js";
import { References } from "./references.js";
import { ratios } from "./sizes.js";
import { Styles } from "./styles.js";
import { countTokens } from "./tokens.js";

/** Options with a place in the form, besides those of `Input`. */
const BASICS = ["width", "height", "steps", "cfg_scale", "sampler", "scheduler", "seed"];
const HIRES = ["hires_scale", "hires_upscaler", "hires_strength", "hires_steps"];
const PROMPTS = ["prompt", "negative_prompt"];
/** Options that the page does not show: the number of images has an input of its own. */
const HIDDEN = ["batch_count", "batch_size", "loras", "controls", "ip_adapters", "regions", "references", "init", "mask"];
const SHOWN = new Set([...BASICS, ...HIRES, ...PROMPTS, ...HIDDEN, ...Input.options]);
/** The ends of the sliders; numbers may be larger. */
const MOST_STEPS = 60;
const MOST_GUIDANCE = 20;

export class Form {
  /** `model` returns the model that is chosen, `lastSeed` the seed of the last image. */
  constructor(settings, capabilities, model, lastSeed) {
    Object.assign(this, { settings, capabilities, model, lastSeed });
    this.count = byId("count");
    this.count.max = String(capabilities.limits.images);
    this.input = new Input(settings);
    this.loras = new Loras(capabilities.loras, capabilities.lora_notes);
    this.nets = new Nets(capabilities.controls ?? [], CONTROLS);
    this.imagePrompts = new Nets(capabilities.ip_adapters ?? [], IP_ADAPTERS);
    this.references = new References(model);
    this.grid = new GridSettings(settings);
    this.styles = new Styles(settings);
    this.ratios = ratios(settings, model);
    PROMPTS.forEach((name) => this.#prompt(byId(name), name));
    byId("basics").append(...this.#basics());
    byId("sections").append(...this.#sections().filter(Boolean));
    this.countTokens = countTokens(settings, () => (capabilities.models.length > 1 ? this.model().id : undefined));
    for (const part of [this.input, this.references, this.loras, this.nets, this.imagePrompts, this.grid, this.styles])
      part.addEventListener("change", () => this.changed());
    this.loras.addEventListener("change", () => mark(this.loras.input, ""));
    settings.addEventListener("change", () => this.changed());
    this.changed();
  }

  /** Puts the model's defaults into the placeholders. */
  showDefaults() {
    const model = this.model();
    for (const name of ["width", "height", "steps", "cfg_scale"]) {
      const input = byId("basics").querySelector(`[data-option="${name}"]`);
      if (input) input.placeholder = String(model[name]);
      input?.dispatchEvent(new Event("usual"));
    }
    const sampler = byId("basics").querySelector('[data-option="sampler"] option[value=""]');
    const titles = this.settings.row("sampler")?.titles;
    if (sampler && model.sampler) sampler.textContent = `Default (${titles?.get(model.sampler) ?? model.sampler})`;
    this.ratios.draw();
    if (this.input.slot.size) this.#showSize(this.input.slot.size);
  }

  /** Everything that the form says, but not the number of images. */
  async request() {
    const request = { ...this.settings.all(), prompt: this.settings.get("prompt") ?? "" };
    if (this.capabilities.models.length > 1) request.model = this.model().id;
    Object.assign(request, this.loras.request(), await this.nets.request(), await this.imagePrompts.request());
    Object.assign(request, await this.input.request(), await this.references.request());
    return this.styles.apply(request);
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
    if (said.references?.length) missing.push("The settings name reference images, which are not in the file.");
    if (said.ip_adapters?.length) missing.push("The settings name IP-Adapters; their images are not in the file.");
    this.nets.clear();
    this.imagePrompts.clear();
    this.references.clear();
    this.styles.clear();
    return missing;
  }

  /** Whether all inputs can be sent; goes to the first that cannot. */
  check() {
    const wrong = byId("form").querySelector(":invalid:not(fieldset)");
    if (!wrong) return true;
    this.#reveal(wrong);
    return false;
  }

  /** Shows an error of the server at its input; false where it has none. */
  blame({ param, message }) {
    const input = param && this.#inputOf(param);
    if (!input) return false;
    // The name of the field becomes that which the page has for it.
    const text = message.startsWith(`${param} `) ? label(param) + message.slice(param.length) : message;
    mark(input, text);
    for (const event of ["input", "change"]) input.addEventListener(event, () => mark(input, ""), { once: true });
    this.settings.addEventListener("change", ({ detail }) => detail === param && mark(input, ""));
    this.#reveal(input);
    return true;
  }

  #inputOf(param) {
    if (param === "prompt") return byId("prompt");
    this.#openMore(param);
    return byId("form").querySelector(`[data-option="${CSS.escape(param)}"]`);
  }

  /** Makes the fields of "More options" where one of them is asked for. */
  #openMore(param) {
    if (this.hasPlace(param) || !this.settings.row(param)) return;
    this.makeMore();
    this.more.querySelectorAll("details").forEach((group) => group.dispatchEvent(new Event("toggle")));
  }

  /** Whether an option has a place of its own in the form. */
  hasPlace(name) {
    return SHOWN.has(name);
  }

  #reveal(input) {
    for (let around = input.closest("details"); around; around = around.parentElement.closest("details"))
      around.open = true;
    input.focus();
    if (!input.hasAttribute("aria-errormessage")) input.reportValidity?.();
  }

  /** Says in the heads of the sections what is on. */
  changed() {
    for (const { state, section } of this.parts ?? []) section.querySelector(".state").textContent = state();
    if (this.referencesSection) this.referencesSection.hidden = !this.references.most;
    this.references.describe();
    this.showDefaults();
  }

  #prompt(area, name) {
    area.dataset.option = name;
    area.addEventListener("input", () => this.settings.set(name, area.value));
    this.settings.watch(name, (value = "") => {
      if (area.value !== value) area.value = value;
    });
    weightKeys(area);
    completeNames(area, this.capabilities);
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
    const last = h(
      "button",
      {
        type: "button",
        class: "icon",
        id: "last-seed",
        title: "Seed of the last image",
        "aria-label": "Seed of the last image",
        onclick: () => this.settings.set("seed", this.lastSeed()),
      },
      "↻",
    );
    const input = seed.querySelector("input");
    const pair = h("div", { class: "with" });
    input.replaceWith(pair);
    pair.append(input, random, last);
    seed.classList.add("wide");
    return [
      field("Aspect ratio", this.ratios.input, { class: "wide" }),
      h("div", { class: "size wide" }, made("width"), swap, made("height")),
      made("steps", { slide: true, most: MOST_STEPS }),
      made("cfg_scale", { slide: true, most: MOST_GUIDANCE, step: 0.5 }),
      made("sampler"),
      made("scheduler"),
      seed,
    ];
  }

  #sections() {
    const { loras, controls = [], ip_adapters: adapters = [] } = this.capabilities;
    this.parts = [];
    this.referencesSection = this.#section("Reference images", this.references.element, () => this.references.state);
    const sections = [
      this.#section("Styles", this.styles.element, () => this.styles.state),
      this.#section("Input image", this.input.element, () => this.input.state),
      this.referencesSection,
      loras.length && this.#section("LoRAs", this.loras.element, () => this.loras.state),
      controls.length && this.#section("ControlNet", this.nets.element, () => this.nets.state),
      adapters.length && this.#section("Image prompts", this.imagePrompts.element, () => this.imagePrompts.state),
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

  /** All other options, made when they are first looked at. */
  #more() {
    const rest = [...this.settings.rows.values()].filter((row) => !SHOWN.has(row.name));
    this.more = h("div", { class: "content options" });
    this.makeMore = () => this.more.childElementCount || this.more.append(...options(this.settings, rest));
    const set = () => rest.filter((row) => this.settings.get(row.name) !== undefined).length;
    const section = this.#section("More options", this.more, () => (set() ? String(set()) : ""));
    section.addEventListener("toggle", ({ target }) => target === section && this.makeMore());
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
