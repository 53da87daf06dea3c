/** The values of the form: what a request says, without its images. */

/** Fields that are lists of objects, or images, and have a part of the page of their own. */
const APART = ["loras", "controls", "ip_adapters", "regions", "init", "mask", "references"];

export class Settings extends EventTarget {
  #values = new Map();

  /** `options` are the rows of `/v1/capabilities`. */
  constructor(options) {
    super();
    this.rows = new Map(options.map((row) => [row.name, row]));
  }

  /** The row of an option; undefined where the server does not have it. */
  row(name) {
    return this.rows.get(name);
  }

  get(name) {
    return this.#values.get(name);
  }

  /** Sets a value; `undefined`, `null` and `""` stand for the default. */
  set(name, value) {
    const empty = value === undefined || value === null || value === "";
    if (empty ? !this.#values.has(name) : this.#values.get(name) === value) return;
    if (empty) this.#values.delete(name);
    else this.#values.set(name, value);
    this.dispatchEvent(new CustomEvent("change", { detail: name }));
  }

  /** Calls `heard` with the value now, and whenever it changes. */
  watch(name, heard) {
    this.addEventListener("change", (event) => {
      if (event.detail === name) heard(this.get(name));
    });
    heard(this.get(name));
  }

  /** All values that are set. */
  all() {
    return Object.fromEntries(this.#values);
  }

  /** The values of a request that `fill` takes over, and its LoRAs. */
  part(request) {
    const known = ([name]) => name === "loras" || (this.rows.has(name) && !APART.includes(name));
    return Object.fromEntries(Object.entries(request).filter(known));
  }

  /** Takes over the values of a request, and goes back to the defaults for all others. */
  fill(request) {
    const known = Object.entries(request).filter(([name]) => this.rows.has(name) && !APART.includes(name));
    const said = new Map(known);
    for (const name of [...this.#values.keys()]) {
      if (!said.has(name) && name !== "model") this.set(name, undefined);
    }
    said.forEach((value, name) => this.set(name, value));
  }
}

/** The value of a row in a text that a user typed; undefined for an empty text. Throws an `Error` with what is expected. */
export function parse(row, text) {
  const plain = text.trim();
  if (plain === "") return undefined;
  switch (row.type) {
    case "integer":
    case "number": {
      const value = Number(plain);
      const { minimum, maximum } = row;
      const fits = Number.isFinite(value) && (row.type === "number" || Number.isInteger(value));
      if (!fits || (minimum !== null && value < minimum) || (maximum !== null && value > maximum)) {
        throw new Error(`${plain} is not ${range(row)}`);
      }
      return value;
    }
    case "boolean":
      if (!["true", "false", "on", "off"].includes(plain)) throw new Error(`${plain} is not on or off`);
      return plain === "true" || plain === "on";
    case "numbers":
      return plain.split(/[\s,]+/).map(Number);
    default:
      return row.choices || row.type !== "string" ? plain : text;
  }
}

/** The range of a row in words. */
export function range({ type, minimum, maximum }) {
  const what = type === "integer" ? "a whole number" : "a number";
  if (minimum !== null && maximum !== null) return `${what} from ${minimum} to ${maximum}`;
  if (minimum !== null) return `${what} from ${minimum}`;
  return maximum === null ? what : `${what} up to ${maximum}`;
}
