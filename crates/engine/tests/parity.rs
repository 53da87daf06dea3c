//! Whole pipelines against diffusers: the final latents of every sampler, size, guidance and prompt of the fixtures.

use std::ops::ControlFlow;
use std::path::Path;

use candle_core::{DType, Tensor};
use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, LatentsFile, ModelFolder, Picture, Request, SamplerKind, Setup,
    SigmaSchedule,
};
use kiln_testkit::{Fixture, Parity, Target, fixtures, repository};
use serde::Deserialize;

/// Final latents, in their standard deviations: f32, f16, bf16.
const BOUNDS: [f64; 3] = [1e-3, 2.0, 6.0];
/// The same for the trained model: the random ones stretch rounding a hundredfold.
const TRAINED_BOUNDS: [f64; 3] = [1e-3, 2e-2, 2e-1];
/// Pictures of 0 to 255, in the same. In f32 one step of 255 where the standard deviation is 60.
const PICTURE_BOUNDS: [f64; 3] = [2e-2, 2.0, 6.0];

#[derive(Deserialize)]
struct Case {
    name: String,
    prompt: String,
    negative_prompt: Option<String>,
    seed: u64,
    steps: usize,
    cfg_scale: f64,
    width: usize,
    height: usize,
    images: usize,
    sampler: Option<SamplerKind>,
    schedule: SigmaSchedule,
}

impl Case {
    fn request(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: Some(self.width),
            height: Some(self.height),
            steps: Some(self.steps),
            cfg_scale: Some(self.cfg_scale),
            seed: Some(self.seed),
            sampler: self.sampler.map(Into::into),
            scheduler: self.schedule,
            batch_size: Some(self.images),
            comma_backtrack: Some(0), // the reference cuts a long prompt where a chunk is full
            ..Request::default()
        }
    }
}

fn load(folder: &Path) -> Engine {
    let Target { device, dtype } = Target::from_env();
    let device = if device.is_cpu() { DeviceChoice::Cpu } else { DeviceChoice::Cuda(0) };
    let dtype = match dtype {
        DType::F16 => DTypeChoice::F16,
        DType::BF16 => DTypeChoice::Bf16,
        _ => DTypeChoice::F32,
    };
    let setup = Setup { device, dtype, ..Setup::default() };
    let model = ModelFolder::open(folder).unwrap();
    Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn pictures(engine: &mut Engine, request: &Request) -> Vec<Picture> {
    let job = request.resolve(engine.model()).unwrap();
    let mut pictures = Vec::new();
    let watch = &mut |event| {
        if let Event::Picture(picture) = event {
            pictures.push(*picture);
        }
        Ok(ControlFlow::Continue(()))
    };
    engine.txt2img(&job, watch).unwrap();
    pictures
}

/// The latents as they come out of `--latents-out`.
fn latents(pictures: &[Picture]) -> Tensor {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latents.safetensors");
    let mut file = LatentsFile::plan(&path).unwrap();
    pictures.iter().for_each(|picture| file.push(picture));
    file.write().unwrap();
    Fixture::read("latents", &path).tensor("latents")
}

fn bound([f32, f16, bf16]: [f64; 3]) -> f64 {
    Target::from_env().bound(f32, f16, bf16)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn check(kind: &'static str) {
    let cases: Vec<Case> = read(&fixtures(&format!("pipeline_{kind}.json")));
    let fixture = Fixture::open(&format!("pipeline_{kind}.safetensors"));
    let mut engine = load(&fixtures(&format!("models/{kind}")));
    let parity = Parity::new("pipeline", Target::from_env().label(kind));
    assert!(cases.len() > 10);
    for case in &cases {
        let pictures = pictures(&mut engine, &case.request());
        assert_eq!(pictures.len(), case.images);
        parity.check(&case.name, &latents(&pictures), &fixture.tensor(&case.name), bound(BOUNDS));
        if let Some(expected) = fixture.get(&format!("{}.image", case.name)) {
            let found: Vec<u8> = pictures.iter().flat_map(|picture| picture.rgb.clone()).collect();
            let shape = (case.images, case.height, case.width, 3);
            let found = Tensor::from_vec(found, shape, expected.device()).unwrap();
            let expected = (expected.permute((0, 2, 3, 1)).unwrap() * 255.0).unwrap(); // (n, h, w, 3)
            parity.check(&format!("{} picture", case.name), &found, &expected, bound(PICTURE_BOUNDS));
        }
    }
}

#[test]
fn sd1() {
    check("sd1");
}

#[test]
fn sd2v() {
    check("sd2v");
}

#[test]
fn sdxl() {
    check("sdxl");
}

#[derive(Deserialize)]
struct EmojiCase {
    name: String,
    prompt: String,
    middle_rgb: [f64; 3],
}

/// The model that comes with Kiln, and its colours.
#[test]
fn emoji() {
    let cases: Vec<EmojiCase> = read(&fixtures("emoji.json"));
    let fixture = Fixture::open("emoji.safetensors");
    let mut engine = load(&repository().join("models/emoji"));
    let parity = Parity::new("pipeline", Target::from_env().label("emoji"));
    for case in cases {
        // Everything but prompt and seed is the folder's own: 256x256, 20 steps of DDIM, guidance 3.
        let request = Request { prompt: case.prompt.clone(), seed: Some(42), ..Request::default() };
        let pictures = pictures(&mut engine, &request);
        parity.check(&case.name, &latents(&pictures), &fixture.tensor(&case.name), bound(TRAINED_BOUNDS));
        for (channel, expected) in case.middle_rgb.into_iter().enumerate() {
            let found = middle_mean(&pictures[0], channel);
            assert!(
                (found - expected).abs() < 0.01,
                "{}: channel {channel} is {found}, expected {expected}",
                case.name
            );
        }
    }
}

/// The mean of a channel over the middle half of a picture, 0 to 1.
fn middle_mean(picture: &Picture, channel: usize) -> f64 {
    let (w, h) = (picture.width, picture.height);
    let pixels = (h / 4..3 * h / 4).flat_map(|row| (w / 4..3 * w / 4).map(move |column| (row * w + column) * 3));
    let values: Vec<f64> = pixels.map(|at| f64::from(picture.rgb[at + channel]) / 255.0).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// On the processor the text encoders are gone after the first job, and read again for another prompt.
#[test]
fn a_prompt_gives_its_picture_again() {
    let mut engine = load(&fixtures("models/sd1"));
    let mut picture = |prompt: &str, cfg_scale| {
        let request = Request {
            prompt: prompt.into(),
            width: Some(64),
            height: Some(64),
            steps: Some(1),
            seed: Some(7),
            cfg_scale: Some(cfg_scale),
            ..Request::default()
        };
        pictures(&mut engine, &request).remove(0).rgb
    };
    let apple = picture("a red apple", 7.0);
    assert_ne!(picture("a blue whale", 7.0), apple);
    assert_eq!(picture("a red apple", 7.0), apple);
    assert_ne!(picture("a red apple", 1.0), apple, "without guidance the conditions are others");
    assert_eq!(picture("a red apple", 7.0), apple);
}

#[test]
fn batches_and_seeds_count_on() {
    let mut engine = load(&fixtures("models/sd1"));
    let base = Request {
        prompt: "a red apple".into(),
        width: Some(64),
        height: Some(64),
        steps: Some(3),
        seed: Some(7),
        ..Request::default()
    };
    let two_batches = Request { batch_count: Some(2), batch_size: Some(2), ..base.clone() };
    let pictures_of_four = pictures(&mut engine, &two_batches);
    assert_eq!(
        pictures_of_four.iter().map(|p| (p.index, p.seed)).collect::<Vec<_>>(),
        [(0, 7), (1, 8), (2, 9), (3, 10)]
    );
    let third = pictures(&mut engine, &Request { seed: Some(9), ..base });
    let parity = Parity::new("pipeline", "batches");
    parity.check(
        "third of four",
        &latents(&pictures_of_four[2..3]),
        &latents(&third),
        if Target::from_env().device.is_cpu() { 0.0 } else { bound([1e-5, 5e-1, 4.0]) },
    );
}

#[test]
fn a_run_stops_between_steps() {
    let mut engine = load(&fixtures("models/sd1"));
    let request = Request { prompt: "x".into(), width: Some(64), height: Some(64), ..Request::default() };
    let job = request.resolve(engine.model()).unwrap();
    let mut steps = 0;
    let watch = &mut |event| {
        steps += usize::from(matches!(event, Event::Step { .. }));
        Ok(if steps == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    assert!(matches!(engine.txt2img(&job, watch), Err(kiln_engine::Error::Interrupted)));
    assert_eq!(steps, 3);
}

#[derive(Deserialize)]
struct LcmCase {
    name: String,
    steps: Option<usize>,
    cfg_scale: Option<f64>,
    width: Option<usize>,
    height: Option<usize>,
    images: Option<usize>,
}

/// A folder of `fixtures/lcm` with the text encoder, tokenizer and autoencoder of `models/sd1`.
fn lcm_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &Path, names: &[&str]| {
        for name in names {
            let to = folder.path().join(name);
            let from = from.join(name);
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

/// A network that was distilled with guidance inside, against diffusers' `LatentConsistencyModelPipeline`: its defaults,
/// other steps and strengths. A negative prompt changes nothing.
#[test]
fn lcm() {
    let folder = lcm_folder();
    let cases: Vec<LcmCase> = read(&fixtures("lcm/pipeline.json"));
    let fixture = Fixture::open("lcm/pipeline.safetensors");
    let mut engine = load(folder.path());
    let parity = Parity::new("pipeline", Target::from_env().label("lcm"));
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
        let latents_of = |engine: &mut Engine, request: &Request| latents(&pictures(engine, request));
        let found = latents_of(&mut engine, &request);
        parity.check(&case.name, &found, &fixture.tensor(&case.name), bound(BOUNDS));
        let negative = Request { negative_prompt: Some("blurry".into()), ..request };
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&latents_of(&mut engine, &negative)), values(&found), "{}", case.name);
    }
}
