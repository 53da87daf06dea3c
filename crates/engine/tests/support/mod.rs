//! Shared code of the engine's tests: an engine, its images and their latents.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod cases;
pub mod channels;
pub mod qwen_edit;
pub mod refiner;
pub mod sd3;

use std::ops::ControlFlow;
use std::path::Path;

use candle_core::{DType, Tensor};
use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, GeneratedImage, Job, LatentsFile, MemoryOptions, ModeChoice, ModelFolder,
    Request, Result, Setup,
};
use kiln_testkit::{Fixture, Target, fixtures};

/// The CPU in f32.
pub fn cpu() -> Setup {
    Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() }
}

/// The CPU in f32, in a memory mode.
pub fn cpu_in(mode: ModeChoice) -> Setup {
    Setup { memory: MemoryOptions { mode, ..MemoryOptions::default() }, ..cpu() }
}

/// The device and the type from the environment.
pub fn from_env() -> Setup {
    let Target { device, dtype } = Target::from_env();
    let device = if device.is_cpu() { DeviceChoice::Cpu } else { DeviceChoice::Cuda(0) };
    let dtype = match dtype {
        DType::F16 => DTypeChoice::F16,
        DType::BF16 => DTypeChoice::Bf16,
        _ => DTypeChoice::F32,
    };
    Setup { device, dtype, ..Setup::default() }
}

/// An engine with the model in `folder`.
///
/// # Errors
/// Those of [`ModelFolder::open`] and of [`Engine::load`].
pub fn try_load(folder: &Path, setup: &Setup) -> Result<Engine> {
    Engine::load(ModelFolder::open(folder)?, setup, &mut |_| ControlFlow::Continue(()))
}

/// An engine with the model in `folder`.
#[track_caller]
pub fn load(folder: &Path, setup: &Setup) -> Engine {
    try_load(folder, setup).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// An engine with the tiny model `kind` of the fixtures: `sd1`, `sd2v` or `sdxl`.
#[track_caller]
pub fn tiny(kind: &str, setup: &Setup) -> Engine {
    load(&fixtures(&format!("models/{kind}")), setup)
}

/// A request for images of this width and height.
pub fn request(prompt: &str, (width, height): (usize, usize), steps: usize, seed: u64) -> Request {
    Request {
        prompt: prompt.into(),
        width: Some(width),
        height: Some(height),
        steps: Some(steps),
        seed: Some(seed),
        ..Request::default()
    }
}

/// Generates the images of a request.
///
/// # Errors
/// Those of the request and of the run.
pub fn try_images(engine: &mut Engine, request: &Request) -> Result<Vec<GeneratedImage>> {
    let job = request.resolve(engine.model())?;
    try_run(engine, &job)
}

fn try_run(engine: &mut Engine, job: &Job) -> Result<Vec<GeneratedImage>> {
    let mut images = Vec::new();
    engine.txt2img(job, &mut |event| {
        if let Event::Image(image) = event {
            images.push(*image);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(images)
}

/// Generates the images of a job.
#[track_caller]
pub fn run(engine: &mut Engine, job: &Job) -> Vec<GeneratedImage> {
    try_run(engine, job).unwrap_or_else(|error| panic!("{error}"))
}

/// The values of all latents in f32.
#[track_caller]
pub fn values(images: &[GeneratedImage]) -> Vec<f32> {
    latents(images).flatten_all().unwrap().to_vec1().unwrap()
}

/// The bits of all latents in f32.
#[track_caller]
pub fn bits(images: &[GeneratedImage]) -> Vec<u32> {
    values(images).into_iter().map(f32::to_bits).collect()
}

/// Generates the images of a request, at least one.
#[track_caller]
pub fn images(engine: &mut Engine, request: &Request) -> Vec<GeneratedImage> {
    let images = try_images(engine, request).unwrap_or_else(|error| panic!("{error}"));
    assert!(!images.is_empty(), "the request made no image");
    images
}

/// The pixels of each image, RGB from 0 to 255.
#[track_caller]
pub fn pixels(engine: &mut Engine, request: &Request) -> Vec<Vec<u8>> {
    images(engine, request).into_iter().map(|image| image.rgb).collect()
}

/// The latents `(n, c, h, w)` in f32 as `--latents-out` writes them.
#[track_caller]
pub fn latents(images: &[GeneratedImage]) -> Tensor {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latents.safetensors");
    let mut file = LatentsFile::plan(&path).unwrap();
    images.iter().for_each(|image| file.push(image));
    file.write().unwrap();
    Fixture::read("latents", &path).tensor("latents")
}
