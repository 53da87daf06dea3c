//! The steps of a product in tile registers. Rust's intrinsics for tiles are unstable, so the instructions are written out.

use std::arch::asm;
use std::cell::Cell;

use super::{Config, PANEL_ROW, Shape, Steps, TILE, WORD};

thread_local! {
    /// The configuration of this thread's registers: the instruction takes as long as a dozen products.
    static CONFIGURED: Cell<Option<Shape>> = const { Cell::new(None) };
}

fn configure(shape: Shape) {
    if CONFIGURED.get() != Some(shape) {
        let config = Config::new(shape);
        // SAFETY: the operand has 64 bytes with a valid configuration of palette 1: at most 16 rows of at most 64 bytes in
        // each of eight registers, which the CPU has. A process that may not use tiles does not come here. The compiler
        // uses no tile register, so that clearing them changes nothing of its own.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags)) };
        CONFIGURED.set(Some(shape));
    }
}

/// Gives the registers back, so that the operating system need not save them, and so that no code of others finds them
/// configured.
pub(super) fn release() {
    if CONFIGURED.take().is_some() {
        // SAFETY: a thread with configured tiles may use them.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// The loop over steps, for one or two rows and columns of tiles. Labels 2 to 4 are local to the block.
macro_rules! steps {
    ($steps:ident, $shape:ident, zero [$($zero:literal)*], load [$($load:literal)*], multiply [$($multiply:expr),*],
     store [$($store:literal)*] $(, $lower:ident)?) => {{
        asm!(
            "test {first}, {first}",
            "jz 2f",
            $($zero,)*
            "jmp 3f",
            "2:",
            $($load,)*
            "3:",
            "4:",
            $($multiply,)*
            "add {a}, {a_step}",
            "add {a_lower}, {a_step}",
            "add {b}, {b_step}",
            "dec {count}",
            "jnz 4b",
            $($store,)*
            a = inout(reg) $steps.a => _,
            a_lower = inout(reg) $steps.a.wrapping_add(TILE * $steps.a_stride) => _,
            a_stride = in(reg) $steps.a_stride,
            a_step = in(reg) $shape.words * WORD,
            b = inout(reg) $steps.b => _,
            b_stride = in(reg) PANEL_ROW,
            b_step = in(reg) $shape.words * PANEL_ROW,
            out = in(reg) $steps.out,
            $($lower = in(reg) $steps.out.wrapping_add(TILE * $steps.out_stride),)?
            out_stride = in(reg) $steps.out_stride,
            count = inout(reg) $steps.count => _,
            first = in(reg) usize::from($steps.first),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    }};
}

/// Defines [`super::Multiply`] by an instruction that multiplies tiles.
macro_rules! multiply {
    ($(#[$doc:meta])* $visibility:vis $name:ident, $product:literal) => {
        $(#[$doc])*
        $visibility unsafe fn $name(shape: Shape, steps: &Steps) {
            configure(shape);
            // SAFETY: the shape's rows and words are what the registers are configured for, so a tile of `a` or of the result is
            // loaded and stored with those rows and bytes: by the contract they are valid, and so are the rows of the panel, one
            // step after another. The addresses of lower rows are used only if there are any. `count` is not 0: the loop ends
            // after that many steps. Only registers that are named are written, and memory at `out`.
            unsafe {
                match (shape.rows > TILE, steps.whole) {
                    (true, true) => steps!(
                        steps, shape,
                        zero ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                        load [
                            "tileloadd tmm0, [{out} + {out_stride}*1]"
                            "tileloadd tmm1, [{out} + {out_stride}*1 + 64]"
                            "tileloadd tmm2, [{out_lower} + {out_stride}*1]"
                            "tileloadd tmm3, [{out_lower} + {out_stride}*1 + 64]"
                        ],
                        multiply [
                            "tileloadd tmm6, [{b} + {b_stride}*1]",
                            "tileloadd tmm4, [{a} + {a_stride}*1]",
                            concat!($product, " tmm0, tmm4, tmm6"),
                            "tileloadd tmm7, [{b} + {b_stride}*1 + 64]",
                            concat!($product, " tmm1, tmm4, tmm7"),
                            "tileloadd tmm5, [{a_lower} + {a_stride}*1]",
                            concat!($product, " tmm2, tmm5, tmm6"),
                            concat!($product, " tmm3, tmm5, tmm7")
                        ],
                        store [
                            "tilestored [{out} + {out_stride}*1], tmm0"
                            "tilestored [{out} + {out_stride}*1 + 64], tmm1"
                            "tilestored [{out_lower} + {out_stride}*1], tmm2"
                            "tilestored [{out_lower} + {out_stride}*1 + 64], tmm3"
                        ],
                        out_lower
                    ),
                    (true, false) => steps!(
                        steps, shape,
                        zero ["tilezero tmm0" "tilezero tmm2"],
                        load [
                            "tileloadd tmm0, [{out} + {out_stride}*1]"
                            "tileloadd tmm2, [{out_lower} + {out_stride}*1]"
                        ],
                        multiply [
                            "tileloadd tmm6, [{b} + {b_stride}*1]",
                            "tileloadd tmm4, [{a} + {a_stride}*1]",
                            concat!($product, " tmm0, tmm4, tmm6"),
                            "tileloadd tmm5, [{a_lower} + {a_stride}*1]",
                            concat!($product, " tmm2, tmm5, tmm6")
                        ],
                        store [
                            "tilestored [{out} + {out_stride}*1], tmm0"
                            "tilestored [{out_lower} + {out_stride}*1], tmm2"
                        ],
                        out_lower
                    ),
                    (false, true) => steps!(
                        steps, shape,
                        zero ["tilezero tmm0" "tilezero tmm1"],
                        load [
                            "tileloadd tmm0, [{out} + {out_stride}*1]"
                            "tileloadd tmm1, [{out} + {out_stride}*1 + 64]"
                        ],
                        multiply [
                            "tileloadd tmm6, [{b} + {b_stride}*1]",
                            "tileloadd tmm4, [{a} + {a_stride}*1]",
                            concat!($product, " tmm0, tmm4, tmm6"),
                            "tileloadd tmm7, [{b} + {b_stride}*1 + 64]",
                            concat!($product, " tmm1, tmm4, tmm7")
                        ],
                        store [
                            "tilestored [{out} + {out_stride}*1], tmm0"
                            "tilestored [{out} + {out_stride}*1 + 64], tmm1"
                        ]
                    ),
                    (false, false) => steps!(
                        steps, shape,
                        zero ["tilezero tmm0"],
                        load ["tileloadd tmm0, [{out} + {out_stride}*1]"],
                        multiply [
                            "tileloadd tmm6, [{b} + {b_stride}*1]",
                            "tileloadd tmm4, [{a} + {a_stride}*1]",
                            concat!($product, " tmm0, tmm4, tmm6")
                        ],
                        store ["tilestored [{out} + {out_stride}*1], tmm0"]
                    ),
                }
            }
        }
    };
}

multiply! {
    /// Products of pairs of bf16, summed in f32: see [`super::Multiply`].
    ///
    /// # Safety
    /// See there.
    pub(super) multiply, "tdpbf16ps"
}

multiply! {
    /// Products of unsigned bytes with signed bytes, summed in 32 bits: see [`super::Multiply`].
    ///
    /// # Safety
    /// See there. The CPU has AMX-INT8.
    pub(super) multiply_bytes, "tdpbusd"
}
