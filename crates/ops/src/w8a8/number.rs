//! The numbers of a byte.

use std::fmt;

use crate::matrix::{f8_e4m3, to_f8_e4m3};

/// The number that a byte of a weight or of an activation stands for; it is multiplied by the scale of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteNumber {
    /// An 8-bit float (`F8_E4M3`, arXiv 2209.05433).
    E4m3,
    /// A signed integer, -127 to 127.
    Int8,
}

/// The least largest magnitude that is scaled up to that of the bytes: the factor stays finite. Smaller values are rounded to 0.
const LEAST: f32 = 1e-30;

impl ByteNumber {
    /// The largest number.
    fn most(self) -> f32 {
        match self {
            Self::E4m3 => 448.0,
            Self::Int8 => 127.0,
        }
    }

    /// The number of a byte.
    pub(crate) fn value(self, byte: u8) -> f32 {
        match self {
            Self::E4m3 => f8_e4m3(byte),
            Self::Int8 => byte.cast_signed().into(),
        }
    }

    /// The byte of the nearest number. NaN is 0 as an integer.
    pub(super) fn byte(self, value: f32) -> u8 {
        match self {
            Self::E4m3 => to_f8_e4m3(value),
            Self::Int8 => (value.round_ties_even() as i8).cast_unsigned(),
        }
    }

    /// The scale of values with this largest magnitude, and its inverse.
    pub(super) fn scale(self, most: f32) -> (f32, f32) {
        if most < LEAST { (0.0, 0.0) } else { (most / self.most(), self.most() / most) }
    }

    /// Rounds values of at most the magnitude `most`. Returns what the rounded values stand for.
    pub(super) fn round_by(self, values: &[f32], most: f32) -> Vec<f32> {
        let (scale, inverse) = self.scale(most);
        values.iter().map(|value| self.value(self.byte(value * inverse)) * scale).collect()
    }
}

/// The largest magnitude of some values; NaN if one of them is. Integers have no NaN, so that the scale has to keep it.
pub(super) fn magnitude(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0f32, |most, value| if most.is_nan() || value.is_nan() { f32::NAN } else { most.max(value.abs()) })
}

impl fmt::Display for ByteNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::E4m3 => "e4m3",
            Self::Int8 => "int8",
        })
    }
}
