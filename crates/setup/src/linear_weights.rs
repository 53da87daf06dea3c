//! The weight type of linear layers.

use std::str::FromStr;

use candle_core::DType;
use kiln_weights::{BlockType, MatrixType};

/// The type in which the weight matrices of linear layers of all networks are stored. Layers always compute in the type
/// of the activations. Matrices that a type cannot store (blocks that do not divide their rows), and all other weights,
/// are stored in the type of the activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinearWeightType {
    /// Matrices that a file stores in 8 bits or less stay as they are, those of text encoders and denoisers; all others have the
    /// type of the activations.
    #[default]
    Auto,
    /// 32 bits in an f32 run; otherwise the type of the activations, because that is all that a run reads. Quantized weights
    /// of a file are dequantized when they are loaded.
    F32,
    /// Another type. Weights that the file stores in this type are kept bit by bit.
    Kept(MatrixType),
}

impl FromStr for LinearWeightType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let block = BlockType::writable().map(MatrixType::Blocks).find(|block| block.to_string() == text);
        match (text, block) {
            ("auto", _) => Ok(Self::Auto),
            ("f32" | "fp32", _) => Ok(Self::F32),
            ("f16" | "fp16", _) => Ok(Self::Kept(MatrixType::F16)),
            ("bf16", _) => Ok(Self::Kept(MatrixType::Bf16)),
            ("f8" | "fp8" | "f8_e4m3", _) => Ok(Self::Kept(MatrixType::F8)),
            (_, Some(block)) => Ok(Self::Kept(block)),
            _ => {
                let blocks: Vec<_> = BlockType::writable().map(|block| MatrixType::Blocks(block).to_string()).collect();
                Err(format!("expected auto, f32, f16, bf16, f8, {}", blocks.join(", ")))
            }
        }
    }
}

impl LinearWeightType {
    /// Whether matrices stay as their files store them.
    pub fn keeps_stored(self) -> bool {
        self == Self::Auto
    }

    /// The type in a run with activations of `dtype`, if it differs.
    pub fn resolve(self, dtype: DType) -> Option<MatrixType> {
        match (self, dtype) {
            (Self::Kept(MatrixType::F16), DType::F16) | (Self::Kept(MatrixType::Bf16), DType::BF16) => None,
            (Self::Kept(kind), _) => Some(kind),
            (Self::Auto | Self::F32, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_have_names() {
        for block in BlockType::writable() {
            let name = format!("{block:?}").to_lowercase();
            assert_eq!(name.parse(), Ok(LinearWeightType::Kept(MatrixType::Blocks(block))));
        }
        assert_eq!("f8".parse(), Ok(LinearWeightType::Kept(MatrixType::F8)));
        assert!("q7_0".parse::<LinearWeightType>().unwrap_err().ends_with("q6_k"));
    }

    #[test]
    fn the_activations_type_needs_no_type_of_its_own() {
        let resolve = |text: &str, dtype| text.parse::<LinearWeightType>().unwrap().resolve(dtype);
        assert_eq!((resolve("auto", DType::F32), resolve("f32", DType::BF16)), (None, None));
        assert_eq!((resolve("f16", DType::F16), resolve("bf16", DType::BF16)), (None, None));
        assert_eq!(resolve("f16", DType::F32), Some(MatrixType::F16));
        assert_eq!(resolve("bf16", DType::F16), Some(MatrixType::Bf16));
    }
}
