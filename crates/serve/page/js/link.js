/** Links with settings: whoever opens one has them in the form. They are behind the `#`, which browsers do not send. */

const BEGIN = "#settings=";

/** The link for a request, without its images. */
export function linkOf(request, model) {
  const text = JSON.stringify({ request, model });
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  const code = btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return location.origin + location.pathname + BEGIN + code;
}

/** The settings of the page's own address, which loses them; null if it has none. Throws an `Error` for a link that is cut off. */
export function takeSettings() {
  if (!location.hash.startsWith(BEGIN)) return null;
  const code = location.hash.slice(BEGIN.length).replaceAll("-", "+").replaceAll("_", "/");
  history.replaceState(null, "", location.pathname);
  try {
    const bytes = Uint8Array.from(atob(code), (c) => c.charCodeAt(0));
    const { request, model } = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof request !== "object" || request === null) throw new Error("no request");
    return { request, model };
  } catch {
    throw new Error("The link with settings is not whole.");
  }
}
