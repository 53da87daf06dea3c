//! A request from the text that AUTOMATIC1111 and Kiln write into images.
//!
//! The meaning of a field depends on the program that wrote it: `Version` names it. Without a field AUTOMATIC1111's
//! default holds, which is not always Kiln's: without `RNG` its noise is the GPU's, and its own rules of sampling hold
//! ([`Convention::Automatic1111`]).

mod fields;
mod passes;
mod sampling;
#[cfg(test)]
mod tests;

use kiln_media::Infotext;
use kiln_models::FamilyRef;
use kiln_scheduler::{Convention, SamplerKind};

use super::labels as l;
use crate::input::Rule;
use crate::options::{OPTIONS, Request};
use crate::request::Rng;

use fields::{Fields, short};
pub use passes::refiner_name;
use passes::{mask, refiner, second_pass};
use sampling::{deep_shrink, freeu, sampler, thresholding};

/// Options that are read by rules of their own, and not by their rows alone.
const BY_RULES: [&str; 8] =
    ["width", "sampler", "scheduler", "convention", "mimic_scale", "dynamic_thresholding", "mask_invert", "freeu"];

/// The request that `info` describes for a model of `family`, and what of it cannot be met, a sentence each.
pub fn request(info: &Infotext, family: FamilyRef) -> (Request, Vec<String>) {
    let mut fields = Fields::new(info);
    let by_kiln = info.get(l::VERSION).is_some_and(|version| version.starts_with(l::KILN));
    let mut request = Request {
        prompt: info.prompt.clone(),
        // There is no telling whether it was empty or missing, but for SDXL's zeros these are the same in AUTOMATIC1111.
        negative_prompt: Some(info.negative_prompt.clone()).filter(|text| !text.is_empty()),
        // Their choices were made; braces that are left are text.
        literal_prompt: true,
        literal_negative_prompt: true,
        keep_comments: true, // they were removed before the text was written
        ..Request::default()
    };
    for row in OPTIONS.iter().filter(|row| !BY_RULES.contains(&row.name)) {
        fields.option(row, &mut request);
    }
    request.pad_conds = request.pad_conds.or((!by_kiln).then_some(false));
    for bound in [&mut request.sigma_min, &mut request.sigma_max] {
        *bound = bound.filter(|&level| level != 0.0); // 0 is none
    }
    if let Some((width, height)) = fields.read(l::SIZE, size) {
        (request.width, request.height) = (Some(width), Some(height));
    }
    if info.get(l::RNG).is_none() && !by_kiln {
        request.rng = Rng::Cuda; // AUTOMATIC1111 names no generator if it is its default, the GPU's
    }
    sampler(&mut request, &mut fields, by_kiln);
    thresholding(&mut request, &mut fields);
    freeu(&mut request, &mut fields, by_kiln);
    deep_shrink(&mut request, &mut fields);
    request.clip_skip = request.clip_skip.filter(|&skip| skip > 0);
    if family.a1111_ignores_clip_skip() && !by_kiln && request.clip_skip.is_some() {
        request.clip_skip = None; // it does nothing there
    }
    for sentence in request.drop_foreign_to_family(family) {
        fields.warn(sentence);
    }
    for (name, value) in request.drop_unfit() {
        fields.warn(format!("{name}: {value} is left out: the sampler has no such choice"));
    }
    mask(&mut request, &mut fields, by_kiln);
    // Those that this rule is known for.
    let is_flow = family.flow(false, Convention::Automatic1111).is_some();
    let is_known = request.sampler.is_some_and(|sampler| {
        !((sampler.kind.is_on_timesteps() && !is_flow) || sampler.kind == SamplerKind::UniPc)
            || sampler.kind == SamplerKind::Ddim
    });
    if info.fields.iter().any(|(name, _)| name.starts_with("Hires ")) {
        request.hires_strength = request.strength.take(); // the second pass has it
        second_pass(&mut request, &mut fields, by_kiln);
    } else if request.strength.is_some() && request.convention == Convention::Automatic1111 && is_known {
        request.rule = Some(Rule::Automatic1111);
    }
    refiner(&mut request, &mut fields, by_kiln);
    not_supported(&mut fields);
    (request, fields.into_warnings())
}

/// Names every field that is left.
fn not_supported(fields: &mut Fields<'_>) {
    let why = |name: &str| match name {
        "First pass size" => "Kiln does not know the second pass of so old a version",
        "Hires checkpoint" | "Hires VAE" => "the second pass has the model of the first one",
        "Hires Distilled CFG Scale" => "the second pass has the guidance of the first one",
        // Forge's name for a file with text encoders or an autoencoder.
        name if name.starts_with("Module ") => "parts of a model in files of their own are given by their paths",
        name if name.starts_with("Hires Module ") => "the second pass has the model of the first one",
        _ => "Kiln does not know what it means",
    };
    let is_same = |value: &str| value == "Use same choices" || value == "Built-in";
    let is_silent = |(name, value): &(&str, &str)| name.starts_with("Hires Module ") && is_same(value);
    for (name, value) in fields.left().into_iter().filter(|field| !is_silent(field)) {
        fields.warn(format!("{name}: {} is left out: {}", short(value), why(name)));
    }
}

fn size(text: &str) -> Option<(usize, usize)> {
    let (width, height) = text.split_once('x')?;
    Some((width.trim().parse().ok()?, height.trim().parse().ok()?))
}
