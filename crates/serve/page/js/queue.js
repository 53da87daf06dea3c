/** The jobs of this page: sent, followed to their end, canceled. */

import * as api from "./api.js";

/** Jobs that the server has at once; the others wait here, so that they do not fill its queue. */
const IN_FLIGHT = 16;
/** Jobs whose events are read. A browser has six connections to a server, for all pages together. */
const STREAMS = 2;
/** Milliseconds between looks at one of the other jobs. */
const LOOK_EVERY = 600;
/** Seconds to wait where the server's queue is full and it does not say how long. */
const RETRY_AFTER = 2;
/** The place of the numbers of jobs that a reload takes up again. */
const PLACE = "kiln-jobs";

/** A job as the page knows it. */
class Job {
  /** The number at the server; null while the job waits here. */
  id = null;
  /** `held`, or what the server says: `queued`, `running`, `done`, `canceled`, `failed`. */
  status = "held";
  position = null;
  stage = null;
  step = 0;
  steps = 0;
  progress = 0;
  eta = null;
  /** The last preview as a data URL. */
  preview = null;
  error = null;
  warnings = [];
  /** The numbers of images that were handed on. */
  seen = new Set();

  constructor(request) {
    this.request = request;
  }

  get isOver() {
    return ["done", "canceled", "failed"].includes(this.status);
  }
}

/** Dispatches `add` and `change` of a job, of an `image`, and of its `end`; `detail.job` is the job. */
export class Queue extends EventTarget {
  /** In the order in which they came; without those that are over. */
  jobs = [];
  #streams = new Map();
  #sending = false;
  #turn = 0;

  constructor() {
    super();
    document.addEventListener("visibilitychange", () => this.#stream());
    setInterval(() => this.#look(), LOOK_EVERY);
  }

  /** Adds a request; returns its job. */
  add(request) {
    const job = new Job(request);
    this.jobs.push(job);
    this.#dispatch("add", job);
    this.#send();
    return job;
  }

  /** Takes up the jobs that were not over when the page was left. */
  resume() {
    for (const id of JSON.parse(sessionStorage.getItem(PLACE) ?? "[]")) {
      const job = new Job({});
      Object.assign(job, { id, status: "queued" });
      this.jobs.push(job);
      this.#refresh(job);
    }
    this.#stream();
  }

  /** Cancels a job. */
  async cancel(job) {
    if (job.id === null) this.#end(job, "canceled");
    else await api.remove(job.id);
  }

  /** Ends a job with its images as they are. */
  finish(job) {
    return api.finish(job.id);
  }

  /** The jobs that wait at the same place as a job, here or at the server, in their order. */
  waiting({ status }) {
    return ["queued", "held"].includes(status) ? this.jobs.filter((job) => job.status === status) : [];
  }

  /** Moves a job that waits up (-1) or down (1). */
  async move(job, by) {
    const waiting = this.waiting(job);
    const other = waiting[waiting.indexOf(job) + by];
    if (!other) return;
    const [first, second] = by < 0 ? [job, other] : [other, job];
    if (first.id !== null) await api.move(first.id, second.id);
    this.jobs = this.jobs.filter((one) => one !== first);
    this.jobs.splice(this.jobs.indexOf(second), 0, first);
    this.#dispatch("change", job);
  }

  /** Takes a job that failed out of the list. */
  dismiss(job) {
    this.jobs = this.jobs.filter((other) => other !== job);
    this.#dispatch("change", job);
  }

  #inFlight() {
    return this.jobs.filter((job) => job.id !== null && !job.isOver);
  }

  /** Sends jobs that wait here, one after the other. */
  async #send() {
    if (this.#sending) return;
    this.#sending = true;
    for (;;) {
      const job = this.jobs.find(({ status }) => status === "held");
      if (!job || this.#inFlight().length >= IN_FLIGHT) break;
      try {
        const view = await api.submit(job.request);
        if (job.isOver)
          await api.remove(view.id); // it was canceled in the meantime
        else this.#apply(job, view);
      } catch (error) {
        if (error.status === 429) await pause(1000 * (error.retryAfter ?? RETRY_AFTER));
        else this.#fail(job, error);
      }
    }
    this.#sending = false;
    this.#stream();
  }

  /** Reads the events of the jobs that run, or of the oldest, while the page is seen. */
  #stream() {
    if (document.hidden) {
      this.#streams.forEach((stop) => stop.abort());
      return;
    }
    const order = (job) => (job.status === "running" ? 0 : 1);
    const next = this.#inFlight()
      .filter((job) => !this.#streams.has(job))
      .sort((a, b) => order(a) - order(b));
    while (this.#streams.size < STREAMS && next.length) this.#follow(next.shift());
  }

  async #follow(job) {
    const stop = new AbortController();
    this.#streams.set(job, stop);
    try {
      for await (const { name, data } of api.follow(job.id, stop.signal)) this.#hear(job, name, data);
    } catch {
      // The job is looked at like those without a stream, which finds out what is wrong.
    }
    this.#streams.delete(job);
    if (!job.isOver) await pause(LOOK_EVERY);
    this.#stream();
  }

  #hear(job, name, data) {
    if (name === "queued") job.position = data.position;
    else if (name === "step") Object.assign(job, data, { status: "running" });
    else if (name === "preview") job.preview = `data:${data.type};base64,${data.data}`;
    else if (name === "warning") job.warnings.push(data.message);
    else if (name === "image") this.#image(job, data);
    else if (name === "done") return this.#apply(job, data);
    this.#dispatch("change", job);
  }

  /** Looks at one of the jobs without a stream, in turns. */
  #look() {
    const others = this.#inFlight().filter((job) => !this.#streams.has(job));
    if (others.length) this.#refresh(others[this.#turn++ % others.length]);
  }

  async #refresh(job) {
    try {
      this.#apply(job, await api.job(job.id));
    } catch (error) {
      if (error.status === 404) this.#fail(job, new Error("The server does not know this job any more."));
    }
  }

  /** Takes over what the server says of a job. */
  #apply(job, view) {
    if (job.isOver) return;
    const { id, position, step, steps, progress, eta, warnings, error } = view;
    const isRunning = view.status === "running";
    Object.assign(job, { id, position, step, steps, progress, eta, warnings, error: api.plain(error?.message) ?? null });
    Object.assign(job, { request: { ...view.request, ...job.request }, model: view.model });
    view.images.forEach((image) => this.#image(job, image));
    if (isRunning || view.status === "queued") {
      const moved = isRunning && job.status !== "running";
      job.status = view.status;
      this.#dispatch("change", job);
      if (moved) this.#stream();
    } else {
      this.#end(job, view.status);
    }
    this.#remember();
  }

  #image(job, image) {
    if (job.seen.has(image.id)) return;
    job.seen.add(image.id);
    this.dispatchEvent(new CustomEvent("image", { detail: { job, image } }));
  }

  #fail(job, error) {
    job.error = error.message;
    job.cause = error;
    this.#end(job, "failed");
  }

  #end(job, status) {
    job.status = status;
    job.preview = null;
    if (status !== "failed") this.jobs = this.jobs.filter((other) => other !== job);
    this.#dispatch("end", job);
    this.#remember();
    this.#send();
  }

  #remember() {
    sessionStorage.setItem(PLACE, JSON.stringify(this.#inFlight().map(({ id }) => id)));
  }

  #dispatch(name, job) {
    this.dispatchEvent(new CustomEvent(name, { detail: { job } }));
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
