/** "More options": all that have no place of their own, in groups that fold, with a search. */

import { control } from "./controls.js";
import { field, h } from "./dom.js";
import { GROUPS, fullLabel } from "./labels.js";

/** An element with the options of these rows. */
export function options(settings, rows) {
  const rest = new Set(rows);
  const groups = [...GROUPS, ["Others", [""]]].map(([title, begins, hint]) => {
    const own = [...rest].filter(({ name }) => begins.some((begin) => name.startsWith(begin)));
    own.forEach((row) => rest.delete(row));
    return own.length ? group(settings, title, own, hint) : null;
  });
  const made = groups.filter(Boolean);
  const none = h("p", { class: "hint", hidden: true }, "No option has this name.");
  const input = h("input", {
    type: "search",
    placeholder: "guidance, FreeU, mask …",
    oninput: () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = made.map((one) => one.filter(words));
      none.hidden = found.some(Boolean);
    },
  });
  return [field("Search options", input), none, ...made.map(({ element }) => element)];
}

/** A group that folds; its fields are made when it is first opened or searched. */
function group(settings, title, rows, hint) {
  const state = h("span", { class: "state" });
  const element = h("details", { class: "group" }, h("summary", {}, h("span", {}, title), state));
  const texts = rows.map((row) => [title, fullLabel(row.name), row.name, row.help].join(" ").toLowerCase());
  let fields = null;
  const make = () => {
    if (fields) return;
    const one = (row) =>
      control(settings, row.name, { label: fullLabel(row.name), help: row.help.replaceAll("`", "") });
    fields = rows.map(one);
    element.append(h("div", { class: "content" }, hint && h("p", { class: "hint" }, hint), ...fields));
  };
  const count = () => {
    const set = rows.filter(({ name }) => settings.get(name) !== undefined).length;
    state.textContent = set ? String(set) : "";
  };
  settings.addEventListener("change", count);
  count();
  element.addEventListener("toggle", make);
  /** Shows the fields that have these words, and opens the group; without words all fields, folded. Whether there is one. */
  const filter = (words) => {
    const has = texts.map((text) => words.every((word) => text.includes(word)));
    const any = has.includes(true);
    if (words.length && any) make();
    fields?.forEach((one, i) => (one.hidden = !has[i]));
    element.hidden = !any;
    element.open = words.length > 0 && any;
    return any;
  };
  return { element, filter };
}
