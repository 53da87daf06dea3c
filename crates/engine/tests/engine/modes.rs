//! The image is the same in every memory mode.

use kiln_engine::{DTypeChoice, Engine, MemoryOptions, ModeChoice, Request, Setup, VaeMemory};

use crate::support::{cpu, pixels, request, tiny};

fn engine(model: &str, dtype: DTypeChoice, memory: MemoryOptions) -> Engine {
    tiny(model, &Setup { dtype, memory, ..cpu() })
}

/// The pixels of two batches of two images.
fn images(engine: &mut Engine) -> Vec<Vec<u8>> {
    let two_batches = Request { batch_count: Some(2), batch_size: Some(2), ..request("a red apple", (72, 64), 2, 7) };
    pixels(engine, &two_batches)
}

#[test]
fn modes_do_not_change_a_bit() {
    for model in ["sd1", "sdxl"] {
        for dtype in [DTypeChoice::F32, DTypeChoice::Bf16] {
            let with = |mode| engine(model, dtype, MemoryOptions { mode, ..MemoryOptions::default() });
            let expected = images(&mut with(ModeChoice::Full));
            assert_eq!(expected.len(), 4);
            for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
                let mut engine = with(mode);
                assert_eq!(images(&mut engine), expected, "{model} {dtype:?} {mode:?}");
                // Again, with cached embeddings.
                assert_eq!(images(&mut engine), expected, "{model} {dtype:?} {mode:?}");
            }
            for tile_size in [8, 16, 40] {
                let vae = VaeMemory { tiling: true, tile_size: Some(tile_size) };
                let memory = MemoryOptions { mode: ModeChoice::Full, vae, ..MemoryOptions::default() };
                let found = images(&mut engine(model, dtype, memory));
                assert_eq!(found, expected, "{model} {dtype:?}, strips of {tile_size} rows");
            }
        }
    }
}
