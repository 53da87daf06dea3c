//! The second pass, the mask, and the refiner.

use std::str::FromStr;

use kiln_scheduler::{Convention, SamplerChoice, SigmaSchedule};

use super::fields::Fields;
use crate::input::{Rule, SwitchBy};
use crate::options::Request;
use crate::settings::own::is_hash;
use crate::settings::{labels as l, programs};

/// Pixels of a latent's side: AUTOMATIC1111 rounds sides down to them.
const LATENT: usize = 8;

/// The size and the sampler of a second pass.
pub(super) fn second_pass(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    if !request.is_hires() && !by_kiln {
        let left: Vec<String> =
            request.drop_hires().into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let warning = format!("a second pass of unknown size is left out ({})", left.join(", "));
        return fields.warn(warning);
    }
    if let (Some((w, h)), Some(width), Some(height)) = (request.hires_size, request.width, request.height) {
        // A side of 0 follows from the other one (`calculate_target_resolution` of its modules/processing.py).
        let follows = |side: usize, of: usize, to: usize| side.saturating_mul(to) / of.max(1);
        let size = match (w, h) {
            (w, 0) => (w, follows(w, width, height)),
            (0, h) => (follows(h, height, width), h),
            both => both,
        };
        request.hires_size = Some((size.0 / LATENT * LATENT, size.1 / LATENT * LATENT));
    }
    if by_kiln || (request.hires_sampler.is_none() && request.hires_scheduler.is_none()) {
        return;
    }
    let Some(SamplerChoice { kind, schedule: named, .. }) = request.hires_sampler.or(request.sampler) else { return };
    let written = [l::HIRES_SCHEDULE_TYPE, l::SCHEDULE_TYPE].iter().find_map(|key| fields.written(key));
    let wanted = written.and_then(|name| SigmaSchedule::from_str(name.trim()).ok());
    request.hires_sampler = request.hires_sampler.map(|_| kind.into());
    request.hires_scheduler = Some(programs::a1111_schedule(kind, named, wanted, written.is_some()));
}

/// Reads the fields of the mask. AUTOMATIC1111 leaves out a blur of 0, which is not its default.
pub(super) fn mask(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let not_masked = |text: &str| match text {
        l::NOT_MASKED => Some(true),
        "Inpaint masked" => Some(false),
        text => programs::truth(text), // Kiln 0.1, under another key
    };
    let (mode, inverted) = (fields.read(l::MASK_MODE, not_masked), fields.read("Mask inverted", not_masked));
    request.mask_invert = mode.or(inverted).unwrap_or_default();
    let is_masked = request.mask_invert || request.mask_content.is_some() || request.inpaint_area.is_some();
    if !by_kiln && is_masked && request.convention == Convention::Automatic1111 {
        request.mask_blur = request.mask_blur.or(Some(0.0));
    }
}

/// The refiner: its name without the hash that AUTOMATIC1111 writes behind it, and what that program counts.
pub(super) fn refiner(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let by_steps = fields.read(l::REFINER_BY_STEPS, programs::truth);
    let Some(name) = request.refiner.take() else { return };
    request.refiner = Some(refiner_name(&name.to_string_lossy()).0.into());
    if by_kiln || request.convention != Convention::Automatic1111 {
        return;
    }
    request.rule = Some(Rule::Automatic1111);
    let version = fields.written(l::VERSION).unwrap_or_default().trim_start_matches('v');
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let counts_timesteps =
        matches!((parts.next().flatten(), parts.next().flatten()), (Some(1), Some(9..)) | (Some(2..), _));
    if counts_timesteps && by_steps != Some(true) {
        request.refiner_switch_by = Some(SwitchBy::Timesteps);
    }
}

/// The name of a model and its hash, from `name [hash]`.
pub fn refiner_name(text: &str) -> (&str, Option<&str>) {
    match text.trim().strip_suffix(']').and_then(|text| text.rsplit_once(" [")) {
        // Eight digits in its first versions, then ten.
        Some((name, hash)) if is_hash(hash) && hash.len() >= 8 => (name, Some(hash)),
        _ => (text.trim(), None),
    }
}
