//! The table of classes.

mod edit;
mod image_prompts;
mod images;
mod models;
mod sampling;

use super::catalog::{Class, Input, Kind};
use super::lists::List;

/// The longest side of an image there.
const SIDE: u64 = 16_384;
/// The highest seed.
const SEED: u64 = u64::MAX;

const fn needs(name: &'static str, kind: Kind) -> Input {
    Input { name, kind, is_required: true }
}

const fn takes(name: &'static str, kind: Kind) -> Input {
    Input { name, kind, is_required: false }
}

const fn link(name: &'static str, kind: &'static str) -> Input {
    needs(name, Kind::Link(kind))
}

const fn whole(name: &'static str, default: i64, min: i64, max: u64) -> Input {
    needs(name, Kind::Whole { default, min, max, step: 1 })
}

const fn side(name: &'static str, default: i64, min: i64, step: u64) -> Input {
    needs(name, Kind::Whole { default, min, max: SIDE, step })
}

const fn number(name: &'static str, default: f64, min: f64, max: f64, step: f64) -> Input {
    needs(name, Kind::Number { default, min, max, step })
}

const fn prompt(name: &'static str) -> Input {
    needs(name, Kind::Text { default: "", multiline: true })
}

const fn choice(name: &'static str, names: &'static [&'static str]) -> Input {
    needs(name, Kind::Choice(names))
}

const fn list(name: &'static str, list: List) -> Input {
    needs(name, Kind::List(list))
}

const MODEL: Input = link("model", "MODEL");
const CLIP: Input = link("clip", "CLIP");
const VAE: Input = link("vae", "VAE");
const SAMPLES: Input = link("samples", "LATENT");
const LATENT: Input = link("latent_image", "LATENT");
const IMAGE: Input = link("image", "IMAGE");
const PIXELS: Input = link("pixels", "IMAGE");
const MASK: Input = link("mask", "MASK");
const POSITIVE: Input = link("positive", "CONDITIONING");
const NEGATIVE: Input = link("negative", "CONDITIONING");
const CONDITIONING: Input = link("conditioning", "CONDITIONING");
const CONTROL_NET: Input = link("control_net", "CONTROL_NET");
const STEPS: Input = whole("steps", 20, 1, 10_000);
const CFG: Input = number("cfg", 8.0, 0.0, 100.0, 0.1);
const DENOISE: Input = number("denoise", 1.0, 0.0, 1.0, 0.01);
const BATCH: Input = whole("batch_size", 1, 1, 4096);
const GUIDANCE: Input = number("guidance", 3.5, 0.0, 100.0, 0.1);
const STRENGTH: Input = number("strength", 1.0, 0.0, 10.0, 0.01);
const ETA: Input = number("eta", 1.0, 0.0, 100.0, 0.01);
const S_NOISE: Input = number("s_noise", 1.0, 0.0, 100.0, 0.01);
const SIGMA_MAX: Input = number("sigma_max", 14.614642, 0.0, 5000.0, 0.01);
const SIGMA_MIN: Input = number("sigma_min", 0.0291675, 0.0, 5000.0, 0.01);
const NOISE_DEVICE: Input = choice("noise_device", &["gpu", "cpu"]);
const SAMPLER_NAME: Input = list("sampler_name", List::Samplers);
const SCHEDULER: Input = list("scheduler", List::Schedulers);
const DEVICE: Input = takes("device", Kind::Choice(&["default", "cpu"]));

const OF_MODEL: &[(&str, &str)] = &[("MODEL", "MODEL")];
const OF_CLIP: &[(&str, &str)] = &[("CLIP", "CLIP")];
const OF_TEXT: &[(&str, &str)] = &[("CONDITIONING", "CONDITIONING")];
const OF_LATENT: &[(&str, &str)] = &[("LATENT", "LATENT")];
const OF_IMAGE: &[(&str, &str)] = &[("IMAGE", "IMAGE")];
const OF_MASK: &[(&str, &str)] = &[("MASK", "MASK")];
const OF_SAMPLER: &[(&str, &str)] = &[("SAMPLER", "SAMPLER")];
const OF_SIGMAS: &[(&str, &str)] = &[("SIGMAS", "SIGMAS")];
const OF_BOTH: &[(&str, &str)] = &[("LATENT", "output"), ("LATENT", "denoised_output")];
const OF_TEXTS: &[(&str, &str)] = &[("CONDITIONING", "positive"), ("CONDITIONING", "negative")];

/// The filters of images and of latents, of which the server names those that it lacks when they are asked for.
const IMAGE_FILTERS: Input = choice("upscale_method", &["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]);
const LATENT_FILTERS: Input = choice("upscale_method", &["nearest-exact", "bilinear", "area", "bicubic", "bislerp"]);
const CROP: Input = choice("crop", &["disabled", "center"]);

/// The families of a text encoder in a file of its own.
const CLIP_TYPES: &[&str] = &["stable_diffusion", "sd3", "lumina2", "chroma", "qwen_image", "flux", "flux2"];

const fn class(
    name: &'static str,
    title: &'static str,
    category: &'static str,
    inputs: &'static [Input],
    outputs: &'static [(&'static str, &'static str)],
) -> Class {
    Class { name, title, category, inputs, outputs, saves: false }
}

const fn saver(name: &'static str, title: &'static str, inputs: &'static [Input]) -> Class {
    Class { name, title, category: "image", inputs, outputs: &[], saves: true }
}

/// All classes.
pub(super) fn classes() -> impl Iterator<Item = &'static Class> {
    [models::CLASSES, edit::CLASSES, image_prompts::CLASSES, sampling::CLASSES, images::CLASSES].into_iter().flatten()
}
