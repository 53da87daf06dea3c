//! The settings of a picture as the text that AUTOMATIC1111 writes into its PNGs under the key `parameters`.

use kiln_clip::Emphasis;
use kiln_media::quoted;
use kiln_scheduler::{Convention, InitialNoise, number_text as number};

use crate::lora::with_tags;
use crate::pipeline::guidance::GuidanceOptions;
use crate::request::Rng;
use crate::resolved::Job;
use crate::settings::{Files, labels as l};

/// The infotext of picture `index` of `job`: its prompts as they were typed, but with choices made.
pub(crate) fn parameters(job: &Job, files: &Files, index: usize) -> String {
    let seed = job.seed_of(index);
    let parsed = job.prompts(index);
    let (prompt, negative_prompt) = (&parsed.prompt, &parsed.negative_prompt);
    let (template, negative_template) = (job.prompt != *prompt, job.negative_prompt != *negative_prompt);
    let weighed = [Some(prompt), negative_prompt.as_ref()].into_iter().flatten().any(|text| text.contains(['(', '[']));
    let rng = match job.rng {
        Rng::Cpu => l::RNG_CPU,
        Rng::Cuda => l::RNG_CUDA,
    };
    let (sampling, guidance, seeds) = (&job.sampling, &job.guidance, &job.seeds);
    let default = GuidanceOptions::default();
    let said = |value: Option<f64>| value.map(number);
    let unlike = |value: f64, default: f64| (value != default).then(|| number(value));
    let sigmas =
        sampling.sigmas.as_ref().map(|all| all.iter().map(|&level| number(level)).collect::<Vec<_>>().join(","));
    // Python's words for truth, which AUTOMATIC1111 writes.
    let truth = |value: bool| if value { "True" } else { "False" }.to_string();
    let varied = (seeds.subseed_strength > 0.0).then_some(seeds);
    let hashes: Vec<_> = files.loras.iter().map(|(name, hash)| format!("{name}: {hash}")).collect();
    let always = |value: &dyn ToString| Some(value.to_string());
    let fields = [
        (l::STEPS, always(&job.steps)),
        (l::SAMPLER, always(&job.sampler.label())),
        (l::SCHEDULE_TYPE, always(&job.scheduler.label())),
        (l::CFG_SCALE, Some(number(job.cfg_scale))),
        (l::SEED, always(&seed)),
        (l::SIZE, Some(format!("{}x{}", job.width, job.height))),
        (l::MODEL_HASH, files.model_hash.clone()),
        (l::MODEL, Some(quoted(&files.model))),
        (l::SIGMAS, sigmas.map(|sigmas| quoted(&sigmas))),
        (l::CONVENTION, (sampling.convention != Convention::Diffusers).then(|| sampling.convention.to_string())),
        (l::SIGMA_RANGE, sampling.sigma_range.map(|range| range.to_string())),
        (l::SIGMA_MIN, said(sampling.sigma_min)),
        (l::SIGMA_MAX, said(sampling.sigma_max)),
        (l::DISCARD, sampling.discard_penultimate_sigma.map(truth)),
        (l::SGM_NOISE, sampling.initial_noise.map(|noise| truth(noise == InitialNoise::Variance))),
        (l::UNIPC_VARIANT, sampling.unipc_variant.map(|variant| variant.to_string())),
        (l::ETA, said(sampling.eta)),
        (l::S_CHURN, said(sampling.s_churn)),
        (l::S_TMIN, said(sampling.s_tmin)),
        (l::S_TMAX, said(sampling.s_tmax)),
        (l::S_NOISE, said(sampling.s_noise)),
        (l::RHO, said(sampling.rho)),
        (l::GUIDANCE_RESCALE, unlike(guidance.rescale, default.rescale)),
        (l::GUIDANCE_START, unlike(guidance.start, default.start)),
        (l::GUIDANCE_END, unlike(guidance.end, default.end)),
        (l::THRESHOLDING, guidance.threshold.map(|_| "True".to_string())),
        (l::MIMIC_SCALE, said(guidance.threshold.map(|threshold| threshold.mimic_scale))),
        (l::PERCENTILE, said(guidance.threshold.map(|threshold| threshold.percentile))),
        (l::SUBSEED, varied.map(|seeds| seeds.subseed.wrapping_add(index as u64).to_string())),
        (l::SUBSEED_STRENGTH, said(varied.map(|seeds| seeds.subseed_strength))),
        (l::RESIZE_FROM, seeds.resize_from.map(|(width, height)| format!("{width}x{height}"))),
        (l::CLIP_SKIP, job.clip_skip.filter(|&skip| skip > 1).map(|skip| skip.to_string())),
        (l::ENSD, (seeds.eta_seed_delta != 0).then(|| seeds.eta_seed_delta.to_string())),
        (l::RNG, always(&rng)),
        (l::EMPHASIS, (weighed && job.emphasis != Emphasis::Original).then(|| job.emphasis.label().into())),
        (l::PAD_CONDS, pad_conds(job, [Some(prompt), negative_prompt.as_ref()]).map(String::from)),
        (l::LORA_HASHES, (!hashes.is_empty()).then(|| quoted(&hashes.join(", ")))),
        (l::TEMPLATE, template.then(|| quoted(&job.prompt))),
        (l::NEGATIVE_TEMPLATE, job.negative_prompt.as_deref().filter(|_| negative_template).map(quoted)),
        (l::VERSION, Some(format!("{}{}", l::KILN, env!("CARGO_PKG_VERSION")))),
    ];
    let mut text = with_tags(&job.prompt, prompt, &job.loras);
    if let Some(negative) = negative_prompt.as_ref().filter(|negative| !negative.is_empty()) {
        text += &format!("\nNegative prompt: {negative}");
    }
    let fields: Vec<String> =
        fields.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", value?))).collect();
    format!("{text}\n{}", fields.join(", "))
}

/// What is said of texts of unequal length. AUTOMATIC1111 says it where it has padded any, and takes none for its default,
/// which is not ours. A text of so few bytes, each of which is at most a token, has one chunk.
fn pad_conds(job: &Job, texts: [Option<&String>; 2]) -> Option<&'static str> {
    const BYTES: usize = 75;
    let may_be_long = |text: &String| text.len() > BYTES || text.contains("BREAK");
    match job.pad_conds {
        false => Some("False"),
        true => texts.into_iter().flatten().any(may_be_long).then_some("True"),
    }
}

#[cfg(test)]
mod tests {
    use kiln_clip::prompt::ChunkCut;
    use kiln_scheduler::{SamplerKind, SamplerOptions, SigmaSchedule};

    use super::*;
    use crate::seeds::SeedOptions;

    fn made_by(model: &str) -> Files {
        Files { model: model.into(), ..Files::default() }
    }

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
            sampling: SamplerOptions::default(),
            guidance: GuidanceOptions::default(),
            rng: Rng::Cpu,
            loras: Vec::new(),
            seeds: SeedOptions::default(),
            batch_count: 1,
            batch_size: 2,
            emphasis: Emphasis::Original,
            clip_skip: None,
            comma_backtrack: 20,
            chunk_cut: ChunkCut::Comma,
            pad_conds: true,
            wildcards: Default::default(),
            literal_prompt: false,
            literal_negative_prompt: false,
            guidance_inside: false,
            init: Default::default(),
            parsed: Default::default(),
        }
    }

    #[test]
    fn reads_as_automatic1111_writes() {
        let expected = "a (red) apple\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, \
             CFG scale: 7, Seed: 43, Size: 512x768, Model: \"a, b\", RNG: CPU, Version: Kiln ";
        let mut job = job("a (red) apple");
        let found = parameters(&job, &made_by("a, b"), 1);
        assert!(found.starts_with(expected), "{found}");
        job.sampling.eta = Some(0.5);
        job.seeds = SeedOptions { subseed: 7, subseed_strength: 0.25, eta_seed_delta: 31337, ..job.seeds };
        job.rng = Rng::Cuda;
        let expected = "Seed: 42, Size: 512x768, Model: m, Eta: 0.5, Variation seed: 8, Variation seed strength: 0.25, \
             ENSD: 31337, RNG: NV, ";
        assert!(parameters(&job, &made_by("m"), 1).contains(expected), "{}", parameters(&job, &made_by("m"), 1));
    }

    #[test]
    fn what_was_asked_of_prompts_is_there() {
        let other = Job { emphasis: Emphasis::NoNorm, clip_skip: Some(2), ..job("a (b), {c|c}") };
        let found = parameters(&other, &made_by("m"), 0);
        assert!(found.starts_with("a (b), c\nNegative prompt: blurry\nSteps: "), "{found}");
        let fields = "Model: m, Clip skip: 2, RNG: CPU, Emphasis: No norm, Template: \"a (b), {c|c}\", Version: ";
        assert!(found.contains(fields), "{found}");
        let plain = Job { negative_prompt: None, clip_skip: Some(1), ..Job { emphasis: Emphasis::None, ..job("a") } };
        assert!(
            !parameters(&plain, &made_by("m"), 0).contains("Emphasis")
                && !parameters(&plain, &made_by("m"), 0).contains("Clip skip")
        );
    }
}
