/** Elements, and what is done with them. */

/**
 * An element.
 * Attributes that are functions are listeners (`onclick`), booleans set or remove an attribute, and `undefined` is left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

let counted = 0;

/** An id that no element has. */
export const newId = (prefix) => `${prefix}-${++counted}`;

/** A label above an input, which gets an id where it has none. */
export function field(label, input, more = {}) {
  input.id ||= newId("field");
  return h("div", { ...more, class: `field ${more.class ?? ""}` }, h("label", { for: input.id }, label), input);
}

/** A checkbox with its label. */
export function check(label, input) {
  input.id ||= newId("check");
  return h("div", { class: "field check" }, input, h("label", { for: input.id }, label));
}

/** A `select` with choices, each a text or a pair of value and text. */
export function select(choices, attributes = {}) {
  const option = (choice) => {
    const [value, text] = Array.isArray(choice) ? choice : [choice, choice];
    return h("option", { value }, text);
  };
  return h("select", attributes, ...choices.map(option));
}

/** A modal dialog, which is removed when it is closed. */
export function dialog(attributes, ...children) {
  const element = h("dialog", attributes, ...children);
  element.addEventListener("close", () => element.remove());
  // A click on what is behind closes it.
  element.addEventListener("pointerdown", (event) => {
    if (event.target === element) element.close();
  });
  document.body.append(element);
  element.showModal();
  return element;
}

/** Whether a key goes to an element that takes text. */
export const takesText = (target) =>
  Boolean(target.closest?.("textarea, select, input:not([type=checkbox], [type=range])"));
