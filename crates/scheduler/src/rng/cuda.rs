//! PyTorch's CUDA generator: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011), and which thread of a card draws which value.
//!
//! The integers are a card's bit for bit. The normals differ by about 1e-6: a card takes the sine and the
//! cosine from its fast units, whose last bits are nobody's standard.

use std::f64::consts::TAU;

/// Rounds, multipliers of a round, and what is added to the key between rounds.
const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// PyTorch launches blocks of this many threads, each of which draws four values at a time.
const BLOCK: usize = 256;
const DRAWN_AT_ONCE: usize = 4;

/// What `torch.Generator("cuda").manual_seed(seed)` is.
#[derive(Debug, Clone)]
pub struct CudaRng {
    seed: u64,
    /// Draws of four that each thread has made.
    offset: u64,
    /// The threads that run at once on the card, at most.
    threads: usize,
}

impl CudaRng {
    /// A generator at its start, of a card with a thread for each value of a tensor. So it is on every card
    /// for small tensors; see [`CudaRng::on_card`].
    pub fn new(seed: u64) -> Self {
        Self::on_card(seed, usize::MAX)
    }

    /// The generator of a card on which `threads` run at once: its multiprocessors times the threads that
    /// each holds. In a tensor of more values a thread draws several, so that the values depend on the card.
    /// An RTX 3060 has 43,008, an H200 270,336; the latents of a picture of 1024x1024 have 65,536 values.
    pub fn on_card(seed: u64, threads: usize) -> Self {
        Self { seed, offset: 0, threads: (threads / BLOCK * BLOCK).max(BLOCK) }
    }

    /// What `torch.randn(n, device="cuda")` gives.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        let mut values = vec![0.0; n];
        let threads = n.div_ceil(BLOCK).max(1).saturating_mul(BLOCK).min(self.threads);
        // Value `i` of a thread's draw lies `i` times all threads further on.
        for (draw, part) in values.chunks_mut(threads * DRAWN_AT_ONCE).enumerate() {
            for thread in 0..threads.min(part.len()) {
                let normals = normals_of(self.four(self.offset + draw as u64, thread as u64));
                for (value, normal) in part[thread..].iter_mut().step_by(threads).zip(normals) {
                    *value = normal;
                }
            }
        }
        self.offset += n.div_ceil(threads * DRAWN_AT_ONCE) as u64;
        values
    }

    /// The four integers of a counter, which is the thread's draw and the thread's number.
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

/// The low and the high half.
fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// cuRAND's Box-Muller: each pair of integers gives a radius and an angle; the sine comes first.
fn normals_of(integers: [u32; 4]) -> [f32; 4] {
    const INVERSE: f32 = 1.0 / (1u64 << 32) as f32;
    const INVERSE_TAU: f32 = INVERSE * TAU as f32;
    let pair = |a: u32, b: u32| {
        let uniform = (a as f32).mul_add(INVERSE, INVERSE / 2.0);
        let angle = (b as f32).mul_add(INVERSE_TAU, INVERSE_TAU / 2.0);
        let radius = (-2.0 * f64::from(uniform).ln()).sqrt();
        let (sin, cos) = f64::from(angle).sin_cos();
        [(radius * sin) as f32, (radius * cos) as f32]
    };
    let ([a, b], [c, d]) = (pair(integers[0], integers[1]), pair(integers[2], integers[3]));
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with the algorithm's own library (Random123, `kat_vectors`).
    #[test]
    fn integers_are_philoxs() {
        let rng = |seed| CudaRng::new(seed);
        assert_eq!(rng(0).four(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(rng(u64::MAX).four(u64::MAX, u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let (counter, key) = ([0x85a3_08d3_243f_6a88, 0x0370_7344_1319_8a2e], 0x299f_31d0_a409_3822);
        assert_eq!(rng(key).four(counter[0], counter[1]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    /// On a small card the values of a large tensor are drawn by few threads: those are the first values of
    /// a larger card's draws, in another order.
    #[test]
    fn a_thread_draws_four_values_a_grid_apart() {
        let n = 5 * BLOCK;
        let large = CudaRng::new(9).normals(BLOCK);
        let small = CudaRng::on_card(9, BLOCK).normals(n);
        assert_eq!(small[..BLOCK], large);
        let mut rng = CudaRng::on_card(9, BLOCK);
        let four = normals_of(rng.four(0, 7));
        assert_eq!([small[7], small[7 + BLOCK], small[7 + 2 * BLOCK], small[7 + 3 * BLOCK]], four);
        assert_eq!(small[4 * BLOCK + 7], normals_of(rng.four(1, 7))[0]);
        // Two draws of four a thread were used up.
        rng.normals(n);
        assert_eq!(rng.offset, 2);
        assert!(CudaRng::new(0).normals(0).is_empty());
    }
}
