//! The operators that every device has, with the shapes of their operands.

use candle_core::DType;
use kiln_nn::Result;
use kiln_ops::{
    Activation, Attention, Conv2d, GroupNorm, GroupedAttention, MatrixType, RopePairs, RowNorm, TimestepEmbedding,
};

use super::operands::Operands;
use super::tested::Tested;

/// An operator of operands of one shape.
#[derive(Debug, Clone, Copy)]
pub(super) enum Computation {
    /// Rows, inputs and outputs.
    Linear([usize; 3]),
    /// Rows, inputs and outputs, with a matrix that stays as a file stores it.
    StoredLinear(MatrixType, [usize; 3]),
    /// Rows, inputs and outputs, with GELU of the outputs, which follow as many other channels as there are inputs.
    GeluLinear([usize; 3]),
    /// The side of the kernel, and height, width, channels and channels of the result.
    Convolution(usize, [usize; 4], Conv2d),
    /// Queries, keys, heads and channels of a head.
    Attention([usize; 4]),
    /// Tokens, heads and channels of a head.
    CausalAttention([usize; 3]),
    /// Tokens, heads of queries, heads of keys, and channels of a head. The second row has 37 tokens.
    GroupedAttention([usize; 4]),
    /// Tokens, heads and channels of a head. Every third key is not seen.
    MaskedAttention([usize; 3]),
    /// Queries, keys, heads and channels of a head: the attention that keys receive.
    ReceivedAttention([usize; 4]),
    /// Images, rows and channels: sums of changes.
    Changes([usize; 3]),
    /// Rows and channels of a table, of which every second row is taken.
    TableRows([usize; 2]),
    /// Height, width and channels.
    GroupNorm([usize; 3]),
    /// Rows and channels.
    LayerNorm([usize; 2]),
    /// Rows and channels.
    RmsNorm([usize; 2]),
    /// Images, rows and channels.
    ModulatedNorm([usize; 3]),
    /// Rows, heads and channels of a head.
    Rope([usize; 3], RopePairs),
    /// Rows and channels.
    Activation([usize; 2], Activation),
    /// Rows, and channels of gates and values together.
    Geglu([usize; 2]),
    /// Rows, and channels of gates and values together.
    Swiglu([usize; 2]),
    /// Images, rows and channels.
    GatedResidual([usize; 3]),
    /// Images, height, width, and the channels of both operands.
    Concatenation([usize; 5]),
    /// Images, height, width and channels; to twice the size.
    Upsampling([usize; 4]),
    /// Channels, for two timesteps.
    TimestepEmbedding(usize),
}

impl Computation {
    /// The name of the operator.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Linear(_) => "linear",
            Self::StoredLinear(kind, _) => return format!("linear, {kind}"),
            Self::GeluLinear(_) => "linear with GELU",
            Self::Convolution(..) => "convolution",
            Self::Attention(_) => "attention",
            Self::CausalAttention(_) => "causal attention",
            Self::GroupedAttention(_) => "grouped attention with lengths",
            Self::MaskedAttention(_) => "masked attention",
            Self::ReceivedAttention(_) => "attention that keys receive",
            Self::Changes(_) => "sums of changes",
            Self::TableRows(_) => "rows of a table",
            Self::GroupNorm(_) => "group norm with SiLU",
            Self::LayerNorm(_) => "layer norm",
            Self::RmsNorm(_) => "RMS norm",
            Self::ModulatedNorm(_) => "modulated layer norm",
            Self::Rope(..) => "rotary embedding",
            Self::Activation(_, function) => return format!("{function:?}"),
            Self::Geglu(_) => "GEGLU",
            Self::Swiglu(_) => "SwiGLU",
            Self::GatedResidual(_) => "gated residual",
            Self::Concatenation(_) => "concatenation",
            Self::Upsampling(_) => "upsampling",
            Self::TimestepEmbedding(_) => "timestep embedding",
        }
        .into()
    }

    /// The shapes in words.
    pub(super) fn shape(&self) -> String {
        match *self {
            Self::Linear([m, k, n]) | Self::StoredLinear(_, [m, k, n]) | Self::GeluLinear([m, k, n]) => {
                format!("{m} x {k} x {n}")
            }
            Self::Convolution(side, [h, w, c, n], Conv2d { stride, .. }) => {
                format!("{side}x{side}, {h} x {w} x {c} to {n}, stride {stride}")
            }
            Self::Attention([s, t, heads, width]) | Self::ReceivedAttention([s, t, heads, width]) => {
                format!("{s} to {t}, {heads} heads of {width}")
            }
            Self::CausalAttention([s, heads, width]) | Self::MaskedAttention([s, heads, width]) => {
                format!("{s}, {heads} heads of {width}")
            }
            Self::GroupedAttention([s, heads, kv, width]) => format!("{s} to {s}, {heads} and {kv} heads of {width}"),
            Self::Rope([rows, heads, width], pairs) => {
                format!("{rows} x {heads} heads of {width}, {pairs:?}").to_lowercase()
            }
            Self::Concatenation([b, h, w, first, second]) => format!("{b} x {h} x {w} x {first} and {second}"),
            Self::TimestepEmbedding(dim) => format!("2 x {dim}"),
            Self::GroupNorm([a, b, c])
            | Self::ModulatedNorm([a, b, c])
            | Self::GatedResidual([a, b, c])
            | Self::Changes([a, b, c]) => format!("{a} x {b} x {c}"),
            Self::Upsampling([b, h, w, c]) => format!("{b} x {h} x {w} x {c}"),
            Self::LayerNorm([rows, c])
            | Self::RmsNorm([rows, c])
            | Self::Activation([rows, c], _)
            | Self::Geglu([rows, c])
            | Self::Swiglu([rows, c])
            | Self::TableRows([rows, c]) => format!("{rows} x {c}"),
        }
    }

    /// The result for operands on a device.
    ///
    /// # Errors
    /// Errors of the operator, and of memory.
    pub(super) fn run<T: Tested>(&self, on: &mut Operands<T>) -> Result<T> {
        match *self {
            Self::Linear([m, k, n]) => {
                let (x, weight) = (on.tensor(&[m, k])?, on.matrix([n, k])?);
                let (bias, residual) = (on.tensor(&[n])?, on.tensor(&[m, n])?);
                x.linear(&weight, Some(&bias), Some(&residual))
            }
            Self::StoredLinear(kind, [m, k, n]) => {
                let (x, weight) = (on.tensor(&[m, k])?, on.stored([n, k], kind)?);
                x.linear(&weight, None, None)
            }
            Self::GeluLinear([m, k, n]) => {
                let (x, weight) = (on.tensor(&[m, k])?, on.matrix([n, k])?);
                let (bias, before) = (on.tensor(&[n])?, on.tensor(&[m, k])?);
                x.activated_linear(&weight, Some(&bias), Activation::GeluTanh, Some(&before))
            }
            Self::Convolution(side, [h, w, c, n], config) => {
                let (x, weight) = (on.tensor(&[2, h, w, c])?, on.kernel(&[n, side, side, c])?);
                let (bias, image_bias) = (on.tensor(&[n])?, on.tensor(&[2, n])?);
                x.conv2d(&weight, Some(&bias), Some(&image_bias), None, config)
            }
            Self::Attention([s, t, heads, width]) => {
                let c = heads * width;
                let (q, k, v) = (on.tensor(&[2, s, c])?, on.tensor(&[2, t, c])?, on.tensor(&[2, t, c])?);
                q.attention(&k, &v, Attention { num_heads: heads, causal: false })
            }
            Self::CausalAttention([s, heads, width]) => {
                let dims = [1, s, heads * width];
                let [q, k, v] = [on.tensor(&dims)?, on.tensor(&dims)?, on.tensor(&dims)?];
                q.attention(&k, &v, Attention { num_heads: heads, causal: true })
            }
            Self::GroupedAttention([s, heads, kv, width]) => {
                let (of_q, of_kv) = ([2, s, heads * width], [2, s, kv * width]);
                let (q, k, v) = (on.tensor(&of_q)?, on.tensor(&of_kv)?, on.tensor(&of_kv)?);
                let lengths = on.values(&[s as f32, 37.0])?;
                let config = GroupedAttention { num_heads: heads, num_kv_heads: kv, causal: false, scale: None };
                q.grouped_attention([&k, &v], None, Some(&lengths), config)
            }
            Self::MaskedAttention([s, heads, width]) => {
                let dims = [1, s, heads * width];
                let [q, k, v] = [on.tensor(&dims)?, on.tensor(&dims)?, on.tensor(&dims)?];
                let seen: Vec<f32> = (0..s).map(|key| if key % 3 == 2 { 0.0 } else { 1.0 }).collect();
                let seen = on.values(&seen)?.reshape(&[1, s])?;
                q.attention_masked(&k, &v, &seen, Attention { num_heads: heads, causal: false })
            }
            Self::ReceivedAttention([s, t, heads, width]) => {
                let (q, k) = (on.tensor(&[2, s, heads * width])?, on.tensor(&[2, t, heads * width])?);
                q.attention_received(&k, Attention { num_heads: heads, causal: false })
            }
            Self::Changes([b, rows, c]) => on.tensor(&[b, rows, c])?.change_sums(&on.tensor(&[b, rows, c])?),
            Self::TableRows([rows, c]) => {
                let taken: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
                on.tensor(&[rows, c])?.index_select(&taken)
            }
            Self::GroupNorm([h, w, c]) => {
                let (x, gamma, beta) = (on.tensor(&[2, h, w, c])?, on.tensor(&[c])?, on.tensor(&[c])?);
                x.group_norm(&gamma, &beta, GroupNorm { num_groups: 32, eps: 1e-5, silu: true })
            }
            Self::LayerNorm([rows, c]) => {
                let (x, gamma, beta) = (on.tensor(&[rows, c])?, on.tensor(&[c])?, on.tensor(&[c])?);
                x.layer_norm(&gamma, &beta, 1e-5)
            }
            Self::RmsNorm([rows, c]) => {
                let (x, gamma) = (on.tensor(&[rows, c])?, on.tensor(&[c])?);
                x.rms_norm(Some(&gamma), 1e-6)
            }
            Self::ModulatedNorm([b, rows, c]) => {
                let (x, scale, shift) = (on.tensor(&[b, rows, c])?, on.tensor(&[b, c])?, on.tensor(&[b, c])?);
                x.modulated_norm(RowNorm::Layer, [None, Some(&scale), Some(&shift)], 1e-6)
            }
            Self::Rope([rows, heads, width], pairs) => {
                let (x, gamma) = (on.tensor(&[1, rows, heads * width])?, on.tensor(&[width])?);
                let (cos, sin) = (on.tensor_f32(&[rows, width / 2])?, on.tensor_f32(&[rows, width / 2])?);
                x.rope([&cos, &sin], Some((&gamma, 1e-6)), heads, pairs)
            }
            Self::Activation([rows, c], function) => on.tensor(&[rows, c])?.activation(function),
            Self::Geglu([rows, c]) => on.tensor(&[rows, c])?.geglu(),
            Self::Swiglu([rows, c]) => on.tensor(&[rows, c])?.gated_activation(Activation::Silu, None),
            Self::GatedResidual([b, rows, c]) => {
                let (x, gate, y) = (on.tensor(&[b, rows, c])?, on.tensor(&[b, c])?, on.tensor(&[b, rows, c])?);
                x.gated_residual(&gate, &y)
            }
            Self::Concatenation([b, h, w, first, second]) => {
                let (x, other) = (on.tensor(&[b, h, w, first])?, on.tensor(&[b, h, w, second])?);
                x.concat_channels(&other)
            }
            Self::Upsampling([b, h, w, c]) => on.tensor(&[b, h, w, c])?.upsample_nearest((2 * h, 2 * w), None),
            Self::TimestepEmbedding(dim) => {
                let config = TimestepEmbedding { dim, flip_sin_to_cos: true, freq_shift: 0.0 };
                on.values(&[999.0, 1.0])?.timestep_embedding(config, DType::F32)
            }
        }
    }
}
