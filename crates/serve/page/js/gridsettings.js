/** Which options a grid varies, and their values. */

import { field, h, select } from "./dom.js";
import { fullLabel, valueText } from "./labels.js";
import { parse } from "./settings.js";

/** The most images of a grid. */
const MOST = 400;
/** Options that come first in the list. */
const FIRST = ["prompt", "seed", "steps", "cfg_scale", "sampler", "scheduler", "strength"];
/** Options that a grid cannot vary. */
const NEVER = ["batch_count", "batch_size", "loras", "controls", "ip_adapters", "regions", "references", "init", "mask", "model"];
const EXAMPLES = { prompt: "apple, pear, boat", seed: "1..4", steps: "10..30/10", cfg_scale: "3, 5, 7" };

/** Dispatches `change` when an axis is chosen or changed. */
export class GridSettings extends EventTarget {
  constructor(settings) {
    super();
    this.settings = settings;
    this.axes = [this.#axis("Columns"), this.#axis("Rows")];
    const help =
      "Values are separated by commas; 1..4 and 10..30/10 are ranges. For the prompt, the first value is the part of it that " +
      "the others replace.";
    this.element = h(
      "div",
      { class: "content" },
      ...this.axes.map((axis) => axis.element),
      h("p", { class: "hint" }, help),
    );
  }

  /** Whether a grid is asked for. */
  get isOn() {
    return this.axes.some((axis) => axis.name.value !== "");
  }

  get state() {
    return this.isOn ? "on" : "";
  }

  /** How many images the grid has; 0 while something cannot be read. */
  get size() {
    try {
      return this.read().reduce((size, axis) => size * axis.values.length, 1);
    } catch {
      return 0;
    }
  }

  /** The axes, columns first, each `{ name, values }`; `name` is null for an axis that is not used. Throws an `Error`. */
  read() {
    const axes = this.axes.map(({ name, values }) => {
      if (name.value === "") return { name: null, values: [null] };
      const row = this.settings.row(name.value);
      return { name: row.name, values: readValues(row, values.value) };
    });
    if (axes[0].name && axes[0].name === axes[1].name) throw new Error("Columns and rows vary the same option.");
    const size = axes[0].values.length * axes[1].values.length;
    if (size > MOST) throw new Error(`The grid has ${size} images, more than ${MOST}.`);
    return axes;
  }

  #axis(title) {
    const all = [...this.settings.rows.values()].filter((row) => !NEVER.includes(row.name) && row.type !== "numbers");
    const place = (row) => (FIRST.includes(row.name) ? FIRST.indexOf(row.name) : FIRST.length);
    const rows = all.sort((a, b) => place(a) - place(b));
    const values = h("input", {
      type: "text",
      spellcheck: "false",
      "aria-label": `Values of the ${title.toLowerCase()}`,
    });
    const name = select([["", "none"], ...rows.map((row) => [row.name, fullLabel(row.name)])]);
    const changed = () => {
      values.hidden = name.value === "";
      const choices = this.settings.row(name.value)?.choices;
      values.placeholder = choices?.slice(0, 3).join(", ") ?? EXAMPLES[name.value] ?? "";
      this.dispatchEvent(new Event("change"));
    };
    name.addEventListener("change", changed);
    values.addEventListener("input", changed);
    values.hidden = true;
    return { name, values, element: h("div", { class: "chips" }, field(title, name), values) };
  }
}

/** The values in a text: a list, and ranges `1..4` or `10..30/10` of numbers. */
export function readValues(row, text) {
  const parts = text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);
  const values = parts.flatMap((part) => rangeOf(row, part) ?? [parse(row, part)]);
  if (!values.length) throw new Error(`The grid needs values of ${fullLabel(row.name).toLowerCase()}.`);
  return values;
}

function rangeOf(row, text) {
  const match = /^(-?[\d.]+?)\.\.(-?[\d.]+)(?:\/([\d.]+))?$/.exec(text);
  if (!match || !["integer", "number"].includes(row.type)) return null;
  const [from, to, step] = [Number(match[1]), Number(match[2]), Number(match[3] ?? 1)];
  const count = Math.floor((to - from) / step + 1e-9) + 1;
  if (!(count >= 1 && count <= MOST)) throw new Error(`${text} is no range.`);
  return Array.from({ length: count }, (_, i) => parse(row, String(Math.round((from + i * step) * 1e6) / 1e6)));
}

/** The request of a cell. */
export function cellRequest(request, axes, values) {
  const made = { ...request };
  axes.forEach(({ name, values: all }, i) => {
    if (name === null) return;
    if (name === "prompt") made.prompt = made.prompt.replaceAll(all[0], values[i]);
    else made[name] = values[i];
  });
  return made;
}

/** The head of a column or row. */
export const axisText = ({ name }, value) => (name === "prompt" ? value : `${fullLabel(name)}: ${valueText(value)}`);
