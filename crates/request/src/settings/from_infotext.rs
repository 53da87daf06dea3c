//! A request from the text that AUTOMATIC1111 and Kiln write into images.
//!
//! What a field means depends on who wrote it: `Version` tells. Without a field AUTOMATIC1111's default holds,
//! which is not always Kiln's: its noise is the card's where no `RNG` is named, and its own rules of sampling hold
//! ([`Convention::Automatic1111`]).

use std::collections::BTreeSet;
use std::str::FromStr;

use kiln_media::Infotext;
use kiln_models::Family;
use kiln_scheduler::{Convention, SamplerChoice, SamplerKind, SigmaSchedule};

use super::own::is_hash;
use super::{labels as l, programs};
use crate::input::{Rule, SwitchBy};
use crate::network::{FreeuFactors, FreeuVersion};
use crate::options::{OPTIONS, OptionRow, Request};
use crate::request::Rng;

/// Fields that change nothing here: what is told of the program and of the batch, templates whose choices are made, and
/// files, which [`super::like`] looks at.
const SILENT: [&str; 24] = [
    l::VERSION,
    l::TEMPLATE,
    l::NEGATIVE_TEMPLATE,
    l::MODEL,
    l::MODEL_HASH,
    l::LORA_HASHES,
    l::INIT_IMAGE_HASH,
    "VAE",
    "VAE hash",
    "TI hashes",
    "TI",
    "Hashes",
    "Batch size",
    "Batch pos",
    "User",
    "App",
    "Backend",
    "Pipeline",
    "Parser",
    "Created Date",
    "Civitai resources",
    "Civitai metadata",
    "Wildcard prompt",
    "Wildcard negative prompt",
];

/// Pixels of a latent's side: AUTOMATIC1111 rounds sides down to them.
const LATENT: usize = 8;

/// Options that are read by rules of their own, and not by their rows alone.
const BY_RULES: [&str; 8] =
    ["width", "sampler", "scheduler", "convention", "mimic_scale", "dynamic_thresholding", "mask_invert", "freeu"];

/// The request that `info` describes for a model of `family`, and what of it cannot be met, a sentence each.
pub fn request(info: &Infotext, family: Family) -> (Request, Vec<String>) {
    let mut fields = Fields { info, used: BTreeSet::from(SILENT), warnings: Vec::new() };
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
        request.rng = Rng::Cuda; // AUTOMATIC1111 names no generator where it is its default, the GPU's
    }
    sampler(&mut request, &mut fields, by_kiln);
    thresholding(&mut request, &mut fields);
    freeu(&mut request, &mut fields, by_kiln);
    deep_shrink(&mut request, &mut fields);
    request.clip_skip = request.clip_skip.filter(|&skip| skip > 0);
    if family == Family::Sdxl && !by_kiln && request.clip_skip.is_some() {
        request.clip_skip = None; // it does nothing there
    }
    for (name, value) in request.drop_unfit() {
        fields.warnings.push(format!("{name}: {value} is left out: the sampler has no such choice"));
    }
    mask(&mut request, &mut fields, by_kiln);
    // Those that this rule is known for.
    let is_known = request.sampler.is_some_and(|sampler| {
        !(sampler.kind.is_on_timesteps() || sampler.kind == SamplerKind::UniPc) || sampler.kind == SamplerKind::Ddim
    });
    if fields.info.fields.iter().any(|(name, _)| name.starts_with("Hires ")) {
        request.hires_strength = request.strength.take(); // the second pass has it
        second_pass(&mut request, &mut fields, by_kiln);
    } else if request.strength.is_some() && request.convention == Convention::Automatic1111 && is_known {
        request.rule = Some(Rule::Automatic1111);
    }
    refiner(&mut request, &mut fields, by_kiln);
    not_supported(&mut fields);
    (request, fields.warnings)
}

fn sampler(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let by_comfyui = fields.info.get(l::VERSION).is_some_and(|version| version.starts_with("ComfyUI"));
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
    let written = fields.info.get(l::SCHEDULE_TYPE);
    if by_comfyui {
        let schedule = wanted.or(named).unwrap_or(SigmaSchedule::Normal);
        let sampler = if named.is_some() { kind.id() } else { fields.info.get(l::SAMPLER).unwrap_or(kind.id()) };
        fields.warnings.extend(programs::comfyui(request, sampler, schedule.id()).unwrap_or_default());
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
        if fields.info.get(name).is_some_and(|value| value.trim() == "0.6") {
            fields.skip(name);
        }
    }
}

/// The size and the sampler of a second pass.
fn second_pass(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    if !request.is_hires() && !by_kiln {
        let left: Vec<String> =
            request.drop_hires().into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let warning = format!("a second pass of unknown size is left out ({})", left.join(", "));
        return fields.warnings.push(warning);
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
    let written = [l::HIRES_SCHEDULE_TYPE, l::SCHEDULE_TYPE].iter().find_map(|key| fields.info.get(key));
    let wanted = written.and_then(|name| SigmaSchedule::from_str(name.trim()).ok());
    request.hires_sampler = request.hires_sampler.map(|_| kind.into());
    request.hires_scheduler = Some(programs::a1111_schedule(kind, named, wanted, written.is_some()));
}

/// What is said of the mask. AUTOMATIC1111 leaves out a blur of 0, which is not its default.
fn mask(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
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
fn refiner(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let by_steps = fields.read(l::REFINER_BY_STEPS, programs::truth);
    let Some(name) = request.refiner.take() else { return };
    request.refiner = Some(refiner_name(&name.to_string_lossy()).0.into());
    if by_kiln || request.convention != Convention::Automatic1111 {
        return;
    }
    request.rule = Some(Rule::Automatic1111);
    let version = fields.info.get(l::VERSION).unwrap_or_default().trim_start_matches('v');
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

fn thresholding(request: &mut Request, fields: &mut Fields<'_>) {
    let enabled = fields.read(l::THRESHOLDING, programs::truth);
    let (mimic_scale, percentile) = (fields.parsed(l::MIMIC_SCALE), fields.parsed::<f64>(l::PERCENTILE));
    if enabled == Some(true) {
        // The extension counts in percent.
        let share = percentile.map_or(1.0, |value| if value > 1.0 { value / 100.0 } else { value });
        (request.dynamic_thresholding, request.mimic_scale) = (Some(share), mimic_scale);
    }
}

/// FreeU, of which Forge has the second version.
fn freeu(request: &mut Request, fields: &mut Fields<'_>, by_kiln: bool) {
    let enabled = fields.read(l::FREEU, programs::truth);
    let factors = FreeuFactors::KEYS.map(|key| fields.parsed::<f64>(key));
    if let (Some(true), [Some(b1), Some(b2), Some(s1), Some(s2)]) = (enabled, factors) {
        request.freeu = Some(FreeuFactors([b1, b2, s1, s2]));
        request.freeu_version = request.freeu_version.or((!by_kiln).then_some(FreeuVersion::V2));
    }
}

/// Deep shrink as Forge has it: after the skip connection and bicubic, the only way here.
fn deep_shrink(request: &mut Request, fields: &mut Fields<'_>) {
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

/// Names every field that is left.
fn not_supported(fields: &mut Fields<'_>) {
    let why = |name: &str| match name {
        "First pass size" => "Kiln does not know the second pass of so old a version",
        "Hires checkpoint" | "Hires VAE" => "the second pass has the model of the first one",
        _ => "Kiln does not know what it means",
    };
    let left = fields.left().map(|(name, value)| format!("{name}: {} is left out: {}", short(value), why(name)));
    let warnings: Vec<String> = left.collect();
    fields.warnings.extend(warnings);
}

/// The begin of a value, for a message.
fn short(value: &str) -> String {
    let mut begin: String = value.chars().take(60).filter(|c| !c.is_control()).collect();
    if value.chars().count() > 60 {
        begin += " ..";
    }
    begin
}

/// The fields of a text, of which those that were asked for are remembered.
struct Fields<'a> {
    info: &'a Infotext,
    used: BTreeSet<&'a str>,
    warnings: Vec<String>,
}

impl<'a> Fields<'a> {
    /// The value of a field as `read` understands it; a sentence where it does not.
    fn read<T>(&mut self, name: &'a str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.used.insert(name);
        let text = self.info.get(name)?;
        let value = read(text.trim());
        if value.is_none() {
            self.warnings.push(format!("{name}: {} is left out: Kiln does not know it", short(text)));
        }
        value
    }

    fn parsed<T: FromStr>(&mut self, name: &'a str) -> Option<T> {
        self.read(name, |text| text.parse().ok())
    }

    /// Reads an option from the first of its keys that has a value.
    fn option(&mut self, row: &OptionRow, request: &mut Request) {
        for key in row.infotext_keys() {
            let value = row.value_mut(request);
            if self.read(key, |text| value.read_infotext(text).then_some(())).is_some() {
                return;
            }
        }
    }

    fn skip(&mut self, name: &'a str) {
        self.used.insert(name);
    }

    /// What nobody asked for.
    fn left(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let used = self.used.clone();
        let all = self.info.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(move |(name, _)| !used.contains(name))
    }
}

fn size(text: &str) -> Option<(usize, usize)> {
    let (width, height) = text.split_once('x')?;
    Some((width.trim().parse().ok()?, height.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use kiln_clip::Emphasis;
    use kiln_scheduler::InitialNoise;

    use super::*;
    use crate::input::{InpaintArea, MaskContent};
    use crate::options::samples;

    fn read(fields: &str) -> (Request, Vec<String>) {
        let info = Infotext::parse(&format!("a cat\nNegative prompt: dog\n{fields}")).unwrap();
        request(&info, Family::Sd)
    }

    #[test]
    fn automatic1111s_settings_are_a_request() {
        let (found, warnings) = read(
            "Steps: 25, Sampler: DPM++ 2M SDE, Schedule type: Karras, CFG scale: 6.5, Seed: 123, Size: 512x768, Model \
             hash: 15012c538f, Model: real, VAE hash: 1, VAE: x.pt, Variation seed: 9, Variation seed strength: 0.2, \
             Seed resize from: 512x512, Clip skip: 2, ENSD: 31337, RNG: CPU, Eta: 0.5, Sigma noise: 1.01, Emphasis: \
             No norm, Version: v1.10.1",
        );
        let expected = Request {
            prompt: "a cat".into(),
            negative_prompt: Some("dog".into()),
            literal_prompt: true,
            literal_negative_prompt: true,
            keep_comments: true,
            pad_conds: Some(false),
            width: Some(512),
            height: Some(768),
            steps: Some(25),
            cfg_scale: Some(6.5),
            seed: Some(123),
            sampler: Some(SamplerKind::Dpmpp2mSde.into()),
            scheduler: SigmaSchedule::Karras,
            subseed: Some(9),
            subseed_strength: Some(0.2),
            seed_resize_from: Some((512, 512)),
            clip_skip: Some(2),
            ensd: Some(31337),
            rng: Rng::Cpu,
            eta: Some(0.5),
            s_noise: Some(1.01),
            emphasis: Emphasis::NoNorm,
            convention: Convention::Automatic1111,
            ..Request::default()
        };
        assert_eq!((found, warnings), (expected, vec![]));
    }

    /// Every option with a key is read as it is written.
    #[test]
    fn every_row_is_read_back() {
        let mut count = 0;
        for row in OPTIONS.iter().filter(|row| !BY_RULES.contains(&row.name)) {
            for (key, text) in
                row.infotext_keys().flat_map(|key| row.kind.samples().into_iter().map(move |text| (key, text)))
            {
                let expected = samples::request(row, &text);
                let written = row.value(&expected).infotext().unwrap();
                let (found, warnings) = read(&format!("Model: m, {key}: {written}, Version: Kiln 0.1.0, Parser: x"));
                assert_eq!(row.value(&found).shown(), row.value(&expected).shown(), "{key}: {written}");
                assert!(warnings.is_empty(), "{warnings:?}");
                count += 1;
            }
        }
        assert!(count > 50, "{count}");
    }

    /// AUTOMATIC1111 writes name and hash, and counts timesteps from 1.9 on unless it says otherwise.
    #[test]
    fn refiners_are_read_as_automatic1111_writes_them() {
        let fields = "Steps: 20, Sampler: Euler, Refiner: sd_xl_refiner_1.0 [7440042bbd], Refiner switch at: 0.8";
        for (version, by) in [
            (", Version: v1.8.0", None),
            (", Version: v1.10.1", Some(SwitchBy::Timesteps)),
            (", Refiner switch by sampling steps: True, Version: v1.10.1", None),
        ] {
            let (found, warnings) = read(&format!("{fields}{version}"));
            assert_eq!(found.refiner, Some("sd_xl_refiner_1.0".into()), "{version}");
            assert_eq!((found.refiner_switch, found.refiner_switch_by), (Some(0.8), by), "{version}");
            assert_eq!((found.rule, warnings), (Some(Rule::Automatic1111), vec![]), "{version}");
        }
        assert_eq!(refiner_name("a [b] [00ff00ff00]"), ("a [b]", Some("00ff00ff00")));
        assert_eq!(refiner_name("a [b]"), ("a [b]", None));
        let (found, _) = read("Steps: 20, Refiner: m, Refiner switch at: 0.8, Version: Kiln 0.1.0");
        assert_eq!((found.refiner, found.rule), (Some("m".into()), None));
    }

    #[test]
    fn samplers_and_schedules_have_the_names_of_their_time() {
        use SamplerKind as K;
        use SigmaSchedule as S;
        for (fields, kind, schedule) in [
            ("Sampler: DPM++ 2M Karras", K::Dpmpp2m, S::Karras),
            ("Sampler: DPM++ 2M", K::Dpmpp2m, S::Normal),
            ("Sampler: DPM++ 2M, Schedule type: Automatic", K::Dpmpp2m, S::Karras),
            ("Sampler: DPM++ 3M SDE, Schedule type: Automatic", K::Dpmpp3mSde, S::Exponential),
            ("Sampler: DPM++ 2M, Schedule type: Uniform", K::Dpmpp2m, S::Normal),
            ("Sampler: Euler a, Schedule type: Beta", K::EulerA, S::BetaSigmas),
            ("Sampler: Euler a", K::EulerA, S::Normal),
            ("Sampler: DPM++ 2M SDE Heun Exponential", K::Dpmpp2mSdeHeun, S::Exponential),
            ("Sampler: DDIM, Schedule type: Automatic", K::Ddim, S::Default),
            ("Sampler: DDIM", K::Ddim, S::Default),
            ("Sampler: PLMS", K::Pndm, S::Default),
            ("Sampler: Restart, Schedule type: Automatic", K::Restart, S::Karras),
            ("Sampler: DPM++ 2M, Schedule type: Automatic, Version: Kiln 0.1.0", K::Dpmpp2m, S::Default),
            ("Sampler: DDIM, Schedule type: Beta, Version: Kiln 0.1.0", K::Ddim, S::Beta),
        ] {
            let (found, warnings) = read(&format!("Steps: 20, {fields}, Seed: 1"));
            assert_eq!((found.sampler, found.scheduler), (Some(kind.into()), schedule), "{fields}");
            assert!(warnings.is_empty(), "{fields}: {warnings:?}");
        }
    }

    /// The fields that AUTOMATIC1111 1.10 writes about noise levels (`get_sigmas` and `sample` in
    /// `sd_samplers_kdiffusion.py`, `initialize` in `sd_samplers_common.py`).
    #[test]
    fn noise_levels_are_automatic1111s() {
        let (found, warnings) = read(
            "Steps: 20, Sampler: DPM++ 2M, Schedule type: Polyexponential, Schedule max sigma: 10.5, Schedule min sigma: \
             0.1, Schedule rho: 2.0, Discard penultimate sigma: True, SGM noise multiplier: True, Seed: 1",
        );
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!((found.sigma_min, found.sigma_max, found.rho), (Some(0.1), Some(10.5), Some(2.0)));
        assert_eq!(found.discard_penultimate_sigma, Some(true));
        assert_eq!(found.initial_noise, Some(InitialNoise::Variance));
        assert_eq!(found.convention, Convention::Automatic1111);
        // Its "Uniform" is k-diffusion's, without bounds.
        let (found, _) = read("Steps: 20, Sampler: Euler, Schedule type: Uniform, Schedule max sigma: 9, Seed: 1");
        assert_eq!((found.scheduler, found.sigma_max), (SigmaSchedule::Normal, None));
        let beta = "Schedule type: Beta, Beta schedule alpha: 0.6, Beta schedule beta";
        let (_, warnings) = read(&format!("Steps: 20, Sampler: Euler, {beta}: 0.6, Seed: 1"));
        assert!(warnings.is_empty(), "{warnings:?}");
        let (_, warnings) = read(&format!("Steps: 20, Sampler: Euler, {beta}: 0.7, Seed: 1"));
        assert!(warnings[0].starts_with("Beta schedule beta: 0.7 is left out"), "{warnings:?}");
        let (found, warnings) = read("Steps: 20, Sampler: DDIM, Eta DDIM: 0.5, Seed: 1");
        assert_eq!((found.eta, warnings), (Some(0.5), vec![]));
        let (found, _) = read("Steps: 20, Sampler: DDIM CFG++, CFG scale: 7, Seed: 1");
        assert_eq!(found.cfg_scale, Some(0.56));
        let (found, warnings) = read("Steps: 20, Sampler: uni_pc, Schedule type: karras, Seed: 1, Version: ComfyUI");
        assert_eq!((found.convention, warnings), (Convention::ComfyUi, vec![]));
        assert_eq!(found.unipc_variant.map(|variant| variant.to_string()).as_deref(), Some("bh1"));
    }

    #[test]
    fn the_generator_is_the_cards_where_none_is_named() {
        assert_eq!(read("Steps: 20, Seed: 1, CFG scale: 7").0.rng, Rng::Cuda);
        assert_eq!(read("Steps: 20, Seed: 1, RNG: NV").0.rng, Rng::Cuda);
        assert_eq!(read("Steps: 20, Seed: 1, RNG: CPU").0.rng, Rng::Cpu);
        assert_eq!(read("Steps: 20, Seed: 1, Version: Kiln 0.1.0").0.rng, Rng::Cpu);
    }

    #[test]
    fn everything_else_is_named() {
        let (_, warnings) = read(
            "Steps: 2x, Sampler: DPM fast, Schedule type: Karras, CFG scale: 7, Seed: 1, First pass size: 0x0, Hires \
             checkpoint: real, Hires upscale: 2, Tiling: True, ControlNet 0: \"Module: canny, Weight: 1\"",
        );
        assert_eq!(
            warnings,
            [
                "Steps: 2x is left out: Kiln does not know it",
                "Sampler: DPM fast is left out: Kiln does not know it",
                "First pass size: 0x0 is left out: Kiln does not know the second pass of so old a version",
                "Hires checkpoint: real is left out: the second pass has the model of the first one",
                "Tiling: True is left out: Kiln does not know what it means",
                "ControlNet 0: Module: canny, Weight: 1 is left out: Kiln does not know what it means",
            ]
        );
        let (found, warnings) = read("Steps: 20, Sampler: Euler, Eta: 0.5, Denoising strength: 0.75, Mask blur: 4");
        assert_eq!((found.eta, found.strength, found.mask_blur), (None, Some(0.75), Some(4.0)));
        assert_eq!(found.rule, Some(Rule::Automatic1111));
        assert_eq!(warnings, ["Eta: 0.5 is left out: the sampler has no such choice"]);
    }

    #[test]
    fn a_second_pass_is_automatic1111s() {
        use SamplerKind as K;
        use SigmaSchedule as S;
        let (found, warnings) = read(
            "Steps: 20, Sampler: DPM++ 2M, Schedule type: Automatic, CFG scale: 7, Seed: 1, Size: 512x768, Denoising \
             strength: 0.55, Hires CFG Scale: 6, Hires sampler: Euler a, Hires prompt: \"a: b, c\", Hires negative prompt: \
             d, Hires upscale: 1.5, Hires steps: 12, Hires upscaler: Latent (bicubic antialiased), Version: v1.10.1",
        );
        let expected = Request {
            hires_strength: Some(0.55),
            hires_cfg_scale: Some(6.0),
            hires_sampler: Some(K::EulerA.into()),
            hires_scheduler: Some(Convention::automatic(K::EulerA)),
            hires_prompt: Some("a: b, c".into()),
            hires_negative_prompt: Some("d".into()),
            hires_scale: Some(1.5),
            hires_steps: Some(12),
            hires_upscaler: Some("latent-bicubic-antialiased".parse().unwrap()),
            ..found.clone()
        };
        assert_eq!((&found, &warnings), (&expected, &vec![]));
        assert_eq!((found.strength, found.rule, found.hires_size), (None, None, None));
        for (resize, size) in [("1024x0", (1024, 1536)), ("0x1000", (664, 1000)), ("1024x1024", (1024, 1024))] {
            let (found, warnings) = read(&format!("Size: 512x768, Steps: 9, Seed: 1, Hires resize: {resize}"));
            assert_eq!((found.hires_size, warnings.len()), (Some(size), 0), "{resize}");
        }
        let (found, _) = read(
            "Sampler: DPM++ 2M, Schedule type: Karras, Steps: 9, Hires upscale: 2, Hires schedule type: Exponential",
        );
        assert_eq!((found.hires_sampler, found.hires_scheduler), (None, Some(S::Exponential)));
        let (found, warnings) =
            read("Steps: 9, Seed: 1, Denoising strength: 0.7, Hires upscaler: Latent, Hires steps: 3");
        assert!(!found.is_hires() && found.hires_steps.is_none() && found.strength.is_none());
        assert_eq!(
            warnings,
            [
                "a second pass of unknown size is left out (Hires upscaler: latent, Hires steps: 3, Denoising strength: 0.7)"
            ]
        );
    }

    /// What AUTOMATIC1111 1.10 writes about an input and its mask (`StableDiffusionProcessingImg2Img.init`, the extension
    /// soft-inpainting).
    #[test]
    fn masks_are_automatic1111s() {
        let base = "Steps: 20, Sampler: Euler, Schedule type: Automatic, Seed: 1, Denoising strength: 0.6";
        let (found, warnings) = read(&format!(
            "{base}, Mask mode: Inpaint not masked, Mask blur: 8, Inpaint area: Only masked, Masked area padding: 24, Masked \
             content: latent noise, Conditional mask weight: 0.5, Noise multiplier: 0.9, Init image hash: \
             d41d8cd98f00b204e9800998ecf8427e, Soft inpainting enabled: True, Soft inpainting schedule bias: 1, Soft inpainting \
             preservation strength: 0.5, Soft inpainting transition contrast boost: 4, Soft inpainting mask influence: 0, Soft \
             inpainting difference threshold: 0.5, Soft inpainting difference contrast: 2, Version: v1.10.1"
        ));
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!((found.rule, found.strength), (Some(Rule::Automatic1111), Some(0.6)));
        assert_eq!((found.mask_invert, found.mask_blur), (true, Some(8.0)));
        assert_eq!((found.inpaint_area, found.inpaint_padding), (Some(InpaintArea::Masked), Some(24)));
        assert_eq!((found.mask_content, found.mask_weight), (Some(MaskContent::Noise), Some(0.5)));
        assert_eq!((found.noise_multiplier, found.soft_inpainting), (Some(0.9), true));
        assert_eq!((found.soft_contrast_boost, found.soft_mask_influence), (Some(4.0), Some(0.0)));
        // A blur of 0 is left out.
        let (found, warnings) = read(&format!("{base}, Masked content: fill"));
        assert_eq!((found.mask_content, found.mask_blur, warnings), (Some(MaskContent::Fill), Some(0.0), vec![]));
        assert_eq!(read(base).0.mask_blur, None);
        assert!(!read(&format!("{base}, Mask blur: 4, Mask mode: Inpaint masked")).0.mask_invert);
        assert!(read("Steps: 20, Seed: 1, Mask inverted: True, Version: Kiln 0.1.0").0.mask_invert);
        let (found, _) = read("Steps: 20, Sampler: DDIM, Seed: 1, Denoising strength: 0.6");
        assert_eq!(found.rule, Some(Rule::Automatic1111));
        let (found, warnings) =
            read("Steps: 20, Sampler: UniPC, Seed: 1, Denoising strength: 0.6, Mask mode: sideways");
        assert_eq!((found.rule, warnings.len()), (None, 1));
    }

    #[test]
    fn clip_skip_says_nothing_to_xl_there() {
        let info = Infotext::parse("a\nSteps: 20, Clip skip: 2, Seed: 1").unwrap();
        assert_eq!(request(&info, Family::Sd).0.clip_skip, Some(2));
        assert_eq!(request(&info, Family::Sdxl).0.clip_skip, None);
    }

    #[test]
    fn thresholding_counts_in_percent_or_in_parts() {
        let found = |fields: &str| {
            let (found, _) = read(&format!("Steps: 20, Seed: 1, {fields}"));
            (found.dynamic_thresholding, found.mimic_scale)
        };
        let enabled = "Dynamic thresholding enabled: True";
        assert_eq!(found(&format!("{enabled}, Mimic scale: 7, Threshold percentile: 99")), (Some(0.99), Some(7.0)));
        assert_eq!(found(&format!("{enabled}, Threshold percentile: 0.995")), (Some(0.995), None));
        assert_eq!(found("Dynamic thresholding enabled: False, Mimic scale: 7"), (None, None));
    }
}
