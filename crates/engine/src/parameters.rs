//! The settings of a picture as the text that AUTOMATIC1111 writes into its PNGs under the key `parameters`.

use kiln_clip::Emphasis;
use kiln_scheduler::{SamplerKind, SigmaSchedule};

use crate::conditioning::Prompts;
use crate::request::Rng;
use crate::resolved::Job;

/// The infotext of picture `index` of `job`: its prompts as they were typed, but with choices made.
pub(crate) fn parameters(job: &Job, model: &str, index: usize) -> String {
    let Prompts { prompt, negative_prompt } = Prompts::of(job, index);
    let (template, negative_template) = (job.prompt != prompt, job.negative_prompt != negative_prompt);
    let weighed = [Some(&prompt), negative_prompt.as_ref()].into_iter().flatten().any(|text| text.contains(['(', '[']));
    let schedule = match job.scheduler {
        SigmaSchedule::Karras => "Karras",
        SigmaSchedule::Default => "Automatic",
    };
    let rng = match job.rng {
        Rng::Cpu => "CPU",
    };
    let fields = [
        ("Steps", Some(job.steps.to_string())),
        ("Sampler", Some(label(job.sampler).to_string())),
        ("Schedule type", Some(schedule.to_string())),
        ("CFG scale", Some(job.cfg_scale.to_string())),
        ("Seed", Some(job.seed_of(index).to_string())),
        ("Size", Some(format!("{}x{}", job.width, job.height))),
        ("Model", Some(quoted(model))),
        ("Clip skip", job.clip_skip.filter(|&skip| skip > 1).map(|skip| skip.to_string())),
        ("RNG", Some(rng.to_string())),
        ("Emphasis", (weighed && job.emphasis != Emphasis::Original).then(|| job.emphasis.label().into())),
        ("Template", template.then(|| quoted(&job.prompt))),
        ("Negative Template", job.negative_prompt.as_deref().filter(|_| negative_template).map(quoted)),
        ("Version", Some(format!("Kiln {}", env!("CARGO_PKG_VERSION")))),
    ];
    let mut text = prompt;
    if let Some(negative) = negative_prompt.filter(|negative| !negative.is_empty()) {
        text += &format!("\nNegative prompt: {negative}");
    }
    let fields: Vec<String> =
        fields.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", value?))).collect();
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

    fn job(prompt: &str) -> Job {
        Job {
            prompt: prompt.into(),
            negative_prompt: Some("blurry".into()),
            width: 512,
            height: 768,
            steps: 20,
            cfg_scale: 7.0,
            seed: 42,
            sampler: SamplerKind::Dpmpp2m,
            scheduler: SigmaSchedule::Karras,
            rng: Rng::Cpu,
            batch_count: 1,
            batch_size: 2,
            emphasis: Emphasis::Original,
            clip_skip: None,
            comma_backtrack: 20,
            wildcards: Default::default(),
        }
    }

    #[test]
    fn reads_as_automatic1111_writes() {
        let expected = "a (red) apple\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, \
             CFG scale: 7, Seed: 43, Size: 512x768, Model: \"a, b\", RNG: CPU, Version: Kiln ";
        let found = parameters(&job("a (red) apple"), "a, b", 1);
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn what_was_asked_of_prompts_is_there() {
        let other = Job { emphasis: Emphasis::NoNorm, clip_skip: Some(2), ..job("a (b), {c|c}") };
        let found = parameters(&other, "m", 0);
        assert!(found.starts_with("a (b), c\nNegative prompt: blurry\nSteps: "), "{found}");
        let fields = "Model: m, Clip skip: 2, RNG: CPU, Emphasis: No norm, Template: \"a (b), {c|c}\", Version: ";
        assert!(found.contains(fields), "{found}");
        let plain = Job { negative_prompt: None, clip_skip: Some(1), ..Job { emphasis: Emphasis::None, ..job("a") } };
        assert!(!parameters(&plain, "m", 0).contains("Emphasis") && !parameters(&plain, "m", 0).contains("Clip skip"));
    }
}
