//! Two hundred images in one process with mixed sizes and modes: memory after the last image is the same as after the
//! twentieth, and all of it is freed when the engines are dropped.

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
fn memory_after_two_hundred_images_equals_that_after_twenty() {
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
    let mut after_twenty = None;
    for i in 0..200 {
        // Ten different images, repeatedly.
        let (which, size) = (i % 10 % engines.len(), sizes[i % sizes.len()]);
        draw(&mut engines[which], size, i as u64);
        // Each engine has made several of them by then: what it makes once is there.
        if i == 19 {
            after_twenty = Some(HostPool::statistics());
        }
    }
    let (first, last) = (after_twenty.unwrap(), HostPool::statistics());
    println!(
        "after 20: {} used, {} kept; after 200: {} used, {} kept",
        first.used, first.reserved, last.used, last.reserved
    );
    let close = |a: usize, b: usize| a.abs_diff(b) as f64 <= 0.01 * a as f64;
    assert!(close(first.used, last.used), "{} bytes in use after 20 images, {} after 200", first.used, last.used);
    assert!(
        last.reserved as f64 <= 1.05 * first.peak_reserved as f64,
        "{} bytes kept, {} before",
        last.reserved,
        first.peak_reserved
    );
    drop(engines);
    let left = HostPool::statistics().used.saturating_sub(before);
    println!("{left} bytes left when the engines are gone");
    // Thread buffers and tables that libraries allocate once.
    assert!(left < 4 << 20, "{left} bytes are left of {}", last.used);
}
