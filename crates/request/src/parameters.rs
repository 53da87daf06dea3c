//! The settings of an image as the text that AUTOMATIC1111 writes into its PNGs under the key `parameters`.

use kiln_media::quoted;
use kiln_scheduler::number_text;

use crate::control::{ControlPasses, ControlUse};
use crate::job::Job;
use crate::lora::with_tags;
use crate::network::FreeuFactors;
use crate::options::{InfotextKey, OPTIONS, OptionRow, Request};
use crate::settings::labels as l;

/// The model and files that the text names.
#[derive(Debug, Default)]
pub struct FilesInText {
    /// The model's name.
    pub model: String,
    /// Of a model in one file: others hash no folders.
    pub model_hash: Option<String>,
    /// The name of the refiner, with its hash in brackets if it is one file.
    pub refiner: Option<String>,
    /// Names and digests.
    pub loras: Vec<(String, String)>,
}

/// The infotext of image `index` of `job`: its prompts as they were typed, but with choices made.
pub fn parameters(job: &Job, files: &FilesInText, index: usize) -> String {
    let parsed = job.prompts(index);
    let (prompt, negative_prompt) = (&parsed.prompt, &parsed.negative_prompt);
    let (template, negative_template) = (job.prompt != *prompt, job.negative_prompt != *negative_prompt);
    let texts = [Some(prompt), negative_prompt.as_ref()];
    let request = job.request_of(index);
    let mut fields: Vec<(&str, Option<String>)> = Vec::new();
    for row in OPTIONS {
        if row.name == "freeu" {
            fields.extend(freeu(&request));
            continue;
        }
        if row.name == "deep_shrink" {
            fields.push((l::DEEP_SHRINK, request.deep_shrink.map(|_| "True".into())));
        }
        if row.name == "mimic_scale" {
            fields.push((l::THRESHOLDING, request.dynamic_thresholding.map(|_| "True".into())));
        }
        if let InfotextKey::Always(key) | InfotextKey::Changed(key) = row.infotext {
            let named = files.refiner.as_ref().filter(|_| row.name == "refiner");
            fields.push((key, named.map(|name| quoted(name)).or_else(|| option(row, &request, texts))));
        }
        if row.name == "height" {
            fields.push((l::MODEL_HASH, files.model_hash.clone()));
            fields.push((l::MODEL, Some(quoted(&files.model))));
        }
    }
    // As AUTOMATIC1111's ControlNet extension writes them.
    let controls: Vec<String> =
        request.controls.iter().enumerate().map(|(i, control)| control_text(i, control)).collect();
    let hashes: Vec<_> = files.loras.iter().map(|(name, hash)| format!("{name}: {hash}")).collect();
    let inputs = job.input.iter().flat_map(|input| &input.files);
    fields.extend([
        (l::INIT_IMAGE_HASH, inputs.filter_map(|file| file.pixels_md5.clone()).next()),
        (l::LORA_HASHES, (!hashes.is_empty()).then(|| quoted(&hashes.join(", ")))),
        (l::TEMPLATE, template.then(|| quoted(&job.prompt))),
        (l::NEGATIVE_TEMPLATE, job.negative_prompt.as_deref().filter(|_| negative_template).map(quoted)),
        (l::VERSION, Some(format!("{}{}", l::KILN, env!("CARGO_PKG_VERSION")))),
    ]);
    let mut text = with_tags(&job.prompt, prompt, &job.loras);
    if let Some(negative) = negative_prompt.as_ref().filter(|negative| !negative.is_empty()) {
        text += &format!("\nNegative prompt: {negative}");
    }
    let fields = fields.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", value?)));
    let fields: Vec<String> = fields.chain(controls).collect();
    format!("{text}\n{}", fields.join(", "))
}

/// FreeU as Forge writes it: under a key for each factor.
fn freeu(request: &Request) -> impl Iterator<Item = (&'static str, Option<String>)> {
    let enabled = request.freeu.map(|_| (l::FREEU, Some("True".into())));
    let factors = request.freeu.map(|FreeuFactors(factors)| factors.map(|factor| Some(number_text(factor))));
    enabled.into_iter().chain(FreeuFactors::KEYS.into_iter().zip(factors.into_iter().flatten()))
}

/// Control number `i`, under a key of its own.
fn control_text(i: usize, control: &ControlUse) -> String {
    let number = kiln_scheduler::number_text;
    let mut value = format!(
        "Module: {}, Model: {}, Weight: {}, Resize Mode: {}, Guidance Start: {}, Guidance End: {}, Pixel Perfect: False, \
         Control Mode: {}",
        control.preprocess.as_deref().unwrap_or("none"),
        control.name(),
        number(control.weight),
        control.resize.label(),
        number(control.start),
        number(control.end),
        control.mode.label()
    );
    if control.passes != ControlPasses::Both {
        value += &format!(", Hr Option: {}", control.passes.label());
    }
    format!("ControlNet {i}: {}", quoted(&value))
}

/// The value under an option's key; `None` where the key is left out. By the row, but for what AUTOMATIC1111 writes by rules
/// of its own.
fn option(row: &OptionRow, request: &Request, texts: [Option<&String>; 2]) -> Option<String> {
    let mut all = texts.into_iter().flatten();
    match row.name {
        // It is the size.
        "width" => Some(format!("{}x{}", request.width?, request.height?)),
        "clip_skip" if request.clip_skip == Some(1) => None,
        // Without weights it does nothing.
        "emphasis" if !all.any(|text| text.contains(['(', '['])) => None,
        // Images of two passes have that of the second one.
        "strength" => request.strength.or(request.hires_strength).map(number_text),
        "mask_invert" => request.mask_invert.then(|| l::NOT_MASKED.into()),
        "pad_conds" => pad_conds(request, texts).map(String::from),
        _ => {
            let value = row.value(request);
            let is_written = matches!(row.infotext, InfotextKey::Always(_)) || !value.is_default();
            value.infotext().filter(|_| is_written)
        }
    }
}

/// Whether texts of unequal length are padded. AUTOMATIC1111 writes the key if it has padded any, and a missing key means its
/// default, which is not Kiln's. A text of so few bytes, each of which is at most a token, has one chunk.
fn pad_conds(request: &Request, texts: [Option<&String>; 2]) -> Option<&'static str> {
    const BYTES: usize = 75;
    let may_be_long = |text: &String| text.len() > BYTES || text.contains("BREAK");
    match request.pad_conds.unwrap_or(true) {
        false => Some("False"),
        true => texts.into_iter().flatten().any(may_be_long).then_some("True"),
    }
}

#[cfg(test)]
mod tests {
    use kiln_prompt::{ChunkCut, Emphasis};
    use kiln_scheduler::{SamplerKind, SamplerOptions, SigmaSchedule};

    use super::*;
    use crate::options::{GuidanceOptions, ImageOptions};
    use crate::request::Rng;
    use crate::seeds::SeedOptions;

    fn made_by(model: &str) -> FilesInText {
        FilesInText { model: model.into(), ..FilesInText::default() }
    }

    fn job(prompt: &str) -> Job {
        Job {
            prompt: prompt.into(),
            negative_prompt: Some("blurry".into()),
            width: 512,
            height: 768,
            steps: 20,
            cfg_scale: 7.0,
            cfg_schedule: None,
            seed: 42,
            sampler: SamplerKind::Dpmpp2m,
            scheduler: SigmaSchedule::Karras,
            sampling: SamplerOptions::default(),
            network: Default::default(),
            guidance: GuidanceOptions::default(),
            flow: Default::default(),
            rng: Rng::Cpu,
            loras: Vec::new(),
            seeds: SeedOptions::default(),
            batch_count: 1,
            batch_size: 2,
            emphasis: Emphasis::Original,
            clip_skip: None,
            comma_backtrack: 20,
            chunk_cut: ChunkCut::Comma,
            max_length: None,
            pad_conds: true,
            wildcards: Default::default(),
            literal_prompt: false,
            literal_negative_prompt: false,
            guidance_inside: false,
            needs_negative_prompt: false,
            restored_norm: None,
            init: Default::default(),
            image: ImageOptions::default(),
            input: None,
            extra_channels: kiln_models::ExtraChannels::None,
            controls: Vec::new(),
            ip_adapters: Vec::new(),
            regions: Vec::new(),
            references: Vec::new(),
            refiner: None,
            refining: Default::default(),
            sizes: Default::default(),
            parsed: Default::default(),
            hires: None,
            notes: Default::default(),
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
