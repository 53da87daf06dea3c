//! The kernels for 8-bit integers: unsigned bytes of `a` times signed bytes of `b`, summed in 32 bits.
//!
//! A word has four neighbors in `k`. Sums are exact (modulo 2^32, which no product here reaches), so every kernel has
//! the same result. The tile of the result has the bits of `i32` where other kernels have `f32`.

use super::{Kernel, Out, PANEL, ROWS, Registers, Run, STRIDE};
use crate::cpu::isa::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

/// Rows of a strip of the kernel for AVX2.
const STRIP: usize = 4;
/// The fewest columns of the largest task.
const COLUMNS: usize = 640;
/// Bytes in a word.
pub(crate) const BYTES: usize = 4;

/// The kernels for bytes on one instruction path.
pub(crate) struct ByteKernel(Kernel);

impl ByteKernel {
    /// The kernels of this process.
    pub(crate) fn current() -> Self {
        Self::on(Isa::current())
    }

    /// The kernels of a path that the CPU supports.
    pub(crate) fn on(isa: Isa) -> Self {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Amx && crate::cpu::permission::tile_products().1 {
            return Self(Kernel { by: Registers::Tiles(super::amx::Tiles::bytes_of_the_cpu()), pairs: false });
        }
        let run: &'static [[Run; ROWS]; 2] = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if is_x86_feature_detected!("avx512vnni") => {
                &table!(avx512::run_dots)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => &table!(avx512::run_wide),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &table!(avx2::run),
            _ => &table!(portable::run),
        };
        // Whole strips of AVX2's kernel.
        let rows = if isa == Isa::Avx2 { ROWS / STRIP * STRIP } else { ROWS };
        Self(Kernel { by: Registers::Vectors(rows, run), pairs: false })
    }

    /// AVX-512 without dot products of bytes, for tests on CPUs that have them.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn without_dot_products() -> Self {
        Self(Kernel { by: Registers::Vectors(ROWS, &table!(avx512::run_wide)), pairs: false })
    }

    /// Tiles on any CPU, element by element.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn emulated_tiles() -> Self {
        Self(Kernel { by: Registers::Tiles(super::amx::Tiles::emulated_bytes()), pairs: false })
    }

    /// Rows of a call.
    pub(crate) fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Rows and columns of a task. Products of bytes are so fast that gathering rows again for more tasks takes longer than
    /// reading panels from beyond the L2 cache.
    pub(crate) fn task(&self) -> (usize, usize) {
        let (rows, columns) = self.0.task();
        (rows, columns.max(COLUMNS))
    }

    /// Bytes of `k` in a block.
    pub(crate) fn k_block(&self) -> usize {
        BYTES * self.0.k_block()
    }

    /// `out = a b` or `out += a b` for `rows` rows of `a`, [`STRIDE`] words apart, and `words` rows of words of a panel.
    /// Panics where a slice is too short.
    pub(crate) fn run(&self, rows: usize, a: &[u32], b: &[u8], words: usize, out: Out<'_>) {
        let Out { values: out, stride, first, columns } = out;
        assert!((1..=self.rows()).contains(&rows) && (1..=STRIDE).contains(&words));
        assert!(a.len() >= (rows - 1) * STRIDE + words && b.len() >= words * PANEL * BYTES);
        assert!(out.len() >= (rows - 1) * stride + PANEL && (rows == 1 || stride >= PANEL));
        let whole = columns > PANEL / 2;
        let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
        // SAFETY: the assertions keep every address that a kernel reads and writes inside the slices: `words` words of
        // each of `rows` rows of `a`, `words` rows of PANEL words of the panel, PANEL values in each of `rows` rows of
        // `out`. The kernel was chosen by the instructions that the CPU reports and the operating system allows.
        unsafe {
            match &self.0.by {
                Registers::Vectors(_, table) => {
                    (table[usize::from(whole)][rows - 1])(words, a, b, out, stride, first);
                }
                #[cfg(target_arch = "x86_64")]
                Registers::Tiles(tiles) => tiles.run(rows, whole, words, a, b, out, stride, first),
            }
        }
    }
}
