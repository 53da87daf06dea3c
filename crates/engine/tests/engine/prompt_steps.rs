//! Prompts that change during a run by AUTOMATIC1111's count of steps, against `tests/reference/prompt_steps.py`: k-diffusion's
//! samplers and a transcription of the web UI's rules.

use kiln_engine::{Engine, Request, Rule, SamplerKind, SigmaSchedule};
use kiln_scheduler::Convention;
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::support::{cpu, images, latents, request, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-4;
/// The same for the model that predicts v, which amplifies the rounding of timesteps between two trained ones: up to 1.7e-4 without
/// schedules in the prompt. A switch at another call moves latents by more than 5e-3.
const BOUND_OF_V: f64 = 1e-3;

/// The same for DPM++ SDE, where k-diffusion takes small differences of noise levels in f32: 1.1e-2 without schedules in the prompt.
const BOUND_OF_SDE: f64 = 2e-2;

/// A case of `prompt_steps/cases.json`, with the defaults of the script.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct Case {
    name: String,
    kind: String,
    prompt: String,
    negative_prompt: String,
    sampler: SamplerKind,
    steps: usize,
    size: (usize, usize),
    strength: Option<f64>,
    hires_size: Option<(usize, usize)>,
    hires_steps: Option<usize>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: "sd2v".into(),
            prompt: "a fox".into(),
            negative_prompt: "blurry".into(),
            sampler: SamplerKind::Heun,
            steps: 6,
            size: (64, 64),
            strength: None,
            hires_size: None,
            hires_steps: None,
        }
    }
}

impl Case {
    /// The request that `--like` makes of the web UI's text.
    fn request(&self) -> Request {
        Request {
            negative_prompt: Some(self.negative_prompt.clone()),
            cfg_scale: Some(5.0),
            sampler: Some(self.sampler.into()),
            scheduler: SigmaSchedule::Karras,
            convention: Convention::Automatic1111,
            rule: (self.strength.is_some() || self.hires_size.is_some()).then_some(Rule::Automatic1111),
            init: self.strength.map(|_| fixtures("inpaint/image.png")),
            strength: self.strength,
            hires_size: self.hires_size,
            hires_steps: self.hires_steps,
            ..request(&self.prompt, self.size, self.steps, 42)
        }
    }
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(fixtures("prompt_steps/cases.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn prompts_change_at_the_calls_of_automatic1111() {
    let results = Fixture::open("prompt_steps/cases.safetensors");
    let cases = cases();
    assert_eq!(cases.len(), 23);
    for kind in ["sd2v", "sd1", "sdxl"] {
        let mut engine = tiny(kind, &cpu());
        let parity = Parity::new("prompt steps", format!("{kind} f32"));
        for case in cases.iter().filter(|case| case.kind == kind) {
            let bound = match (case.sampler, kind) {
                (SamplerKind::DpmppSde, _) => BOUND_OF_SDE,
                (_, "sd2v") => BOUND_OF_V,
                _ => BOUND,
            };
            let found = latents(&images(&mut engine, &case.request()));
            let expected = results.tensor(&case.name);
            parity.check(&case.name, &found, &expected, bound);
            // The bound is small enough to see a switch that is one call late.
            if case.name.ends_with("_step") {
                let late = Case { prompt: case.prompt.replace(":3]", ":4]"), ..case.clone() };
                let apart = (latents(&images(&mut engine, &late.request())) - &expected).unwrap();
                let most = apart.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
                assert!(most > 5e-3, "{}: {most}", case.name);
            }
        }
    }
}

/// By the other rules a sampler with two calls a step changes prompts between steps.
#[test]
fn other_conventions_count_steps() {
    let engine: &mut Engine = &mut tiny("sd2v", &cpu());
    let case = cases().into_iter().find(|case| case.name == "heun_step").unwrap();
    let mut of = |convention, prompt: &str| {
        let request = Request { convention, prompt: prompt.into(), steps: Some(4), ..case.request() };
        images(engine, &request).remove(0).rgb
    };
    for convention in [Convention::Diffusers, Convention::ComfyUi] {
        assert_eq!(of(convention, "a [cat:dog:0.5]"), of(convention, "a [cat:dog:2]"));
    }
    let of = &mut |prompt: &str| of(Convention::Automatic1111, prompt);
    assert_eq!(of("a [cat:dog:0.5]"), of("a [cat:dog:4]"));
    assert_ne!(of("a [cat:dog:0.5]"), of("a [cat:dog:2]"));
}
