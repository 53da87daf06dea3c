/** The images of the gallery, kept by the browser, so that they survive a reload and take no memory. */

/** Images that are kept; the oldest go. */
const MOST = 3000;
/** Images that are kept where the browser keeps none for the page. */
const MOST_IN_MEMORY = 100;

/** Opens the store of the browser, or one in memory where it refuses. */
export async function openStore() {
  try {
    const request = indexedDB.open("kiln", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("records", { keyPath: "key", autoIncrement: true });
      request.result.createObjectStore("files");
    };
    return new Store(await done(request));
  } catch {
    return new MemoryStore();
  }
}

/** The result of a request. */
const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(request.error);
  });

/** Records (`key`, `width`, `height`, `model`, `request`, `parameters`) and, apart from them, their files. */
class Store {
  constructor(database) {
    this.database = database;
  }

  #open(mode) {
    const change = this.database.transaction(["records", "files"], mode);
    return { change, records: change.objectStore("records"), files: change.objectStore("files") };
  }

  /** All records, the oldest first. */
  all() {
    return done(this.#open("readonly").records.getAll());
  }

  /** Adds an image; returns its record with a key. */
  async add(record, file) {
    const { change, records, files } = this.#open("readwrite");
    const key = await done(records.add(record));
    files.put(file, key);
    const count = await done(records.count());
    if (count > MOST) this.#drop(records, files, await done(records.getAllKeys(null, count - MOST)));
    await finished(change);
    return { ...record, key };
  }

  /** The file of an image; undefined where it is gone. */
  file(key) {
    return done(this.#open("readonly").files.get(key));
  }

  async remove(key) {
    const { change, records, files } = this.#open("readwrite");
    this.#drop(records, files, [key]);
    await finished(change);
  }

  async clear() {
    const { change, records, files } = this.#open("readwrite");
    records.clear();
    files.clear();
    await finished(change);
  }

  #drop(records, files, keys) {
    for (const key of keys) {
      records.delete(key);
      files.delete(key);
    }
  }
}

const finished = (change) =>
  new Promise((resolve, reject) => {
    change.oncomplete = resolve;
    change.onabort = () =>
      reject(new Error(`The browser cannot keep the image: ${change.error?.message ?? "no room"}`));
  });

/** The same in memory. */
class MemoryStore {
  #entries = new Map();
  #next = 1;

  async all() {
    return [...this.#entries.values()].map(({ record }) => record);
  }

  async add(record, file) {
    const made = { ...record, key: this.#next++ };
    this.#entries.set(made.key, { record: made, file });
    if (this.#entries.size > MOST_IN_MEMORY) this.#entries.delete(this.#entries.keys().next().value);
    return made;
  }

  async file(key) {
    return this.#entries.get(key)?.file;
  }

  async remove(key) {
    this.#entries.delete(key);
  }

  async clear() {
    this.#entries.clear();
  }
}
