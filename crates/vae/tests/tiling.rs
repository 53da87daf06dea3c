//! Sliced and tiled runs compared with whole ones.
//!
//! On the CPU all bits are equal. On a GPU (`KILN_TEST_DEVICE=cuda`) images differ by at most one level of 255, in bf16
//! by two.

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_mempool::{DevicePool, DevicePoolConfig, HostPool};
use kiln_nn::ops::device::open_gpu;
use kiln_testkit::Target;
use kiln_vae::{Decoder, DiagonalGaussian, Encoder, Tiling, TinyConfig, TinyEncoder, VaeConfig};
use kiln_weights::{Placement, RandomSource, Segments, load};

// Times match those of Kiln's programs only with their allocator.
#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// Fewer channels than Stable Diffusion, but enough for every convolution algorithm on the CPU.
const WIDE: &str = r#"{"block_out_channels": [32, 64, 64], "layers_per_block": 1, "norm_num_groups": 8,
    "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
    "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]}"#;
/// Channels that do not fill a vector, an odd number of them in a group, and a single block.
const ODD: &str = r#"{"block_out_channels": [6, 9], "layers_per_block": 2, "norm_num_groups": 3}"#;
const SINGLE: &str = r#"{"block_out_channels": [32], "norm_num_groups": 4, "mid_block_add_attention": false}"#;

fn networks(config: &str, target: &Target) -> (Decoder, Encoder) {
    let config = VaeConfig::from_json(config).unwrap();
    let (decoder, encoder) = (Decoder::new(&config), Encoder::new(&config));
    let fill = |segments: &Segments, seed| {
        let placement = Placement::new(target.device.clone(), target.dtype);
        load(segments, &RandomSource::new(segments, seed), &placement).unwrap();
    };
    fill(decoder.segments(), 1);
    fill(encoder.segments(), 2);
    (decoder, encoder)
}

fn normal(shape: [usize; 4], target: &Target) -> Tensor {
    let count = shape.iter().product::<usize>();
    // A low-discrepancy sequence through the inverse of a logistic distribution: close enough to a normal one.
    let value = |i: usize| {
        let u = ((i + 1) as f64 * 0.618_033_988_749_895).fract().clamp(1e-3, 1.0 - 1e-3);
        ((u / (1.0 - u)).ln() * 0.55) as f32
    };
    target.tensor(&Tensor::from_vec((0..count).map(value).collect::<Vec<_>>(), &shape, &Device::Cpu).unwrap())
}

/// All tilings but the whole: strips of the fewest rows, of a number that divides nothing, and of more rows than there
/// are.
fn tilings() -> Vec<Tiling> {
    let rows = [1, 11, 500];
    let strips = rows.into_iter().flat_map(|rows| [false, true].map(|recompute| Tiling::Strips { rows, recompute }));
    [Tiling::Sliced].into_iter().chain(strips).collect()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest difference in levels of 255, for images in -1 to 1, or in the range of the expected image.
fn levels(found: &Tensor, expected: &Tensor) -> (f64, f64) {
    let (found, expected) = (values(found), values(expected));
    let scale = expected.iter().fold(1f32, |most, value| most.max(value.abs()));
    let differences = found.iter().zip(&expected).map(|(a, b)| f64::from((a - b).abs() / scale) * 127.5);
    let (sum, worst) = differences.fold((0f64, 0f64), |(sum, worst), levels| (sum + levels, worst.max(levels)));
    (sum / expected.len() as f64, worst)
}

/// Fails unless all values are equal. On a GPU they may differ by the allowed levels times `widened`.
#[track_caller]
fn assert_same(found: &Tensor, expected: &Tensor, target: &Target, widened: f64, what: &str) {
    assert!(values(expected).iter().all(|value| value.is_finite()), "{what}");
    if target.device.is_cpu() {
        let (found, expected) = (values(found), values(expected));
        let differing = found.iter().zip(&expected).filter(|(found, expected)| found.to_bits() != expected.to_bits());
        assert_eq!(differing.count(), 0, "{what}: values that differ");
        return;
    }
    let (mean, worst) = levels(found, expected);
    let (most, most_on_average) = (widened * target.bound(1.0, 1.0, 2.0), widened * target.bound(0.1, 0.1, 0.2));
    assert!(worst <= most && mean <= most_on_average, "{what}: {worst:.3} levels, {mean:.3} on average");
}

fn check(config: &str, target: &Target, latents: [usize; 3]) {
    let [b, h, w] = latents;
    let (decoder, encoder) = networks(config, target);
    let z = normal([b, 4, h, w], target);
    let image = decoder.decode(&z).unwrap();
    let [_, _, height, width] = *image.dims() else { panic!("{:?}", image.dims()) };
    let pixels = normal([b, 3, height, width], target);
    let DiagonalGaussian { mean, log_variance } = encoder.encode(&pixels).unwrap();
    for tiling in tilings() {
        let what = format!("{:?} {latents:?} {tiling:?}", target.dtype);
        assert_same(&decoder.decode_with(&z, tiling).unwrap(), &image, target, 1.0, &format!("image, {what}"));
        // Latents are not images, and in bf16 have only 8 bits: half a level more on either side.
        let widened = target.bound(1.0, 1.0, 2.0);
        let posterior = encoder.encode_with(&pixels, tiling).unwrap();
        assert_same(&posterior.mean, &mean, target, widened, &format!("mean, {what}"));
        assert_same(&posterior.log_variance, &log_variance, target, widened, &format!("log variance, {what}"));
    }
}

#[test]
fn every_tiling_gives_the_same_image() {
    let Target { device, .. } = Target::from_env();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let target = Target { device: device.clone(), dtype };
        check(WIDE, &target, [1, 9, 6]);
        check(ODD, &target, [2, 7, 5]);
        check(SINGLE, &target, [1, 21, 13]);
    }
}

#[test]
fn every_tiling_of_the_tiny_encoder_gives_the_same_latents() {
    let channels =
        |c: usize| format!(r#""encoder_block_out_channels": [{c}, {c}, {c}], "num_encoder_blocks": [1, 2, 0]"#);
    for c in [32, 5] {
        let config = TinyConfig::from_json(&format!(
            r#"{{{}, "decoder_block_out_channels": [8], "num_decoder_blocks": [1]}}"#,
            channels(c)
        ));
        let encoder = TinyEncoder::new(&config.unwrap());
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let target = Target { device: Target::from_env().device, dtype };
            let placement = Placement::new(target.device.clone(), target.dtype);
            load(encoder.segments(), &RandomSource::new(encoder.segments(), 3), &placement).unwrap();
            for [b, h, w] in [[1, 50, 21], [2, 7, 64], [1, 1, 1]] {
                let image = normal([b, 3, h, w], &target);
                let whole = encoder.encode(&image).unwrap();
                assert_eq!(whole.dims(), [b, 4, h.div_ceil(4), w.div_ceil(4)]);
                for tiling in tilings() {
                    let what = format!("{dtype:?} {c} channels {:?} {tiling:?}", [b, h, w]);
                    let latents = encoder.encode_with(&image, tiling).unwrap();
                    assert_same(&latents, &whole, &target, target.bound(1.0, 1.0, 2.0), &what);
                }
            }
        }
    }
}

#[test]
fn strips_of_the_tiny_encoder_hold_no_map_of_the_size_of_the_image() {
    let encoder = TinyEncoder::new(&TinyConfig::default());
    let target = kiln_vae::Target::Cpu { threads: 2 };
    let image = [1, 1024, 1024];
    let footprint = |tiling| encoder.footprint(image, DType::F32, target, tiling).unwrap();
    let strips = |rows| footprint(Tiling::Strips { rows, recompute: false });
    let map = 1024 * 1024 * 64 * 4;
    assert!(footprint(Tiling::Whole) > 2 * map, "{}", footprint(Tiling::Whole));
    assert!(strips(16) < map / 3, "{}", strips(16));
    let found = encoder.fitting(image, DType::F32, target, map / 2).unwrap();
    assert!(matches!(found, Some(Tiling::Strips { recompute: false, .. })), "{found:?}");
}

#[test]
fn a_batch_is_sliced() {
    check(WIDE, &Target::from_env(), [2, 5, 6]);
}

#[test]
fn every_tiling_gives_the_same_image_with_every_instruction_set() {
    for isa in ["portable", "avx2", "avx512"] {
        for dtype in ["f32", "bf16"] {
            let mut program = std::process::Command::new(std::env::current_exe().unwrap());
            let program = program.args(["--exact", "a_batch_is_sliced"]).env("KILN_ISA", isa);
            let program = program.env("KILN_TEST_DEVICE", "cpu"); // GPUs have no KILN_ISA
            let output = program.env("KILN_TEST_DTYPE", dtype).output().unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && stdout.contains("1 passed"), "{isa} {dtype}: {stdout}");
        }
    }
}

#[test]
fn strips_need_less_memory_and_a_budget_selects_them() {
    let decoder = Decoder::new(&VaeConfig::from_json(WIDE).unwrap());
    let target = kiln_vae::Target::Cpu { threads: 2 };
    let (latents, dtype) = ([2, 64, 64], DType::F32);
    let footprint = |tiling| decoder.footprint(latents, dtype, target, tiling).unwrap();
    let strips = |rows, recompute| Tiling::Strips { rows, recompute };
    let ladder = [Tiling::Whole, Tiling::Sliced, strips(32, false), strips(32, true)];
    for pair in ladder.windows(2) {
        assert!(footprint(pair[1]) < footprint(pair[0]), "{pair:?}");
    }
    // A map at the image's size, 256 x 256, has 8 MiB. The block there has 64 input channels: 24 MiB.
    assert!(footprint(strips(8, false)) < 30 << 20, "{}", footprint(strips(8, false)));
    assert!(footprint(strips(8, true)) < 20 << 20, "{}", footprint(strips(8, true)));
    let fitting = |bytes| decoder.fitting(latents, dtype, target, bytes).unwrap();
    assert_eq!(fitting(usize::MAX), Some(Tiling::Whole));
    assert_eq!(fitting(footprint(Tiling::Sliced)), Some(Tiling::Sliced));
    let found = fitting(footprint(strips(16, false))).unwrap();
    assert!(matches!(found, Tiling::Strips { rows: 16.., recompute: false }), "{found:?}");
    assert_eq!(fitting(1 << 20), None);
}

/// Images of Stable Diffusion's sizes, in the types and sizes that the environment sets: prints differences, seconds
/// and, on a GPU, the peak of its pool above the weights.
///
/// `KILN_TEST_DEVICE=cuda KILN_TEST_DTYPE=bf16 KILN_TEST_SIZES="512 1024" tiling --ignored --nocapture measure_`;
/// `KILN_TEST_STAGES=encode KILN_TEST_ROWS="64 16"` for a part of it.
#[test]
#[ignore = "a measurement"]
fn measure_images_of_full_size() {
    let mut target = Target::from_env();
    let open = target.device.is_cuda().then(|| open_gpu(0).unwrap());
    let pool = open.as_ref().map(|open| {
        let pool = DevicePool::install(0, DevicePoolConfig::default()).unwrap();
        open.allocate_from(&pool);
        target.device = Device::clone(open);
        pool
    });
    let config = r#"{"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2}"#;
    let list = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
    let (sizes, stages) = (list("KILN_TEST_SIZES", "128"), list("KILN_TEST_STAGES", "decode encode"));
    let rows = list("KILN_TEST_ROWS", "128 64 32 16");
    let (decoder, encoder) = networks(config, &target);
    let wait = || target.device.synchronize().unwrap();
    let device = kiln_vae::Target::of(&target.device);
    for size in sizes.split(' ').map(|size| size.parse::<usize>().unwrap()) {
        let (z, pixels) = (normal([1, 4, size / 8, size / 8], &target), normal([1, 3, size, size], &target));
        for what in stages.split(' ') {
            let run = |tiling| match what {
                "decode" => decoder.decode_with(&z, tiling).unwrap(),
                _ => encoder.encode_with(&pixels, tiling).unwrap().mean,
            };
            let footprint = |tiling| match what {
                "decode" => decoder.footprint([1, size / 8, size / 8], target.dtype, device, tiling).unwrap(),
                _ => encoder.footprint([1, size, size], target.dtype, device, tiling).unwrap(),
            };
            let rows = rows.split_terminator(' ').map(|rows| rows.parse().unwrap());
            let strips = rows.flat_map(|rows| [false, true].map(|recompute| Tiling::Strips { rows, recompute }));
            let mut whole = None;
            for tiling in [Tiling::Whole].into_iter().chain(strips) {
                let before = pool.as_ref().map(|pool| {
                    pool.trim(0.0).unwrap();
                    pool.reset_peaks().unwrap();
                    pool.memory().unwrap().used
                });
                let image = run(tiling);
                wait();
                let mut seconds = f64::MAX;
                for _ in 0..2 {
                    let start = Instant::now();
                    drop(run(tiling));
                    wait();
                    seconds = seconds.min(start.elapsed().as_secs_f64());
                }
                let whole = whole.get_or_insert_with(|| (image.clone(), seconds));
                let ((mean, worst), ratio) = (levels(&image, &whole.0), seconds / whole.1);
                print!("{what} {size} {:?} {tiling:?}: {seconds:.4} s, {ratio:.3} of the whole;", target.dtype);
                print!(" {worst:.3} levels, {mean:.4} on average; {} MiB predicted", footprint(tiling) >> 20);
                if let (Some(pool), Some(before)) = (&pool, before) {
                    let memory = pool.memory().unwrap();
                    let mib = |bytes: u64| bytes.saturating_sub(before) >> 20;
                    print!(", {} measured, {} reserved", mib(memory.peak_used), mib(memory.peak_reserved));
                }
                println!();
            }
        }
    }
}
