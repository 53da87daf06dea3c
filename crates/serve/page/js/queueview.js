/** The list of jobs that wait or run. */

import { byId, h } from "./dom.js";
import { seconds } from "./labels.js";
import { report } from "./messages.js";

/** Jobs that are shown one by one. */
const SHOWN = 6;
const STAGES = {
  load: "Loading the model",
  encode: "Reading the prompt",
  "encode-image": "Reading the image",
  denoise: "Denoising",
  decode: "Decoding",
};

export class QueueView {
  #cards = new Map();

  /** `isStaged` says whether a job's preview is the large image. */
  constructor(queue, isStaged) {
    Object.assign(this, { queue, isStaged });
    this.place = byId("queue");
    this.list = h("ul", { class: "jobs" });
    this.rest = h("span");
    const all = () => this.queue.jobs.filter((job) => !job.isOver).forEach((job) => this.#try(queue.cancel(job)));
    const button = h("button", { type: "button", class: "quiet", onclick: all }, "Cancel all");
    this.more = h("div", { class: "more" }, this.rest, button);
    this.place.append(h("div", { class: "jobs" }, this.list, this.more));
    for (const name of ["add", "change", "end"]) queue.addEventListener(name, () => this.#soon());
  }

  /** Draws once for all changes before the next frame. */
  #soon() {
    this.waits ??= setTimeout(() => {
      this.waits = null;
      this.#draw();
    }, 30);
  }

  #draw() {
    const order = { running: 0, failed: 1, queued: 2, held: 3 };
    const jobs = [...this.queue.jobs].sort((a, b) => order[a.status] - order[b.status]);
    const shown = jobs.slice(0, SHOWN);
    const focused = document.activeElement;
    for (const [job, card] of this.#cards) {
      if (shown.includes(job)) continue;
      card.element.remove();
      this.#cards.delete(job);
    }
    shown.forEach((job, i) => {
      if (!this.#cards.has(job)) this.#cards.set(job, new Card(job, this));
      const { element } = this.#cards.get(job);
      // A card that moves loses the focus, so that only those move that have to.
      if (this.list.children[i] !== element) this.list.insertBefore(element, this.list.children[i] ?? null);
      this.#cards.get(job).draw();
    });
    // The focus stays at a button of a card that has moved, or goes to its neighbor where nothing is left to do.
    if (focused?.disabled) focused.parentElement.querySelector(".move:enabled")?.focus();
    else if (focused?.isConnected && focused !== document.activeElement) focused.focus();
    const hidden = jobs.length - shown.length;
    this.rest.textContent = hidden ? `and ${hidden} more` : "";
    this.more.hidden = jobs.length < 2;
    this.place.hidden = jobs.length === 0;
    document.body.classList.toggle("busy", jobs.length > 0);
    const running = jobs.find(({ status }) => status === "running");
    document.title = running ? `${Math.round(100 * running.progress)} % – Kiln` : "Kiln";
  }

  async #try(promise) {
    await promise.catch(report);
  }

  cancel(job) {
    if (job.status === "failed") this.queue.dismiss(job);
    else this.#try(this.queue.cancel(job));
  }

  finish(job) {
    this.#try(this.queue.finish(job));
  }

  move(job, by) {
    this.#try(this.queue.move(job, by));
  }
}

/** A job in the list. */
class Card {
  constructor(job, view) {
    Object.assign(this, { job, view });
    // The large image has the preview of one job; this is for those that run beside it.
    this.live = h("div", { class: "live" });
    this.text = h("p", { class: "text" });
    this.where = h("p", { class: "where" });
    this.bar = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
    this.cancel = h("button", { type: "button", onclick: () => view.cancel(job) }, "Cancel");
    this.finish = h(
      "button",
      { type: "button", class: "quiet", onclick: () => view.finish(job), title: "Keep the image as it is now" },
      "Finish now",
    );
    const move = (by, text, label) =>
      h("button", { type: "button", class: "quiet move", onclick: () => view.move(job, by), title: label, "aria-label": label }, text);
    this.up = move(-1, "↑", "Move up");
    this.down = move(1, "↓", "Move down");
    const facts = h("div", { class: "facts" }, this.text, this.where, this.bar);
    this.element = h(
      "li",
      { class: "job" },
      this.live,
      facts,
      h("div", { class: "actions" }, this.up, this.down, this.cancel, this.finish),
    );
  }

  draw() {
    const { job } = this;
    const runs = job.status === "running";
    this.element.classList.toggle("staged", this.view.isStaged(job));
    this.element.classList.toggle("waiting", !runs);
    this.element.classList.toggle("failed", job.status === "failed");
    this.text.textContent = job.request.prompt || "No prompt";
    this.where.textContent = whereText(job);
    this.bar.value = job.progress;
    this.finish.hidden = !runs;
    const waiting = this.view.queue.waiting(job);
    this.up.hidden = this.down.hidden = waiting.length < 2;
    this.up.disabled = waiting[0] === job;
    this.down.disabled = waiting.at(-1) === job;
    this.cancel.textContent = job.status === "failed" ? "Close" : "Cancel";
    if (!job.preview) return this.live.replaceChildren();
    const image = this.live.querySelector("img") ?? h("img", { alt: "Preview" });
    if (image.getAttribute("src") !== job.preview) image.src = job.preview;
    if (!image.isConnected) this.live.replaceChildren(image);
  }
}

/** How far a job is, in words. */
function whereText({ status, error, position, stage, step, steps, eta }) {
  if (status === "failed") return error;
  if (status === "held") return "Waits in this page";
  if (status === "queued") return position ? `Waits for ${position} ${position === 1 ? "job" : "jobs"}` : "Waits";
  const what = STAGES[stage] ?? "Running";
  if (!steps) return what;
  const left = eta === null ? "" : `, about ${seconds(eta)} left`;
  return `${what}, step ${step} of ${steps}${left}`;
}
