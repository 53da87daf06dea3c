//! Calibration: scales of a model, how close images are with them, and the files that are refused.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_compare::psnr;
use kiln_engine::{
    Calibration, CalibrationLimits, CalibrationStage, ComputeScales, ComputeType, DTypeChoice, Engine, MemoryOptions,
    ModeChoice, ModelFolder, Request, Setup,
};
use kiln_testkit::{fixtures, repository};

use crate::support::{bits, cpu, images, load, pixels, request};

fn emoji() -> PathBuf {
    repository().join("models/emoji")
}

fn tiny() -> PathBuf {
    fixtures("models/sd1")
}

/// Measures the model in a folder.
fn calibrate(model: &Path, setup: &Setup, requests: &[Request], budget: f64) -> kiln_engine::Result<Calibration> {
    let model = ModelFolder::open(model)?;
    let jobs = requests.iter().map(|request| Ok(request.resolve(&model)?)).collect::<kiln_engine::Result<Vec<_>>>()?;
    let limits = CalibrationLimits { budget, ..CalibrationLimits::default() };
    Calibration::measure(model, setup, &jobs, limits, &mut |_| ControlFlow::Continue(()))
}

/// A setup with these scales in a file of `folder`.
fn with_scales(scales: &ComputeScales, folder: &Path) -> Setup {
    let path = folder.join("scales.safetensors");
    scales.write(&ComputeScales::plan(&path, true).unwrap()).unwrap();
    Setup { compute: ComputeType::Int8, scales: Some(path), ..cpu() }
}

/// Images of other prompts than those that were measured. On the average over many prompts scales change nothing
/// (`docs/compute.md`); with three, either may be some decibels closer.
#[test]
fn calibrated_images_are_as_close_as_with_ranges_of_each_call() {
    let measured = ["a yellow sun", "a blue car"].map(|prompt| request(prompt, (256, 256), 5, 3));
    let found = calibrate(&emoji(), &cpu(), &measured, 0.0).unwrap();
    assert_eq!((found.kept, found.covered), (0, found.scales.layers.len()));
    let folder = tempfile::tempdir().unwrap();
    let draw = |setup: Setup| {
        let mut engine = load(&emoji(), &setup);
        ["a red apple", "a smiling cat", "a house with a tree"]
            .map(|prompt| pixels(&mut engine, &request(prompt, (256, 256), 6, 7)).remove(0))
    };
    let expected = draw(cpu());
    let mean = |setup: Setup| {
        let all = draw(setup).into_iter().zip(&expected).map(|(found, expected)| psnr(&found, expected).unwrap());
        all.sum::<f64>() / 3.0
    };
    let dynamic = mean(Setup { compute: ComputeType::Int8, ..cpu() });
    let calibrated = mean(with_scales(&found.scales, folder.path()));
    assert!(calibrated > 41.0 && calibrated > dynamic - 4.0, "{calibrated} dB, {dynamic} dB without scales");
}

/// With all layers in 8 bits the images of this model, whose weights are random, have no 60 dB.
#[test]
fn layers_keep_their_type_until_the_budget_is_met() {
    let jobs = [request("a red apple", (64, 64), 2, 7), request("a blue car", (64, 64), 2, 8)];
    let whole = calibrate(&tiny(), &cpu(), &jobs, 0.0).unwrap();
    let (count, budget) = (whole.scales.layers.len(), (whole.psnr + 100.0) / 2.0);
    assert!(count > 10 && whole.psnr < 60.0, "{count} layers, {} dB", whole.psnr);
    let some = calibrate(&tiny(), &cpu(), &jobs, budget).unwrap();
    assert!(some.psnr >= budget && some.kept > 0 && some.covered == count - some.kept, "{} dB", some.psnr);
    let least = |kept: bool| some.scales.layers.values().filter(move |layer| layer.is_kept == kept).map(|l| l.error);
    let (kept, covered) = (least(true).fold(f32::MAX, f32::min), least(false).fold(0.0, f32::max));
    assert!(kept >= covered, "the layers with the largest errors keep their type: {kept}, {covered}");

    // Exactly the budget's images, from the file.
    let folder = tempfile::tempdir().unwrap();
    let [mut found, mut native] = [with_scales(&some.scales, folder.path()), cpu()].map(|setup| load(&tiny(), &setup));
    let ratios =
        jobs.iter().map(|job| psnr(&pixels(&mut found, job)[0], &pixels(&mut native, job)[0]).unwrap().min(100.0));
    assert!((ratios.sum::<f64>() / 2.0 - some.psnr).abs() < 1e-6);
    let notes = ComputeScales::read(&folder.path().join("scales.safetensors")).unwrap().notes;
    assert_eq!((&*notes["images"], &*notes["dtype"]), ("2", "f32"));
}

/// Fixed ranges, balances and layers that keep their type, streamed and in batches.
#[test]
fn scales_give_the_same_bits_in_every_mode_and_batch() {
    let job = request("a red apple", (64, 64), 2, 7);
    let mut scales = calibrate(&tiny(), &cpu(), std::slice::from_ref(&job), 0.0).unwrap().scales;
    for (i, layer) in scales.layers.values_mut().enumerate() {
        (layer.is_dynamic, layer.is_kept) = (i % 3 == 0, i % 5 == 0);
    }
    let folder = tempfile::tempdir().unwrap();
    let setup = with_scales(&scales, folder.path());
    let draw = |mode, count: usize| -> Vec<Vec<u32>> {
        let memory = MemoryOptions { mode, ..MemoryOptions::default() };
        let mut engine = load(&tiny(), &Setup { memory, dtype: DTypeChoice::Bf16, ..setup.clone() });
        let request = Request { batch_size: Some(count), ..job.clone() };
        images(&mut engine, &request).chunks(1).map(bits).collect()
    };
    let whole = draw(ModeChoice::Full, 1);
    assert_eq!(draw(ModeChoice::Lowvram, 1), whole);
    assert_eq!(draw(ModeChoice::Full, 3)[0], whole[0]);
    assert_eq!(calibrate(&tiny(), &cpu(), &[job], 0.0).unwrap().scales.model_sha256, scales.model_sha256);
}

#[test]
fn scales_that_do_not_go_with_a_run_are_refused_by_name() {
    let job = request("a red apple", (64, 64), 1, 7);
    let scales = calibrate(&tiny(), &cpu(), std::slice::from_ref(&job), 0.0).unwrap().scales;
    let folder = tempfile::tempdir().unwrap();
    let setup = with_scales(&scales, folder.path());
    let refused = |model: &Path, setup: &Setup| {
        let loaded = Engine::load(ModelFolder::open(model).unwrap(), setup, &mut |_| ControlFlow::Continue(()));
        loaded.err().expect("the scales are refused").to_string()
    };
    let other = refused(&emoji(), &setup);
    assert!(other.contains("scales.safetensors, made for a model with the hash") && other.contains("emoji"), "{other}");
    let native = refused(&tiny(), &Setup { compute: ComputeType::Native, ..setup.clone() });
    assert!(native.contains("`scales`") && native.contains("`compute` int8"), "{native}");
    let none = refused(&tiny(), &Setup { scales: Some("none.safetensors".into()), ..setup.clone() });
    assert!(none.starts_with("none.safetensors: not found; looked for `scales`"), "{none}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_weights_are_read() {
    let job = request("a red apple", (64, 64), 1, 7);
    let lora = Request { prompt: "a red apple<lora:kohya:0.8>".into(), ..job.clone() };
    let int8 = Setup { compute: ComputeType::Int8, ..cpu() };
    for (setup, requests, budget, expected) in [
        (cpu(), vec![], 0.0, "`prompts` is empty"),
        (int8, vec![job.clone()], 0.0, "`compute` is int8"),
        (cpu(), vec![lora], 0.0, "`loras` is kohya"),
        (cpu(), vec![job.clone()], -1.0, "a number of dB from 0 to 100"),
        (cpu(), vec![job.clone()], f64::NAN, "a number of dB from 0 to 100"),
    ] {
        let message = calibrate(&tiny(), &setup, &requests, budget).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let model = ModelFolder::open(&tiny()).unwrap();
    let jobs = [job.resolve(&model).unwrap()];
    let mut stages = Vec::new();
    let stopped = Calibration::measure(model, &cpu(), &jobs, CalibrationLimits::default(), &mut |event| {
        stages.push(event.stage);
        if event.stage == CalibrationStage::Errors { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(kiln_engine::Error::Interrupted)));
    stages.dedup();
    assert_eq!(stages, [CalibrationStage::Load, CalibrationStage::Ranges, CalibrationStage::Errors]);
}
