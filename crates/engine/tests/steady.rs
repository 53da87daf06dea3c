//! Two hundred images in one process with mixed sizes and modes: memory after the last image is the same as after the
//! tenth, and all of it is freed when the engines are dropped.

use kiln_engine::{ByteSize, Engine, HostPool, MemoryOptions, ModeChoice, Setup, VaeMemory};

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

fn engine(memory: MemoryOptions) -> Engine {
    // One thread: with several, one may run its first large task, and allocate its buffer, at any image.
    support::tiny("sd1", &Setup { threads: Some(1), memory, ..support::cpu() })
}

fn draw(engine: &mut Engine, size: (usize, usize), seed: u64) {
    let request = support::request(&format!("image {}", seed % 3), size, 1, seed);
    assert_eq!(support::images(engine, &request).len(), 1);
}

#[test]
fn memory_after_two_hundred_images_equals_that_after_ten() {
    let before = HostPool::statistics().used;
    let mode = |mode| MemoryOptions { mode, ..MemoryOptions::default() };
    let vae = VaeMemory { tiling: true, tile_size: Some(16) };
    let mut engines = [
        engine(mode(ModeChoice::Full)),
        engine(mode(ModeChoice::Medvram)),
        engine(mode(ModeChoice::Lowvram)),
        engine(MemoryOptions { vae, budget: Some(ByteSize(64 << 20)), ..MemoryOptions::default() }),
    ];
    let sizes = [(32, 32), (64, 32), (40, 72), (64, 64), (96, 48)];
    let mut after_ten = None;
    for i in 0..200 {
        // Ten different images, repeatedly.
        let (which, size) = (i % 10 % engines.len(), sizes[i % sizes.len()]);
        draw(&mut engines[which], size, i as u64);
        if i == 9 {
            after_ten = Some(HostPool::statistics());
        }
    }
    let (ten, last) = (after_ten.unwrap(), HostPool::statistics());
    println!(
        "after 10: {} used, {} kept; after 200: {} used, {} kept",
        ten.used, ten.reserved, last.used, last.reserved
    );
    let close = |a: usize, b: usize| a.abs_diff(b) as f64 <= 0.01 * a as f64;
    assert!(close(ten.used, last.used), "{} bytes in use after 10 images, {} after 200", ten.used, last.used);
    assert!(
        last.reserved as f64 <= 1.05 * ten.peak_reserved as f64,
        "{} bytes kept, {} before",
        last.reserved,
        ten.peak_reserved
    );
    drop(engines);
    let left = HostPool::statistics().used.saturating_sub(before);
    println!("{left} bytes left when the engines are gone");
    // Thread buffers and tables that libraries allocate once.
    assert!(left < 4 << 20, "{left} bytes are left of {}", last.used);
}
