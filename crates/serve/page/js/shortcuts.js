/** Keys, and the dialog that lists them. */

import { byId, dialog, h, takesText } from "./dom.js";

const KEYS = [
  [["Ctrl", "Enter"], "Generate"],
  [["Ctrl", "↑"], "More weight for the word at the cursor, or for the selection"],
  [["Ctrl", "↓"], "Less weight"],
  [["Esc"], "Cancel the job that runs, or close a dialog"],
  [["/"], "Go to the prompt"],
  [["←", "→", "↑", "↓"], "Move in the gallery and between images"],
  [["Delete"], "Delete the image that is shown"],
  [["E"], "Eraser, in the mask painter"],
  [["[", "]"], "Size of the brush"],
  [["Ctrl", "Z"], "Undo a stroke"],
];

/** Listens for the keys of the page. */
export function listen({ generate, cancel }) {
  byId("shortcuts-open").addEventListener("click", list);
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
    else if (event.key === "Escape") cancel();
    else if (takesText(event.target)) return;
    else if (event.key === "/") byId("prompt").focus();
    else if (event.key === "?") list();
    else return;
    event.preventDefault();
  });
}

function list() {
  const rows = KEYS.flatMap(([keys, what]) => {
    const parts = keys.flatMap((key) => [h("kbd", {}, key), " "]);
    return [h("dt", {}, ...parts), h("dd", {}, what)];
  });
  const close = h("button", { type: "button", onclick: () => element.close() }, "Close");
  const content = h(
    "div",
    { class: "body" },
    h("h2", {}, "Shortcuts"),
    h("dl", { class: "keys" }, ...rows),
    h("div", { class: "bar" }, close),
  );
  const element = dialog({ class: "small", "aria-label": "Shortcuts" }, content);
}
