/** The dialog that asks for a key. */

import { dialog, field, h } from "./dom.js";

/** Asks for a key; null where the user gives none. `again` says that the last one was wrong. */
export function askForKey(again) {
  return new Promise((resolve) => {
    const input = h("input", { type: "password", id: "key", autocomplete: "current-password", required: true });
    const form = h(
      "form",
      { class: "body", method: "dialog" },
      h("h2", {}, "This server asks for a key"),
      again && h("p", { class: "hint" }, "The last key was not accepted."),
      field("API key", input),
      h("p", { class: "hint" }, "It is kept until this tab is closed."),
      h("div", { class: "bar" }, h("button", { class: "primary" }, "Continue")),
    );
    const element = dialog({ class: "small", "aria-label": "API key" }, form);
    element.addEventListener("close", () => resolve(element.returnValue === "key" ? input.value.trim() : null));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      element.close("key");
    });
  });
}
