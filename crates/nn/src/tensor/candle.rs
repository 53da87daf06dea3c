//! Tensors that compute.

use candle_core::{DType, Device, Tensor};
use kiln_ops::{GroupNorm, GroupNormMoments, GroupNormStatistics, Operation, Target, Weight};
use kiln_weights::{Param, SegmentModule, StackedParam};

use super::{Moments, TensorLike};
use crate::error::{At, Error, Result};

impl TensorLike for Tensor {
    type Device = Device;
    type Moments = GroupNormMoments;

    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R> {
        module.enter().map_err(Error::from).and_then(|module| f(&module)).at(module.segment().name())
    }

    fn apply(&self, operation: &impl Operation<Self>) -> Result<Self> {
        Ok(operation.compute()?)
    }

    fn param(&self, param: &Param) -> Result<Self> {
        Ok(param.tensor()?)
    }

    fn weight(&self, param: &Param) -> Result<Weight> {
        Ok(param.weight()?)
    }

    fn stacked_weight(&self, param: &StackedParam) -> Result<Weight> {
        Ok(param.weight()?)
    }

    fn stacked_param(&self, param: &StackedParam) -> Result<Self> {
        Ok(param.tensor()?)
    }

    fn table(param: &Param, _device: &Device) -> Result<Self> {
        Ok(param.tensor()?)
    }

    fn table_rows(param: &Param, indices: &[u32], _device: &Device) -> Result<Self> {
        Ok(param.rows(indices)?)
    }

    fn device(&self) -> &Device {
        self.device()
    }

    fn target(&self) -> Target {
        Target::of(self.device())
    }

    fn has_linear_geglu(&self, weight: &Weight) -> Result<bool> {
        Ok(kiln_ops::has_linear_geglu(self, weight)?)
    }

    fn new_empty(&self, dims: &[usize]) -> Result<Self> {
        Ok(kiln_ops::uninit(dims, self.dtype(), self.device())?)
    }

    fn new_constant(&self, constant: &Tensor) -> Result<Self> {
        Ok(constant.to_dtype(self.dtype())?.to_device(self.device())?)
    }

    fn reshape(&self, dims: &[usize]) -> Result<Self> {
        Ok(Tensor::reshape(self, dims)?)
    }

    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(Tensor::narrow(self, dim, start, len)?)
    }

    fn contiguous(&self) -> Result<Self> {
        Ok(kiln_ops::contiguous(self)?)
    }

    fn copy(&self) -> Result<Self> {
        Ok(kiln_ops::copy(self)?)
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Ok(kiln_ops::cast(self, dtype)?)
    }

    fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(Tensor::to_device(self, device)?)
    }

    fn values(&self) -> Result<Option<Vec<f32>>> {
        Ok(Some(kiln_ops::cast(self, DType::F32)?.flatten_all()?.to_vec1()?))
    }

    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()> {
        Ok(Tensor::slice_set(self, source, dim, offset)?)
    }

    fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        Ok(Tensor::cat(parts, dim)?)
    }
}

impl Moments<Tensor> for GroupNormMoments {
    fn new(config: GroupNorm) -> Self {
        Self::new(config)
    }

    fn add(&mut self, x: &Tensor) -> Result<()> {
        Ok(self.add(x)?)
    }

    fn finish(self, gamma: &Param, beta: &Param) -> Result<GroupNormStatistics> {
        Ok(self.finish(&gamma.tensor()?, &beta.tensor()?)?)
    }
}
