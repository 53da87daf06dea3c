//! The generators compared with PyTorch 2.11's, value by value, and the noise made from them.
#![expect(clippy::excessive_precision, reason = "f32 values printed by Python have nine digits")]

use kiln_scheduler::{CpuRng, CudaRng, ImageNoise, NoiseOptions, NoiseSource, Result, Variation};

/// Relative to 1 or the value, whichever is larger: two rounding errors of f32.
const TOLERANCE: f32 = 3e-7;

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= TOLERANCE * expected.abs().max(1.0), "{found} for {expected}");
    }
}

/// The reference implementation's first outputs, and `torch.randint(0, 2**31, (1000,))` of seed 0, which takes the low
/// half of two outputs. The thousandth comes after three twists of the state.
#[test]
fn integers() {
    let mut rng = CpuRng::new(5489);
    assert_eq!([(); 4].map(|()| rng.next_u32()), [3_499_211_612, 581_869_302, 3_890_346_734, 3_586_334_585]);
    let mut rng = CpuRng::new(0);
    let draws: Vec<u32> = (0..2000).map(|_| rng.next_u32() % (1 << 31)).collect();
    let expected = [398_764_591, 1_478_610_112, 1_537_364_731, 573_012_317, 1_709_207_733];
    assert_eq!([0, 1, 2, 700, 999].map(|i| draws[2 * i + 1]), expected);
}

/// One generator with seed 0 generates 3, 4, 1, 16, 5 and 19 values. Below 16 they come in pairs (whose second half is
/// cached for the next call), from 16 on in blocks, and for 19 the last 16 are generated again.
#[test]
fn calls_of_every_size() {
    #[rustfmt::skip]
    let calls: [&[f32]; 6] = [
        &[1.54099607, -0.293428898, -2.17878938],
        &[0.568431258, -1.08452237, -1.39859545, 0.403346837],
        &[0.838026345],
        &[-1.35265374, -1.6959312, 0.566650629, 0.793508351, 0.598839462, -1.55509508, -0.34136039, 1.85300612, 0.750189483, -0.585497558, -0.173396751, 0.183477938, 1.38936615, 1.58633423, 0.946298361, -0.843676746],
        &[-0.566317499, 0.373114645, -0.891995311, -1.50910771, 0.370393544],
        &[-0.173960999, -0.678746223, 0.938260734, -0.591033161, -0.56924808, 0.919971406, 1.11081612, 1.28987408, -1.47817397, 2.56723285, -0.473119795, 1.32527483, -1.62932599, -0.549743652, -0.479834259, -0.499681532, -1.06698036, 1.11493957, -0.140671432],
    ];
    let mut rng = CpuRng::new(0);
    for expected in calls {
        assert_close(&rng.normals(expected.len()), expected);
    }
}

/// The first and last latents of seed 42 at 512x512. A seed counts modulo 2^32.
#[test]
fn latents_of_an_image() {
    for seed in [42, (1 << 32) + 42] {
        let values = CpuRng::new(seed).normals(4 * 64 * 64);
        assert_close(&values[..3], &[1.92691529, 1.48728406, 0.900717199]);
        assert_close(&values[4 * 64 * 64 - 3..], &[-0.635750473, 0.972809732, -0.293406099]);
    }
}

/// `torch.Generator().manual_seed(-1)`, 18 values.
#[test]
fn negative_seeds() {
    #[rustfmt::skip]
    assert_close(&CpuRng::new(-1i64 as u64).normals(18), &[
        -2.66429758, -1.0910486, -1.64603913, -0.538258553, 0.30621922, 0.424003005, 0.265636146, -3.14929533, -2.84376431,
        0.946320117, -0.340290517, -0.32600823, -0.0296445042, 0.383217037, -0.160953194, 1.96789145, 1.62438321, -1.11376548,
    ]);
}

/// `torch.manual_seed(seed); torch.randn(12, device="cuda")`. The numbers for seeds 0 and 42 are widely published. The
/// second output and a seed of more than 32 bits are from the published algorithm in NumPy. A GPU's fast sine and
/// cosine differ by 1e-6.
#[test]
fn cuda_generator() {
    let close = |found: &[f32], expected: [f32; 12]| {
        let off = found.iter().zip(expected).find(|(a, b)| (*a - b).abs() > 2e-6);
        assert!(off.is_none(), "{off:?}");
    };
    let mut rng = CudaRng::new(0);
    #[rustfmt::skip]
    close(&rng.normals(12), [
        -0.9246625, -0.4253441, -2.6438457, 0.1451839, -0.1208665, -0.5797257, -0.6228513, -0.3283871, -1.0745422, -0.3631441,
        -1.6710506, 2.265505,
    ]);
    #[rustfmt::skip]
    close(&rng.normals(12), [
        0.1808259, -0.5522627, 0.9238134, -0.7349705, 1.3799946, 0.8676307, 0.129656, -0.94064, 0.8109097, 0.8820514, -1.0132602,
        -0.3633633,
    ]);
    #[rustfmt::skip]
    close(&CudaRng::new(42).normals(12), [
        0.1940189, 2.161374, -0.1720509, 0.8490601, -1.9243992, 0.6529853, -0.6494411, -0.8175246, 0.5279647, -1.2753496,
        -1.6621264, -0.3033137,
    ]);
    #[rustfmt::skip]
    close(&CudaRng::new((1 << 40) + 3).normals(12), [
        -1.3825017, 0.5182017, 1.1696048, 0.7934501, -0.451214, -2.6836356, -0.3312755, 0.2329372, -1.0499977, -0.2458505,
        -0.3880669, 1.5773567,
    ]);
}

/// AUTOMATIC1111's `modules/rng.py` with its random numbers from the CPU: `ImageRNG((4, 6, 5), [77, 78], ...)`, its
/// first noise and its next: the sum of absolute values, then the values 0, 33, 61, 119, 120 and 239.
#[test]
fn variations_are_automatic1111s() -> Result<()> {
    let options = |change: &dyn Fn(&mut NoiseOptions)| {
        let mut options = NoiseOptions::default();
        change(&mut options);
        options
    };
    let drawn_on = [192.343735, -0.009081, -0.155451, -0.053584, -0.760195, -0.470400, 1.106951];
    let with_delta = [194.924698, 1.938218, -1.160150, -0.293203, 0.512808, -0.162835, -1.874404];
    let variation = |strength| Some(Variation { seed: 5, strength });
    let cases = [
        (
            options(&|options| options.eta_seed_delta = 31337),
            [198.774048, -0.504309, 0.742031, -1.610790, 0.261022, 0.672687, 1.385591],
            with_delta,
        ),
        (
            options(&|options| options.variation = variation(0.35)),
            [205.412216, 0.553486, 0.270311, -1.292702, 0.171319, -0.116435, 0.349040],
            drawn_on,
        ),
        (
            options(&|options| options.resize_from = Some((4, 8))),
            [199.779556, -0.504309, 0.742031, -1.610790, 0.261022, 0.672687, 1.385591],
            drawn_on,
        ),
        (
            options(&|options| {
                options.resize_from = Some((9, 3));
                options.variation = variation(0.8);
            }),
            [209.643219, -0.504309, -0.447395, 0.880792, 0.261022, 0.672687, 1.385591],
            drawn_on,
        ),
        (
            options(&|options| options.resize_from = Some((6, 5))),
            [198.774048, -0.504309, 0.742031, -1.610790, 0.261022, 0.672687, 1.385591],
            drawn_on,
        ),
    ];
    for (options, first, next) in cases {
        let mut noise = ImageNoise::with_options([77, 78], options);
        let latents = noise.latents((4, 6, 5))?;
        let second = noise.sample(&latents)?;
        for (found, expected) in [(latents, first), (second, next)] {
            let values: Vec<f32> = found.flatten_all()?.to_vec1()?;
            let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
            assert!((sum - expected[0]).abs() < 1e-3, "{options:?}: {sum} for {}", expected[0]);
            for (index, expected) in [0, 33, 61, 119, 120, 239].into_iter().zip(&expected[1..]) {
                assert!((f64::from(values[index]) - expected).abs() < 2e-6, "{options:?} at {index}");
            }
        }
    }
    Ok(())
}
