//! Runs of two models: SDXL's refiner against diffusers' pipelines, switches against AUTOMATIC1111's rule, and what is refused.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_engine::{
    Engine, Event, GeneratedImage, GroupId, ModeChoice, ModelFolder, Request, Rule, RunningBatch, SamplerKind,
    SigmaSchedule, Stage, SwitchBy,
};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde_json::{Map, Value};

use crate::support::refiner::{halved, refiner};
use crate::support::{bits, cpu, cpu_in, latents, load, request, try_images};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// The models of the cases by their names.
fn models(folder: &Path) -> BTreeMap<&'static str, PathBuf> {
    BTreeMap::from([
        ("sd1", fixtures("models/sd1")),
        ("sdxl", fixtures("models/sdxl")),
        ("sd1_half", halved("sd1", folder)),
        ("sdxl_half", halved("sdxl", folder)),
        ("refiner", refiner(folder)),
    ])
}

fn input() -> PathBuf {
    fixtures("inpaint/image.png")
}

fn text(case: &Map<String, Value>, field: &str) -> Option<String> {
    case.get(field).and_then(Value::as_str).map(String::from)
}

/// The request of a case.
fn of_case(case: &Map<String, Value>, models: &BTreeMap<&str, PathBuf>) -> Request {
    let number = |field: &str| case.get(field).and_then(Value::as_f64);
    let has_base = text(case, "base").is_some();
    let scores = case.get("scores").and_then(Value::as_array);
    let score = |i: usize| scores.and_then(|scores| scores[i].as_f64());
    Request {
        negative_prompt: text(case, "negative_prompt"),
        cfg_scale: number("cfg_scale"),
        sampler: Some(text(case, "sampler").unwrap().parse().unwrap()),
        scheduler: text(case, "schedule").unwrap().parse::<SigmaSchedule>().unwrap(),
        batch_size: number("images").map(|images| images as usize),
        refiner: text(case, "refiner").filter(|_| has_base).map(|name| models[name.as_str()].clone()),
        refiner_switch: number("switch").filter(|_| has_base),
        refiner_switch_by: Some(if text(case, "by").as_deref() == Some("steps") {
            SwitchBy::Steps
        } else {
            SwitchBy::Timesteps
        }),
        aesthetic_score: score(0),
        negative_aesthetic_score: score(1),
        rule: (text(case, "rule").as_deref() == Some("a1111")).then_some(Rule::Automatic1111),
        init: number("strength").map(|_| input()),
        strength: number("strength"),
        ..request(
            &text(case, "prompt").unwrap(),
            (64, 64),
            number("steps").unwrap() as usize,
            number("seed").unwrap() as u64,
        )
    }
}

#[test]
fn latents_are_diffusers_and_automatic1111s() {
    let folder = tempfile::tempdir().unwrap();
    let models = models(folder.path());
    let json = std::fs::read_to_string(fixtures("refiner/cases.json")).unwrap();
    let cases: Vec<Map<String, Value>> = serde_json::from_str(&json).unwrap();
    let results = Fixture::open("refiner/results.safetensors");
    let (defaults, cases) = cases.split_first().unwrap();
    assert!(cases.len() > 20);
    let mut engines: BTreeMap<String, Engine> = BTreeMap::new();
    for changes in cases {
        let mut case = defaults.clone();
        case.extend(changes.clone());
        let name = text(&case, "name").unwrap();
        let model = text(&case, "base").or(text(&case, "refiner")).unwrap();
        let engine = engines.entry(model.clone()).or_insert_with(|| load(&models[model.as_str()], &cpu()));
        let images = try_images(engine, &of_case(&case, &models)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let parity = Parity::new("refiner", format!("{model} f32"));
        parity.check(&name, &latents(&images), &results.tensor(&name), BOUND);
    }
}

/// Two images with noise in every step, guided, with a schedule of texts over both models.
fn two_images(refiner: &Path, rule: Rule) -> Request {
    Request {
        batch_size: Some(2),
        sampler: Some(SamplerKind::EulerA.into()),
        refiner: Some(refiner.into()),
        refiner_switch: Some(0.5),
        rule: Some(rule),
        ..request("a [pear:fig:5] (tree:1.2)", (64, 64), 8, 7)
    }
}

#[test]
fn images_are_the_same_in_every_mode_and_batch() {
    let folder = tempfile::tempdir().unwrap();
    let refiner = refiner(folder.path());
    let base = fixtures("models/sdxl");
    for rule in [Rule::Diffusers, Rule::Automatic1111] {
        let both = two_images(&refiner, rule);
        let mut engine = load(&base, &cpu());
        let expected = try_images(&mut engine, &both).unwrap();
        for (i, image) in expected.iter().enumerate() {
            let one = Request { batch_size: None, seed: Some(7 + i as u64), ..both.clone() };
            let alone = try_images(&mut engine, &one).unwrap();
            assert!(alone[0].rgb == image.rgb && bits(&alone) == bits(std::slice::from_ref(image)), "image {i}");
        }
        // Without a refiner it is another image, and with it the same again.
        let plain = Request { refiner: None, refiner_switch: None, ..both.clone() };
        assert_ne!(bits(&try_images(&mut engine, &plain).unwrap()), bits(&expected));
        assert_eq!(bits(&try_images(&mut engine, &both).unwrap()), bits(&expected));
        for mode in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
            let mut engine = load(&base, &cpu_in(mode));
            for run in 0..2 {
                assert!(bits(&try_images(&mut engine, &both).unwrap()) == bits(&expected), "{rule:?} {mode:?} {run}");
            }
        }
    }
}

/// Groups that are with different models at one time, each with the bits that it has alone.
#[test]
fn batches_join_with_a_refiner() {
    let folder = tempfile::tempdir().unwrap();
    let both = two_images(&refiner(folder.path()), Rule::Diffusers);
    let mut engine = load(&fixtures("models/sdxl"), &cpu());
    let job = both.resolve(engine.model()).unwrap();
    let expected = try_images(&mut engine, &both).unwrap();
    let mut watch = |_: Event| ControlFlow::Continue(());
    let mut running = RunningBatch::new();
    let mut made: Vec<(GroupId, Vec<GeneratedImage>)> = Vec::new();
    let first = engine.join(&mut running, &job, 0, &mut watch).unwrap();
    for step in 0..40 {
        if step == 5 {
            engine.join(&mut running, &job, 0, &mut watch).unwrap();
        }
        for id in engine.step(&mut running, &mut watch).unwrap() {
            made.push((id, engine.finish(&mut running, id, (&job, 0), &mut watch).unwrap()));
        }
    }
    assert_eq!((made.len(), made[0].0), (2, first));
    for (_, images) in &made {
        assert!(bits(images) == bits(&expected));
    }
    let other = Request { refiner: None, refiner_switch: None, ..both }.resolve(engine.model()).unwrap();
    engine.join(&mut running, &job, 0, &mut watch).unwrap();
    let message = engine.join(&mut running, &other, 0, &mut watch).unwrap_err().to_string();
    assert!(message.contains("`refiner` is none, expected the refiner of the batches that are running"), "{message}");
}

#[test]
fn the_stages_and_steps_of_both_models_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let both = two_images(&refiner(folder.path()), Rule::Diffusers);
    let mut engine = load(&fixtures("models/sdxl"), &cpu());
    let job = both.resolve(engine.model()).unwrap();
    let (mut stages, mut steps) = (Vec::new(), Vec::new());
    engine
        .txt2img(&job, &mut |event| {
            match event {
                Event::Begin(stage) => stages.push(stage),
                Event::Step { done, total } => steps.push((done, total)),
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    stages.dedup();
    assert_eq!(stages[..4], [Stage::Encode, Stage::Denoise, Stage::Refine, Stage::Decode]);
    assert_eq!(steps.last(), Some(&(8, 8)));
}

#[test]
fn settings_name_the_refiner() {
    let folder = tempfile::tempdir().unwrap();
    let path = refiner(folder.path());
    let both = Request { aesthetic_score: Some(7.0), ..two_images(&path, Rule::Automatic1111) };
    let mut engine = load(&fixtures("models/sdxl"), &cpu());
    let images = try_images(&mut engine, &both).unwrap();
    let text = &images[0].parameters;
    assert!(text.contains("Refiner: refiner, ") || text.contains("Refiner: refiner,"), "{text}");
    assert!(text.contains("Refiner switch at: 0.5") && text.contains("Image rule: a1111"), "{text}");
    let settings: Value = serde_json::from_str(&images[0].settings).unwrap();
    assert_eq!((&settings["refiner"]["name"], &settings["request"]["refiner"]), (&"refiner".into(), &"refiner".into()));
    // The stored request with the refiner's path instead of its name is the same image.
    let mut again: Request = serde_json::from_value(settings["request"].clone()).unwrap();
    again.refiner = Some(path);
    assert_eq!(bits(&try_images(&mut engine, &again).unwrap()), bits(&images[..1]));
}

#[test]
fn refiners_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let models = models(folder.path());
    let refused = |model: &str, change: &dyn Fn(&mut Request)| {
        let mut request = request("a", (64, 64), 10, 1);
        change(&mut request);
        let model = ModelFolder::open(&models[model]).unwrap();
        request.resolve(&model).unwrap_err().to_string()
    };
    let with = |name: &str| models[name].clone();
    let message = refused("sd1", &|request| request.refiner = Some(with("refiner")));
    assert!(message.contains("refiner, a model of Stable Diffusion XL") && message.contains("as sd1 is"), "{message}");
    let message = refused("sd1", &|request| request.refiner = Some(fixtures("models/sd2v")));
    assert!(message.contains("predicts velocity") && message.contains("predicts noise"), "{message}");
    let message = refused("sdxl", &|request| request.refiner = Some(folder.path().join("nothing")));
    assert!(message.contains("nothing"), "{message}");
    for switch in [0.0, 1.0] {
        let message = refused("sdxl", &|request| {
            (request.refiner, request.refiner_switch) = (Some(with("refiner")), Some(switch));
        });
        assert!(message.contains("more than 0 and less than 1"), "{message}");
    }
    let message = refused("sdxl", &|request| request.refiner_switch = Some(0.5));
    assert!(message.contains("`refiner` too"), "{message}");
    let message = refused("sdxl", &|request| {
        (request.refiner, request.refiner_switch) = (Some(with("refiner")), Some(0.999));
        request.steps = Some(2);
    });
    assert!(message.contains("leaves the refiner no step"), "{message}");
    let message = refused("sdxl", &|request| {
        (request.refiner, request.refiner_switch) = (Some(with("refiner")), Some(0.1));
        (request.init, request.strength) = (Some(input()), Some(0.3));
    });
    assert!(
        message.contains("leaves the model before the refiner no step") && message.contains("`strength`"),
        "{message}"
    );
    let message = refused("sdxl", &|request| {
        (request.refiner, request.rule) = (Some(with("refiner")), Some(Rule::Comfy));
    });
    assert!(message.contains("comfy"), "{message}");
    let message = refused("refiner", &|_| ());
    assert!(message.contains("begins images") && message.contains("`init`"), "{message}");
}

/// Converted to one file and back it is the same refiner.
#[test]
fn a_refiner_in_one_file_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = refiner(folder.path());
    let alone = Request {
        init: Some(input()),
        strength: Some(0.5),
        sampler: Some(SamplerKind::Euler.into()),
        ..request("a red apple", (64, 64), 6, 3)
    };
    let expected = bits(&try_images(&mut load(&path, &cpu()), &alone).unwrap());
    let file = folder.path().join("refiner.safetensors");
    let back = folder.path().join("back");
    let options = Default::default();
    for (from, to) in [(&path, &file), (&file, &back)] {
        kiln_models::convert(from, to, &options, kiln_models::WeightType::Keep, false, &|| ControlFlow::Continue(()))
            .unwrap();
        let mut engine = load(to, &cpu());
        assert!(engine.model().is_refiner() && engine.model().texts().len() == 1);
        assert!(bits(&try_images(&mut engine, &alone).unwrap()) == expected, "{}", to.display());
    }
}
