//! Rotary position embeddings of queries and keys.

use candle_core::{Device, Tensor};
use kiln_ops::RopePairs;
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::Result;
use crate::tensor::TensorLike;

/// The cosines and sines of rotary position embeddings: each `(s, head_dim / 2)`, or `(b, s, head_dim / 2)` if images differ, in
/// f32.
#[derive(Debug, Clone)]
pub struct RopeTables<T = Tensor> {
    /// The cosines.
    pub cos: T,
    /// The sines.
    pub sin: T,
}

impl RopeTables {
    /// The tables of tokens in host memory. `positions` has one position on each axis for every token, `axes` the channels of
    /// a head that belong to an axis, which are even numbers: angle `i` of an axis of `n` channels is `position *
    /// theta^(-2 i / n)`. Angles are f64, and rounded as cosines and sines.
    ///
    /// # Errors
    /// The errors of candle.
    pub fn new<const N: usize>(positions: &[[f64; N]], axes: [usize; N], theta: f64) -> Result<Self> {
        let frequencies = axes.map(|n| (0..n / 2).map(|i| theta.powf(-2.0 * i as f64 / n as f64)).collect());
        Self::of_frequencies(positions, &frequencies)
    }

    /// Like [`RopeTables::new`] for axes that share the frequencies of a whole head: the first `sections[0]` angles are those of the
    /// first axis, and so on. Angle `i` of a head of `n` channels is `position * theta^(-2 i / n)` (multimodal rotary positions of
    /// Qwen2-VL, Wang et al., arXiv 2409.12191).
    ///
    /// # Errors
    /// The errors of candle.
    pub fn in_sections<const N: usize>(positions: &[[f64; N]], sections: [usize; N], theta: f64) -> Result<Self> {
        let half: usize = sections.iter().sum();
        let mut all = (0..half).map(|i| theta.powf(-(i as f64) / half as f64));
        let frequencies = sections.map(|count| all.by_ref().take(count).collect());
        Self::of_frequencies(positions, &frequencies)
    }

    /// The tables with these frequencies of each axis.
    fn of_frequencies<const N: usize>(positions: &[[f64; N]], frequencies: &[Vec<f64>; N]) -> Result<Self> {
        let half: usize = frequencies.iter().map(Vec::len).sum();
        let (mut cos, mut sin) = (Vec::with_capacity(positions.len() * half), Vec::new());
        for position in positions {
            for (position, frequencies) in position.iter().zip(frequencies) {
                cos.extend(frequencies.iter().map(|frequency| (position * frequency).cos() as f32));
                sin.extend(frequencies.iter().map(|frequency| (position * frequency).sin() as f32));
            }
        }
        let table = |values| Tensor::from_vec(values, (positions.len(), half), &Device::Cpu);
        Ok(Self { cos: table(cos)?, sin: table(sin)? })
    }
}

impl<T: TensorLike> RopeTables<T> {
    /// `len` tokens from `start` on, as views.
    ///
    /// # Errors
    /// The error of [`TensorLike::narrow`] if there are fewer.
    pub fn tokens(&self, start: usize, len: usize) -> Result<Self> {
        let dim = self.cos.dims().len().saturating_sub(2);
        Ok(Self { cos: self.cos.narrow(dim, start, len)?, sin: self.sin.narrow(dim, start, len)? })
    }
}

/// RMS normalization of each head of queries or keys, then rotary position embedding. Both are optional.
pub struct Rope {
    norm: Option<Param>,
    eps: f64,
    num_heads: usize,
    pairs: RopePairs,
}

impl Rope {
    /// Without a normalization.
    pub fn new(num_heads: usize, pairs: RopePairs) -> Self {
        Self { norm: None, eps: 0.0, num_heads, pairs }
    }

    /// With a normalization: declares `weight` `(head_dim)`. `eps` is added to the mean square.
    pub fn normed(p: &ParamBuilder<'_>, num_heads: usize, head_dim: usize, pairs: RopePairs, eps: f64) -> Self {
        let norm = Some(p.param("weight", &[head_dim], Packing::AsStored));
        Self { norm, eps, num_heads, pairs }
    }

    /// `x` `(b, s, num_heads * head_dim)`, same shape. Without `tables`, only the normalization.
    pub fn forward<T: TensorLike>(&self, x: &T, tables: Option<&RopeTables<T>>) -> Result<T> {
        let gamma = x.optional_param(self.norm.as_ref())?;
        match (tables, &gamma) {
            (Some(RopeTables { cos, sin }), gamma) => {
                let norm = gamma.as_ref().map(|gamma| (gamma, self.eps));
                x.rope([cos, sin], norm, self.num_heads, self.pairs)
            }
            (None, Some(gamma)) => {
                let shape @ [b, s, c] = x.size3()?;
                let heads = x.reshape(&[b, s, self.num_heads, c / self.num_heads.max(1)])?;
                heads.rms_norm(Some(gamma), self.eps)?.reshape(&shape)
            }
            (None, None) => Ok(x.clone()),
        }
    }
}
