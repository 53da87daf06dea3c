/** Two images on top of each other, with a line that is moved between them. */

import { h } from "./dom.js";

/** An element with the image `before` on the left of the line and `after` on its right; both are addresses. */
export function comparison(before, after) {
  const image = (src, name) => h("img", { src, alt: name, class: name.toLowerCase() });
  const line = h("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 0.5,
    value: 50,
    "aria-label": "Line between both images",
    oninput: () => draw(),
  });
  const left = image(before, "Before");
  const element = h("div", { class: "comparison" }, image(after, "After"), left, h("div", { class: "line" }), line);
  const draw = () => element.style.setProperty("--at", `${line.value}%`);
  draw();
  return element;
}
