//! The same picture in every mode of memory.

use std::ops::ControlFlow;
use std::path::Path;

use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, MemoryOptions, ModeChoice, ModelFolder, Picture, Request, Setup,
    VaeMemory,
};
use kiln_testkit::fixtures;

fn engine(model: &Path, dtype: DTypeChoice, memory: MemoryOptions) -> Engine {
    let setup = Setup { device: DeviceChoice::Cpu, dtype, memory, ..Setup::default() };
    Engine::load(ModelFolder::open(model).unwrap(), &setup, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The pixels of two batches of two pictures.
fn pictures(engine: &mut Engine) -> Vec<Vec<u8>> {
    let request = Request {
        prompt: "a red apple".into(),
        width: Some(72),
        height: Some(64),
        steps: Some(2),
        seed: Some(7),
        batch_count: Some(2),
        batch_size: Some(2),
        ..Request::default()
    };
    let job = request.resolve(engine.model()).unwrap();
    let mut pictures = Vec::new();
    let watch = &mut |event| {
        if let Event::Picture(picture) = event {
            let Picture { rgb, .. } = *picture;
            pictures.push(rgb);
        }
        Ok(ControlFlow::Continue(()))
    };
    engine.txt2img(&job, watch).unwrap();
    pictures
}

#[test]
fn modes_do_not_change_a_bit() {
    for model in ["models/sd1", "models/sdxl"] {
        for dtype in [DTypeChoice::F32, DTypeChoice::Bf16] {
            let with = |mode| engine(&fixtures(model), dtype, MemoryOptions { mode, ..MemoryOptions::default() });
            let expected = pictures(&mut with(ModeChoice::Full));
            assert_eq!(expected.len(), 4);
            for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
                let mut engine = with(mode);
                assert_eq!(pictures(&mut engine), expected, "{model} {dtype:?} {mode:?}");
                // Once more, from conditions that are known.
                assert_eq!(pictures(&mut engine), expected, "{model} {dtype:?} {mode:?}");
            }
            for tile_size in [8, 16, 40] {
                let vae = VaeMemory { tiling: true, tile_size: Some(tile_size) };
                let memory = MemoryOptions { mode: ModeChoice::Full, vae, ..MemoryOptions::default() };
                let found = pictures(&mut engine(&fixtures(model), dtype, memory));
                assert_eq!(found, expected, "{model} {dtype:?}, strips of {tile_size} rows");
            }
        }
    }
}
