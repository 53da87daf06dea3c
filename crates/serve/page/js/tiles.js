/** The focus in a list of tiles: one is reached by Tab, the others by arrow keys. */

/** Moves the focus by an arrow key, Home or End. */
export function moveFocus(list, event) {
  const tiles = [...list.children];
  const at = tiles.findIndex((tile) => tile.contains(document.activeElement));
  const columns = getComputedStyle(list).gridTemplateColumns.split(" ").length;
  const moves = {
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    ArrowUp: at - columns,
    ArrowDown: at + columns,
    Home: 0,
    End: tiles.length - 1,
  };
  const next = tiles[moves[event.key]];
  if (at < 0 || !next) return;
  event.preventDefault();
  focusTile(list, next.firstElementChild);
}

/** Puts the focus on the button of a tile, which is then reached by Tab. */
export function focusTile(list, button) {
  list.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
  button.setAttribute("tabindex", "0");
  button.focus();
}
