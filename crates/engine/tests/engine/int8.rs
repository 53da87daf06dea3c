//! Products in 8-bit integers: images that are close to those in f32, the same bits in every memory mode and batch, and
//! half of the memory.

use std::ops::ControlFlow;

use kiln_compare::psnr;
use kiln_engine::{ComputeType, DTypeChoice, DeviceChoice, Engine, MemoryOptions, ModeChoice, ModelFolder, Setup};
use kiln_testkit::{fixtures, repository};

use crate::support::{bits, images, pixels, request, tiny};

fn setup(dtype: DTypeChoice, compute: ComputeType, mode: ModeChoice) -> Setup {
    let memory = MemoryOptions { mode, ..MemoryOptions::default() };
    Setup { device: DeviceChoice::Cpu, dtype, compute, memory, ..Setup::default() }
}

fn engine(setup: &Setup) -> Engine {
    let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
    Engine::load(model, setup, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The same prompts with 8 steps, in f32 and in 8 bits.
#[test]
fn images_are_close_to_those_in_f32() {
    let prompts = ["a red apple", "a smiling cat", "a house with a tree"];
    let draw = |compute| {
        let mut engine = engine(&setup(DTypeChoice::F32, compute, ModeChoice::Full));
        prompts.map(|prompt| images(&mut engine, &request(prompt, (256, 256), 8, 7)).remove(0).rgb)
    };
    let (found, expected) = (draw(ComputeType::Int8), draw(ComputeType::Native));
    for (prompt, (found, expected)) in prompts.iter().zip(found.iter().zip(&expected)) {
        let psnr = psnr(found, expected).unwrap();
        assert!(psnr > 35.0 && psnr < 80.0, "{prompt}: {psnr} dB");
    }
}

#[test]
fn memory_modes_and_batches_have_the_same_bits() {
    let bits = |mode, count: usize| -> Vec<Vec<u32>> {
        let mut engine = engine(&setup(DTypeChoice::Bf16, ComputeType::Int8, mode));
        let mut request = request("a red apple", (64, 64), 2, 7);
        request.batch_size = Some(count);
        images(&mut engine, &request).chunks(1).map(bits).collect()
    };
    let whole = bits(ModeChoice::Full, 1);
    assert_eq!(bits(ModeChoice::Lowvram, 1), whole);
    assert_eq!(bits(ModeChoice::Medvram, 1), whole);
    assert_eq!(bits(ModeChoice::Full, 3)[0], whole[0]);
}

/// A LoRA is added to the weights of the checkpoint, which are rounded then, in every memory mode.
#[test]
fn loras_act_and_are_removed_exactly() {
    let engine = |compute, mode| {
        let setup = setup(DTypeChoice::F32, compute, mode);
        tiny("sd1", &Setup { lora_dir: Some(fixtures("lora/sd1")), ..setup })
    };
    let draw = |engine: &mut Engine, prompt: &str| pixels(engine, &request(prompt, (64, 64), 2, 7)).remove(0);
    let (plain, changed) = ("a red apple", "a red apple<lora:kohya:0.8>");
    let mut native = engine(ComputeType::Native, ModeChoice::Full);
    let (native_plain, native_changed) = (draw(&mut native, plain), draw(&mut native, changed));
    let mut int8 = engine(ComputeType::Int8, ModeChoice::Full);
    let (expected, with) = (draw(&mut int8, plain), draw(&mut int8, changed));
    assert!(psnr(&with, &native_changed).unwrap() > psnr(&with, &native_plain).unwrap() + 3.0);
    assert!(draw(&mut int8, plain) == expected, "it is removed");
    assert!(draw(&mut engine(ComputeType::Int8, ModeChoice::Lowvram), changed) == with);
}
