//! The declaration of a segment's parameters.

use std::cell::RefCell;
use std::sync::Arc;

use kiln_ops::{ByteNumber, EightBits, Packing};

use super::param::{Param, StackedParam};
use super::slab::Stack;
use super::{Cell, Place, Segment};
use crate::param_spec::{ALIGNMENT, ParamSpec};

/// All formats of products in 8 bits.
const EVERY_FORMAT: [EightBits; 3] =
    [EightBits::Int8, EightBits::W8A8(ByteNumber::Int8), EightBits::W8A8(ByteNumber::E4m3)];

impl Segment {
    /// A segment whose parameters `build` declares, with the module that it returns.
    pub(super) fn build<M>(name: String, place: Place, build: impl FnOnce(&ParamBuilder<'_>) -> M) -> (Self, M) {
        let cell = Arc::new(Cell::new(name));
        let (params, stacks) = (RefCell::default(), RefCell::default());
        let (prefix, in_8_bits): (_, &[EightBits]) = (String::new(), &[]);
        let module = build(&ParamBuilder { cell: &cell, params: &params, stacks: &stacks, prefix, in_8_bits });
        let (params, stacks) = (params.into_inner().into(), stacks.into_inner().into());
        (Self { cell, params, stacks, place }, module)
    }
}

/// Declares the parameters of a segment. [`ParamBuilder::pp`] extends the checkpoint's names.
pub struct ParamBuilder<'a> {
    cell: &'a Arc<Cell>,
    params: &'a RefCell<Vec<ParamSpec>>,
    stacks: &'a RefCell<Vec<Stack>>,
    prefix: String,
    in_8_bits: &'static [EightBits],
}

impl ParamBuilder<'_> {
    /// The builder for the part `name` inside this one.
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.key(name), ..*self }
    }

    /// A builder for layers that may be computed in 8 bits ([`crate::EightBitLayers`]).
    pub fn allows_8_bits(&self) -> Self {
        Self { prefix: self.prefix.clone(), in_8_bits: &EVERY_FORMAT, ..*self }
    }

    /// A builder for layers that may be computed in 8-bit floats, but not in integers: some channels of their input are much
    /// larger than the others.
    pub fn allows_fp8(&self) -> Self {
        Self { prefix: self.prefix.clone(), in_8_bits: &[EightBits::W8A8(ByteNumber::E4m3)], ..*self }
    }

    /// Declares the parameter `name` with this stored shape.
    pub fn param(&self, name: &str, shape: &[usize], packing: Packing) -> Param {
        let mut params = self.params.borrow_mut();
        let in_8_bits = if packing == Packing::AsStored { &[] } else { self.in_8_bits };
        params.push(ParamSpec { key: self.key(name), shape: shape.to_vec(), packing, in_8_bits });
        Param { cell: self.cell.clone(), index: params.len() - 1, shape: shape.into() }
    }

    /// Declares the last `count` parameters, matrices `(n, k)` of linear layers with the same input or their biases `(n)`, as one
    /// matrix `(count * n, k)` or vector `(count * n)` as well, in the same memory. `None` if some layout would have gaps between
    /// them. Matrices whose rows have their own type may have gaps between rows, which the operators support.
    pub fn stack(&self, count: usize) -> Option<StackedParam> {
        let params = self.params.borrow();
        let first = params.len().checked_sub(count)?;
        let ParamSpec { shape, packing, .. } = params.get(first)?;
        let stacked: Arc<[usize]> = match (packing, shape.as_slice()) {
            (Packing::Linear, &[n, k]) => [count * n, k].into(),
            (Packing::AsStored, &[n]) => [count * n].into(),
            _ => return None,
        };
        let alike = params[first..].iter().all(|param| param.packing == *packing && param.shape == *shape);
        // Checked for the narrowest type: what is aligned there is aligned in wider types.
        let elements = params[first].packed_elements();
        let gapless = elements == params[first].elements() && (elements * 2).is_multiple_of(ALIGNMENT);
        if !alike || !gapless {
            return None;
        }
        let mut stacks = self.stacks.borrow_mut();
        stacks.push(Stack { first, count });
        Some(StackedParam { cell: self.cell.clone(), index: stacks.len() - 1, first, count, shape: stacked })
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }
}
