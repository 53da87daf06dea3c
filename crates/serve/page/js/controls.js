/** Inputs of options, made from the rows of `/v1/capabilities`. */

import { check, field, h, newId, select } from "./dom.js";
import { label, sentence, usualOf, valueText } from "./labels.js";
import { parse } from "./settings.js";

/** Steps of the arrows of numbers, where 1 is not fitting. */
const STEPS = { cfg_scale: 0.5, hires_cfg_scale: 0.5, hires_scale: 0.25, width: 8, height: 8 };

/**
 * The input of an option with its label, bound to the settings. Null where the server does not have the option.
 * `more.label` and `more.help` replace or add texts; `more.slide` makes a slider with a number, up to `more.most`.
 */
export function control(settings, name, more = {}) {
  const row = settings.row(name);
  if (!row) return null;
  const text = more.label ?? label(name);
  if (more.slide) return slider(settings, row, text, more);
  const input =
    row.type === "boolean" ? switchOf(settings, row) : row.choices ? choice(settings, row) : typed(settings, row);
  input.dataset.option = name;
  const wide = more.wide ? "wide" : "";
  const made = field(text, input, { class: wide });
  if (more.help) {
    const help = h("small", { id: newId("help") }, more.help);
    input.setAttribute("aria-describedby", help.id);
    made.append(help);
  }
  return made;
}

/** A checkbox of an option that is off by default. */
export function toggle(settings, name, text) {
  if (!settings.row(name)) return null;
  const input = h("input", { type: "checkbox", onchange: () => settings.set(name, input.checked || undefined) });
  input.dataset.option = name;
  settings.watch(name, (value) => (input.checked = value === true));
  return check(text ?? label(name), input);
}

/** On, off, or the default. */
function switchOf(settings, row) {
  const usual = row.default ? `default (${row.default})` : "default (off)";
  const input = select(
    [
      ["", usual],
      ["true", "on"],
      ["false", "off"],
    ],
    {
      onchange: () => settings.set(row.name, input.value === "" ? undefined : input.value === "true"),
    },
  );
  settings.watch(row.name, (value) => (input.value = value === undefined ? "" : String(value)));
  return input;
}

/** A list of names, the first of which stands for the default. */
function choice(settings, row) {
  const usual = usualOf(row) || "default";
  // Some defaults are said as `name (what it is)`.
  const [, id, words] = /^(\S+) \((.+)\)$/.exec(usual) ?? [];
  const isUsual = (name) => name === usual || name === id;
  const choices = row.choices.filter((name) => !isUsual(name)).map((name) => [name, row.titles?.get(name) ?? name]);
  const first = words ?? row.titles?.get(usual) ?? usual;
  const input = select([["", id === "default" ? "Default" : sentence(first)], ...choices], {
    onchange: () => settings.set(row.name, input.value || undefined),
  });
  settings.watch(row.name, (value = "") => {
    const known = [...input.options].some((option) => option.value === value);
    // Names of other programs are accepted too.
    if (!known && !isUsual(value)) input.append(h("option", { value }, value));
    input.value = isUsual(value) ? "" : value;
  });
  return input;
}

/** A number or a text. What cannot be read is marked and keeps the form from being sent. */
function typed(settings, row) {
  const isNumber = row.type === "integer" || row.type === "number";
  const attributes = isNumber
    ? { type: "number", min: row.minimum, max: row.maximum, step: row.type === "integer" ? 1 : "any" }
    : { type: "text", spellcheck: "false" };
  // What the user types is left as it is typed.
  let types = false;
  attributes.inputmode = isNumber ? (row.type === "integer" ? "numeric" : "decimal") : undefined;
  const input = h("input", {
    ...attributes,
    placeholder: usualOf(row),
    title: row.default ? `Default: ${row.default.replaceAll("`", "")}` : undefined,
    oninput: () => {
      types = true;
      try {
        if (input.validity.badInput) throw new Error("This is not a number");
        settings.set(row.name, parse(row, input.value));
        mark(input, "");
      } catch (error) {
        mark(input, error.message);
      }
      types = false;
    },
  });
  if (isNumber) stepped(input, row, settings);
  settings.watch(row.name, (value) => {
    const text = value === undefined ? "" : Array.isArray(value) ? value.join(", ") : valueText(value);
    if (!types) input.value = text;
    if (value !== undefined) mark(input, "");
  });
  return input;
}

/** The arrow keys begin at the default, and go in useful steps. */
function stepped(input, row, settings) {
  const step = STEPS[row.name] ?? (row.type === "integer" ? 1 : 0.05);
  input.addEventListener("keydown", (event) => {
    const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!sign || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    const now = Number(input.value || input.placeholder) || row.minimum || 0;
    const next = Math.round((now + sign * step * (event.shiftKey ? 10 : 1)) * 1000) / 1000;
    const value = Math.min(row.maximum ?? Infinity, Math.max(row.minimum ?? -Infinity, next));
    input.value = String(value);
    settings.set(row.name, value);
    mark(input, "");
  });
}

/** A slider and a number for an option between two ends. */
function slider(settings, row, text, { most: end, step }) {
  const number = typed(settings, row);
  number.id = newId("field");
  number.dataset.option = row.name;
  // The model's default is the number's placeholder.
  const usual = () => Number.parseFloat(number.placeholder) || Number.parseFloat(row.default) || row.minimum;
  const most = end ?? (row.name === "mask_blur" ? 64 : row.maximum);
  const bar = h("input", {
    type: "range",
    min: row.minimum,
    max: most,
    step: step ?? (row.type === "integer" || most > 8 ? 1 : 0.01),
    "aria-label": text,
    oninput: () => settings.set(row.name, Number(bar.value)),
  });
  settings.watch(row.name, (value) => {
    bar.value = String(value ?? usual());
    if (document.activeElement === bar) number.value = value === undefined ? "" : String(value);
  });
  number.addEventListener("usual", () => (bar.value = String(settings.get(row.name) ?? usual())));
  const pair = h("div", { class: "pair" }, bar, number);
  return h("div", { class: "field slide wide" }, h("label", { for: number.id }, text), pair);
}

/** Marks an input as wrong, with the message below it, or as right where the message is empty. */
export function mark(input, message) {
  if (!message && !input.hasAttribute("aria-invalid")) return;
  input.setCustomValidity?.(message);
  const place = input.closest(".field") ?? input;
  place.querySelector(".error")?.remove();
  input.removeAttribute("aria-errormessage");
  if (!message) return input.removeAttribute("aria-invalid");
  const error = h("small", { class: "error", id: newId("error"), role: "alert" }, message);
  place.append(error);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", error.id);
}
