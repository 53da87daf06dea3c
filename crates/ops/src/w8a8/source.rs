//! The input of a product of bytes: an activation, or an operator over it, which is computed together with the rounding, so
//! that its result is in no other type.

use candle_core::{DType, Device, Tensor};

use super::activated::Activated;
use super::{ByteNumber, rounded};
use crate::error::Result;
use crate::geglu::geglu;
use crate::group_norm::{GroupNorm, group_norm};
use crate::layer_norm::layer_norm;

/// The activation of a product. Borrowed tensors have been checked by the operator that they belong to.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The activation itself.
    Plain(&'a Tensor),
    /// [`crate::layer_norm`] of `x` `(.., c)`.
    LayerNorm { x: &'a Tensor, gamma: &'a Tensor, beta: &'a Tensor, eps: f64 },
    /// [`crate::geglu`] of a tensor `(.., 2 n)`.
    Geglu(&'a Tensor),
    /// An activation, which may follow other channels.
    Activated(Activated<&'a Tensor>),
    /// [`crate::group_norm`] of `x` `(b, .., c)`, for a convolution in e4m3: by the scale of [`most_of_group_norm`].
    GroupNorm { x: &'a Tensor, gamma: &'a Tensor, beta: &'a Tensor, config: GroupNorm },
}

impl Source<'_> {
    /// The tensor that selects the back end.
    pub(crate) fn input(&self) -> &Tensor {
        match self {
            Self::Plain(x) | Self::LayerNorm { x, .. } | Self::Geglu(x) | Self::GroupNorm { x, .. } => x,
            Self::Activated(activated) => activated.hidden.first(),
        }
    }

    /// The values of a product of such numbers, in f32 on the CPU. `scales` parts have a scale of their own.
    pub(crate) fn values(&self, number: ByteNumber, scales: usize) -> Result<Tensor> {
        let exact = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32);
        let x = exact(self.input())?;
        let y = match *self {
            Self::Plain(_) => x.clone(),
            Self::LayerNorm { gamma, beta, eps, .. } => layer_norm(&x, &exact(gamma)?, &exact(beta)?, eps, None)?,
            Self::Geglu(_) => geglu(&x, None)?,
            Self::Activated(activated) => activated.exact()?,
            Self::GroupNorm { gamma, beta, config, .. } => group_norm(&x, &exact(gamma)?, &exact(beta)?, config, None)?,
        };
        let values = y.flatten_all()?.to_vec1::<f32>()?;
        let values = match *self {
            Self::GroupNorm { gamma, beta, config, .. } => {
                let of_group = x.elem_count() / (x.dim(0)? * config.num_groups).max(1);
                number.round_by(&values, most_of_group_norm(gamma, beta, of_group)?)
            }
            _ => rounded(number, &values, values.len() / scales.max(1)),
        };
        Ok(Tensor::from_vec(values, y.dims(), &Device::Cpu)?)
    }
}

/// The largest magnitude that a group norm over `elements` elements can have: `max |gamma| sqrt(elements) + max |beta|`, where one
/// element has all of the variance. SiLU makes nothing larger.
///
/// The scale of a normalized map follows from it, without reading the map. It leaves typical values about 2^9 below the largest e4m3
/// number, of 2^15 that have all digits.
fn most_of_group_norm(gamma: &Tensor, beta: &Tensor, elements: usize) -> Result<f32> {
    let most = |tensor: &Tensor| -> Result<f32> {
        let values = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.iter().fold(0f32, |most, value| most.max(value.abs())))
    };
    Ok(most(gamma)? * (elements as f32).sqrt() + most(beta)?)
}
