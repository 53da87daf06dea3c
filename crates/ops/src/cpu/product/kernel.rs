//! The innermost loops: some rows times one panel.
//!
//! A kernel keeps its tile of the result in registers: 14 rows of two 16-wide registers, with two more for the panel's
//! row and one for the broadcast element, are 31 of AVX-512's 32. AVX2 has 16 registers of 8: 6 rows of half a panel, twice a call. NEON
//! has 32 of 4, for the same shape. AMX has eight tiles of 16 rows: 32 rows of a panel take four.
#![allow(unsafe_code)]

use half::{bf16, f16};

use super::panels::PANEL;
use super::{Element, K_BLOCK, STRIDE};
use crate::cpu::isa::Isa;
use crate::cpu::scratch::elements;
use crate::cpu::widen;
use candle_core::DType;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

/// The largest number of rows of the tile of a kernel in vector registers.
const ROWS: usize = 14;
/// Rows of a call that computes strips of six rows: a shorter strip would wait for the sums of the step before.
const STRIPS: usize = 12;
/// The largest number of rows of any kernel's tile.
pub(crate) const MOST_ROWS: usize = 32;
/// Words of `k` in a block where both operands are tiles: rows of a call take 32 KiB, most of an L1 cache.
#[cfg(target_arch = "x86_64")]
const TILE_BLOCK: usize = 256;

/// `(depth in words or elements, a, b, out, stride of out, whether out is only written)`.
type Run = unsafe fn(usize, *const u32, *const u8, *mut f32, usize, bool);

/// A function for every number of rows, for half a panel and for a whole one.
macro_rules! table {
    ($($kernel:ident)::+ $(, $load:ty)?) => {
        [table!(@rows 1, $($kernel)::+ $(, $load)?), table!(@rows 2, $($kernel)::+ $(, $load)?)]
    };
    (@rows $halves:literal, $($kernel:ident)::+ $(, $load:ty)?) => {
        [
            $($kernel)::+::<$($load,)? 1, $halves>,
            $($kernel)::+::<$($load,)? 2, $halves>,
            $($kernel)::+::<$($load,)? 3, $halves>,
            $($kernel)::+::<$($load,)? 4, $halves>,
            $($kernel)::+::<$($load,)? 5, $halves>,
            $($kernel)::+::<$($load,)? 6, $halves>,
            $($kernel)::+::<$($load,)? 7, $halves>,
            $($kernel)::+::<$($load,)? 8, $halves>,
            $($kernel)::+::<$($load,)? 9, $halves>,
            $($kernel)::+::<$($load,)? 10, $halves>,
            $($kernel)::+::<$($load,)? 11, $halves>,
            $($kernel)::+::<$($load,)? 12, $halves>,
            $($kernel)::+::<$($load,)? 13, $halves>,
            $($kernel)::+::<$($load,)? 14, $halves>,
        ]
    };
}

pub(crate) mod bytes;

/// The part of the result that a kernel adds to.
pub(crate) struct Out<'a> {
    /// The tile from its first element on.
    pub(crate) values: &'a mut [f32],
    /// Elements between two rows.
    pub(crate) stride: usize,
    /// Whether this is the first block of `k`: the tile is overwritten instead of added to.
    pub(crate) first: bool,
    /// Columns to compute. Up to half a panel, the other half is skipped.
    pub(crate) columns: usize,
}

/// The kernels for one type of panels on one instruction path.
pub(crate) struct Kernel {
    by: Registers,
    /// Whether both operands are read as pairs of bf16.
    pairs: bool,
}

/// The registers of the tile of the result.
enum Registers {
    /// Vectors: the rows of a call, and a function for half a panel and for a whole one, by the number of rows from 1.
    Vectors(usize, &'static [[Run; ROWS]; 2]),
    #[cfg(target_arch = "x86_64")]
    Tiles(amx::Tiles),
}

impl Kernel {
    /// The kernels of this process for a type of panels.
    pub(crate) fn current<T: Element>() -> Self {
        Self::of(T::DTYPE)
    }

    /// The kernel for the type of an [`Element`].
    pub(crate) fn of(dtype: DType) -> Self {
        let isa = Isa::current();
        match dtype {
            DType::F32 => Self::f32(isa),
            DType::F16 => Self::f16(isa),
            DType::BF16 => Self::bf16(isa),
            other => unreachable!("no element type is {other:?}"),
        }
    }

    /// Tiles of bf16 on any CPU, element by element.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn emulated_tiles() -> Self {
        Self { by: Registers::Tiles(amx::Tiles::emulated()), pairs: true }
    }

    /// Whether it multiplies tiles.
    pub(crate) fn is_tiled(&self) -> bool {
        !matches!(self.by, Registers::Vectors(..))
    }

    /// Rows of a call.
    pub(crate) fn rows(&self) -> usize {
        match self.by {
            Registers::Vectors(rows, _) => rows,
            #[cfg(target_arch = "x86_64")]
            Registers::Tiles(_) => amx::ROWS,
        }
    }

    /// Rows and columns of a task: blocks of both operands and the tile of the result stay in the L2 cache. With 14 rows a
    /// call they take 231, 512 and 112 KiB, with tiles 264, 640 and 320.
    pub(super) fn task(&self) -> (usize, usize) {
        match self.by {
            Registers::Vectors(rows, _) => (8 * rows, 256),
            #[cfg(target_arch = "x86_64")]
            Registers::Tiles(_) => (4 * amx::ROWS, 640),
        }
    }

    /// Whether its words are elements of `T`: then a row may be written through [`elements`].
    pub(crate) fn reads<T: Element>(&self) -> bool {
        T::DTYPE == DType::F32 || (self.pairs && cfg!(target_endian = "little"))
    }

    /// Elements of `k` in a number of words of a row: pairs of bf16, or one f32 each.
    pub(crate) fn elements_in(&self, words: usize) -> usize {
        if self.pairs { 2 * words } else { words }
    }

    /// Bytes of an element as it is multiplied.
    pub(crate) fn operand_bytes(&self) -> usize {
        size_of::<u32>() / self.elements_in(1)
    }

    /// Elements of `k` in a block, of at most [`K_BLOCK`] words.
    pub(crate) fn k_block(&self) -> usize {
        self.elements_in(match self.by {
            Registers::Vectors(..) => K_BLOCK,
            #[cfg(target_arch = "x86_64")]
            Registers::Tiles(_) => TILE_BLOCK,
        })
    }

    /// Writes a row of `depth` elements from `gather` in the kernel's format, through the buffer `stored` where that
    /// format differs from the elements.
    pub(crate) fn fill<T: Element>(
        &self,
        depth: usize,
        stored: &mut Vec<T>,
        a: &mut [u32],
        gather: impl FnOnce(&mut [T]),
    ) {
        let even = depth.next_multiple_of(2); // pads an odd number with a zero
        if self.reads::<T>() {
            let a = elements(a);
            a[depth..even].fill(T::ZERO);
            gather(&mut a[..depth]);
        } else {
            stored.clear();
            stored.resize(even, T::ZERO);
            gather(&mut stored[..depth]);
            self.load_row(stored, a);
        }
    }

    /// Writes a gathered row with an even number of elements in the kernel's format.
    pub(crate) fn load_row<T: Element>(&self, stored: &[T], a: &mut [u32]) {
        if self.pairs {
            for (word, pair) in a.iter_mut().zip(stored.as_chunks::<2>().0) {
                let [low, high] = pair.map(|value| value.to_f32().to_bits() >> 16);
                *word = low | high << 16;
            }
        } else {
            widen(stored, elements(a));
        }
    }

    /// `out = a b` or `out += a b` for `rows` rows of `a`, [`STRIDE`] words apart, and `depth` rows of a panel. Panics
    /// where a slice is too short.
    pub(crate) fn run<T: Element>(&self, rows: usize, a: &[u32], b: &[T], depth: usize, out: Out<'_>) {
        let Out { values: out, stride, first, columns } = out;
        let words = if self.pairs { depth.div_ceil(2) } else { depth };
        assert!((1..=self.rows()).contains(&rows) && (1..=STRIDE).contains(&words));
        assert!(a.len() >= (rows - 1) * STRIDE + words);
        assert!(b.len() >= depth.next_multiple_of(2) * PANEL || (!T::PAIRED && b.len() >= depth * PANEL));
        assert!(out.len() >= (rows - 1) * stride + PANEL && (rows == 1 || stride >= PANEL));
        let whole = columns > PANEL / 2;
        let (a, b, out) = (a.as_ptr(), b.as_ptr().cast(), out.as_mut_ptr());
        // SAFETY: the assertions keep every address that a kernel reads and writes inside the slices: `words` words of
        // each of `rows` rows of `a`, `words` rows of the panel (pairs of rows where the type is paired), PANEL values
        // in each of `rows` rows of `out`. The kernel was chosen by the instructions that the CPU reports and the
        // operating system allows, and its panels have the type `T`: each type has its own.
        unsafe {
            match &self.by {
                Registers::Vectors(_, table) => {
                    (table[usize::from(whole)][rows - 1])(words, a, b, out, stride, first);
                }
                #[cfg(target_arch = "x86_64")]
                Registers::Tiles(tiles) => tiles.run(rows, whole, words, a, b, out, stride, first),
            }
        }
    }

    fn f32(isa: Isa) -> Self {
        let run: &'static [[Run; ROWS]; 2] = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => &table!(avx512::run, avx512::LoadF32),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &table!(avx2::run, avx2::LoadF32),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonBf16 => &table!(neon::run, neon::LoadF32),
            _ => &table!(portable::run, f32),
        };
        Self { by: Registers::Vectors(rows(isa), run), pairs: false }
    }

    fn f16(isa: Isa) -> Self {
        let run: &'static [[Run; ROWS]; 2] = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => &table!(avx512::run, avx512::LoadF16),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &table!(avx2::run, avx2::LoadF16),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonBf16 => &table!(neon::run, neon::LoadF16),
            _ => &table!(portable::run, f16),
        };
        Self { by: Registers::Vectors(rows(isa), run), pairs: false }
    }

    fn bf16(isa: Isa) -> Self {
        let run: &'static [[Run; ROWS]; 2] = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => return Self { by: Registers::Tiles(amx::Tiles::of_the_cpu()), pairs: true },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => &table!(avx512::run_pairs),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &table!(avx512::run, avx512::LoadBf16),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &table!(avx2::run, avx2::LoadBf16),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 => &table!(neon::run_pairs),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &table!(neon::run, neon::LoadBf16),
            _ => &table!(portable::run, bf16),
        };
        Self { by: Registers::Vectors(rows(isa), run), pairs: isa.has_bf16() }
    }
}

/// Rows of a call of the kernels in vector registers.
fn rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx2 | Isa::Neon | Isa::NeonBf16 => STRIPS,
        _ => ROWS,
    }
}
