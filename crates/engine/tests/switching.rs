//! Control networks, adapters, upscalers and LoRAs come and go in one engine. A separate test program, because memory is counted
//! for the whole process.

use std::path::Path;

use kiln_engine::{ControlType, ControlUse, Engine, HostPool, LoraName, LoraUse, Request, Setup};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_testkit::{TinyAdapter, TinyControl, TinyUnion, control_pixels, fixtures};

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The maximum bytes of all switches together in the pool, which serves requests of 32 KiB and more: less than one
/// request.
const IN_POOL: usize = 32 << 10;
/// The maximum bytes outside of the pool in pages: 100 switches that leak 20 KiB each in small allocations exceed it.
const RESIDENT: usize = 2 << 20;

/// Memory of this process in bytes, as reported by the kernel.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Requests that all need other networks than the one before.
fn requests(kind: &str, folder: &Path) -> Vec<Request> {
    let path = |name: &str| folder.join(name);
    let image = Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap();
    std::fs::write(path("control.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
    TinyControl::full(0).write(kind, &path("first"));
    TinyControl::full(1).write(kind, &path("second"));
    let adapter = TinyAdapter::new(if kind == "sdxl" { "full_xl" } else { "light" }, 0);
    adapter.write(&path("adapter"));
    TinyUnion.write("sdxl", &path("union"));
    let control = |net: &str| ControlUse { image: Some(path("control.png")), ..ControlUse::new(path(net)) };
    let union = ControlUse { kind: Some(ControlType::Depth), ..control("union") };
    let third = if kind == "sdxl" { union } else { control("second") };
    let lora = LoraUse { lora: LoraName::Named("kohya".into()), text: 0.8, unet: 0.8 };
    let base = || support::request("a pear", (64, 64), 1, 7);
    let upscaled = |file: &str| Request {
        hires_scale: Some(1.5),
        steps: Some(2),
        hires_strength: Some(0.9),
        hires_upscaler: Some(fixtures("upscale").join(file).display().to_string().parse().unwrap()),
        ..base()
    };
    vec![
        Request { controls: vec![control("first")], loras: vec![lora], ..base() },
        Request { controls: vec![control("adapter")], ..base() },
        upscaled("compact_x4.safetensors"),
        Request { controls: vec![third, control("adapter"), control("first")], ..base() },
        upscaled("basicsr_x4.safetensors"),
        base(),
    ]
}

fn draw(engine: &mut Engine, request: &Request) -> Vec<u8> {
    support::pixels(engine, request).remove(0)
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
fn a_hundred_switches_leave_memory_and_bits_as_they_were() {
    for kind in ["sd1", "sdxl"] {
        let folder = tempfile::tempdir().unwrap();
        let requests = requests(kind, folder.path());
        // One thread: with several, one may allocate its buffer at any switch.
        let lora_dir = Some(fixtures(&format!("lora/{kind}")));
        let mut engine = support::tiny(kind, &Setup { lora_dir, threads: Some(1), ..support::cpu() });
        let first: Vec<Vec<u8>> = requests.iter().map(|request| draw(&mut engine, request)).collect();
        // What was there before is none of it.
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]));
        (0..2).for_each(|_| requests.iter().for_each(|request| assert!(!draw(&mut engine, request).is_empty())));
        let (used, before) = (HostPool::statistics().used, resident());
        for i in 0..100 {
            let number = i % requests.len();
            assert!(draw(&mut engine, &requests[number]) == first[number], "{kind} image {i}");
        }
        // As before: after the last of the requests.
        for request in &requests[100 % requests.len()..] {
            draw(&mut engine, request);
        }
        let (used_after, after) = (HostPool::statistics().used, resident());
        println!("{kind}: in use {used} bytes, after 100 switches {used_after}; resident {before}, then {after}");
        assert!(used_after < used + IN_POOL, "{kind}: {used} bytes in use before, {used_after} after");
        assert!(after < before + RESIDENT, "{kind}: {before} bytes resident before, {after} after");
    }
}
