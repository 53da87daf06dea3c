//! The memory of tilings: predictions compared with the host pool's counters.
#![allow(missing_docs)]

use candle_core::{DType, Device, Tensor};
use kiln_mempool::HostPool;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_vae::{Decoder, Encoder, Target, Tiling, VaeConfig};
use kiln_weights::{Placement, RandomSource, Segments, load};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

const CONFIG: &str = r#"{"block_out_channels": [32, 64, 96], "layers_per_block": 1, "norm_num_groups": 16,
    "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
    "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]}"#;

const FRAMES: &str = r#"{"_class_name": "AutoencoderKLQwenImage", "base_dim": 32, "z_dim": 4, "dim_mult": [1, 2, 3],
    "num_res_blocks": 1, "latents_mean": [0, 0, 0, 0], "latents_std": [1, 1, 1, 1]}"#;

fn fill(segments: &Segments, dtype: DType) {
    load(segments, &RandomSource::new(segments, 1), &Placement::new(Device::Cpu, dtype)).unwrap();
}

/// The peak of `run`'s memory in bytes above the level before. A thread without an earlier task allocates its buffer in
/// the first run, so the minimum of several runs is used.
fn measured<T>(run: impl Fn() -> T) -> f64 {
    let once = || {
        HostPool::reset_peaks();
        let before = HostPool::statistics().used;
        drop(run());
        HostPool::statistics().peak_used - before
    };
    (0..5).map(|_| once()).min().unwrap_or(0) as f64
}

/// The predicted peak of a dry run after the threads' buffers were allocated.
fn predicted(input: &Tensor, run: impl Fn(&MetaTensor)) -> f64 {
    let dry = MetaDevice::new(Target::of(&Device::Cpu), input.dtype());
    let input = dry.tensor(input.dims(), input.dtype());
    run(&input);
    dry.ledger().reset_peak();
    let before = dry.ledger().now();
    run(&input);
    (dry.ledger().peak() - before) as f64
}

/// Buffers below the pool's limit come from the system allocator, and are not counted.
const SMALL: f64 = 100e3;

/// There is one test, because the counters belong to the process.
#[test]
fn the_memory_of_a_tiling_is_as_predicted() {
    [CONFIG, FRAMES].iter().for_each(|config| check(config));
}

fn check(config: &str) {
    let config = VaeConfig::from_json(config).unwrap();
    let (decoder, encoder) = (Decoder::new(&config), Encoder::new(&config));
    for dtype in [DType::F32, DType::BF16] {
        fill(decoder.segments(), dtype);
        fill(encoder.segments(), dtype);
        let strips = [64, 16].map(|rows| [false, true].map(|recompute| Tiling::Strips { rows, recompute })).concat();
        for tiling in [vec![Tiling::Whole, Tiling::Sliced], strips].concat() {
            let (b, h, w) = (2, 32, 24);
            let f = config.downscale();
            let latents = Tensor::zeros((b, 4, h, w), dtype, &Device::Cpu).unwrap();
            let image = Tensor::zeros((b, 3, f * h, f * w), dtype, &Device::Cpu).unwrap();
            let [decoded, encoded] = [
                (
                    predicted(&latents, |latents| drop(decoder.decode_with(latents, tiling).unwrap())),
                    measured(|| decoder.decode_with(&latents, tiling).unwrap()),
                ),
                (
                    predicted(&image, |image| drop(encoder.encode_with(image, tiling).unwrap())),
                    measured(|| encoder.encode_with(&image, tiling).unwrap()),
                ),
            ];
            for (what, (predicted, measured)) in [("decode", decoded), ("encode", encoded)] {
                let ratio = predicted / measured;
                println!("{what} {dtype:?} {tiling:?}: predicted {predicted}, measured {measured}, ratio {ratio:.3}");
                assert!((predicted - measured).abs() <= 0.02 * measured + SMALL, "{what} {dtype:?} {tiling:?}");
            }
        }
    }
}
