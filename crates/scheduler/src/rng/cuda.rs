//! PyTorch's CUDA generator: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
//! and the assignment of values to the threads of a GPU.
//!
//! The integers are bit-exact. The normals differ from a GPU's by about 1e-6, because a GPU computes sine and cosine
//! with its special function units, whose last bits are not specified.

use std::f64::consts::TAU;

use rayon::prelude::*;

/// The number of rounds, the multipliers of a round, and the constants that are added to the key between rounds.
const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// PyTorch launches blocks of this many threads, each of which generates four values at a time.
const BLOCK: usize = 256;
const DRAWN_AT_ONCE: usize = 4;
/// Threads of PyTorch's whose values a thread of this process computes at once: about 50 microseconds.
const THREADS_OF_TASK: usize = 256;

/// The equivalent of `torch.Generator("cuda").manual_seed(seed)`.
#[derive(Debug, Clone)]
pub struct CudaRng {
    seed: u64,
    /// The number of four-value outputs that each thread has generated.
    offset: u64,
    /// The maximum number of resident threads of the GPU.
    threads: usize,
}

impl CudaRng {
    /// A generator in its initial state, for a GPU with one thread for each value of a tensor. For small tensors this
    /// holds on every GPU; see [`CudaRng::with_max_threads`].
    pub fn new(seed: u64) -> Self {
        Self::with_max_threads(seed, usize::MAX)
    }

    /// The generator of a GPU with `threads` resident threads: the number of multiprocessors times the threads of each.
    /// In a tensor of more values a thread generates several, so that the values depend on the GPU. An RTX 3060 has
    /// 43,008 threads, an H200 270,336. The latents of a 1024x1024 image have 65,536 values.
    pub fn with_max_threads(seed: u64, threads: usize) -> Self {
        Self { seed, offset: 0, threads: (threads / BLOCK * BLOCK).max(BLOCK) }
    }

    /// The values of `torch.randn(n, device="cuda")`.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        let mut values = vec![0.0; n];
        let threads = n.div_ceil(BLOCK).max(1).saturating_mul(BLOCK).min(self.threads);
        // Value `i` of a thread's output is at an offset of `i` times the number of threads.
        for (draw, part) in values.chunks_mut(threads * DRAWN_AT_ONCE).enumerate() {
            let used = part.len().div_ceil(threads);
            let of_thread = |thread: usize| normals_of(self.four(self.offset + draw as u64, thread as u64), used);
            let all = (0..threads.min(part.len())).into_par_iter().with_min_len(THREADS_OF_TASK).map(of_thread);
            for (thread, normals) in all.collect::<Vec<_>>().into_iter().enumerate() {
                for (value, normal) in part[thread..].iter_mut().step_by(threads).zip(normals) {
                    *value = normal;
                }
            }
        }
        self.offset += n.div_ceil(threads * DRAWN_AT_ONCE) as u64;
        values
    }

    /// The four integers of a counter, which consists of the index of the output and the index of the thread.
    fn four(&self, draw: u64, thread: u64) -> [u32; 4] {
        let mut key = words(self.seed);
        let ([c0, c1], [c2, c3]) = (words(draw), words(thread));
        let mut counter = [c0, c1, c2, c3];
        for round in 0..ROUNDS {
            if round > 0 {
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            let [low_0, high_0] = words(u64::from(MULTIPLIERS[0]) * u64::from(counter[0]));
            let [low_1, high_1] = words(u64::from(MULTIPLIERS[1]) * u64::from(counter[2]));
            counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0];
        }
        counter
    }
}

/// The low and the high half of a number.
fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// cuRAND's Box-Muller transform: each pair of integers determines a radius and an angle. The sine comes first. Only the first `used`
/// values are computed, or one more; the latents of an image use one of each thread.
fn normals_of(integers: [u32; 4], used: usize) -> [f32; 4] {
    const INVERSE: f32 = 1.0 / (1u64 << 32) as f32;
    const INVERSE_TAU: f32 = INVERSE * TAU as f32;
    let pair = |a: u32, b: u32| {
        let uniform = (a as f32).mul_add(INVERSE, INVERSE / 2.0);
        let angle = (b as f32).mul_add(INVERSE_TAU, INVERSE_TAU / 2.0);
        let radius = (-2.0 * f64::from(uniform).ln()).sqrt();
        let (sin, cos) = f64::from(angle).sin_cos();
        [(radius * sin) as f32, (radius * cos) as f32]
    };
    let [a, b] = pair(integers[0], integers[1]);
    let [c, d] = if used > 2 { pair(integers[2], integers[3]) } else { [0.0; 2] };
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the algorithm's reference library (Random123, `kat_vectors`).
    #[test]
    fn integers_are_philoxs() {
        let rng = |seed| CudaRng::new(seed);
        assert_eq!(rng(0).four(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(rng(u64::MAX).four(u64::MAX, u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let (counter, key) = ([0x85a3_08d3_243f_6a88, 0x0370_7344_1319_8a2e], 0x299f_31d0_a409_3822);
        assert_eq!(rng(key).four(counter[0], counter[1]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    /// On a small GPU few threads generate the values of a large tensor. Those are the first values of a larger GPU's
    /// outputs, in another order.
    #[test]
    fn a_thread_draws_four_values_a_grid_apart() {
        let n = 5 * BLOCK;
        let large = CudaRng::new(9).normals(BLOCK);
        let small = CudaRng::with_max_threads(9, BLOCK).normals(n);
        assert_eq!(small[..BLOCK], large);
        let mut rng = CudaRng::with_max_threads(9, BLOCK);
        let four = normals_of(rng.four(0, 7), 4);
        assert_eq!([small[7], small[7 + BLOCK], small[7 + 2 * BLOCK], small[7 + 3 * BLOCK]], four);
        assert_eq!(small[4 * BLOCK + 7], normals_of(rng.four(1, 7), 4)[0]);
        // Each thread has generated two outputs of four values.
        rng.normals(n);
        assert_eq!(rng.offset, 2);
        assert!(CudaRng::new(0).normals(0).is_empty());
    }
}
