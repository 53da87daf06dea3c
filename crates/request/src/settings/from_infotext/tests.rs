//! Fields as AUTOMATIC1111, Forge, ComfyUI and Kiln write them.

use kiln_models::{SD, SDXL};
use kiln_prompt::Emphasis;
use kiln_scheduler::{InitialNoise, SigmaSchedule};

use super::*;
use crate::input::{InpaintArea, MaskContent, SwitchBy};
use crate::options::samples;

fn read(fields: &str) -> (Request, Vec<String>) {
    read_for(fields, SD)
}

fn read_for(fields: &str, family: FamilyRef) -> (Request, Vec<String>) {
    let info = Infotext::parse(&format!("a cat\nNegative prompt: dog\n{fields}")).unwrap();
    request(&info, family)
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
            let has = |family: &FamilyRef| row.needs.is_none_or(|feature| feature.may_be_of(*family));
            let family = kiln_families::FAMILIES.iter().copied().find(has).unwrap();
            let fields = format!("Model: m, {key}: {written}, Version: Kiln 0.1.0, Parser: x");
            let (found, warnings) = read_for(&fields, family);
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
    let (found, _) =
        read("Sampler: DPM++ 2M, Schedule type: Karras, Steps: 9, Hires upscale: 2, Hires schedule type: Exponential");
    assert_eq!((found.hires_sampler, found.hires_scheduler), (None, Some(S::Exponential)));
    let (found, warnings) = read("Steps: 9, Seed: 1, Denoising strength: 0.7, Hires upscaler: Latent, Hires steps: 3");
    assert!(!found.is_hires() && found.hires_steps.is_none() && found.strength.is_none());
    assert_eq!(
        warnings,
        ["a second pass of unknown size is left out (Hires upscaler: latent, Hires steps: 3, Denoising strength: 0.7)"]
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
    let (found, warnings) = read("Steps: 20, Sampler: UniPC, Seed: 1, Denoising strength: 0.6, Mask mode: sideways");
    assert_eq!((found.rule, warnings.len()), (None, 1));
}

#[test]
fn clip_skip_says_nothing_to_xl_there() {
    let info = Infotext::parse("a\nSteps: 20, Clip skip: 2, Seed: 1").unwrap();
    assert_eq!(request(&info, SD).0.clip_skip, Some(2));
    assert_eq!(request(&info, SDXL).0.clip_skip, None);
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

#[test]
fn forges_settings_of_flux_are_a_request() {
    let fields = "Steps: 20, Sampler: Euler, Schedule type: Simple, CFG scale: 1, Distilled CFG Scale: 3.5, Seed: 1, Size: 896x1152, \
                  Model: flux1-dev, Denoising strength: 0.6, Hires upscale: 1.5, Hires Module 1: Use same choices, Version: f2.0.1v1.10.1, Module 1: ae, Module 2: clip_l";
    let flux = kiln_families::FAMILIES.iter().copied().find(|family| family.id() == "flux").unwrap();
    let (found, warnings) = read_for(fields, flux);
    assert_eq!((found.guidance, found.cfg_scale, found.scheduler), (Some(3.5), Some(1.0), SigmaSchedule::Simple));
    assert_eq!(
        warnings,
        [
            "Module 1: ae is left out: parts of a model in files of their own are given by their paths",
            "Module 2: clip_l is left out: parts of a model in files of their own are given by their paths"
        ]
    );
}
