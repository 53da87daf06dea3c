//! Whole images on a GPU by Vulkan, Metal or DirectX 12, compared with those of the CPU. Mesa's lavapipe is such a GPU for tests.

use std::ops::ControlFlow;
use std::path::Path;

use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, ExecutionTarget, MemoryOptions, Mode, ModeChoice, ModelFolder, Planner,
    PortableDevice, Request, Result, Setup, Workload,
};
use kiln_testkit::{deviation, fixtures, repository};

use crate::stored_types::{FORMATS, packed_and_plain};
use crate::support::{bits, cpu, images, latents, load, request, tiny};

/// The first GPU.
pub fn gpu(dtype: DTypeChoice, mode: ModeChoice) -> Setup {
    let device = DeviceChoice::Portable(PortableDevice { api: None, number: 0 });
    Setup { device, dtype, memory: MemoryOptions { mode, ..MemoryOptions::default() }, ..Setup::default() }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_draws_what_the_cpu_draws() {
    for (kind, size) in [("sd1", (64, 64)), ("sd2v", (64, 64)), ("sdxl", (64, 96)), ("tiny-dit", (64, 64))] {
        let request = request("a photo of a cat", size, 3, 11);
        let expected = images(&mut tiny(kind, &cpu()), &request);
        for (dtype, bound) in [(DTypeChoice::F32, 1e-4), (DTypeChoice::F16, 3e-2)] {
            let mut engine = tiny(kind, &gpu(dtype, ModeChoice::Full));
            let found = images(&mut engine, &request);
            let error = deviation(&latents(&found), &latents(&expected)).error;
            println!("{kind} {dtype:?}: {error:.1e}");
            assert!(error < bound, "{kind} in {dtype:?}: {error:e} standard deviations");
            assert_eq!(bits(&images(&mut engine, &request)), bits(&found), "{kind}: a second run differs");
            let level = found[0].rgb.iter().zip(&expected[0].rgb).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(level <= Some(if dtype == DTypeChoice::F32 { 1 } else { 12 }), "{kind} in {dtype:?}: {level:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_has_the_same_bits_in_every_memory_mode() {
    let request = request("a photo of a cat", (64, 64), 2, 5);
    let draw = |mode| bits(&images(&mut tiny("sd1", &gpu(DTypeChoice::F16, mode)), &request));
    let expected = draw(ModeChoice::Full);
    for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
        assert_eq!(draw(mode), expected, "{mode:?}");
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_begins_with_an_image() {
    let init = fixtures("inpaint/image.png");
    let request = Request { init: Some(init), strength: Some(0.6), ..request("a pear", (64, 64), 4, 7) };
    let expected = images(&mut tiny("sd1", &cpu()), &request);
    let found = images(&mut tiny("sd1", &gpu(DTypeChoice::F32, ModeChoice::Full)), &request);
    let error = deviation(&latents(&found), &latents(&expected)).error;
    assert!(error < 1e-4, "{error:e} standard deviations");
}

/// Options by which a network looks at its own tokens.
#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_guides_by_attention_and_skips_blocks() {
    let plain =
        |steps, side| Request { negative_prompt: Some("blue".into()), ..request("a rocket", (side, side), steps, 7) };
    let by_attention = Request { sag_scale: Some(2.0), ..plain(3, 128) };
    let skips = Request { block_cache: Some(0.3), ..plain(12, 64) };
    let predicts = Request { block_cache_predict: true, ..skips.clone() };
    let [unet, transformer] = [fixtures("models/sd1"), repository().join("models/emoji-sd3")];
    for (folder, changed) in [(&unet, by_attention), (&transformer, skips), (&transformer, predicts)] {
        let name = folder.display();
        let mut engines = [cpu(), gpu(DTypeChoice::F32, ModeChoice::Full)].map(|setup| load(folder, &setup));
        let [expected, found] = engines.each_mut().map(|engine| latents(&images(engine, &changed)));
        let error = deviation(&found, &expected).error;
        let without = Request { sag_scale: None, block_cache: None, block_cache_predict: false, ..changed };
        let difference = deviation(&latents(&images(&mut engines[0], &without)), &expected).error;
        println!("{name}: {error:.1e}, {difference:.1e} without the option");
        assert!(error < 1e-3 && difference > 20.0 * error, "{name}: {error:e} and {difference:e} standard deviations");
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_draws_the_small_model() {
    let folder = repository().join("models/emoji");
    let request = request("a red apple", (128, 128), 4, 42);
    let expected = images(&mut load(&folder, &cpu()), &request);
    let found = images(&mut load(&folder, &gpu(DTypeChoice::F32, ModeChoice::Full)), &request);
    let psnr = kiln_compare::psnr(&found[0].rgb, &expected[0].rgb).unwrap();
    println!("{psnr:.1} dB");
    assert!(psnr > 70.0, "{psnr} dB");
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_refuses_what_it_does_not_compute_with() {
    let refused = |setup: Setup| crate::support::try_load(&fixtures("models/sd1"), &setup).err().unwrap().to_string();
    let message = refused(gpu(DTypeChoice::Bf16, ModeChoice::Full));
    assert!(message.contains("`dtype`") && message.contains("has no bf16"), "{message}");
    let compute = Setup { compute: "int8".parse().unwrap(), ..gpu(DTypeChoice::F16, ModeChoice::Full) };
    let message = refused(compute);
    assert!(message.contains("`compute`"), "{message}");
}

/// Draws with a model's matrices in a type on the CPU in f32 and on the GPU in f32 and f16, and compares; the memory modes bit by bit.
fn compare_stored(name: &str, folder: &Path, weight_type: &str) {
    let weights = |setup: Setup| Setup { weight_type: weight_type.parse().unwrap(), ..setup };
    let request = request("a red apple", (64, 64), 2, 7);
    let draw = |setup: &Setup| images(&mut load(folder, setup), &request);
    let expected = draw(&weights(cpu()));
    for (dtype, bound) in [(DTypeChoice::F32, 1e-4), (DTypeChoice::F16, 5e-2)] {
        let found = draw(&weights(gpu(dtype, ModeChoice::Full)));
        let error = deviation(&latents(&found), &latents(&expected)).error;
        println!("{name} {dtype:?}: {error:.1e}");
        assert!(error < bound, "{name} in {dtype:?}: {error:e} standard deviations");
        for mode in [ModeChoice::Medvram, ModeChoice::Lowvram].into_iter().filter(|_| dtype == DTypeChoice::F16) {
            assert_eq!(bits(&draw(&weights(gpu(dtype, mode)))), bits(&found), "{name} {mode:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_keeps_matrices_in_types_of_their_own() {
    let emoji = repository().join("models/emoji");
    let plain = latents(&images(&mut load(&emoji, &cpu()), &request("a red apple", (64, 64), 2, 7)));
    for weight_type in ["q8_0", "f8", "q4_0", "q6_k"] {
        compare_stored(weight_type, &emoji, weight_type);
        let setup = Setup { weight_type: weight_type.parse().unwrap(), ..gpu(DTypeChoice::F32, ModeChoice::Full) };
        let found = latents(&images(&mut load(&emoji, &setup), &request("a red apple", (64, 64), 2, 7)));
        let error = deviation(&found, &plain).error;
        assert!(error > 1e-3, "{weight_type} is ignored: {error:e}");
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_keeps_matrices_as_files_store_them() {
    for format in FORMATS {
        let (packed, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        packed_and_plain(format, packed.path(), plain.path());
        compare_stored(&format!("{format:?}"), packed.path(), "auto");
    }
}

/// The bits of the latents, and how often the engine went on with less of the model in memory.
fn draw_in(engine: &mut Engine, request: &Request) -> Result<(Vec<u32>, usize)> {
    let job = request.resolve(engine.model())?;
    let (mut found, mut smaller) = (Vec::new(), 0);
    engine.txt2img(&job, &mut |event| {
        match event {
            Event::Image(image) => found.push(*image),
            Event::Smaller { .. } => smaller += 1,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((bits(&found), smaller))
}

#[test]
#[ignore = "needs a GPU with Vulkan, or Mesa's lavapipe"]
fn vulkan_plans_hold_and_without_memory_a_smaller_mode_runs() {
    let full: Vec<usize> = ["auto", "q8_0"].into_iter().map(plans_hold).collect();
    assert!(full[1] < full[0], "{full:?}: stored matrices take no less");
}

/// Checks the plans of all modes with matrices in a type. Returns the bytes of the plan that has all in memory.
fn plans_hold(weight_type: &str) -> usize {
    // Not the device of the other tests, which run at the same time.
    let device: PortableDevice = "vulkan:0".parse().unwrap();
    let weight_type = weight_type.parse().unwrap();
    let setup = |mode| Setup { device: DeviceChoice::Portable(device), weight_type, ..gpu(DTypeChoice::F32, mode) };
    let folder = repository().join("models/emoji");
    let request = request("a red apple", (192, 192), 1, 42);
    let opened = device.open(None).unwrap().backend();
    let mut full = load(&folder, &setup(ModeChoice::Full));
    let (expected, _) = draw_in(&mut full, &request).unwrap();
    let model = ModelFolder::open(&folder).unwrap();
    let (planner, work) = (Planner::new(&model, None).unwrap(), Workload::of(&request.resolve(&model).unwrap()));
    let on = ExecutionTarget::of(&setup(ModeChoice::Full)).0;
    let peak = |mode| planner.plan(mode, &work, on, None).unwrap().peak();
    let peaks = [Mode::Full, Mode::Medvram, Mode::LOWVRAM].map(peak);
    println!("planned: {peaks:?}");
    assert!(peaks[2] < peaks[1] && peaks[1] < peaks[0], "{peaks:?}");
    drop(full);
    // A plan is as large as its run.
    for (mode, peak) in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram].into_iter().zip(peaks) {
        let mut engine = load(&folder, &setup(mode));
        opened.set_limit(Some((peak + peak / 16) as u64));
        let (found, smaller) = draw_in(&mut engine, &request).unwrap();
        assert!(found == expected && smaller == 0, "{mode:?}: {smaller} times in a smaller mode");
    }
    let mut engine = load(&folder, &setup(ModeChoice::Full));
    opened.set_limit(Some((peaks[0] / 8 * 7) as u64));
    let (found, smaller) = draw_in(&mut engine, &request).unwrap();
    assert!(found == expected && smaller > 0, "{smaller} times in a smaller mode");
    opened.set_limit(Some(1 << 20));
    let error = draw_in(&mut engine, &request).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    opened.set_limit(None);
    peaks[0]
}
