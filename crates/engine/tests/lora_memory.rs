//! LoRAs are replaced in place. A separate test program, because memory is counted for the whole process.

use kiln_engine::{HostPool, LoraName, LoraUse, Setup};
use kiln_testkit::fixtures;

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The maximum bytes of all switches together in the pool, which serves requests of 32 KiB and more: less than one
/// request.
const IN_POOL: usize = 32 << 10;
/// The maximum bytes outside of the pool in pages: 100 switches that leak 10 KiB each in small allocations exceed it.
const RESIDENT: usize = 1 << 20;

/// Memory of this process in bytes, as reported by the kernel.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
fn a_hundred_switches_need_no_additional_memory() {
    // One thread: with several, one may allocate its buffer at any switch.
    let setup = Setup { lora_dir: Some(fixtures("lora/sd1")), threads: Some(1), ..support::cpu() };
    let mut engine = support::tiny("sd1", &setup);
    let named = |name: &str| LoraUse { lora: LoraName::Named(name.into()), text: 0.8, unet: 0.8 };
    let sets = [vec![named("kohya")], vec![named("loha"), named("oft")], vec![], vec![named("boft")]];
    let mut switch = |times: usize| (0..times).for_each(|i| engine.set_loras(&sets[i % sets.len()]).unwrap());
    switch(20);
    let (used, before) = (HostPool::statistics().used, resident());
    assert!(used > 1 << 20, "{used} bytes: the pool does not serve the weights");
    switch(100);
    let (used_after, after) = (HostPool::statistics().used, resident());
    println!("in use: {used} bytes, after 100 switches {used_after}; resident: {before}, then {after}");
    assert!(used_after < used + IN_POOL, "{used} bytes in use before, {used_after} after");
    assert!(after < before + RESIDENT, "{before} bytes resident before, {after} after");
}
