//! The gated feed-forward layer of language models and of the vision tower, for a residual in f32.

use candle_core::DType;
use kiln_nn::ops::Activation;
use kiln_nn::{Linear, Result, TensorLike};
use kiln_weights::ParamBuilder;

/// The factor by which the input of the last linear layer is smaller in f16, so that its result stays below 65504.
const F16_SCALE: f64 = 64.0;

/// `down_proj(silu(gate_proj(x)) up_proj(x))`.
pub(crate) struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// Declares `gate_proj`, `up_proj` and `down_proj`, with biases or without.
    pub(crate) fn new(p: &ParamBuilder<'_>, [channels, hidden]: [usize; 2], bias: bool) -> Self {
        // Some channels of the tokens are a hundred times the others.
        let input = |name: &str| Linear::new(&p.pp(name).allows_fp8(), channels, hidden, bias);
        Self {
            gate: input("gate_proj"),
            up: input("up_proj"),
            down: Linear::new(&p.pp("down_proj"), hidden, channels, bias),
        }
    }

    /// The residual `x` `(1, s, channels)` in f32 with the result for `normed` `(1, s, channels)` in `dtype` added, in f32.
    pub(crate) fn add<T: TensorLike>(&self, x: &T, normed: T, dtype: DType) -> Result<T> {
        let (gates, values) = (self.gate.forward(&normed)?, self.up.forward(&normed)?);
        drop(normed);
        if dtype != DType::F16 {
            let hidden = gates.gated_activation(Activation::Silu, Some(&values))?;
            drop((gates, values));
            return x.add(&self.down.forward(&hidden)?.to_dtype(DType::F32)?);
        }
        let (gates, values) = (gates.to_dtype(DType::F32)?, values.to_dtype(DType::F32)?);
        let hidden = gates.gated_activation(Activation::Silu, Some(&values))?;
        drop((gates, values));
        let hidden = hidden.affine(1.0 / F16_SCALE, 0.0)?.to_dtype(dtype)?;
        let result = self.down.forward_without_bias(&hidden)?.to_dtype(DType::F32)?.affine(F16_SCALE, 0.0)?;
        match self.down.bias_of(&hidden)? {
            Some(bias) => x.add(&result.broadcast_add(&bias.to_dtype(DType::F32)?)?),
            None => x.add(&result),
        }
    }
}
