//! Images with weights that are mapped from the folder of packed weights have the bits of those without, in every type and
//! memory mode, and with LoRAs. The program has Kiln's allocator, so that files are mapped and not copied.

use kiln_engine::{ComputeType, DTypeChoice, HostPool, MemoryOptions, ModeChoice, Setup};
use kiln_testkit::{fixtures, repository};

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

fn draw(setup: &Setup) -> Vec<u32> {
    let mut engine = support::load(&repository().join("models/emoji"), setup);
    support::bits(&support::images(&mut engine, &support::request("a red apple", (64, 64), 1, 7)))
}

#[test]
fn mapped_weights_make_the_same_images() {
    let used = HostPool::statistics().used;
    let folder = tempfile::tempdir().unwrap();
    for (dtype, compute) in [
        (DTypeChoice::F32, ComputeType::Native),
        (DTypeChoice::F16, ComputeType::Native),
        (DTypeChoice::Bf16, ComputeType::Native),
        (DTypeChoice::Bf16, ComputeType::Int8),
    ] {
        let plain = Setup { dtype, compute, ..support::cpu() };
        let expected = draw(&plain);
        for mode in [ModeChoice::Full, ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
            let memory = MemoryOptions { mode, ..MemoryOptions::default() };
            let cached = Setup { memory, weight_cache: Some(folder.path().into()), ..plain.clone() };
            assert!(draw(&cached) == expected, "{dtype:?}, {compute:?}, {mode:?}");
        }
    }
    assert!(HostPool::statistics().used < used + (16 << 20), "mapped weights are freed");
}

/// A LoRA changes the weights of some segments after they were mapped, and its removal brings the files' back.
#[test]
fn loras_change_mapped_weights() {
    let folder = tempfile::tempdir().unwrap();
    let plain = Setup { lora_dir: Some(fixtures("lora/sd1")), ..support::cpu() };
    let cached = Setup { weight_cache: Some(folder.path().into()), ..plain.clone() };
    let request = |prompt: &str| support::request(prompt, (64, 64), 1, 7);
    let requests = [request("a red apple"), request("a red apple<lora:kohya:0.8>"), request("a red apple")];
    let all = |setup: &Setup| {
        let mut engine = support::tiny("sd1", setup);
        requests.each_ref().map(|request| support::bits(&support::images(&mut engine, request)))
    };
    let expected = all(&plain);
    assert!(expected[0] != expected[1] && expected[0] == expected[2]);
    for _ in 0..2 {
        assert!(all(&cached) == expected);
    }
}
