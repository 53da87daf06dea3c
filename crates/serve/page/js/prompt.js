/** Weights of words in a prompt, changed by Ctrl and the arrow keys. */

/** The change of a weight. */
const STEP = 0.1;
/** What ends a word. */
const BREAK = /[\s,()[\]{}|]/;

/** Has Ctrl-Up and Ctrl-Down change the weight of what is selected, or of the word at the cursor. */
export function weightKeys(area) {
  area.addEventListener("keydown", (event) => {
    const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!sign || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const change = reweighted(area.value, area.selectionStart, area.selectionEnd, sign * STEP);
    if (!change) return;
    replace(area, change.start, change.end, change.text);
    area.setSelectionRange(...change.select);
  });
}

/**
 * The change of a text that adds `by` to the weight of a selection: what is replaced, by what, and what is selected then.
 * Null where there is no word.
 */
export function reweighted(text, from, to, by) {
  const tag = tagAt(text, from);
  if (tag) return tag.with(by);
  let [start, end] = [from, to];
  if (start === end) {
    while (start > 0 && !BREAK.test(text[start - 1])) start -= 1;
    while (end < text.length && !BREAK.test(text[end])) end += 1;
  }
  while (start < end && /\s/.test(text[start])) start += 1;
  while (start < end && /\s/.test(text[end - 1])) end -= 1;
  if (start === end) return null;
  const around = bracketsAround(text, start, end);
  const words = around ? around.words : text.slice(start, end);
  const weight = rounded((around?.weight ?? 1) + by);
  const [first, last] = around ? [around.start, around.end] : [start, end];
  const plain = weight === 1;
  const made = plain ? words : `(${words}:${weight})`;
  const selected = first + (plain ? 0 : 1);
  return { start: first, end: last, text: made, select: [selected, selected + words.length] };
}

/** The brackets with a weight, or without one, directly around a selection inside of them. */
function bracketsAround(text, start, end) {
  for (const match of text.matchAll(/\(([^()]*?)(?::\s*(-?[\d.]+))?\)/g)) {
    const [whole, words, weight] = match;
    const first = match.index;
    const isInside = start >= first && end <= first + whole.length;
    if (isInside)
      return { start: first, end: first + whole.length, words, weight: weight === undefined ? 1.1 : Number(weight) };
  }
  return null;
}

/** The tag of a LoRA at a place. */
function tagAt(text, place) {
  for (const match of text.matchAll(/<lora:([^:>]+)(?::(-?[\d.]+))?((?::[^>]*)?)>/g)) {
    const [whole, name, weight = "1", rest] = match;
    const [start, end] = [match.index, match.index + whole.length];
    if (place < start || place > end) continue;
    const change = (by) => {
      const made = `<lora:${name}:${rounded(Number(weight) + by)}${rest}>`;
      return { start, end, text: made, select: [start + 1, start + 1] };
    };
    return { with: change };
  }
  return null;
}

const rounded = (weight) => Math.round(weight * 100) / 100;

/** Replaces a part of a text so that the browser can undo it. */
export function replace(area, start, end, text) {
  area.setSelectionRange(start, end);
  // The only way to an edit that can be undone. Where it is missing, the value is set.
  if (!document.execCommand("insertText", false, text)) {
    area.setRangeText(text, start, end, "end");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }
}
