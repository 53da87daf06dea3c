//! The settings of a picture as the text that AUTOMATIC1111 writes into its PNGs under the key `parameters`.

use crate::guidance::GuidanceOptions;
use crate::lora::with_tags;
use crate::request::Rng;
use crate::resolved::Job;

/// The infotext of picture `index` of `job`.
pub(crate) fn parameters(job: &Job, model: &str, index: usize) -> String {
    let seed = job.seed_of(index);
    let mut text = with_tags(&job.prompt, &job.loras);
    if let Some(negative) = job.negative_prompt.as_deref().filter(|negative| !negative.is_empty()) {
        text += &format!("\nNegative prompt: {negative}");
    }
    let rng = match job.rng {
        Rng::Cpu => "CPU",
        Rng::Cuda => "NV",
    };
    let (sampling, guidance, seeds) = (&job.sampling, &job.guidance, &job.seeds);
    let default = GuidanceOptions::default();
    let said = |value: Option<f64>| value.map(|value| value.to_string());
    let unlike = |value: f64, default: f64| (value != default).then(|| value.to_string());
    let sigmas = sampling.sigmas.as_ref().map(|all| all.iter().map(f64::to_string).collect::<Vec<_>>().join(","));
    let varied = (seeds.subseed_strength > 0.0).then_some(seeds);
    let always = |value: &dyn ToString| Some(value.to_string());
    let fields = [
        ("Steps", always(&job.steps)),
        ("Sampler", always(&job.sampler.label())),
        ("Schedule type", always(&job.scheduler.label())),
        ("CFG scale", always(&job.cfg_scale)),
        ("Seed", always(&seed)),
        ("Size", Some(format!("{}x{}", job.width, job.height))),
        ("Model", Some(quoted(model))),
        ("Sigmas", sigmas.map(|sigmas| quoted(&sigmas))),
        ("Eta", said(sampling.eta)),
        ("Sigma churn", said(sampling.s_churn)),
        ("Sigma tmin", said(sampling.s_tmin)),
        ("Sigma tmax", said(sampling.s_tmax)),
        ("Sigma noise", said(sampling.s_noise)),
        ("Schedule rho", said(sampling.rho)),
        ("CFG Rescale", unlike(guidance.rescale, default.rescale)),
        ("Guidance start", unlike(guidance.start, default.start)),
        ("Guidance end", unlike(guidance.end, default.end)),
        ("Dynamic thresholding enabled", guidance.threshold.map(|_| "True".to_string())),
        ("Mimic scale", said(guidance.threshold.map(|threshold| threshold.mimic_scale))),
        ("Threshold percentile", said(guidance.threshold.map(|threshold| threshold.percentile))),
        ("Variation seed", varied.map(|seeds| seeds.subseed.wrapping_add(index as u64).to_string())),
        ("Variation seed strength", said(varied.map(|seeds| seeds.subseed_strength))),
        ("Seed resize from", seeds.resize_from.map(|(width, height)| format!("{width}x{height}"))),
        ("ENSD", (seeds.eta_seed_delta != 0).then(|| seeds.eta_seed_delta.to_string())),
        ("RNG", always(&rng)),
        ("Version", Some(format!("Kiln {}", env!("CARGO_PKG_VERSION")))),
    ];
    let fields: Vec<String> =
        fields.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", value?))).collect();
    format!("{text}\n{}", fields.join(", "))
}

/// A value with quotation marks where a comma or colon would end it.
fn quoted(value: &str) -> String {
    if value.contains([',', ':', '\n']) { format!("{value:?}") } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use kiln_scheduler::{SamplerKind, SamplerOptions, SigmaSchedule};

    use super::*;
    use crate::seeds::SeedOptions;

    #[test]
    fn reads_as_automatic1111_writes() {
        let mut job = Job {
            prompt: "a red apple".into(),
            negative_prompt: Some("blurry".into()),
            width: 512,
            height: 768,
            steps: 20,
            cfg_scale: 7.0,
            seed: 42,
            sampler: SamplerKind::Dpmpp2m,
            scheduler: SigmaSchedule::Karras,
            sampling: SamplerOptions::default(),
            guidance: GuidanceOptions::default(),
            rng: Rng::Cpu,
            loras: Vec::new(),
            seeds: SeedOptions::default(),
            batch_count: 1,
            batch_size: 1,
        };
        let expected = "a red apple\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, \
             CFG scale: 7, Seed: 43, Size: 512x768, Model: \"a, b\", RNG: CPU, Version: Kiln ";
        assert!(parameters(&job, "a, b", 1).starts_with(expected), "{}", parameters(&job, "a, b", 1));
        job.sampling.eta = Some(0.5);
        job.seeds = SeedOptions { subseed: 7, subseed_strength: 0.25, eta_seed_delta: 31337, ..job.seeds };
        job.rng = Rng::Cuda;
        let expected = "Seed: 42, Size: 512x768, Model: m, Eta: 0.5, Variation seed: 8, Variation seed strength: 0.25, \
             ENSD: 31337, RNG: NV, ";
        assert!(parameters(&job, "m", 1).contains(expected), "{}", parameters(&job, "m", 1));
    }
}
