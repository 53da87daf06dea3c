//! The sampler with its noise levels, dynamic thresholding, and what is changed within the network.

use std::str::FromStr;

use kiln_scheduler::{Convention, SamplerChoice, SamplerKind, SigmaSchedule};

use super::fields::Fields;
use crate::network::{FreeuFactors, FreeuVersion};
use crate::options::Request;
use crate::settings::{labels as l, programs};

/// The sampler and its schedule, whose names mean what they meant in the program that wrote them.
pub(super) fn sampler(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let by_comfyui = fields.written(l::VERSION).is_some_and(|version| version.starts_with("ComfyUI"));
    request.convention = match fields.parsed(l::CONVENTION) {
        Some(convention) => convention,
        None if by_kiln => Convention::Diffusers,
        None if by_comfyui => Convention::ComfyUi,
        None => Convention::Automatic1111,
    };
    request.sampler = fields.read(l::SAMPLER, |name| SamplerChoice::from_str(name).ok());
    let Some(SamplerChoice { kind, schedule: named, .. }) = request.sampler else {
        return fields.skip(l::SCHEDULE_TYPE);
    };
    request.sampler = Some(kind.into());
    let wanted = fields.read(l::SCHEDULE_TYPE, |name| SigmaSchedule::from_str(name).ok());
    if by_kiln {
        request.scheduler = wanted.or(named).unwrap_or_default();
        return;
    }
    let written = fields.written(l::SCHEDULE_TYPE);
    if by_comfyui {
        let schedule = wanted.or(named).unwrap_or(SigmaSchedule::Normal);
        let sampler = if named.is_some() { kind.id() } else { fields.written(l::SAMPLER).unwrap_or(kind.id()) };
        for warning in programs::comfyui(request, sampler, schedule.id()).unwrap_or_default() {
            fields.warn(warning);
        }
        return;
    }
    request.scheduler = programs::a1111_schedule(kind, named, wanted, written.is_some());
    if kind == SamplerKind::DdimCfgPp {
        // `cond_scale_miltiplier` in its sd_samplers_timesteps_impl.py.
        request.cfg_scale = request.cfg_scale.map(|scale| scale / 12.5);
    }
    if written.is_some_and(|name| name.trim() == "Uniform") {
        // k-diffusion's own, which always lies over the whole table; "Normal" has the bounds.
        (request.sigma_min, request.sigma_max) = (None, None);
    }
    for name in ["Beta schedule alpha", "Beta schedule beta"] {
        if fields.written(name).is_some_and(|value| value.trim() == "0.6") {
            fields.skip(name);
        }
    }
}

/// Dynamic thresholding, whose extension may count in percent.
pub(super) fn thresholding(request: &mut Request, fields: &mut Fields<'_>) {
    let enabled = fields.read(l::THRESHOLDING, programs::truth);
    let (mimic_scale, percentile) = (fields.parsed(l::MIMIC_SCALE), fields.parsed::<f64>(l::PERCENTILE));
    if enabled == Some(true) {
        let share = percentile.map_or(1.0, |value| if value > 1.0 { value / 100.0 } else { value });
        (request.dynamic_thresholding, request.mimic_scale) = (Some(share), mimic_scale);
    }
}

/// FreeU, of which Forge has the second version.
pub(super) fn freeu(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let enabled = fields.read(l::FREEU, programs::truth);
    let factors = FreeuFactors::KEYS.map(|key| fields.parsed::<f64>(key));
    if let (Some(true), [Some(b1), Some(b2), Some(s1), Some(s2)]) = (enabled, factors) {
        request.freeu = Some(FreeuFactors([b1, b2, s1, s2]));
        request.freeu_version = request.freeu_version.or((!by_kiln).then_some(FreeuVersion::V2));
    }
}

/// Deep shrink as Forge has it: after the skip connection and bicubic, the only way here.
pub(super) fn deep_shrink(request: &mut Request, fields: &mut Fields<'_>) {
    let enabled = fields.read(l::DEEP_SHRINK, programs::truth);
    let is_bicubic = |text: &str| (text == "bicubic").then_some(());
    fields.read("kohya_hrfix_downscale_after_skip", |text| programs::truth(text).filter(|after| *after));
    fields.read("kohya_hrfix_downscale_method", is_bicubic);
    fields.read("kohya_hrfix_upscale_method", is_bicubic);
    if enabled == Some(false) {
        (request.deep_shrink, request.deep_shrink_block) = (None, None);
        (request.deep_shrink_start, request.deep_shrink_end) = (None, None);
    }
}
