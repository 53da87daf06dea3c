//! Final latents against those of diffusers' pipelines.

use kiln_engine::{ControlType, ControlUse, Request, SamplerKind};
use kiln_testkit::{Fixture, Parity};
use serde::Deserialize;

use super::{BOUND, Files, hires};

use crate::support::cases::{Case, init_of_task, job_with};
use crate::support::{cpu, images, latents, load, request, run, tiny};

/// What a case of `control.json` has besides.
#[derive(Deserialize)]
struct Controls {
    task: String,
    strength: f64,
    guess: bool,
    /// Form, weight, start, end.
    nets: Vec<(String, f64, f64, f64)>,
}

#[test]
fn latents_are_diffusers() {
    let (files, fixture) = (Files::new(), Fixture::open("control.safetensors"));
    for kind in ["sd1", "sd2v", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("control", format!("{kind} f32")));
        for case in Case::<Controls>::read("control.json", kind, 3) {
            let Controls { task, strength, guess, nets } = &case.more;
            let control = |(number, (form, weight, start, end)): (usize, &(String, f64, f64, f64))| ControlUse {
                weight: *weight,
                start: *start,
                end: *end,
                guess: *guess,
                ..files.control(&files.net(kind, number as u32, form == "small"))
            };
            let controls = nets.iter().enumerate().map(control).collect();
            let request = Request { controls, ..case.request((64, 64)) };
            let request = if task == "hires" { hires(*strength, request) } else { request };
            let job = job_with(&engine, &request, init_of_task(task, *strength));
            let images = run(&mut engine, &job);
            parity.check(&case.name, &latents(&images), &fixture.tensor(&case.key()), BOUND);
        }
    }
}

/// What a case of `adapters.json` has besides.
#[derive(Deserialize)]
struct Adapters {
    size: (usize, usize),
    end: f64,
    guess: bool,
    /// Form, weight, and the number of an image's type.
    nets: Vec<(String, f64, Option<usize>)>,
}

impl Case<Adapters> {
    fn request_with(&self, files: &Files) -> Request {
        let Adapters { size, end, guess, nets } = &self.more;
        let control = |(number, (form, weight, kind)): (usize, &(String, f64, Option<usize>))| ControlUse {
            weight: *weight,
            end: *end,
            guess: *guess,
            kind: kind.map(|number| ControlType::find(ControlType::IDS[number]).unwrap()),
            // Images of different types are for one Union network.
            ..files.control(&files.other(&self.kind, form, if form == "union" { 0 } else { number as u32 }))
        };
        Request { controls: nets.iter().enumerate().map(control).collect(), ..self.request(*size) }
    }
}

/// T2I-Adapters of every form, Union networks with one and two images, and a ControlNet of means.
#[test]
fn latents_with_adapters_are_diffusers() {
    let (files, fixture) = (Files::new(), Fixture::open("adapters.safetensors"));
    for kind in ["sd1", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("adapters", format!("{kind} f32")));
        for case in Case::<Adapters>::read("adapters.json", kind, 5) {
            let found = latents(&images(&mut engine, &case.request_with(&files)));
            parity.check(&case.name, &found, &fixture.tensor(&case.key()), BOUND);
        }
    }
}

/// The ControlNet that comes with Kiln, against final latents that diffusers computed.
#[test]
#[ignore = "needs ../shared/models"]
fn shared_data_the_emoji_controlnet_gives_diffusers_latents() {
    let expected = kiln_testkit::shared_models("emoji-companions").join("expected");
    let models = kiln_testkit::repository().join("models");
    let mut engine = load(&models.join("emoji"), &cpu());
    let parity = Parity::new("control", "emoji f32");
    for (name, prompt, seed, weight) in
        [("house-moved", "house", 12, 1.0), ("octopus", "octopus", 11, 1.0), ("strawberry-half", "strawberry", 13, 0.5)]
    {
        let file = |end: &str| expected.join(format!("controlnet-{name}{end}"));
        let control = ControlUse {
            image: Some(file("-map.png")),
            weight,
            ..ControlUse::new(models.join("emoji-controlnet-edges"))
        };
        let request = Request {
            cfg_scale: Some(3.0),
            sampler: Some(SamplerKind::Ddim.into()),
            controls: vec![control],
            ..request(prompt, (256, 256), 20, seed)
        };
        let found = latents(&images(&mut engine, &request));
        let expected = Fixture::read(name, &file(".safetensors")).tensor("latents");
        parity.check(name, &found, &expected, BOUND);
    }
}
