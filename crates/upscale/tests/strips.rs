//! Strips, batches and streamed weights: the same bits on the CPU.
#![allow(missing_docs)]

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_mempool::HostPool;
use kiln_nn::MetaDevice;
use kiln_testkit::Target;
use kiln_upscale::{Compact, CompactActivation, CompactConfig, Rrdb, RrdbConfig, StripRows, Target as Where};
use kiln_weights::{Placement, RandomSource, Residency, Segments, Stream, StreamConfig, load};

// Memory and times are those of Kiln's programs only with their allocator.
#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// Of every algorithm of the CPU's convolutions.
const WIDE: RrdbConfig =
    RrdbConfig { in_channels: 3, out_channels: 3, features: 64, growth: 32, blocks: 2, upsamples: 2, unshuffle: 1 };
/// Channels that fill no vector, and squares of pixels.
const ODD: RrdbConfig =
    RrdbConfig { in_channels: 3, out_channels: 3, features: 6, growth: 5, blocks: 1, upsamples: 1, unshuffle: 2 };
const COMPACT: CompactConfig =
    CompactConfig { channels: 3, features: 32, convolutions: 4, scale: 3, activation: CompactActivation::PRelu };

enum Network {
    Rrdb(Box<Rrdb>),
    Compact(Box<Compact>),
}

impl Network {
    fn segments(&self) -> &Segments {
        match self {
            Self::Rrdb(network) => network.segments(),
            Self::Compact(network) => network.segments(),
        }
    }

    fn forward<T: kiln_nn::TensorLike>(&self, image: &T, strips: StripRows) -> T {
        match self {
            Self::Rrdb(network) => network.forward(image, strips).unwrap(),
            Self::Compact(network) => network.forward(image, strips).unwrap(),
        }
    }
}

fn networks() -> [Network; 3] {
    [
        Network::Rrdb(Box::new(Rrdb::new(&WIDE))),
        Network::Rrdb(Box::new(Rrdb::new(&ODD))),
        Network::Compact(Box::new(Compact::new(&COMPACT))),
    ]
}

fn fill(segments: &Segments, target: &Target) {
    let placement = Placement::new(target.device.clone(), target.dtype);
    load(segments, &RandomSource::new(segments, 1), &placement).unwrap();
}

fn image([b, h, w]: [usize; 3], target: &Target) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895).fract() as f32;
    let values = (0..b * 3 * h * w).map(value).collect::<Vec<_>>();
    target.tensor(&Tensor::from_vec(values, (b, 3, h, w), &Device::Cpu).unwrap())
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(values.iter().all(|value| value.is_finite()));
    values.into_iter().map(f32::to_bits).collect()
}

fn cpu() -> [Target; 3] {
    [DType::F32, DType::BF16, DType::F16].map(|dtype| Target { device: Device::Cpu, dtype })
}

#[test]
fn strips_of_any_rows_have_the_bits_of_the_whole() {
    for target in cpu() {
        for network in networks() {
            fill(network.segments(), &target);
            for size in [[1, 75, 12], [1, 9, 20], [1, 1, 3]] {
                let image = image(size, &target);
                let whole = bits(&network.forward(&image, StripRows::Whole));
                assert!(whole.iter().any(|value| *value != whole[0]));
                for rows in [0, 2, 7, 16, 40, 100] {
                    let strips = bits(&network.forward(&image, StripRows::Rows(rows)));
                    assert!(strips == whole, "{:?} {size:?}, strips of {rows} rows", target.dtype);
                }
            }
        }
    }
}

#[test]
fn an_image_has_the_same_bits_in_a_batch() {
    let target = &cpu()[0];
    for network in networks() {
        fill(network.segments(), target);
        let batch = image([3, 10, 14], target);
        let all = network.forward(&batch, StripRows::Rows(4));
        for i in 0..3 {
            let one = network.forward(&batch.narrow(0, i, 1).unwrap(), StripRows::Rows(4));
            assert!(bits(&one) == bits(&all.narrow(0, i, 1).unwrap()), "image {i}");
        }
    }
}

#[test]
fn streamed_weights_give_the_same_bits() {
    for target in cpu() {
        for network in networks() {
            let segments = network.segments();
            fill(segments, &target);
            let image = image([2, 20, 10], &target);
            let resident = bits(&network.forward(&image, StripRows::Rows(8)));
            segments.unload();
            let placement = Placement::new(target.device.clone(), target.dtype);
            let largest = segments.iter().map(|segment| segment.bytes(target.dtype)).max().unwrap();
            for ring in [largest, 2 * largest] {
                let residency = Residency::none(segments, &placement, ring).unwrap();
                let config = StreamConfig { residency, pinned: None, host_bytes: u64::MAX, copy_stream: true, pool: None };
                let source = std::sync::Arc::new(RandomSource::new(segments, 1));
                let stream = Stream::start(segments, source, &placement, config).unwrap();
                for pass in 0..2 {
                    let streamed = bits(&network.forward(&image, StripRows::Rows(8)));
                    assert!(streamed == resident, "{:?}, ring of {ring}, pass {pass}", target.dtype);
                }
                assert_eq!(stream.report().unwrap().resets, 0, "segments run in the order in which they are declared");
            }
        }
    }
}

#[test]
fn operations_are_those_of_the_convolutions() {
    let [h, w] = [20, 30];
    for strips in [StripRows::Whole, StripRows::Rows(6)] {
        let device = MetaDevice::new(Where::Cpu { threads: 2 }, DType::F32);
        Rrdb::new(&WIDE).forward(&device.tensor(&[1, 3, h, w], DType::F32), strips).unwrap();
        let dense: usize = (0..4).map(|i| (64 + 32 * i) * 32).sum::<usize>() + 192 * 64;
        let per_pixel = 3 * 64 + 2 * 3 * dense + 64 * 64 + 4 * 64 * 64 + 16 * (2 * 64 * 64 + 64 * 3);
        assert_eq!(device.take_flop().total(), (2 * 9 * per_pixel * h * w) as f64, "{strips:?}");
    }
}

/// Memory of the largest case: the plan alone, since a run takes minutes.
#[test]
fn a_thousand_pixels_enlarged_by_four_take_less_than_a_gibibyte_and_a_half() {
    let network = Rrdb::new(&RrdbConfig { blocks: 23, ..WIDE });
    for (dtype, most) in [(DType::F32, 1.5), (DType::BF16, 0.75)] {
        let target = Where::Cpu { threads: 2 };
        let strips = StripRows::fastest(target, 1024);
        let device = MetaDevice::new(target, dtype);
        drop(network.forward(&device.tensor(&[1, 3, 1024, 1024], dtype), strips).unwrap());
        let all = device.ledger().peak() + network.segments().bytes(dtype);
        println!("{dtype:?} {strips:?}: {} MiB with weights", all >> 20);
        assert!((all as f64) < most * (1u64 << 30) as f64, "{dtype:?}: {all}");
    }
}

/// Seconds and peak memory of RRDBNet of x4plus's size, in the type and for the sizes and rows that the environment asks
/// for: `KILN_TEST_DTYPE=bf16 KILN_TEST_SIZES="256" KILN_TEST_ROWS="8 16" strips --ignored --nocapture measure_`
#[test]
#[ignore = "a measurement"]
fn measure_x4plus() {
    let target = Target::from_env();
    let network = Rrdb::new(&RrdbConfig { blocks: 23, ..WIDE });
    fill(network.segments(), &target);
    let list = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
    for size in list("KILN_TEST_SIZES", "64").split(' ').map(|size| size.parse::<usize>().unwrap()) {
        let image = image([1, size, size], &target);
        for rows in list("KILN_TEST_ROWS", "8 16 32").split(' ').map(|rows| rows.parse::<usize>().unwrap()) {
            HostPool::reset_peaks();
            let before = HostPool::statistics().used;
            let start = Instant::now();
            drop(network.forward(&image, StripRows::Rows(rows)));
            let seconds = start.elapsed().as_secs_f64();
            let mib = (HostPool::statistics().peak_used - before) >> 20;
            println!("{size} {:?}, strips of {rows} rows: {seconds:.3} s, {mib} MiB", target.dtype);
        }
    }
}
