/** Lists that the browser keeps for all visits. */

/** The list of this name; empty where the browser keeps none. */
export function kept(name) {
  try {
    const list = JSON.parse(localStorage.getItem(name) ?? "[]");
    return Array.isArray(list) ? list : [];
  } catch {
    return [];
  }
}

/** Keeps a list. False where the browser refuses. */
export function keep(name, list) {
  try {
    localStorage.setItem(name, JSON.stringify(list));
    return true;
  } catch {
    return false;
  }
}
