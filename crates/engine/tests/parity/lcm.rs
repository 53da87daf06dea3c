//! A network that was distilled with guidance inside, against diffusers' `LatentConsistencyModelPipeline`.

use std::path::Path;

use candle_core::{DType, Tensor};
use kiln_engine::Request;
use kiln_testkit::{Fixture, Parity, Target, fixtures};
use serde::Deserialize;

use crate::limits;
use crate::support::{from_env, images, latents, load};

/// Largest error of final latents in f32, in their standard deviations.
const LATENTS_BOUND: f64 = 1e-3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    steps: Option<usize>,
    cfg_scale: Option<f64>,
    width: Option<usize>,
    height: Option<usize>,
    images: Option<usize>,
    strength: Option<f64>,
    timesteps: Option<Vec<f64>>,
}

/// A folder of `fixtures/lcm` with the text encoder, tokenizer and autoencoder of `models/sd1`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &Path, names: &[&str]| {
        for name in names {
            let (from, to) = (from.join(name), folder.path().join(name));
            if from.is_file() {
                std::fs::copy(&from, &to).unwrap();
                continue;
            }
            std::fs::create_dir(&to).unwrap();
            for entry in std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap()) {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    copy(&fixtures("lcm"), &["model_index.json", "unet", "scheduler"]);
    copy(&fixtures("models/sd1"), &["text_encoder", "tokenizer", "vae"]);
    folder
}

/// Its defaults, other steps and strengths. A negative prompt has no effect.
#[test]
fn lcm() {
    let folder = folder();
    let text = std::fs::read_to_string(fixtures("lcm/pipeline.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
    let fixture = Fixture::open("lcm/pipeline.safetensors");
    let mut engine = load(folder.path(), &from_env());
    let target = Target::from_env();
    let parity = Parity::new("pipeline", target.label("lcm"));
    assert!(cases.len() > 4);
    for case in &cases {
        let request = Request {
            prompt: "a red apple".into(),
            seed: Some(42),
            steps: case.steps,
            cfg_scale: case.cfg_scale,
            width: case.width,
            height: case.height,
            batch_size: case.images,
            ..Request::default()
        };
        let (found, expected) = (latents(&images(&mut engine, &request)), fixture.tensor(&case.name));
        if target.dtype == DType::F32 {
            parity.check(&case.name, &found, &expected, LATENTS_BOUND);
        }
        parity.check_similar(&case.name, &found, &expected, limits::run("lcm", &case.name, target.dtype));
        let negative = Request { negative_prompt: Some("blurry".into()), ..request };
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&latents(&images(&mut engine, &negative))), values(&found), "{}", case.name);
    }
}

/// An image to begin with takes a part of the model's own timesteps, and all steps run over the others.
#[test]
fn lcm_from_an_image() {
    let folder = folder();
    let text = std::fs::read_to_string(fixtures("lcm/image.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
    let fixture = Fixture::open("lcm/image.safetensors");
    let mut engine = load(folder.path(), &from_env());
    let target = Target::from_env();
    let parity = Parity::new("pipeline", target.label("lcm"));
    assert!(cases.len() > 4);
    for case in &cases {
        let request = Request {
            prompt: "a red apple".into(),
            seed: Some(42),
            steps: case.steps,
            cfg_scale: case.cfg_scale,
            width: Some(64),
            height: Some(64),
            batch_size: case.images,
            init: Some(fixtures("inpaint/image.png")),
            strength: case.strength,
            ..Request::default()
        };
        let schedule = request.resolve(engine.model()).unwrap().schedule(engine.model()).unwrap();
        assert_eq!(Some(schedule.timesteps()), case.timesteps, "{}", case.name);
        let (found, expected) = (latents(&images(&mut engine, &request)), fixture.tensor(&case.name));
        if target.dtype == DType::F32 {
            parity.check(&format!("image_{}", case.name), &found, &expected, LATENTS_BOUND);
        }
        parity.check_similar(
            &format!("image_{}", case.name),
            &found,
            &expected,
            limits::run("lcm", &case.name, target.dtype),
        );
    }
    let few = Request {
        strength: Some(0.1),
        steps: Some(6),
        init: Some(fixtures("inpaint/image.png")),
        ..Request::default()
    };
    let message = few.resolve(engine.model()).unwrap_err().to_string();
    assert_eq!(
        message,
        "`strength` is 0.1, expected more, or fewer steps: it leaves 5 of the model's 50 timesteps for 6 steps"
    );
}
