//! Tensors without elements as tensors: memory, views and parameters. An operator counts its result, its workspace and
//! its arithmetic as its [`Cost`] says.

use candle_core::{DType, Tensor};
use kiln_ops::{Cost, EightBits, Error as OpsError, GroupNorm, MatrixType, Operand, Operation, Target, WeightOperand};
use kiln_weights::{Param, SegmentModule, StackedParam};

use super::{MetaDevice, MetaTensor};
use crate::error::{At, Result};
use crate::tensor::{Elementwise, Moments, TensorLike};

/// The shape of a product's parameter: `(c_out, kh, kw, c_in)`, or `(n, 1, 1, k)` for a linear layer; its format if it is
/// in 8 bits, and the storage type of its rows if they have one of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaWeight {
    shape: [usize; 4],
    eight_bits: Option<EightBits>,
    matrix: Option<MatrixType>,
}

impl WeightOperand for MetaWeight {
    fn shape(&self) -> [usize; 4] {
        self.shape
    }

    fn eight_bits(&self) -> Option<EightBits> {
        self.eight_bits
    }

    fn matrix(&self) -> Option<MatrixType> {
        self.matrix
    }
}

impl Operand for MetaTensor {
    type Weight = MetaWeight;
    type Statistics = ();

    fn dims(&self) -> &[usize] {
        &self.shape
    }

    fn dtype(&self) -> DType {
        self.dtype
    }
}

impl TensorLike for MetaTensor {
    type Device = MetaDevice;
    type Moments = MetaMoments;

    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R> {
        f(module.module()).at(module.segment().name())
    }

    fn apply(&self, operation: &impl Operation<Self>) -> Result<Self> {
        let device = &self.device;
        let Cost { shape, dtype, before, temporaries, workspace, flop } = operation.cost(device.target())?;
        device.takes(before);
        let _temporaries: Vec<_> = temporaries.iter().map(|(shape, dtype)| device.tensor(shape, *dtype)).collect();
        let is_copied = device.is_portable() && operation.out().is_some();
        let _result = is_copied.then(|| device.tensor(&shape, dtype));
        let y = operation.out().cloned().unwrap_or_else(|| device.tensor(&shape, dtype));
        device.takes(workspace);
        if flop > 0.0 {
            device.computes(flop);
        }
        Ok(y)
    }

    fn param(&self, param: &Param) -> Result<Self> {
        self.device.uses(param.segment());
        Ok(self.device.uncounted(param.shape(), self.dtype))
    }

    fn weight(&self, param: &Param) -> Result<MetaWeight> {
        self.device.uses(param.segment());
        let shape = match *param.shape() {
            [n, k] => [n, 1, 1, k],
            [c_out, c_in, kh, kw] | [c_out, c_in, _, kh, kw] => [c_out, kh, kw, c_in], // of several frames the last one
            _ => {
                let expected = "(n, k), (c_out, c_in, kh, kw) or (c_out, c_in, frames, kh, kw)";
                return Err(refused("weight", "param", expected, param.shape()));
            }
        };
        let matrix = self.device.matrices().or(param.kept());
        if let [n, k] = *param.shape() {
            self.device.expands(matrix, [n, k], self.dtype);
        }
        Ok(MetaWeight { shape, eight_bits: param.eight_bits(), matrix })
    }

    fn stacked_weight(&self, param: &StackedParam) -> Result<MetaWeight> {
        self.device.uses(param.segment());
        let [n, k] = *param.shape() else { return Err(refused("stacked_weight", "param", "(n, k)", param.shape())) };
        let matrix = self.device.matrices().or(param.kept());
        self.device.expands(matrix, [n, k], self.dtype);
        Ok(MetaWeight { shape: [n, 1, 1, k], eight_bits: param.eight_bits(), matrix })
    }

    fn stacked_param(&self, param: &StackedParam) -> Result<Self> {
        self.device.uses(param.segment());
        Ok(self.device.uncounted(param.shape(), self.dtype))
    }

    fn table(param: &Param, device: &MetaDevice) -> Result<Self> {
        Ok(device.host().uncounted(param.shape(), device.dtype()))
    }

    fn table_rows(param: &Param, indices: &[u32], device: &MetaDevice) -> Result<Self> {
        Self::table(param, device)?.index_select(indices)
    }

    fn device(&self) -> &MetaDevice {
        &self.device
    }

    fn target(&self) -> Target {
        self.device.target()
    }

    fn new_empty(&self, dims: &[usize]) -> Result<Self> {
        Ok(self.another(dims))
    }

    fn new_constant(&self, constant: &Tensor) -> Result<Self> {
        Ok(self.another(constant.dims()))
    }

    fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if dims.iter().product::<usize>() != self.elem_count() {
            return Err(refused("reshape", "x", &format!("as many elements as {dims:?}"), &self.shape));
        }
        let same = if self.contiguous { self.clone() } else { self.copy()? };
        Ok(Self { shape: dims.to_vec(), ..same })
    }

    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let mut part = self.clone();
        match part.shape.get_mut(dim) {
            Some(size) if start.checked_add(len).is_some_and(|end| end <= *size) => {
                // Elements of outer dimensions are not contiguous, unless these dimensions are 1.
                part.contiguous &= *size == len || self.shape[..dim].iter().all(|&outer| outer == 1);
                *size = len;
                Ok(part)
            }
            _ => {
                let expected = format!("{len} elements from {start} on in dimension {dim}");
                Err(refused("narrow", "x", &expected, &self.shape))
            }
        }
    }

    fn contiguous(&self) -> Result<Self> {
        if self.contiguous { Ok(self.clone()) } else { self.copy() }
    }

    fn copy(&self) -> Result<Self> {
        Ok(self.another(&self.shape))
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype { Ok(self.clone()) } else { Ok(self.device.tensor(&self.shape, dtype)) }
    }

    fn to_device(&self, device: &MetaDevice) -> Result<Self> {
        if self.device.is(device) { Ok(self.clone()) } else { Ok(device.tensor(&self.shape, self.dtype)) }
    }

    fn values(&self) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }

    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()> {
        let len = source.shape.get(dim).copied().unwrap_or(0);
        let part = self.narrow(dim, offset, len)?;
        match part.shape == source.shape {
            true => Ok(()),
            false => Err(refused("slice_set", "other", &format!("{:?}", part.shape), &source.shape)),
        }
    }

    fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        let Some(first) = parts.first().filter(|first| dim < first.shape.len()) else {
            return Err(refused("cat", "parts", &format!("a dimension {dim}"), &[]));
        };
        let mut shape = first.shape.clone();
        shape[dim] = 0;
        for part in parts {
            let size = part.shape.get(dim).copied().unwrap_or(0);
            part.narrow(dim, 0, size)?;
            let mut others = part.shape.clone();
            others[dim] = shape[dim];
            if others != shape {
                return Err(refused(
                    "cat",
                    "parts",
                    &format!("{:?} but for dimension {dim}", first.shape),
                    &part.shape,
                ));
            }
            shape[dim] += size;
        }
        Ok(first.another(&shape))
    }
}

/// The sums of a group normalization: its configuration, since nothing is summed.
pub struct MetaMoments(GroupNorm);

impl Moments<MetaTensor> for MetaMoments {
    fn new(config: GroupNorm) -> Self {
        Self(config)
    }

    fn add(&mut self, x: &MetaTensor) -> Result<()> {
        x.device.takes(kiln_ops::sums_workspace(x.device.target(), x, self.0)?);
        Ok(())
    }

    fn finish(self, _gamma: &Param, _beta: &Param) -> Result<()> {
        Ok(())
    }
}

/// The error for an operand of the shape `found`; `expected` describes the shape that it should have.
fn refused(op: &'static str, operand: &'static str, expected: &str, found: &[usize]) -> crate::Error {
    OpsError::Shape { op, operand, expected: expected.into(), found: found.to_vec() }.into()
}
