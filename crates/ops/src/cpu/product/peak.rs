//! The peak throughput of the matrix product on this machine: its innermost loop on operands in the L1 cache.

use std::time::Instant;

use super::{Kernel, Out, PANEL, STRIDE};
use crate::cpu::Element;
use crate::error::Result;
use candle_core::DType;

/// Words of `k` of the operands, which stay in the L1 cache: 16 KiB with 14 rows.
const DEPTH: usize = 64;
/// Products of one measurement, which takes about ten milliseconds.
const PRODUCTS: usize = 20_000;
/// Measurements, of which the best counts.
const MEASUREMENTS: usize = 5;

/// Floating-point operations a second of the innermost loop of the matrix product on all threads of the pool, for
/// weights and activations of a type. The efficiency of an operator is its throughput relative to this.
///
/// # Errors
/// [`crate::Error::DType`] for a type without kernels.
pub fn peak_flops(dtype: DType) -> Result<f64> {
    fn typed<T: Element>() -> Result<f64> {
        Ok((0..MEASUREMENTS).map(|_| measure::<T>()).fold(0.0, f64::max))
    }
    dispatch!("peak_flops", "dtype", dtype, typed())
}

fn measure<T: Element>() -> f64 {
    let start = Instant::now();
    let flop: f64 = rayon::broadcast(|_| one_thread::<T>()).into_iter().sum();
    flop / start.elapsed().as_secs_f64()
}

/// Multiplies on this thread; returns the number of operations.
fn one_thread<T: Element>() -> f64 {
    let kernel = Kernel::current::<T>();
    let (depth, rows) = (kernel.elements_in(DEPTH), kernel.rows());
    let mut a = vec![0u32; rows * STRIDE];
    let stored: Vec<T> = (0..depth).map(|i| T::from_f32(i as f32 / depth as f32)).collect();
    a.chunks_exact_mut(STRIDE).for_each(|a| kernel.load_row(&stored, a));
    let b: Vec<T> = (0..depth * PANEL).map(|i| T::from_f32((i % 7) as f32)).collect();
    let mut tile = vec![0f32; rows * PANEL];
    for _ in 0..PRODUCTS {
        let out = Out { values: std::hint::black_box(&mut tile), stride: PANEL, first: true, columns: PANEL };
        kernel.run(rows, std::hint::black_box(&a), std::hint::black_box(&b), depth, out);
    }
    2.0 * (PRODUCTS * rows * PANEL * depth) as f64
}
