//! The types that kernels multiply, where activations and weights are stored in others.

use half::{bf16, f16};

use super::Element;
use super::math::for_every_isa;
use super::product::PANEL;

/// Calls a function that is generic over the stored type and the multiplied one, for a stored dtype on the instruction
/// path of this process. Another dtype is an error that names the operand.
macro_rules! dispatch_operands {
    ($op:expr, $operand:literal, $dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            candle_core::DType::F32 => $function::<f32, f32>($($argument),*),
            candle_core::DType::F16 => $function::<half::f16, f32>($($argument),*),
            candle_core::DType::BF16 if $crate::cpu::isa::Isa::current().has_bf16() => {
                $function::<half::bf16, half::bf16>($($argument),*)
            }
            candle_core::DType::BF16 => $function::<half::bf16, f32>($($argument),*),
            found => {
                Err($crate::Error::DType { op: $op, operand: $operand, expected: candle_core::DType::F32, found })
            }
        }
    };
}

/// A type that kernels multiply, for elements that are stored as `T`: bf16 where the CPU has dot products of it and
/// stored elements are bf16, else f32. Stored elements are converted once, before they are multiplied many times, and
/// values that are computed from them (transformed tiles, the weights of an attention) are not rounded to `T`.
pub(crate) trait Operand<T: Element>: Element {
    /// Converts elements. Slices have the same length.
    fn convert(from: &[T], to: &mut [Self]);

    /// Converts one element.
    fn of(value: T) -> Self;

    /// Rows of a panel, an even number, in this type's order of rows. Uses the buffer where the type differs.
    fn panel<'a>(from: &'a [T], buffer: &'a mut Vec<Self>) -> &'a [Self];
}

macro_rules! as_stored {
    ($type:ty) => {
        impl Operand<$type> for $type {
            fn convert(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            #[inline(always)]
            fn of(value: Self) -> Self {
                value
            }

            fn panel<'a>(from: &'a [Self], _: &'a mut Vec<Self>) -> &'a [Self] {
                from
            }
        }
    };
}

as_stored!(f32);
as_stored!(bf16);

impl Operand<f16> for f32 {
    fn convert(from: &[f16], to: &mut [Self]) {
        widen(from, to);
    }

    #[inline(always)]
    fn of(value: f16) -> Self {
        Element::to_f32(value)
    }

    fn panel<'a>(from: &'a [f16], buffer: &'a mut Vec<Self>) -> &'a [Self] {
        buffer.resize(from.len(), 0.0);
        widen(from, buffer);
        buffer
    }
}

impl Operand<bf16> for f32 {
    fn convert(from: &[bf16], to: &mut [Self]) {
        widen(from, to);
    }

    #[inline(always)]
    fn of(value: bf16) -> Self {
        Element::to_f32(value)
    }

    fn panel<'a>(from: &'a [bf16], buffer: &'a mut Vec<Self>) -> &'a [Self] {
        buffer.resize(from.len(), 0.0);
        widen_pairs(from, buffer);
        buffer
    }
}

for_every_isa! {
    /// Elements in f32. The shorter slice determines the count.
    pub(crate) fn widen<T: Element>(from: &[T], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = from.to_f32());
    }
}

for_every_isa! {
    /// Pairs of rows of a panel in f32, row by row.
    fn widen_pairs(from: &[bf16], to: &mut [f32]) {
        for (from, to) in from.as_chunks::<{ 2 * PANEL }>().0.iter().zip(to.as_chunks_mut::<{ 2 * PANEL }>().0) {
            let (even, odd) = to.split_at_mut(PANEL);
            for (i, [first, second]) in from.as_chunks::<2>().0.iter().enumerate() {
                even[i] = Element::to_f32(*first);
                odd[i] = Element::to_f32(*second);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paired_rows_are_separated() {
        let stored: Vec<bf16> = (0..4 * PANEL).map(|i| bf16::from_f32(i as f32)).collect();
        let mut buffer = Vec::new();
        let rows = <f32 as Operand<bf16>>::panel(&stored, &mut buffer);
        assert_eq!(rows.len(), stored.len());
        assert_eq!((rows[1], rows[PANEL], rows[PANEL + 1], rows[2 * PANEL]), (2.0, 1.0, 3.0, 64.0));
    }

    #[test]
    fn halves_keep_their_values() {
        let stored: Vec<f16> = (0..0x7c00).map(f16::from_bits).collect();
        let mut wide = vec![0.0; stored.len()];
        <f32 as Operand<f16>>::convert(&stored, &mut wide);
        assert!(stored.iter().zip(&wide).all(|(stored, wide)| f16::to_f32(*stored) == *wide));
    }
}
