//! PyTorch's CPU generator: the Mersenne Twister and the order in which its normals are generated.
//!
//! The integers are bit-exact. The normals differ from PyTorch's by a few units in the last place of f32, because
//! PyTorch computes logarithm, sine and cosine with a vector library.

use std::f64::consts::TAU;

use rayon::prelude::*;

/// The size of the Mersenne Twister's state in words, and the distance of the word that is mixed in.
const STATE: usize = 624;
const SHIFT: usize = 397;

/// PyTorch fills a buffer of at least this many normals in blocks of this size. It fills a smaller one value by value.
const BLOCK: usize = 16;
/// Blocks that a thread transforms at once: about 50 microseconds of logarithms, sines and cosines.
const BLOCKS_OF_TASK: usize = 64;

/// The equivalent of `torch.Generator("cpu").manual_seed(seed)`.
#[derive(Debug, Clone)]
pub struct CpuRng {
    state: Box<[u32; STATE]>,
    next: usize,
    /// The second of a pair of normals that were generated value by value.
    cached: Option<f64>,
}

impl CpuRng {
    /// A generator in its initial state. PyTorch uses the low 32 bits of the seed; pass a negative seed `s` as `s as
    /// u64`.
    pub fn new(seed: u64) -> Self {
        let mut state = Box::new([0u32; STATE]);
        state[0] = seed as u32;
        for i in 1..STATE {
            let previous = state[i - 1];
            state[i] = (previous ^ (previous >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: STATE, cached: None }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == STATE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..STATE {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE] & 0x7fff_ffff);
            let magic = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % STATE] ^ (y >> 1) ^ magic;
        }
        self.next = 0;
    }

    /// The values of `torch.randn(n)`.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        if n < BLOCK {
            return (0..n).map(|_| self.normal() as f32).collect();
        }
        let mut values: Vec<f32> = (0..n).map(|_| self.uniform_f32()).collect();
        values.par_chunks_exact_mut(BLOCK).with_min_len(BLOCKS_OF_TASK).for_each(box_muller);
        if !n.is_multiple_of(BLOCK) {
            // The rest is shorter than a block: the last 16 values are generated again, some of them for the second
            // time.
            let last = &mut values[n - BLOCK..];
            last.fill_with(|| self.uniform_f32());
            box_muller(last);
        }
        values
    }

    /// One normal in f64; the values are generated in pairs.
    fn normal(&mut self) -> f64 {
        if let Some(second) = self.cached.take() {
            return second;
        }
        let (u1, u2) = (self.uniform_f64(), self.uniform_f64());
        let radius = (-2.0 * (-u2).ln_1p()).sqrt();
        let (sin, cos) = (TAU * u1).sin_cos();
        self.cached = Some(radius * sin);
        radius * cos
    }

    /// A uniform value in [0, 1), from the low 24 bits of one output.
    fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() & 0x00ff_ffff) as f32 / (1u32 << 24) as f32
    }

    /// A uniform value in [0, 1), from the low 53 bits of two outputs, the high half first.
    fn uniform_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32());
        let bits = (high << 32) | u64::from(self.next_u32());
        (bits & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    }
}

/// Turns 16 uniforms into 16 normals. Value j makes a pair with value j + 8. The angle is rounded to f32 as in PyTorch,
/// because that affects the result. The rest is computed in f64 and rounded once, which is closer to PyTorch's vector
/// code on average than rounding each value.
fn box_muller(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(BLOCK / 2);
    for (a, b) in first.iter_mut().zip(second) {
        let radius = (-2.0 * f64::from(1.0 - *a).ln()).sqrt();
        let (sin, cos) = f64::from(std::f32::consts::TAU * *b).sin_cos();
        (*a, *b) = ((radius * cos) as f32, (radius * sin) as f32);
    }
}
