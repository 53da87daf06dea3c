//! The settings of a picture as the text that AUTOMATIC1111 writes into its PNGs under the key `parameters`.

use kiln_scheduler::{SamplerKind, SigmaSchedule};

use crate::lora::with_tags;
use crate::request::Rng;
use crate::resolved::Job;

/// The infotext of a picture of `job` with `seed`.
pub(crate) fn parameters(job: &Job, model: &str, seed: u64) -> String {
    let mut text = with_tags(&job.prompt, &job.loras);
    if let Some(negative) = job.negative_prompt.as_deref().filter(|negative| !negative.is_empty()) {
        text += &format!("\nNegative prompt: {negative}");
    }
    let schedule = match job.scheduler {
        SigmaSchedule::Karras => "Karras",
        SigmaSchedule::Default => "Automatic",
    };
    let rng = match job.rng {
        Rng::Cpu => "CPU",
    };
    let fields = [
        ("Steps", job.steps.to_string()),
        ("Sampler", label(job.sampler).to_string()),
        ("Schedule type", schedule.to_string()),
        ("CFG scale", job.cfg_scale.to_string()),
        ("Seed", seed.to_string()),
        ("Size", format!("{}x{}", job.width, job.height)),
        ("Model", quoted(model)),
        ("RNG", rng.to_string()),
        ("Version", format!("Kiln {}", env!("CARGO_PKG_VERSION"))),
    ];
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{text}\n{}", fields.join(", "))
}

/// AUTOMATIC1111's name of a sampler.
fn label(sampler: SamplerKind) -> &'static str {
    match sampler {
        SamplerKind::Ddim => "DDIM",
        SamplerKind::Euler => "Euler",
        SamplerKind::EulerA => "Euler a",
        SamplerKind::Dpmpp2m => "DPM++ 2M",
        SamplerKind::Pndm => "PLMS",
        SamplerKind::Heun => "Heun",
        SamplerKind::Lms => "LMS",
        SamplerKind::UniPc => "UniPC",
        SamplerKind::Ddpm => "DDPM",
    }
}

/// A value with quotation marks where a comma or colon would end it.
fn quoted(value: &str) -> String {
    if value.contains([',', ':', '\n']) { format!("{value:?}") } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_automatic1111_writes() {
        let job = Job {
            prompt: "a red apple".into(),
            negative_prompt: Some("blurry".into()),
            width: 512,
            height: 768,
            steps: 20,
            cfg_scale: 7.0,
            seed: 42,
            sampler: SamplerKind::Dpmpp2m,
            scheduler: SigmaSchedule::Karras,
            rng: Rng::Cpu,
            loras: Vec::new(),
            batch_count: 1,
            batch_size: 1,
        };
        let expected = "a red apple\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, \
             CFG scale: 7, Seed: 43, Size: 512x768, Model: \"a, b\", RNG: CPU, Version: Kiln ";
        assert!(parameters(&job, "a, b", 43).starts_with(expected), "{}", parameters(&job, "a, b", 43));
    }
}
