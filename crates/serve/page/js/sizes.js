/** Sizes by their aspect ratio, with about as many pixels as the model's own size. */

import { h, select } from "./dom.js";

const RATIOS = ["1:1", "5:4", "4:3", "3:2", "16:9", "21:9", "4:5", "3:4", "2:3", "9:16"];
/** Sides of large images are multiples of this, as in the sizes that models are trained with. */
const COARSE = 64;

/** Width and height of a ratio for a model. */
export function sizeOf(ratio, { width, height, size_multiple: multiple }) {
  const [x, y] = ratio.split(":").map(Number);
  const step = Math.min(width, height) < 512 ? multiple : Math.max(multiple, COARSE);
  const side = (length) => Math.max(step, Math.round(length / step) * step);
  return [side(Math.sqrt((width * height * x) / y)), side(Math.sqrt((width * height * y) / x))];
}

/** A list of ratios that sets width and height. `draw` shows the ratio of the size and the sizes of another model. */
export function ratios(settings, model) {
  const input = select([], {
    onchange: () => {
      const [width, height] = input.value.includes(":") ? sizeOf(input.value, model()) : [];
      settings.set("width", width);
      settings.set("height", height);
    },
  });
  let shown = null;
  const draw = () => {
    if (shown !== model()) {
      shown = model();
      const one = (ratio) => h("option", { value: ratio }, `${ratio} – ${sizeOf(ratio, shown).join(" × ")}`);
      const usual = h("option", { value: "" }, `The model's – ${shown.width} × ${shown.height}`);
      input.replaceChildren(usual, ...RATIOS.map(one), h("option", { value: "own", hidden: true }, "Another size"));
    }
    const [width, height] = [settings.get("width"), settings.get("height")];
    const isSame = (ratio) => sizeOf(ratio, shown).join() === [width ?? shown.width, height ?? shown.height].join();
    const known = width === undefined && height === undefined ? "" : (RATIOS.find(isSame) ?? "own");
    if (input.value !== known) input.value = known;
  };
  draw();
  return { input, draw };
}
