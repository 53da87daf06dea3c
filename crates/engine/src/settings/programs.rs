//! The names of samplers and schedules as other programs' files have them, and those programs' rules.

use std::str::FromStr;

use kiln_scheduler::{Convention, Error, SamplerChoice, SamplerKind, SigmaSchedule, UniPcScale};

use super::{Infotext, labels};
use crate::request::Request;

/// Takes the sampler and the schedule of ComfyUI's KSampler: its inputs `sampler_name` and `scheduler`. Gives what of them
/// Kiln does otherwise, a sentence each.
///
/// # Errors
/// [`Error::UnknownSampler`] and [`Error::UnknownSigmaSchedule`].
pub(super) fn comfyui(request: &mut Request, sampler: &str, scheduler: &str) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    let kind = match sampler {
        // `sampler_object` in comfy/samplers.py: its "ddim" is Euler's method on the schedule's levels.
        "ddim" => SamplerKind::Euler,
        other => SamplerChoice::from_str(other)?.kind,
    };
    if matches!(kind, SamplerKind::Deis | SamplerKind::Ddpm | SamplerKind::Lcm) {
        warnings
            .push(format!("sampler {sampler}: Kiln has diffusers' {kind}, which is another function than ComfyUI's"));
    }
    if kind == SamplerKind::UniPc {
        request.unipc_variant = Some(if sampler.ends_with("bh2") { UniPcScale::Bh2 } else { UniPcScale::Bh1 });
    }
    request.sampler = Some(kind.into());
    request.scheduler = SigmaSchedule::from_str(scheduler)?;
    request.convention = Convention::ComfyUi;
    Ok(warnings)
}

/// The sigma schedule of AUTOMATIC1111's `Schedule type`, which names it `wanted` (`None` where the field is missing or is
/// no schedule), for its sampler `kind`, whose older names end in a schedule (`named`).
///
/// Without a field, before version 1.9, it is what the sampler's name ends in, or k-diffusion's own.
pub(super) fn a1111_schedule(
    kind: SamplerKind,
    named: Option<SigmaSchedule>,
    wanted: Option<SigmaSchedule>,
    has_field: bool,
) -> SigmaSchedule {
    let asks = Convention::has_sigma_schedule(kind);
    match (wanted, named) {
        (Some(SigmaSchedule::Default) | None, Some(named)) => named,
        (Some(SigmaSchedule::Default), None) => Convention::automatic(kind),
        (Some(SigmaSchedule::Beta), _) => SigmaSchedule::BetaSigmas, // its "Beta" is of noise levels
        (Some(wanted), _) if asks => wanted,
        (None, None) if !has_field && asks => SigmaSchedule::Normal,
        _ => SigmaSchedule::Default,
    }
}

/// What is wrong with the names of the sampler and of the schedule in `info`, if something is: which one, and an error.
pub(super) fn unknown_names(info: &Infotext) -> [Option<Error>; 2] {
    let sampler = info.get(labels::SAMPLER).map(|name| SamplerChoice::from_str(name.trim()).map(drop));
    let schedule = info.get(labels::SCHEDULE_TYPE).map(|name| SigmaSchedule::from_str(name.trim()).map(drop));
    [sampler, schedule].map(|found| found.and_then(Result::err))
}

/// Python's words.
pub(super) fn truth(text: &str) -> Option<bool> {
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
    fn comfyuis_names_are_its_functions() {
        let read = |sampler: &str, scheduler: &str| {
            let mut request = Request::default();
            let warnings = comfyui(&mut request, sampler, scheduler).unwrap();
            (request.sampler.unwrap().kind, request.scheduler, request.unipc_variant, warnings.len())
        };
        use SamplerKind as K;
        use SigmaSchedule as S;
        assert_eq!(read("ddim", "ddim_uniform"), (K::Euler, S::DdimUniform, None, 0));
        assert_eq!(read("euler_ancestral", "normal"), (K::EulerA, S::Normal, None, 0));
        assert_eq!(read("uni_pc", "karras"), (K::UniPc, S::Karras, Some(UniPcScale::Bh1), 0));
        assert_eq!(read("uni_pc_bh2", "beta"), (K::UniPc, S::Beta, Some(UniPcScale::Bh2), 0));
        assert_eq!(read("deis", "simple"), (K::Deis, S::Simple, None, 1));
        let error = comfyui(&mut Request::default(), "sa_solver", "karras").unwrap_err();
        assert!(matches!(error, Error::UnknownSampler { .. }), "{error}");
        assert!(comfyui(&mut Request::default(), "euler", "linear_quadratic").is_err());
    }

    #[test]
    fn unknown_names_are_errors() {
        let info = Infotext::parse("a\nSteps: 20, Sampler: Nobody's, Schedule type: Own, Seed: 1").unwrap();
        let [sampler, schedule] = unknown_names(&info).map(|error| error.unwrap().to_string());
        assert!(sampler.starts_with("unknown sampler \"Nobody's\""), "{sampler}");
        assert!(schedule.starts_with("unknown sigma schedule \"Own\""), "{schedule}");
        let info = Infotext::parse("a\nSteps: 20, Sampler: Euler a, Seed: 1").unwrap();
        assert!(unknown_names(&info).iter().all(Option::is_none));
    }
}
