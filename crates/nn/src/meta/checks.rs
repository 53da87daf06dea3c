//! Checks of shapes with the errors of the operators.

use kiln_ops::{Attention, Conv2d, Error as OpsError, GroupNorm, group_norm_workspace};

use super::MetaTensor;
use crate::error::Result;
use crate::tensor::TensorLike;

impl MetaTensor {
    /// Returns an error for another shape.
    pub(super) fn same_shape(&self, op: &'static str, other: &Self) -> Result<()> {
        expect(op, "other", Some(other), &self.shape)
    }

    /// Returns an error if `other` does not broadcast to this shape.
    pub(super) fn repeats(&self, op: &'static str, other: &Self) -> Result<()> {
        let pairs = self.shape.iter().rev().zip(other.shape.iter().rev());
        match other.shape.len() <= self.shape.len() && pairs.into_iter().all(|(a, b)| a == b || *b == 1) {
            true => Ok(()),
            false => Err(refused(op, "other", &format!("to repeat to {:?}", self.shape), &other.shape)),
        }
    }

    /// The output shape of a convolution of this operand.
    pub(super) fn convolved(&self, weight: [usize; 4], bias: Option<&Self>) -> Result<[usize; 4]> {
        let [c_out, _, _, c_in] = weight;
        let x = self.size4()?;
        if x[3] != c_in {
            return Err(refused("conv2d", "x", &format!("(b, h, w, {c_in})"), &self.shape));
        }
        expect("conv2d", "bias", bias, &[c_out])?;
        Ok(x)
    }

    /// The shape of these queries, and the number of keys.
    pub(super) fn attention_shapes(&self, k: &Self, v: &Self, config: Attention) -> Result<([usize; 3], usize)> {
        let (shape @ [b, s, c], [_, t, _]) = (self.size3()?, k.size3()?);
        expect("attention", "k", Some(k), &[b, t, c])?;
        expect("attention", "v", Some(v), &[b, t, c])?;
        if config.num_heads == 0 || !c.is_multiple_of(config.num_heads) || (config.causal && s != t) {
            let message = format!("{config:?} does not fit {s} queries and {t} keys of {c} channels");
            return Err(OpsError::Config { op: "attention", message }.into());
        }
        Ok((shape, t))
    }

    /// Counts the workspace of the group sums of `b` images.
    pub(super) fn sum_groups(&self, b: usize, config: GroupNorm) -> Result<()> {
        let c = self.channels();
        if config.num_groups == 0 || !c.is_multiple_of(config.num_groups) {
            let message = format!("{} groups do not divide {c} channels", config.num_groups);
            return Err(OpsError::Config { op: "group_norm", message }.into());
        }
        let pixels = self.elem_count() / (b * c).max(1);
        self.device.takes(group_norm_workspace(self.device.target(), b, pixels, c, config.num_groups));
        Ok(())
    }
}

pub(super) fn refused(op: &'static str, operand: &'static str, expected: &str, found: &[usize]) -> crate::Error {
    OpsError::Shape { op, operand, expected: expected.into(), found: found.to_vec() }.into()
}

/// Returns an error if an optional operand has another shape.
pub(super) fn expect(
    op: &'static str,
    operand: &'static str,
    found: Option<&MetaTensor>,
    shape: &[usize],
) -> Result<()> {
    match found.filter(|found| found.shape != shape) {
        Some(found) => Err(refused(op, operand, &format!("{shape:?}"), &found.shape)),
        None => Ok(()),
    }
}

pub(super) fn does_not_fit([_, kh, kw, _]: [usize; 4], [_, h, w, _]: [usize; 4], config: Conv2d) -> crate::Error {
    let message = format!("a {kh}x{kw} kernel does not fit into a {h}x{w} input with {config:?}");
    OpsError::Config { op: "conv2d", message }.into()
}
