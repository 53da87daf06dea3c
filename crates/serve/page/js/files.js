/** Image files: chosen, read, drawn. */

import { h } from "./dom.js";

const TYPES = "image/png,image/jpeg,image/webp";

/** The side in pixels up to which an image is shown without smoothing. */
const SMALL = 128;

/** The class of an image element for a record of this size. */
export const sizeClass = ({ width, height }) => (Math.max(width, height) <= SMALL ? "small-image" : "");

/** Lets the user choose an image file; calls `chosen` with it. */
export function choose(chosen) {
  const input = h("input", { type: "file", accept: TYPES, onchange: () => input.files[0] && chosen(input.files[0]) });
  input.click();
}

/** The first image file of a drop or of the clipboard. */
export function imageOf(transfer) {
  return [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/"));
}

/** A file as a data URL. */
export function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** The pixels of a file, to be drawn; throws an `Error` for files that the browser cannot read. */
export async function bitmap(file) {
  return createImageBitmap(file).catch(() => {
    throw new Error(`${file.name ?? "The file"} is no image that this browser can read.`);
  });
}

/** A canvas as a PNG file. */
export const png = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

/** Has an image element show a file. The address is given back when the image was read. */
export function show(image, file) {
  const url = URL.createObjectURL(file);
  const release = () => URL.revokeObjectURL(url);
  image.addEventListener("load", release, { once: true });
  image.addEventListener("error", release, { once: true });
  image.src = url;
}
