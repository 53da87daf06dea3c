//! LoRAs are switched in place. A test program of its own: memory is counted for the whole process.

use std::ops::ControlFlow;

use kiln_engine::{DTypeChoice, DeviceChoice, Engine, LoraName, LoraUse, ModelFolder, Setup};
use kiln_testkit::fixtures;

/// Memory of this process in bytes, as the kernel counts it.
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<usize>().ok()? * 4096)
}

#[test]
fn a_hundred_switches_take_no_more_memory() {
    let lora_dir = Some(fixtures("lora/sd1"));
    let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, lora_dir, ..Setup::default() };
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let mut engine = Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap();
    let named = |name: &str| LoraUse { lora: LoraName::Named(name.into()), text: 0.8, unet: 0.8 };
    let sets = [vec![named("kohya")], vec![named("loha"), named("oft")], vec![], vec![named("boft")]];
    let mut switch = |times: usize| (0..times).for_each(|i| engine.set_loras(&sets[i % sets.len()]).unwrap());
    switch(20);
    let Some(before) = resident() else { return };
    switch(100);
    let after = resident().unwrap();
    println!("resident: {before} bytes, after 100 switches {after}");
    // The tiny model's weights are about 2 MB in f32: a leak of one segment a switch would be more than this.
    assert!(after < before + (4 << 20), "{before} bytes before, {after} after");
}
