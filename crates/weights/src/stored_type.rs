//! The type of a tensor's elements in a file.

use std::fmt;

use kiln_ops::BlockType;
use safetensors::Dtype;

/// The type of stored elements. `Debug` and `Display` write the name that its format uses: `F16`, `Q4_K`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StoredType {
    /// Plain numbers.
    Plain(Dtype),
    /// Blocks of a GGUF file: rows of numbers that share scales.
    Blocks(BlockType),
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
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
