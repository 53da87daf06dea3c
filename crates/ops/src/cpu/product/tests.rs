use half::{bf16, f16};

use super::*;
use crate::test_support::{exact, random};

fn values(shape: &[usize]) -> Vec<f32> {
    exact(&random(shape)).flatten_all().unwrap().to_vec1().unwrap()
}

/// Random matrices `(m, k)` and `(k, n)`.
struct Operands<T> {
    sizes: [usize; 3],
    a: Vec<T>,
    b: Vec<T>,
}

fn operands<T: Element>(m: usize, n: usize, k: usize) -> Operands<T> {
    let random = |shape: [usize; 2]| values(&shape).into_iter().map(T::from_f32).collect();
    Operands { sizes: [m, n, k], a: random([m, k]), b: random([k, n]) }
}

/// Their product by a kernel.
fn product<T: Element>(operands: &Operands<T>, kernel: fn() -> Kernel) -> Vec<f32> {
    let Operands { sizes: [m, n, k], ref a, ref b } = *operands;
    let mut packed = vec![T::ZERO; packed_len(k, n)];
    pack(k, n, T::PAIRED, |row, column| b[row * n + column], &mut packed);
    let out = std::sync::Mutex::new(vec![f32::NAN; m * n]);
    let product = Product { m, b: Panels::new(&packed, k, n) };
    product.run_by(
        kernel,
        |row, start, elements| elements.copy_from_slice(&a[row * k + start..][..elements.len()]),
        |tile| {
            let mut out = out.lock().unwrap();
            for row in tile.rows.clone() {
                out[row * n..][tile.columns.clone()].copy_from_slice(tile.row(row));
            }
        },
    );
    out.into_inner().unwrap()
}

/// The product of a kernel, and the same in f64.
fn both<T: Element>(m: usize, n: usize, k: usize, kernel: fn() -> Kernel) -> (Vec<f32>, Vec<f64>) {
    let operands = operands::<T>(m, n, k);
    let (a, b) = (&operands.a, &operands.b);
    let exact = (0..m * n).map(|i| {
        let (row, column) = (i / n, i % n);
        (0..k).map(|p| f64::from(a[row * k + p].to_f32()) * f64::from(b[p * n + column].to_f32())).sum()
    });
    (product(&operands, kernel), exact.collect())
}

fn check<T: Element>(kernel: fn() -> Kernel) {
    for (m, n, k) in [
        (1, 1, 1),
        (15, 33, 7),
        (3, 64, 1030),
        (130, 300, 513),
        (64, 3, 2881),
        (28, 320, 1024),
        (33, 40, 40),
        (17, 16, 77),
        (7, 31, 0),
    ] {
        let (found, exact) = both::<T>(m, n, k, kernel);
        // f32 sums of k terms up to 1: the worst rounding error grows with k, the usual one with its square root.
        let bound = 4.0 * f64::from(f32::EPSILON) * (k as f64).sqrt().max(1.0) * 4.0;
        for (i, (found, exact)) in found.iter().zip(&exact).enumerate() {
            let error = (f64::from(*found) - exact).abs();
            assert!(error <= bound, "({m}, {n}, {k}) element {i}: {found}, expected {exact}");
        }
    }
}

#[test]
fn f32_products() {
    check::<f32>(Kernel::current::<f32>);
}

#[test]
fn f16_products() {
    check::<f16>(Kernel::current::<f16>);
}

#[test]
fn bf16_products() {
    check::<bf16>(Kernel::current::<bf16>);
}

/// The order of tiles, of their registers and of the inner dimension, on CPUs without AMX too.
#[cfg(target_arch = "x86_64")]
#[test]
fn products_of_emulated_tiles() {
    check::<bf16>(Kernel::emulated_tiles);
}

/// Emulated tiles sum as those of the CPU, to the bit.
#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_of_the_cpu_are_as_emulated() {
    if crate::cpu::isa::Isa::current() == crate::cpu::isa::Isa::Amx {
        for (m, n, k) in [(130, 300, 513), (33, 40, 40), (1, 5, 2881)] {
            let operands = operands::<bf16>(m, n, k);
            let by = |kernel| product(&operands, kernel).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert!(by(Kernel::current::<bf16>) == by(Kernel::emulated_tiles), "({m}, {n}, {k})");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_product() {
    row_by_row::<f32>(Kernel::current::<f32>);
    row_by_row::<bf16>(Kernel::current::<bf16>);
    #[cfg(target_arch = "x86_64")]
    row_by_row::<bf16>(Kernel::emulated_tiles);
}

fn row_by_row<T: Element>(kernel: fn() -> Kernel) {
    let (n, k) = (70, 1100);
    let round = |values: Vec<f32>| values.into_iter().map(T::from_f32).collect::<Vec<T>>();
    let (a, b) = (round(values(&[40, k])), round(values(&[k, n])));
    let mut packed = vec![T::ZERO; packed_len(k, n)];
    pack(k, n, T::PAIRED, |row, column| b[row * n + column], &mut packed);
    let last_row = |first: usize| {
        let out = std::sync::Mutex::new(vec![0f32; n]);
        let product = Product { m: 40 - first, b: Panels::new(&packed, k, n) };
        product.run_by(
            kernel,
            |row, start, elements: &mut [T]| {
                elements.copy_from_slice(&a[(first + row) * k + start..][..elements.len()]);
            },
            |tile| {
                if tile.rows.contains(&(39 - first)) {
                    out.lock().unwrap()[tile.columns.clone()].copy_from_slice(tile.row(39 - first));
                }
            },
        );
        out.into_inner().unwrap()
    };
    let whole = last_row(0);
    for first in [1, 25, 26, 38, 39] {
        assert_eq!(last_row(first), whole, "with {} rows", 40 - first);
    }
}
