//! Hires fix: a second pass over the images of the first one, against diffusers' pipelines.

use std::path::PathBuf;

use kiln_engine::{
    Engine, Event, GeneratedImage, Job, ModeChoice, Request, Rule, RunningBatch, SamplerKind, Stage, Workload,
};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::support::cases::Case;
use crate::support::{bits, cpu, cpu_in, latents, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;
/// The same after Lanczos, which gives one of some thousand bytes another level than Pillow does: the tiny autoencoders' latents
/// follow each level.
const LANCZOS: f64 = 3e-2;

/// What a case of `hires/cases.json`, which `tests/reference/hires.py` describes, has besides.
#[derive(Deserialize)]
struct Second {
    size: (usize, usize),
    hires_size: (usize, usize),
    rule: Rule,
    upscaler: String,
    hires_steps: Option<usize>,
    strength: f64,
    hires_prompt: Option<String>,
    hires_cfg_scale: Option<f64>,
    hires_sampler: Option<SamplerKind>,
}

fn cases(kind: &str) -> Vec<Case<Second>> {
    Case::read("hires/cases.json", kind, 11)
}

impl Case<Second> {
    fn both_passes(&self) -> Request {
        let second = &self.more;
        let upscaler = match second.upscaler.ends_with(".pth") {
            true => fixtures("upscale").join(&second.upscaler),
            false => PathBuf::from(&second.upscaler),
        };
        Request {
            hires_size: Some(second.hires_size),
            rule: Some(second.rule),
            hires_upscaler: Some(upscaler.into()),
            hires_steps: second.hires_steps,
            hires_strength: Some(second.strength),
            hires_prompt: second.hires_prompt.clone(),
            hires_cfg_scale: second.hires_cfg_scale,
            hires_sampler: second.hires_sampler.map(Into::into),
            ..self.request(second.size)
        }
    }
}

fn case(name: &str) -> Request {
    cases("sd1").into_iter().find(|case| case.name == name).unwrap().both_passes()
}

fn run(engine: &mut Engine, job: &Job) -> (Vec<GeneratedImage>, Vec<Stage>, Vec<(usize, usize)>) {
    let (mut images, mut stages, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let watch = &mut |event| {
        match event {
            Event::Image(image) => images.push(*image),
            Event::Begin(stage) => stages.push(stage),
            Event::Step { done, total } => steps.push((done, total)),
            _ => {}
        }
        Ok(std::ops::ControlFlow::Continue(()))
    };
    engine.txt2img(job, watch).unwrap();
    (images, stages, steps)
}

fn made(engine: &mut Engine, request: &Request) -> Vec<GeneratedImage> {
    let job = request.resolve(engine.model()).unwrap();
    run(engine, &job).0
}

#[test]
fn latents_are_diffusers() {
    let fixture = Fixture::open("hires/cases.safetensors");
    for kind in ["sd1", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("hires", format!("{kind} f32")));
        for case in cases(kind) {
            let images = made(&mut engine, &case.both_passes());
            assert_eq!((images[0].width, images[0].height), case.more.hires_size, "{}", case.name);
            let bound = if case.more.upscaler == "lanczos" { LANCZOS } else { BOUND };
            parity.check(&case.name, &latents(&images), &fixture.tensor(&case.key()), bound);
        }
    }
}

#[test]
fn an_image_is_the_same_in_every_mode_and_batch() {
    for (name, pixels) in [("euler_a", false), ("diffusers_lanczos", true), ("lanczos_cut", true), ("network", true)] {
        let three = Request { batch_size: Some(3), seed: Some(7), steps: Some(3), ..case(name) };
        let mut engine = tiny("sd1", &cpu());
        let job = three.resolve(engine.model()).unwrap();
        assert_eq!(
            Workload::of(&job).stages().iter().filter(|stage| **stage == Stage::Decode).count(),
            1 + usize::from(pixels)
        );
        let (expected, stages, steps) = run(&mut engine, &job);
        assert_eq!(stages.iter().filter(|stage| **stage == Stage::Denoise).count(), 2, "{name}: {stages:?}");
        assert!(
            stages.contains(&Stage::Upscale) && stages.contains(&Stage::EncodeImage) == pixels,
            "{name}: {stages:?}"
        );
        let all = job.evaluations_of_passes(engine.model()).unwrap();
        assert_eq!((steps.last(), steps.is_sorted()), (Some(&(all, all)), true), "{name}");
        for (i, image) in expected.iter().enumerate() {
            let one = Request { batch_size: None, seed: Some(7 + i as u64), ..three.clone() };
            let alone = made(&mut engine, &one);
            assert!(
                alone[0].rgb == image.rgb && bits(&alone) == bits(std::slice::from_ref(image)),
                "{name}: image {i}"
            );
        }
        for mode in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
            let mut engine = tiny("sd1", &cpu_in(mode));
            assert!(bits(&made(&mut engine, &three)) == bits(&expected), "{name}: {mode:?}");
            // A job of one pass after it has the bits that it has alone.
            let plain = Request { rule: None, prompt: three.prompt.clone(), ..plain(&three) };
            let mut other = tiny("sd1", &cpu());
            assert!(bits(&made(&mut engine, &plain)) == bits(&made(&mut other, &plain)), "{name}: {mode:?}");
        }
    }
}

/// The request without its second pass.
fn plain(request: &Request) -> Request {
    let mut plain = request.clone();
    plain.drop_hires();
    plain
}

#[test]
fn a_running_batch_makes_both_passes() {
    let mut engine = tiny("sd1", &cpu());
    let request = Request { batch_size: Some(2), ..case("euler") };
    let (job, mut running) = (request.resolve(engine.model()).unwrap(), RunningBatch::new());
    let mut go_on = |_| std::ops::ControlFlow::Continue(());
    let id = engine.join(&mut running, &job, 0, &mut go_on).unwrap();
    while !engine.step(&mut running, &mut go_on).unwrap().contains(&id) {}
    let images = engine.finish(&mut running, id, (&job, 0), &mut go_on).unwrap();
    assert!(bits(&images) == bits(&made(&mut engine, &request)));
}

#[test]
fn every_option_of_the_second_pass_acts() {
    let mut engine = tiny("sd1", &cpu());
    let base = case("euler");
    let expected = bits(&made(&mut engine, &base));
    let others = [
        Request { hires_steps: Some(3), ..base.clone() },
        Request { hires_strength: Some(0.5), ..base.clone() },
        Request { hires_cfg_scale: Some(2.0), ..base.clone() },
        Request { hires_sampler: Some(SamplerKind::EulerA.into()), ..base.clone() },
        Request { hires_scheduler: Some(kiln_engine::SigmaSchedule::Karras), ..base.clone() },
        Request { hires_prompt: Some("a pear".into()), ..base.clone() },
        Request { hires_negative_prompt: Some("a pear".into()), ..base.clone() },
        Request { hires_upscaler: Some("latent-bicubic".parse().unwrap()), ..base.clone() },
        Request { rule: Some(Rule::Diffusers), ..base.clone() },
    ];
    for other in others {
        let found = made(&mut engine, &other);
        assert_eq!((found[0].width, found[0].height), base.hires_size.unwrap());
        assert!(bits(&found) != expected, "{other:?}");
    }
    // What follows from other options changes nothing when it is said.
    let said = Request {
        hires_steps: base.steps,
        hires_cfg_scale: base.cfg_scale,
        hires_prompt: Some(base.prompt.clone()),
        rule: Some(Rule::Automatic1111),
        hires_size: None,
        hires_scale: Some(1.5),
        ..base.clone()
    };
    assert!(bits(&made(&mut engine, &said)) == expected);
    // Times of a prompt's schedule are over in the second pass, as in AUTOMATIC1111.
    let scheduled = |prompt: &str| Request { prompt: prompt.into(), steps: Some(4), ..base.clone() };
    let second = Request { hires_prompt: Some("a pear".into()), ..scheduled("[a plum:a pear:0.5]") };
    assert!(bits(&made(&mut engine, &scheduled("[a plum:a pear:0.5]"))) == bits(&made(&mut engine, &second)));
}

/// An image's settings make the image again: from Kiln's JSON and from AUTOMATIC1111's text.
#[test]
fn settings_make_the_image_again() {
    let mut engine = tiny("sd1", &cpu());
    let folder = tempfile::tempdir().unwrap();
    for name in ["euler", "other", "lanczos_cut", "network", "diffusers_dpmpp_2m"] {
        let request = Request { batch_size: Some(2), prompt: "a {red|green|blue} pear".into(), ..case(name) };
        let image = made(&mut engine, &request).pop().unwrap();
        let path = folder.path().join(format!("{name}.png"));
        std::fs::write(&path, image.png().unwrap()).unwrap();
        let mut like = kiln_engine::Like::read(&path).unwrap();
        let mut again = like.request(engine.model(), &cpu());
        if name == "network" {
            assert_eq!(again.hires_upscaler.as_ref().unwrap().to_string(), "compact_x2.pth", "no folder is named");
            again.upscaler_dir = Some(fixtures("upscale"));
        }
        assert!(bits(&made(&mut engine, &again)) == bits(std::slice::from_ref(&image)), "{name}");
        // The text alone.
        let text = kiln_media::encode_png((1, 1), &[0; 3], &[("parameters", &image.parameters)]).unwrap();
        std::fs::write(&path, text).unwrap();
        let mut like = kiln_engine::Like::read(&path).unwrap();
        let mut again = like.request(engine.model(), &cpu());
        again.upscaler_dir = again.upscaler_dir.or(Some(fixtures("upscale")).filter(|_| name == "network"));
        assert_eq!(like.take_warnings(), Vec::<String>::new());
        assert!(image.parameters.contains("Denoising strength: ") && image.parameters.contains("Hires upscaler: "));
        assert!(bits(&made(&mut engine, &again)) == bits(&[image]), "{name}");
    }
}

#[test]
fn impossible_second_passes_are_refused() {
    let engine = tiny("sd1", &cpu());
    let base = case("euler");
    let refused = |request: Request| request.resolve(engine.model()).unwrap_err().to_string();
    for (request, expected) in [
        (
            Request { hires_scale: Some(2.0), ..base.clone() },
            "`hires_size` is 48x48, expected none, or no `hires_scale`",
        ),
        (Request { hires_size: Some((48, 46)), ..base.clone() }, "`hires_size` is 46, expected a multiple of 8"),
        (Request { hires_size: None, rule: None, ..base.clone() }, "expected `hires_scale` or `hires_size` too"),
        (Request { hires_strength: Some(0.0), ..base.clone() }, "`hires_strength` is 0.0, expected more than 0"),
        (
            Request { hires_size: None, hires_scale: Some(0.5), ..base.clone() },
            "`hires_scale` is 0.5, expected a number",
        ),
        (
            Request { hires_upscaler: Some("no.pth".parse().unwrap()), ..base.clone() },
            "no.pth: not found; looked for an upscaler's file (.safetensors or .pth); without a file there are lanczos, bicubic, bilinear, nearest, and for latents latent, latent-antialiased",
        ),
        (
            Request { init: Some(fixtures("inpaint").join("image.png")), rule: None, ..base.clone() },
            "`hires_size` is 48x48, expected none with `init`",
        ),
        (
            Request { hires_sampler: Some(SamplerKind::Ddim.into()), ..base.clone() },
            "`rule` is a1111, expected diffusers with the sampler ddim",
        ),
        (
            Request { rule: Some(Rule::Diffusers), hires_strength: Some(0.1), ..base.clone() },
            "raise the strength or the number of steps",
        ),
        (
            Request { hires_upscaler: Some(fixtures("models/sd1/unet/config.json").into()), ..base.clone() },
            "config.json",
        ),
    ] {
        let message = refused(request);
        assert!(message.contains(expected), "{message}");
    }
    // A sampler on timesteps has diffusers' rule where none is named.
    let ddim = Request { sampler: Some(SamplerKind::Ddim.into()), rule: None, ..base };
    let job = ddim.resolve(engine.model()).unwrap();
    assert_eq!(job.second_pass().unwrap().job.image.rule, Rule::Diffusers);
}
