//! The type of a tensor's elements in a file.

use std::fmt;

use kiln_ops::{BlockType, MatrixType, ROW_FACTOR, Rotation};
use safetensors::Dtype;

/// The type of stored elements. `Debug` and `Display` write the name that its format uses: `F16`, `Q4_K`, `F8_E4M3_SCALED`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StoredType {
    /// Plain numbers.
    Plain(Dtype),
    /// Blocks of a GGUF file or of bitsandbytes: numbers of a row that share scales.
    Blocks(BlockType),
    /// Rows of 8-bit numbers, each after its factor ([`MatrixType::has_row_factors`]). Files have the factors in a tensor of
    /// their own.
    Rows(MatrixType),
}

impl StoredType {
    /// The size of a tensor of `shape` in bytes. `None` if blocks do not divide its rows, or the size overflows.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        match self {
            Self::Plain(dtype) => {
                let bits = elements.checked_mul(dtype.bitsize())?;
                bits.is_multiple_of(8).then_some(bits / 8)
            }
            Self::Blocks(block) => {
                let row = shape.last().copied().unwrap_or(1);
                row.is_multiple_of(block.elements())
                    .then(|| (elements / block.elements()).checked_mul(block.bytes()))?
            }
            Self::Rows(_) => shape.first().unwrap_or(&1).checked_mul(ROW_FACTOR)?.checked_add(elements),
        }
    }

    /// The type in which a matrix stays as it is stored. `None` for plain numbers of 16 bits and more.
    pub fn matrix(self) -> Option<MatrixType> {
        match self {
            Self::Plain(Dtype::F8_E4M3) => Some(MatrixType::F8),
            Self::Plain(Dtype::F8_E5M2) => Some(MatrixType::F8E5M2),
            Self::Plain(_) => None,
            Self::Blocks(block) => Some(MatrixType::Blocks(block)),
            Self::Rows(kind) => Some(kind),
        }
    }
}

impl From<Dtype> for StoredType {
    fn from(dtype: Dtype) -> Self {
        Self::Plain(dtype)
    }
}

impl fmt::Debug for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => write!(f, "{dtype:?}"),
            Self::Blocks(block) => write!(f, "{block:?}"),
            Self::Rows(MatrixType::F8) => f.write_str("F8_E4M3_SCALED"),
            Self::Rows(MatrixType::F8E5M2) => f.write_str("F8_E5M2_SCALED"),
            Self::Rows(MatrixType::Int8(Rotation::None)) => f.write_str("INT8"),
            Self::Rows(MatrixType::Int8(_)) => f.write_str("INT8_CONVROT"),
            Self::Rows(kind) => write!(f, "{kind}"),
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
