//! The projections of a self-attention as one product.

use kiln_weights::{Packing, ParamBuilder, StackedParam};

use crate::error::Result;
use crate::linear::Linear;
use crate::tensor::TensorLike;

/// The linear layers of queries, keys and values, which have the same input and as many output channels.
///
/// On devices whose operators read strided rows they are one product: in 8 bits it rounds its input once, and it fills more of a
/// GPU. The matrices come before the biases in the slab, so that both are adjacent.
pub struct QkvLinear {
    layers: [Linear; 3],
    stacked: Option<Stacked>,
}

/// The layers as one.
struct Stacked {
    weight: StackedParam,
    bias: Option<StackedParam>,
}

impl QkvLinear {
    /// Declares layers of these names: `weight` `(out_channels, in_channels)` and, if requested, `bias` `(out_channels)` of each.
    pub fn new(p: &ParamBuilder<'_>, names: [&str; 3], in_channels: usize, out_channels: usize, bias: bool) -> Self {
        let weights = names.map(|name| p.pp(name).param("weight", &[out_channels, in_channels], Packing::Linear));
        let weight = p.stack(3);
        if !bias {
            let layers = weights.map(|weight| Linear::of(weight, None));
            return Self { layers, stacked: weight.map(|weight| Stacked { weight, bias: None }) };
        }
        let biases = names.map(|name| p.pp(name).param("bias", &[out_channels], Packing::AsStored));
        let bias = p.stack(3);
        let stacked = weight.zip(bias).map(|(weight, bias)| Stacked { weight, bias: Some(bias) });
        let ([q, k, v], [q_bias, k_bias, v_bias]) = (weights, biases);
        let layers = [(q, q_bias), (k, k_bias), (v, v_bias)].map(|(weight, bias)| Linear::of(weight, Some(bias)));
        Self { layers, stacked }
    }

    /// Queries, keys and values `(b, s, out_channels)` of `x` `(b, s, in_channels)`, which may be parts of one product's rows.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<[T; 3]> {
        let Some(Stacked { weight, bias }) = self.stacked.as_ref().filter(|stacked| self.is_in_place(stacked, x))
        else {
            let [q, k, v] = &self.layers;
            return Ok([q.forward(x)?, k.forward(x)?, v.forward(x)?]);
        };
        let bias = bias.as_ref().map(|bias| x.stacked_param(bias)).transpose()?;
        let all = x.linear(&x.stacked_weight(weight)?, bias.as_ref(), None)?;
        let c = all.size3()?[2] / 3;
        Ok([all.narrow(2, 0, c)?, all.narrow(2, c, c)?, all.narrow(2, 2 * c, c)?])
    }

    /// Whether the layers are one product: the matrices have one type, and no layer has an added bias.
    fn is_in_place<T: TensorLike>(&self, stacked: &Stacked, x: &T) -> bool {
        let is_plain = self.layers.iter().all(|layer| layer.added_bias().is_none());
        is_plain && stacked.weight.is_uniform() && x.supports_strided_qkv()
    }
}
