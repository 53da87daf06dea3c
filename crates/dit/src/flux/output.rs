//! The layers after the blocks.

use kiln_nn::{Linear, Modulation, Result, TensorLike, modulate};
use kiln_weights::ParamBuilder;

use super::dims::{EPS, FluxDims};

/// The last normalization and linear layer.
pub(crate) struct Output {
    proj_out: Linear,
}

impl Output {
    /// Declares `proj_out`.
    pub(crate) fn new(p: &ParamBuilder<'_>, dims: &FluxDims) -> Self {
        Self { proj_out: Linear::new(&p.pp("proj_out"), dims.channels(), dims.out_channels, true) }
    }

    /// `x` `(b, n, c)`, modulated by `scale` and `shift` `(b, c)` or `(1, c)`, to `(b, n, out_channels)`.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, [scale, shift]: [&T; 2]) -> Result<T> {
        self.proj_out.forward(&modulate(x, scale, Some(shift), EPS)?)
    }
}

/// The last layers of a network that makes their vectors of an embedding.
pub(crate) struct ModulatedOutput {
    norm_out: Modulation,
    output: Output,
}

impl ModulatedOutput {
    /// Declares `norm_out.linear` and `proj_out`.
    pub(crate) fn new(p: &ParamBuilder<'_>, dims: &FluxDims) -> Self {
        let c = dims.channels();
        Self {
            norm_out: Modulation::new(&p.pp("norm_out.linear"), [c, c], 2, true, true),
            output: Output::new(p, dims),
        }
    }

    /// `x` `(b, n, c)` with the embedding `emb` `(b, c)`, to `(b, n, out_channels)`. The scale comes first.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T, emb: &T) -> Result<T> {
        let vectors = self.norm_out.forward(emb)?;
        self.output.forward(x, [&vectors[0], &vectors[1]])
    }
}
