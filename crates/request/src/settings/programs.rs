//! Names of samplers and schedules in other programs' files, and those programs' rules.

use std::str::FromStr;

use kiln_media::Infotext;
use kiln_scheduler::{Convention, Error, SamplerChoice, SamplerKind, SigmaSchedule, UniPcScale};

use super::labels;
use crate::request::Request;

/// Sets the sampler of ComfyUI's KSampler, its input `sampler_name`, and ComfyUI's rules. Returns the differences in
/// Kiln, one sentence each.
///
/// # Errors
/// [`Error::UnknownSampler`].
pub fn comfyui_sampler(request: &mut Request, sampler: &str) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    let kind = match sampler {
        // `sampler_object` in comfy/samplers.py: its "ddim" is Euler's method on the schedule's levels.
        "ddim" => SamplerKind::Euler,
        other => SamplerChoice::from_str(other.strip_suffix("_gpu").unwrap_or(other))?.kind,
    };
    if matches!(kind, SamplerKind::Deis | SamplerKind::Ddpm | SamplerKind::Lcm) {
        warnings.push(format!("sampler {sampler}: Kiln has diffusers' {kind}, which differs from ComfyUI's function"));
    }
    if sampler.ends_with("_gpu")
        || sampler.contains("ancestral")
        || matches!(kind, SamplerKind::Ddpm | SamplerKind::Lcm)
    {
        warnings.push(format!(
            "{sampler} draws the noise of its steps on the GPU there, and here as `rng` selects: the image will differ"
        ));
    }
    if kind == SamplerKind::UniPc {
        request.unipc_variant = Some(if sampler.ends_with("bh2") { UniPcScale::Bh2 } else { UniPcScale::Bh1 });
    }
    request.sampler = Some(kind.into());
    request.convention = Convention::ComfyUi;
    Ok(warnings)
}

/// Sets the sampler and the schedule of ComfyUI's KSampler: its inputs `sampler_name` and `scheduler`.
///
/// # Errors
/// [`Error::UnknownSampler`] and [`Error::UnknownSigmaSchedule`].
pub fn comfyui(request: &mut Request, sampler: &str, scheduler: &str) -> Result<Vec<String>, Error> {
    let warnings = comfyui_sampler(request, sampler)?;
    request.scheduler = SigmaSchedule::from_str(scheduler)?;
    Ok(warnings)
}

/// The sigma schedule of AUTOMATIC1111's `Schedule type`, which names it `wanted` (`None` if the field is missing or is
/// not a schedule), for its sampler `kind`, whose older names end in a schedule (`named`).
///
/// Without the field, before version 1.9, it is the suffix of the sampler's name, or k-diffusion's own.
pub fn a1111_schedule(
    kind: SamplerKind,
    named: Option<SigmaSchedule>,
    wanted: Option<SigmaSchedule>,
    has_field: bool,
) -> SigmaSchedule {
    let asks = Convention::has_sigma_schedule(kind);
    match (wanted, named) {
        (Some(SigmaSchedule::Default) | None, Some(named)) => named,
        (Some(SigmaSchedule::Default), None) => Convention::automatic(kind),
        (Some(SigmaSchedule::Beta), _) => SigmaSchedule::BetaSigmas, // its "Beta" is a distribution of noise levels
        (Some(wanted), _) if asks => wanted,
        (None, None) if !has_field && asks => SigmaSchedule::Normal,
        _ => SigmaSchedule::Default,
    }
}

/// The unknown names of the sampler and the schedule in `info`: whether it names a schedule, its field, and the name.
pub fn unknown_names(info: &Infotext) -> [Option<(bool, &'static str, String)>; 2] {
    let sampler = info.get(labels::SAMPLER).filter(|name| SamplerChoice::from_str(name.trim()).is_err());
    let schedule = info.get(labels::SCHEDULE_TYPE).filter(|name| SigmaSchedule::from_str(name.trim()).is_err());
    let [sampler, schedule] = [sampler, schedule].map(|name| name.map(String::from));
    [sampler.map(|name| (false, labels::SAMPLER, name)), schedule.map(|name| (true, labels::SCHEDULE_TYPE, name))]
}

/// Python's literals.
pub fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comfyui_names_map_to_its_functions() {
        let read = |sampler: &str, scheduler: &str| {
            let mut request = Request::default();
            let warnings = comfyui(&mut request, sampler, scheduler).unwrap();
            (request.sampler.unwrap().kind, request.scheduler, request.unipc_variant, warnings.len())
        };
        use SamplerKind as K;
        use SigmaSchedule as S;
        assert_eq!(read("ddim", "ddim_uniform"), (K::Euler, S::DdimUniform, None, 0));
        assert_eq!(read("euler_ancestral", "normal"), (K::EulerA, S::Normal, None, 1));
        assert_eq!(read("uni_pc", "karras"), (K::UniPc, S::Karras, Some(UniPcScale::Bh1), 0));
        assert_eq!(read("uni_pc_bh2", "beta"), (K::UniPc, S::Beta, Some(UniPcScale::Bh2), 0));
        assert_eq!(read("deis", "simple"), (K::Deis, S::Simple, None, 1));
        let error = comfyui(&mut Request::default(), "sa_solver", "karras").unwrap_err();
        assert!(matches!(error, Error::UnknownSampler { .. }), "{error}");
        assert!(comfyui(&mut Request::default(), "euler", "bong_tangent").is_err());
    }

    #[test]
    fn unknown_names_are_errors() {
        let info = Infotext::parse("a\nSteps: 20, Sampler: Unknown, Schedule type: Own, Seed: 1").unwrap();
        let expected = [(false, "Sampler", "Unknown".into()), (true, "Schedule type", "Own".into())];
        assert_eq!(unknown_names(&info), expected.map(Some));
        let info = Infotext::parse("a\nSteps: 20, Sampler: Euler a, Seed: 1").unwrap();
        assert!(unknown_names(&info).iter().all(Option::is_none));
    }
}
