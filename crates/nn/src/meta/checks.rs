//! Checks of shapes with the errors of the operators.

use kiln_ops::{Error as OpsError, GroupNorm, group_norm_workspace};

use super::MetaTensor;
use crate::error::Result;

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

/// The error for an operand of the shape `found`; `expected` says what its shape should be.
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
