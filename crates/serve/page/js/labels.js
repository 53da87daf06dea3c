/** Names of options for people. */

const LABELS = {
  prompt: "Prompt",
  negative_prompt: "Negative prompt",
  cfg_scale: "Guidance",
  scheduler: "Schedule",
  batch_count: "Batches",
  batch_size: "Batch size",
  clip_skip: "CLIP skip",
  ensd: "ENSD",
  rng: "Random numbers",
  loras: "LoRAs",
  controls: "ControlNet",
  s_churn: "Churn",
  s_tmin: "Churn from noise level",
  s_tmax: "Churn to noise level",
  s_noise: "Noise scale",
  subseed: "Variation seed",
  subseed_strength: "Variation strength",
  mask_content: "Masked content",
  inpaint_area: "Area",
  inpaint_padding: "Padding",
  hires_scale: "Scale",
  hires_size: "Size",
  hires_upscaler: "Upscaler",
  hires_steps: "Steps",
  hires_strength: "Strength",
  hires_cfg_scale: "Guidance",
  hires_sampler: "Sampler",
  hires_scheduler: "Schedule",
  hires_prompt: "Prompt",
  hires_negative_prompt: "Negative prompt",
};

/** The name of an option inside of its section. */
export function label(name) {
  return LABELS[name] ?? sentence(name.replaceAll("_", " "));
}

/** The name of an option that stands alone. */
export function fullLabel(name) {
  return name.startsWith("hires_") ? `Hires ${label(name).toLowerCase()}` : label(name);
}

/** Words with a first letter in upper case. */
export const sentence = (words) => words[0].toUpperCase() + words.slice(1);

/** A value for people. */
export function valueText(value) {
  if (value === true) return "on";
  if (value === false) return "off";
  if (Array.isArray(value)) return value.map(valueText).join(", ");
  if (value !== null && typeof value === "object") return Object.values(value).map(valueText).join(":");
  return String(value);
}

/** Seconds for people. */
export function seconds(value) {
  if (value < 90) return `${Math.max(1, Math.round(value))} s`;
  return `${Math.round(value / 60)} min`;
}
