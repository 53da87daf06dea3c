//! The generator against PyTorch 2.11's, literally.
#![expect(clippy::excessive_precision, reason = "nine digits are what tells f32 values apart in Python")]

use kiln_scheduler::CpuRng;

/// Relative to 1 or the value, whichever is larger: two roundings of f32.
const TOLERANCE: f32 = 3e-7;

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= TOLERANCE * expected.abs().max(1.0), "{found} for {expected}");
    }
}

/// The reference implementation's first draws, and `torch.randint(0, 2**31, (1000,))` of seed 0, which
/// takes the low half of two draws; the thousandth is behind three twists of the state.
#[test]
fn integers() {
    let mut rng = CpuRng::new(5489);
    assert_eq!([(); 4].map(|()| rng.next_u32()), [3_499_211_612, 581_869_302, 3_890_346_734, 3_586_334_585]);
    let mut rng = CpuRng::new(0);
    let draws: Vec<u32> = (0..2000).map(|_| rng.next_u32() % (1 << 31)).collect();
    let expected = [398_764_591, 1_478_610_112, 1_537_364_731, 573_012_317, 1_709_207_733];
    assert_eq!([0, 1, 2, 700, 999].map(|i| draws[2 * i + 1]), expected);
}

/// One generator, seed 0, asked for 3, 4, 1, 16, 5 and 19 values: below 16 by the pair (whose second half
/// waits for the next call), from 16 by the block, and 19 with the last 16 drawn again.
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

/// The latents of seed 42 at 512x512, both ends; a seed counts modulo 2^32.
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
