//! Products in 8 bits on a GPU: images that are close to those in f16, from the same latents in every memory mode. Recorded text
//! encoders: images with the same bits as before they are recorded. And several engines on one GPU, which do not disturb each other.

use std::ops::ControlFlow;

use kiln_compare::psnr;
use kiln_engine::{ComputeType, DTypeChoice, DeviceChoice, Engine, MemoryOptions, ModeChoice, ModelFolder, Setup};
use kiln_testkit::repository;

mod support;

const PROMPTS: [&str; 7] =
    ["a red apple", "a smiling cat", "a house with a tree", "a dog", "a rocket", "a slice of pizza", "a yellow flower"];

/// The pixels and the latents of an image of each prompt.
fn draw(compute: ComputeType, mode: ModeChoice) -> Vec<(Vec<u8>, Vec<f32>)> {
    let memory = MemoryOptions { mode, ..MemoryOptions::default() };
    let setup = Setup { device: DeviceChoice::Cuda(0), dtype: DTypeChoice::F16, compute, memory, ..Setup::default() };
    let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
    let mut engine = Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut image = |prompt| {
        let image = support::images(&mut engine, &support::request(prompt, (256, 256), 8, 7)).remove(0);
        let (latents, _) = image.latents().unwrap();
        (image.rgb, latents)
    };
    PROMPTS.into_iter().map(&mut image).collect()
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn products_in_8_bits_are_close_to_those_in_f16() {
    let expected = draw(ComputeType::Native, ModeChoice::Full);
    for compute in [ComputeType::Int8, ComputeType::Fp8] {
        let found = draw(compute, ModeChoice::Full);
        let pairs = found.iter().zip(&expected);
        let mut ratios: Vec<f64> = pairs.map(|((found, _), (expected, _))| psnr(found, expected).unwrap()).collect();
        println!("{compute}: {ratios:.1?} dB");
        assert!(ratios.iter().all(|ratio| *ratio < 80.0), "{compute} is not in use: {ratios:.1?} dB");
        // The median, because the composition of some images changes with small differences (docs/compute.md).
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[PROMPTS.len() / 2] > 40.0, "{compute}: {ratios:.1?} dB");
        assert!(draw(compute, ModeChoice::Medvram) == found, "{compute}");
        for ((pixels, latents), (expected, whole)) in draw(compute, ModeChoice::Lowvram).iter().zip(&found) {
            assert!(latents == whole, "{compute}");
            // It decodes in strips, whose convolutions have other sizes (docs/memory.md).
            let worst = pixels.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(worst.is_some_and(|worst| worst <= 1), "{compute}: {worst:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn recorded_text_encoders_have_the_same_bits() {
    let prompts = ["a red apple", "a smiling cat", "a house with a tree", "a dog", "a rocket", "a (pear:1.2)"];
    let draw = |prompts: &mut dyn Iterator<Item = &'static str>| -> Vec<Vec<u8>> {
        let setup = Setup { device: DeviceChoice::Cuda(0), dtype: DTypeChoice::F16, ..Setup::default() };
        let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
        let mut engine = Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap();
        let image = |prompt| support::images(&mut engine, &support::request(prompt, (256, 256), 4, 7)).remove(0).rgb;
        prompts.map(image).collect()
    };
    // The first texts are launched kernel by kernel, the last ones are replayed.
    let forward = draw(&mut prompts.into_iter());
    let mut backward = draw(&mut prompts.into_iter().rev());
    backward.reverse();
    assert!(forward == backward);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn engines_on_one_gpu_have_the_same_bits_as_one_alone() {
    let load = || {
        let setup = Setup { device: DeviceChoice::Cuda(0), dtype: DTypeChoice::F16, ..Setup::default() };
        support::load(&repository().join("models/emoji"), &setup)
    };
    let draw = |engine: &mut Engine| {
        PROMPTS.map(|prompt| support::images(engine, &support::request(prompt, (256, 256), 4, 7)).remove(0).rgb)
    };
    let (mut first, mut second) = (load(), load());
    let expected = draw(&mut first);
    // The second one records its steps and its text encoders while the first one computes.
    let found = std::thread::scope(|scope| {
        let other = scope.spawn(|| draw(&mut second));
        [draw(&mut first), other.join().unwrap()]
    });
    assert!(found.iter().all(|images| *images == expected));
    drop(second);
    assert!(draw(&mut first) == expected, "after the other engine was dropped");
}
