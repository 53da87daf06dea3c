/** Short messages in a corner of the page. */

import { byId, h } from "./dom.js";

/** The time in milliseconds after which a message that is no error goes. */
const LIFE = 6000;
/** Messages at once. */
const MOST = 4;

function show(text, bad) {
  const place = byId("messages");
  const close = () => {
    message.remove();
    if (place.childElementCount === 0 && place.matches(":popover-open")) place.hidePopover();
  };
  const message = h(
    "div",
    { class: `message ${bad ? "bad" : ""}`, role: bad ? "alert" : "status" },
    h("p", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Close the message", onclick: close }, "✕"),
  );
  while (place.childElementCount >= MOST) place.firstElementChild.remove();
  place.append(message);
  // A popover is shown above dialogs.
  place.popover = "manual";
  if (place.matches(":popover-open")) place.hidePopover();
  place.showPopover();
  if (!bad) setTimeout(close, LIFE);
}

/** Says something that needs no answer. */
export const notify = (text) => show(text, false);

/** Says what went wrong. It stays until it is closed. */
export const report = (error) => show(error instanceof Error ? error.message : String(error), true);
