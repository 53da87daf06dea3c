//! The memory of a run: predicted against the host pool's own count.
#![allow(missing_docs)]

use candle_core::{DType, Device, Tensor};
use kiln_mempool::HostPool;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_upscale::{Compact, CompactActivation, CompactConfig, Rrdb, RrdbConfig, StripRows, Target};
use kiln_weights::{Placement, RandomSource, Segments, load};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// Height and width of the image.
const SIZE: [usize; 2] = [64, 56];
/// Buffers under the pool's limit, the system's, are not counted.
const SMALL: f64 = 100e3;

fn fill(segments: &Segments, dtype: DType) {
    load(segments, &RandomSource::new(segments, 1), &Placement::new(Device::Cpu, dtype)).unwrap();
}

/// Bytes that `run` has at most beyond what there was before; the least of some runs, since a thread that had no such task
/// before gets its buffer in any of them.
fn measured<T>(run: impl Fn() -> T) -> f64 {
    let once = || {
        HostPool::reset_peaks();
        let before = HostPool::statistics().used;
        drop(run());
        HostPool::statistics().peak_used - before
    };
    (0..4).map(|_| once()).min().unwrap_or(0) as f64
}

/// The same of a dry run, once the buffer that a thread keeps is there.
fn predicted(dtype: DType, run: impl Fn(&MetaTensor)) -> f64 {
    let dry = MetaDevice::new(Target::of(&Device::Cpu), dtype);
    let input = dry.tensor(&[1, 3, SIZE[0], SIZE[1]], dtype);
    run(&input);
    dry.ledger().reset_peak();
    let before = dry.ledger().now();
    run(&input);
    (dry.ledger().peak() - before) as f64
}

/// One test: the counters are the process's.
#[test]
fn a_run_takes_the_memory_that_is_planned() {
    let rrdb =
        RrdbConfig { in_channels: 3, out_channels: 3, features: 64, growth: 32, blocks: 1, upsamples: 2, unshuffle: 1 };
    let activation = CompactActivation::PRelu;
    let compact = CompactConfig { channels: 3, features: 32, convolutions: 4, scale: 3, activation };
    let (rrdb, compact) = (Rrdb::new(&rrdb), Compact::new(&compact));
    for dtype in [DType::F32, DType::BF16] {
        fill(rrdb.segments(), dtype);
        fill(compact.segments(), dtype);
        let image = Tensor::zeros((1, 3, SIZE[0], SIZE[1]), dtype, &Device::Cpu).unwrap();
        for strips in [StripRows::Whole, StripRows::Rows(16), StripRows::Rows(4)] {
            let pairs = [
                (
                    "RRDBNet",
                    predicted(dtype, |image| drop(rrdb.forward(image, strips).unwrap())),
                    measured(|| rrdb.forward(&image, strips).unwrap()),
                ),
                (
                    "SRVGGNetCompact",
                    predicted(dtype, |image| drop(compact.forward(image, strips).unwrap())),
                    measured(|| compact.forward(&image, strips).unwrap()),
                ),
            ];
            for (network, predicted, measured) in pairs {
                println!("{network} {dtype:?} {strips:?}: predicted {predicted}, measured {measured}");
                assert!((predicted - measured).abs() <= 0.02 * measured + SMALL, "{network} {dtype:?} {strips:?}");
            }
        }
    }
}
