/** The page: puts its parts together. */

import * as api from "./api.js";
import { byId, h, select } from "./dom.js";
import { bitmap, choose, imageOf } from "./files.js";
import { Form } from "./form.js";
import { Gallery } from "./gallery.js";
import { Grid } from "./grid.js";
import { cellRequest } from "./gridsettings.js";
import { openHistory, remember } from "./history.js";
import { takeSettings } from "./link.js";
import { askForKey } from "./login.js";
import { report, notify } from "./messages.js";
import { Queue } from "./queue.js";
import { QueueView } from "./queueview.js";
import { Settings } from "./settings.js";
import { listen } from "./shortcuts.js";
import { Stage } from "./stage.js";
import { openStore } from "./store.js";
import { Viewer } from "./viewer.js";

/** The place of the form's values, for a reload. */
const DRAFT = "kiln-form";
/** Random seeds are below this. */
const SEEDS = 2 ** 32;

class Page {
  constructor(capabilities, store) {
    this.capabilities = capabilities;
    this.settings = new Settings(named(capabilities));
    this.queue = new Queue();
    this.stage = new Stage({
      details: (source, record) => new Viewer(source, this).open(record),
      seed: ({ seed }) => this.settings.set("seed", seed),
      jobs: () => this.queue.jobs,
    });
    new QueueView(this.queue, (job) => this.stage.live === job);
    this.gallery = new Gallery(store, (record) => this.#select(this.gallery, record));
    this.gallery.removed = (record, next) => this.stage.forget(record, next);
    this.gallery.cleared = () => this.stage.source === this.gallery && this.stage.forget(this.stage.record);
    // Latents are enlarged only within a run.
    this.upscalers = (capabilities.upscalers ?? []).filter((name) => !name.startsWith("latent"));
    this.#models();
    this.form = new Form(this.settings, capabilities, () => this.model, () => this.#lastSeed());
    this.#restore();
    this.#listen();
  }

  async start() {
    await this.gallery.load();
    const [newest] = this.gallery.records;
    if (newest) await this.stage.made(this.gallery, newest);
    this.queue.resume();
    if (this.capabilities.gallery && this.capabilities.gallery !== "off") await this.#serverGallery();
    this.#useLink();
    addEventListener("hashchange", () => this.#useLink());
  }

  /** Takes over the settings of a link that was opened. */
  #useLink() {
    try {
      const settings = takeSettings();
      if (settings) this.use(settings, "The form has the settings of the link.");
    } catch (error) {
      report(error);
    }
  }

  /** Sends what the form says: one job, or those of a grid. */
  async generate() {
    if (!this.form.check()) return;
    try {
      const request = await this.form.request();
      if (!request.prompt.trim() && !confirm("The prompt is empty. Generate an image without a prompt?"))
        return byId("prompt").focus();
      remember({ prompt: this.settings.get("prompt"), negative_prompt: this.settings.get("negative_prompt") });
      this.stage.followJobs();
      if (this.form.grid.isOn) this.#startGrid(request);
      else this.#submit({ ...request, batch_count: Number(this.form.count.value) });
    } catch (error) {
      report(error);
    }
  }

  /** Takes over the settings of an image. */
  use({ request, model }, done = "The form has the settings of the image.") {
    if (this.capabilities.models.some(({ id }) => id === model)) this.#setModel(model);
    const missing = this.form.fill(request);
    if (missing.length) missing.forEach(report);
    else notify(done);
    byId("prompt").focus();
  }

  /** Begins with an image from now on. */
  async edit(file) {
    const section = this.form.input.element.closest("details");
    section.open = true;
    await this.form.input.set(file);
    section.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  async upscale(record, file, how) {
    const made = await api.upscale(file, how);
    const { width, height } = await bitmap(made);
    const { seed, model, request, parameters } = record;
    const larger = await this.gallery.add({ width, height, seed, model, request, parameters }, made);
    this.stage.keepBefore(larger, file);
    return larger;
  }

  /** Shows an image file with its settings. */
  async openFile(file) {
    if (!file) return;
    try {
      const { width, height } = await bitmap(file);
      const found = await api.settings(file).catch((error) => {
        notify(error.message);
        return { request: {}, model: null, warnings: [] };
      });
      found.warnings.forEach(notify);
      const record = { ...found, width, height, seed: found.request.seed };
      const alone = { records: [record], file: async () => file, isAlone: true };
      await new Viewer(alone, this).open(record);
    } catch (error) {
      report(error);
    }
  }

  /** The viewer shows an image, which is then the large one of the page, too. */
  shown(source, record) {
    if (!source.isAlone && record !== this.stage.record) this.stage.select(source, record);
  }

  /** Makes an image the large one; what is large already is shown with its settings. */
  #select(source, record) {
    const { stage } = this;
    if (stage.record === record && !stage.live && !stage.compares) return stage.open();
    if (document.querySelector(".results").getBoundingClientRect().top < -80) byId("stage").scrollIntoView();
    return stage.select(source, record);
  }

  #lastSeed() {
    return this.gallery.records[0]?.seed ?? this.stage.record?.seed;
  }

  /** The gallery of the server, beside that of the browser. */
  async #serverGallery() {
    const { ServerGallery } = await import("./servergallery.js");
    const all = new ServerGallery((record) => this.#select(all, record), this.capabilities.gallery === "full");
    all.removed = (record, next) => this.stage.forget(record, next);
    this.server = all;
    const places = { browser: byId("place-browser"), server: byId("place-server") };
    const show = (isServer) => {
      places.browser.setAttribute("aria-pressed", String(!isServer));
      places.server.setAttribute("aria-pressed", String(isServer));
      all.element.hidden = !isServer;
      this.gallery.list.hidden = isServer;
      byId("gallery-clear").hidden = isServer;
      document.body.classList.toggle("server", isServer);
      if (isServer) all.load();
      else this.gallery.drawHead();
    };
    places.browser.addEventListener("click", () => show(false));
    places.server.addEventListener("click", () => show(true));
    byId("places").hidden = false;
    show(false);
  }

  #submit(request) {
    const job = this.queue.add(request);
    job.before = this.form.input.slot.file;
    if (matchMedia("(max-width: 820px)").matches)
      document.querySelector(".results").scrollIntoView({ behavior: "smooth" });
    return job;
  }

  #startGrid(request) {
    const axes = this.form.grid.read();
    if (request.seed === undefined) request.seed = Math.floor(Math.random() * SEEDS);
    const search = axes.find(({ name }) => name === "prompt");
    if (search && !request.prompt.includes(search.values[0]))
      throw new Error(`The prompt does not have “${search.values[0]}”.`);
    this.grid = new Grid(axes, (record) => this.#select(this.gallery, record));
    this.grid.places.forEach(({ x, y }, cell) => {
      const values = [axes[0].values[x], axes[1].values[y]];
      const job = this.#submit(cellRequest(request, axes, values));
      job.cell = { grid: this.grid, i: cell };
    });
  }

  /** Fetches an image that is done, and keeps it. */
  async #keep(job, image) {
    try {
      const file = await api.image(image.id);
      const { width, height, seed, parameters, request } = image;
      const record = await this.gallery.add(
        { width, height, seed, parameters, request, model: job.model ?? null },
        file,
      );
      job.cell?.grid.set(job.cell.i, record, file);
      if (job.before) this.stage.keepBefore(record, job.before);
      await this.stage.made(this.gallery, record);
    } catch (error) {
      report(error);
    }
  }

  #listen() {
    const { queue } = this;
    queue.addEventListener("image", ({ detail: { job, image } }) => this.#keep(job, image));
    queue.addEventListener(
      "change",
      ({ detail: { job } }) => job.cell && job.preview && job.cell.grid.preview(job.cell.i, job.preview),
    );
    queue.addEventListener("change", ({ detail: { job } }) => this.stage.preview(job));
    queue.addEventListener("end", ({ detail: { job } }) => {
      job.warnings.forEach(notify);
      // What is shown at its field needs no place in the queue.
      if (job.status === "failed" && this.form.blame(job.cause ?? {})) queue.dismiss(job);
      this.stage.ended(job);
    });
    this.stage.addEventListener("change", () => {
      this.gallery.mark(this.stage.record);
      this.server?.mark(this.stage.record);
    });
    const useOld = (entry) => {
      ["prompt", "negative_prompt"].forEach((name) => this.settings.set(name, entry[name]));
      byId("prompt").focus();
    };
    byId("history-open").addEventListener("click", () => openHistory(useOld));
    byId("generate").disabled = false;
    byId("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.generate();
    });
    listen({ generate: () => this.generate(), cancel: () => this.#cancel() });
    byId("open-file").addEventListener("click", () => choose((file) => this.openFile(file)));
    this.form.grid.addEventListener("change", () => this.#showButton());
    addEventListener("pagehide", () => this.#remember());
    this.#dropping();
  }

  #cancel() {
    const job = this.queue.jobs.find(({ status }) => status === "running");
    if (job) this.queue.cancel(job).catch(report);
  }

  #showButton() {
    const { grid } = this.form;
    byId("generate").textContent = grid.isOn ? `Generate a grid${grid.size ? ` of ${grid.size}` : ""}` : "Generate";
    this.form.count.disabled = grid.isOn;
  }

  /** Files that are dropped anywhere, or pasted. */
  #dropping() {
    const { classList } = document.body;
    const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    addEventListener("dragover", (event) => {
      if (!hasFile(event)) return;
      event.preventDefault();
      classList.toggle("dropping", !event.target.closest?.(".slot"));
    });
    addEventListener("dragleave", (event) => event.relatedTarget === null && classList.remove("dropping"));
    addEventListener("drop", (event) => {
      classList.remove("dropping");
      if (!hasFile(event)) return;
      event.preventDefault();
      this.openFile(imageOf(event.dataTransfer));
    });
    addEventListener("paste", (event) => {
      const file = imageOf(event.clipboardData);
      if (!file) return;
      event.preventDefault();
      this.openFile(file);
    });
  }

  #models() {
    const { models } = this.capabilities;
    this.model = models[0];
    if (models.length === 1) {
      byId("model").replaceChildren(h("span", { class: "muted" }, models[0].id));
      return;
    }
    const choice = select(
      models.map(({ id }) => id),
      {
        id: "model-choice",
        "aria-label": "Model",
        onchange: () => this.#setModel(choice.value),
      },
    );
    byId("model").replaceChildren(choice);
  }

  #setModel(id) {
    this.model = this.capabilities.models.find((model) => model.id === id) ?? this.model;
    const choice = byId("model-choice");
    if (choice) choice.value = this.model.id;
    this.form.changed();
    this.form.countTokens();
  }

  #remember() {
    sessionStorage.setItem(
      DRAFT,
      JSON.stringify({ values: this.settings.all(), model: this.model.id, count: this.form.count.value }),
    );
  }

  #restore() {
    const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null");
    if (!draft) return;
    this.settings.fill(draft.values);
    this.form.count.value = draft.count;
    this.#setModel(draft.model);
  }
}

/** The options, with names for people, and with what the server has where an option names that. */
function named({ options, samplers, schedulers, upscalers, models }) {
  const titles = (list) => new Map(list.map(({ id, name }) => [id, name]));
  const of = { sampler: titles(samplers), scheduler: titles(schedulers) };
  const choices = { upscaler: upscalers, model: models.map(({ id }) => id) };
  return options.map((row) => ({
    ...row,
    titles: of[row.name.replace("hires_", "")],
    choices: choices[row.type] ?? row.choices,
  }));
}

async function start() {
  api.onKeyNeeded(askForKey);
  byId("docs").hidden = api.hasKey();
  try {
    const [capabilities, store] = await Promise.all([api.capabilities(), openStore()]);
    byId("docs").hidden = api.hasKey();
    await new Page(capabilities, store).start();
  } catch (error) {
    report(error);
  }
}

start();
