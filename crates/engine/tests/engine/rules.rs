//! Input images by AUTOMATIC1111's and ComfyUI's rules, against a transcription of their formulas
//! (`tests/reference/{webui,comfyui,rules}.py`).

use kiln_engine::{Engine, GeneratedImage, InpaintArea, MaskContent, ModeChoice, Request, Rule, SamplerKind};
use kiln_scheduler::{Convention, SigmaSchedule};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::inpaint::widened;
use crate::support::{bits, cpu, cpu_in, latents, request, tiny, try_images};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// A case of `runs` in `inpaint/rules.json`, with the defaults of the script.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct Case {
    name: String,
    program: String,
    kind: String,
    channels: usize,
    masked: bool,
    sampler: SamplerKind,
    steps: usize,
    strength: f64,
    mask_blur: f64,
    content: String,
    padding: Option<usize>,
    weight: f64,
    multiplier: f64,
    soft: Option<Soft>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Soft {
    bias: Option<f64>,
    preservation: Option<f64>,
    contrast: Option<f64>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: String::new(),
            program: "a1111".into(),
            kind: "sd1".into(),
            channels: 4,
            masked: true,
            sampler: SamplerKind::Euler,
            steps: 8,
            strength: 0.6,
            mask_blur: 4.0,
            content: "original".into(),
            padding: None,
            weight: 1.0,
            multiplier: 1.0,
            soft: None,
        }
    }
}

#[derive(Deserialize)]
struct Cases {
    runs: Vec<Case>,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(fixtures("inpaint/rules.json")).unwrap();
    serde_json::from_str::<Cases>(&text).unwrap().runs
}

impl Case {
    fn request(&self) -> Request {
        let plain = request("a red apple", (56, 48), self.steps, 42);
        let is_comfy = self.program == "comfy";
        let changed = |value: f64| (value != 1.0).then_some(value);
        let soft = self.soft.clone().unwrap_or_default();
        Request {
            cfg_scale: Some(5.0),
            sampler: Some(self.sampler.into()),
            scheduler: if is_comfy { SigmaSchedule::Normal } else { SigmaSchedule::Default },
            convention: if is_comfy { Convention::ComfyUi } else { Convention::Automatic1111 },
            rule: match (is_comfy, &self.soft) {
                (true, _) => Some(Rule::Comfy),
                (false, Some(_)) => None, // soft inpainting has it
                (false, None) => Some(Rule::Automatic1111),
            },
            strength: Some(self.strength),
            noise_multiplier: changed(self.multiplier),
            mask_weight: changed(self.weight),
            init: Some(fixtures("inpaint/image.png")),
            mask: self.masked.then(|| fixtures("inpaint/mask.png")),
            mask_blur: (self.masked && !is_comfy).then_some(self.mask_blur),
            mask_content: match self.content.as_str() {
                "original" => None,
                "fill" => Some(MaskContent::Fill),
                "latent noise" => Some(MaskContent::Noise),
                "latent nothing" => Some(MaskContent::Nothing),
                other => panic!("{other}"),
            },
            inpaint_area: self.padding.map(|_| InpaintArea::Masked),
            inpaint_padding: self.padding,
            soft_inpainting: self.soft.is_some(),
            soft_schedule_bias: soft.bias,
            soft_preservation: soft.preservation,
            soft_contrast_boost: soft.contrast,
            ..plain
        }
    }
}

/// An engine with the model of a case; the folder has the one with nine channels.
fn engine(case: &Case, folder: &tempfile::TempDir) -> Engine {
    if case.channels == 9 { widened(&case.kind, folder.path()) } else { tiny(&case.kind, &cpu()) }
}

fn images(engine: &mut Engine, request: &Request) -> Vec<GeneratedImage> {
    try_images(engine, request).unwrap()
}

#[test]
fn results_are_those_of_the_programs() {
    let results = Fixture::open("inpaint/rules.safetensors");
    let cases = cases();
    assert_eq!(cases.len(), 31);
    for (kind, channels) in [("sd1", 4), ("sd1", 9), ("sd2v", 4), ("sd2v", 9)] {
        let of_model: Vec<&Case> = cases.iter().filter(|case| case.kind == kind && case.channels == channels).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine(of_model[0], &folder);
        let parity = Parity::new("rules", format!("{kind} f32"));
        for case in of_model {
            // The fixture has every second value.
            let pairs = latents(&images(&mut engine, &case.request())).reshape(((), 2)).unwrap();
            let found = pairs.narrow(1, 0, 1).unwrap().flatten_all().unwrap();
            parity.check(&case.name, &found, &results.tensor(&case.name), BOUND);
        }
    }
}

/// The same bits in every memory mode and in a batch, and image i is the run with seed + i.
#[test]
fn soft_inpainting_has_the_same_bits_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["soft_options", "soft_v", "soft_channels", "mask_ddim", "comfy_mask"] {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        let wanted = Request { batch_size: Some(2), ..case.request() };
        let expected = images(&mut engine(&case, &folder), &wanted);
        assert_ne!(expected[0].rgb, expected[1].rgb, "{name}");
        let second = Request { seed: Some(43), ..case.request() };
        let alone = images(&mut engine(&case, &folder), &second);
        assert_eq!((&alone[0].rgb, bits(&alone)), (&expected[1].rgb, bits(&expected[1..])), "{name}");
        if case.channels == 9 {
            continue;
        }
        for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
            let found = images(&mut tiny(&case.kind, &cpu_in(mode)), &wanted);
            assert_eq!(bits(&found), bits(&expected), "{name} {mode:?}");
            assert!(found.iter().zip(&expected).all(|(a, b)| a.rgb == b.rgb), "{name} {mode:?}");
        }
    }
}

/// Where nothing changed the input is pasted back bit for bit, and the result is seen where it changed.
#[test]
fn soft_inpainting_pastes_the_input_where_it_did_not_change() {
    let case = cases().into_iter().find(|case| case.name == "soft").unwrap();
    let mut engine = tiny("sd1", &cpu());
    let strong = Request { strength: Some(0.9), ..case.request() };
    let soft = images(&mut engine, &strong);
    let plain = images(&mut engine, &Request { paste_back: Some(false), ..strong.clone() });
    assert_eq!(bits(&soft), bits(&plain));
    let nothing = images(&mut engine, &Request { soft_difference_threshold: Some(8.0), ..strong });
    let apart = |a: &GeneratedImage, b: &GeneratedImage| a.rgb.iter().zip(&b.rgb).filter(|(a, b)| a != b).count();
    let (of_soft, of_nothing) = (apart(&soft[0], &plain[0]), apart(&nothing[0], &plain[0]));
    assert!(of_soft > 0 && of_nothing > of_soft, "{of_soft} {of_nothing}");
}

#[test]
fn soft_inpainting_comes_back_from_its_images() {
    let case = cases().into_iter().find(|case| case.name == "soft_options").unwrap();
    let mut engine = tiny("sd1", &cpu());
    let image = &images(&mut engine, &case.request())[0];
    for field in [
        "Soft inpainting enabled: True, Soft inpainting schedule bias: 2, Soft inpainting preservation strength: 1.5, \
         Soft inpainting transition contrast boost: 9, Soft inpainting mask influence: 0, \
         Soft inpainting difference threshold: 0.5, Soft inpainting difference contrast: 2",
        "Image rule: a1111",
        "Mask blur: 12",
    ] {
        assert!(image.parameters.contains(field), "{}", image.parameters);
    }
    let settings: kiln_engine::OwnSettings = serde_json::from_str(&image.settings).unwrap();
    let files = case.request();
    let again = Request { init: files.init, mask: files.mask, ..settings.request };
    assert_eq!(images(&mut engine, &again)[0].rgb, image.rgb);
}

#[test]
fn soft_inpainting_has_its_own_rule() {
    let model = kiln_engine::ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let soft = cases().into_iter().find(|case| case.name == "soft").unwrap().request();
    let without = Request { mask: None, mask_blur: None, ..soft.clone() };
    for (request, expected) in [
        (Request { rule: Some(Rule::Diffusers), ..soft.clone() }, "`rule` is diffusers, expected a1111 with"),
        (Request { soft_inpainting: false, soft_schedule_bias: Some(2.0), ..soft.clone() }, "`soft_inpainting` too"),
        (without, "`soft_inpainting` is True, expected `mask` or `extend` too"),
        (Request { soft_contrast_boost: Some(0.5), ..soft.clone() }, "`soft_contrast_boost` is 0.5"),
        (Request { sampler: Some(SamplerKind::Ddim.into()), ..soft }, "`sampler` is ddim"),
    ] {
        let message = request.resolve(&model).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}, not {expected}");
    }
}
