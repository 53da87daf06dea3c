/** Names of options for people, and the groups in which they are shown. */

/** Every option of `/v1/capabilities` has a line: a test of the server compares them. */
const LABELS = {
  prompt: "Prompt",
  negative_prompt: "Negative prompt",
  clip_skip: "CLIP skip",
  emphasis: "Weights of words, as in (word:1.3)",
  pad_conds: "Pad the shorter prompt",
  comma_backtrack: "Split chunks at commas: tokens back",
  chunk_cut: "Split long prompts at",
  max_length: "Tokens for T5",
  keep_comments: "Keep # comments",
  steps: "Steps",
  cfg_scale: "Guidance",
  cfg_schedule: "Guidance over the steps",
  seed: "Seed",
  width: "Width",
  height: "Height",
  loras: "LoRAs",
  controls: "ControlNet",
  ip_adapters: "Image prompts",
  regions: "Places of the prompt's parts",
  references: "Reference images",
  reference_size: "Size of reference images",
  batch_count: "Batches",
  batch_size: "Batch size",
  rule: "Input images and refiners as in",
  convention: "Noise levels and first noise as in",
  original_size: "SDXL: original size",
  crop: "SDXL: crop",
  target_size: "SDXL: target size",
  negative_original_size: "SDXL: negative original size",
  negative_crop: "SDXL: negative crop",
  negative_target_size: "SDXL: negative target size",
  refiner: "Refiner",
  refiner_switch: "Refiner: takes over at",
  refiner_switch_by: "Refiner: takes over by",
  aesthetic_score: "Refiner: aesthetic score",
  negative_aesthetic_score: "Refiner: negative aesthetic score",
  sampler: "Sampler",
  scheduler: "Schedule",
  sigmas: "Noise levels",
  sigma_range: "Range of noise levels",
  sigma_min: "Lowest noise level",
  sigma_max: "Highest noise level",
  discard_penultimate_sigma: "Leave out the next-to-last noise level",
  initial_noise: "Scale of the first noise",
  unipc_variant: "UniPC: variant",
  eta: "Eta: new noise in each step",
  s_churn: "Churn: amount",
  s_tmin: "Churn: from noise level",
  s_tmax: "Churn: to noise level",
  s_noise: "Noise scale",
  rho: "Rho: power of the schedule",
  guidance_rescale: "Guidance: rescale",
  guidance_start: "Guidance: start",
  guidance_end: "Guidance: end",
  apg_eta: "Projected guidance: parallel part",
  apg_threshold: "Projected guidance: largest norm",
  apg_momentum: "Projected guidance: momentum",
  mimic_scale: "Dynamic thresholding: mimic scale",
  dynamic_thresholding: "Dynamic thresholding: percentile",
  slg_scale: "Skip-layer guidance: scale",
  slg_layers: "Skip-layer guidance: layers",
  slg_start: "Skip-layer guidance: start",
  slg_end: "Skip-layer guidance: end",
  cfg_zero_star: "CFG-Zero*",
  cfg_norm: "Guidance: bound of the norm",
  shift: "Shift of the noise levels",
  guidance: "Distilled guidance",
  pag_scale: "Perturbed attention: scale",
  pag_adaptive_scale: "Perturbed attention: decrease over time",
  pag_layers: "Perturbed attention: layers",
  sag_scale: "Self-attention guidance: scale",
  sag_sigma: "Self-attention guidance: blur",
  sag_threshold: "Self-attention guidance: threshold",
  freeu: "FreeU: factors b1, b2, s1, s2",
  freeu_version: "FreeU: version",
  cache: "DeepCache",
  block_cache: "First-block cache",
  block_cache_predict: "First-block cache: prediction",
  deep_shrink: "Deep shrink: factor",
  deep_shrink_block: "Deep shrink: block",
  deep_shrink_start: "Deep shrink: start",
  deep_shrink_end: "Deep shrink: end",
  subseed: "Variation seed",
  subseed_strength: "Variation strength",
  seed_resize_from: "Keep the noise of size",
  noise_part: "Part of a batch's noise",
  ensd: "Seed offset of later noise (ENSD)",
  rng: "Random numbers of",
  strength: "Strength",
  resize_mode: "Resize mode",
  init: "Input image",
  init_noise: "Latents of the input",
  noise_multiplier: "Noise multiplier",
  mask: "Mask",
  mask_blur: "Mask blur",
  mask_content: "Masked content",
  mask_invert: "Invert the mask",
  mask_weight: "Inpainting model: mask weight",
  inpaint_area: "Area",
  inpaint_padding: "Padding",
  soft_inpainting: "Soft inpainting",
  soft_schedule_bias: "Soft inpainting: schedule bias",
  soft_preservation: "Soft inpainting: preservation",
  soft_contrast_boost: "Soft inpainting: contrast boost",
  soft_mask_influence: "Soft inpainting: mask influence",
  soft_difference_threshold: "Soft inpainting: difference threshold",
  soft_difference_contrast: "Soft inpainting: difference contrast",
  paste_back: "Paste the input back around the mask",
  extend: "Extend the image",
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

/** The groups of "More options": titles, what they begin with, and hints. What none of them has is in "Others". */
export const GROUPS = [
  ["Variations", ["subseed", "seed_resize"]],
  ["Guidance", ["cfg_schedule", "guidance_", "dynamic_thresholding", "mimic_scale", "apg_", "cfg_zero_star", "cfg_norm"]],
  ["Skip-layer guidance", ["slg_"]],
  ["Perturbed attention", ["pag_"]],
  ["Self-attention guidance", ["sag_"]],
  ["FreeU", ["freeu"]],
  ["Speed and large images", ["cache", "block_cache", "deep_shrink"]],
  [
    "Sizes as conditions (SDXL)",
    ["original_size", "crop", "target_size", "negative_original_size", "negative_crop", "negative_target_size"],
  ],
  ["Refiner", ["refiner", "aesthetic_score", "negative_aesthetic_score"]],
  ["Reading the prompt", ["clip_skip", "emphasis", "pad_conds", "comma_backtrack", "chunk_cut", "max_length", "keep_comments"]],
  ["Noise of the sampler", ["eta", "s_", "initial_noise", "unipc_variant", "ensd", "rng"]],
  ["Noise levels", ["sigma", "rho", "discard_penultimate_sigma"]],
  ["Input image", ["init_noise", "noise_multiplier", "mask_", "paste_back", "extend"]],
  ["Soft inpainting", ["soft_"]],
  ["Second pass", ["hires_"]],
  [
    "Rules of another program",
    ["convention", "rule"],
    "Programs differ in details. For the images of another program choose it in both fields; images of Kiln and diffusers need neither.",
  ],
];

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

/** The default of an option in short: of `4; with something else 7` the first part. */
export const usualOf = (row) => row.default.split(";")[0];

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
