//! Tensors in the memory of a device that is not candle's.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_ops::portable::{Backend, PortableStatistics, PortableTensor, PortableWeight};
use kiln_ops::{GroupNorm, Operand, Operation, Target};
use kiln_weights::{Param, SegmentModule, StackedParam};

use super::{Moments, TensorLike};
use crate::error::{Error, Result};

impl TensorLike for PortableTensor {
    type Device = Arc<dyn Backend>;
    type Moments = PortableMoments;

    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R> {
        Tensor::run(module, f)
    }

    fn apply(&self, operation: &impl Operation<Self>) -> Result<Self> {
        Ok(Self::apply(self, operation)?)
    }

    fn param(&self, param: &Param) -> Result<Self> {
        Ok(param.portable(self.backend())?)
    }

    fn weight(&self, param: &Param) -> Result<PortableWeight> {
        Ok(param.portable_weight(self.backend())?)
    }

    fn stacked_weight(&self, param: &StackedParam) -> Result<PortableWeight> {
        Ok(param.portable_weight(self.backend())?)
    }

    fn stacked_param(&self, param: &StackedParam) -> Result<Self> {
        Ok(param.portable(self.backend())?)
    }

    fn table(param: &Param, device: &Arc<dyn Backend>) -> Result<Self> {
        Ok(Self::upload(device, &param.tensor()?)?)
    }

    fn table_rows(param: &Param, indices: &[u32], device: &Arc<dyn Backend>) -> Result<Self> {
        Ok(Self::upload(device, &param.rows(indices)?)?)
    }

    fn device(&self) -> &Arc<dyn Backend> {
        self.backend()
    }

    fn target(&self) -> Target {
        Target::Gpu
    }

    fn new_empty(&self, dims: &[usize]) -> Result<Self> {
        Ok(Self::uninit(self.backend(), dims, self.dtype())?)
    }

    fn new_constant(&self, constant: &Tensor) -> Result<Self> {
        Ok(Self::upload(self.backend(), &constant.to_dtype(self.dtype())?)?)
    }

    fn reshape(&self, dims: &[usize]) -> Result<Self> {
        Ok(Self::reshape(self, dims)?)
    }

    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(Self::narrow(self, dim, start, len)?)
    }

    fn contiguous(&self) -> Result<Self> {
        Ok(Self::contiguous(self)?)
    }

    fn copy(&self) -> Result<Self> {
        Ok(Self::copy(self)?)
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Ok(Self::to_dtype(self, dtype)?)
    }

    fn to_device(&self, device: &Arc<dyn Backend>) -> Result<Self> {
        if Arc::ptr_eq(self.backend(), device) {
            Ok(self.clone())
        } else {
            Ok(Self::upload(device, &self.download()?)?)
        }
    }

    fn values(&self) -> Result<Option<Vec<f32>>> {
        Ok(Some(Self::to_dtype(self, DType::F32)?.download()?.flatten_all()?.to_vec1()?))
    }

    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()> {
        let len = source.dims().get(dim).copied().unwrap_or(0);
        Ok(self.backend().copy(source, &Self::narrow(self, dim, offset, len)?)?)
    }

    fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        let Some(first) = parts.first().filter(|first| dim < first.dims().len()) else {
            let (op, message) = ("cat", format!("expected at least one tensor with a dimension {dim}"));
            return Err(kiln_ops::Error::Config { op, message }.into());
        };
        let mut dims = first.dims().to_vec();
        dims[dim] = parts.iter().map(|part| part.dims().get(dim).copied().unwrap_or(0)).sum();
        let joined = Self::uninit(first.backend(), &dims, first.dtype())?;
        let mut offset = 0;
        for part in parts {
            TensorLike::slice_set(&joined, part, dim, offset)?;
            offset += part.dims().get(dim).copied().unwrap_or(0);
        }
        Ok(joined)
    }
}

/// The moments of a map that comes strip by strip. The device sums each strip, and the host adds the strips up in f64.
pub struct PortableMoments {
    config: GroupNorm,
    /// Elements of a group so far.
    elements: usize,
    /// Of each group the mean and the sum of squared differences from it.
    groups: Vec<[f64; 2]>,
    backend: Option<Arc<dyn Backend>>,
}

impl Moments<PortableTensor> for PortableMoments {
    fn new(config: GroupNorm) -> Self {
        Self { config, elements: 0, groups: vec![[0.0; 2]; config.num_groups], backend: None }
    }

    fn add(&mut self, x: &PortableTensor) -> Result<()> {
        let groups = self.config.num_groups;
        if groups == 0 || x.dims().last().is_none_or(|c| c % groups != 0) || x.dims().first() != Some(&1) {
            let (expected, found) = (format!("(1, .., c) with c in {groups} groups"), x.dims().to_vec());
            return Err(kiln_ops::Error::Shape { op: "group_norm", operand: "x", expected, found }.into());
        }
        let added = x.elements() / groups;
        if added == 0 {
            return Ok(());
        }
        let sums = PortableTensor::uninit(x.backend(), &[1, groups, 2], DType::F32)?;
        x.backend().moments(&x.contiguous()?, &sums)?;
        let sums: Vec<f32> = sums.download()?.flatten_all()?.to_vec1()?;
        let (before, added) = (self.elements as f64, added as f64);
        for ([mean, squares], sums) in self.groups.iter_mut().zip(sums.chunks_exact(2)) {
            // Chan, Golub and LeVeque 1979: the moments of two sets together.
            let difference = f64::from(sums[0]) - *mean;
            *squares += f64::from(sums[1]) + difference * difference * before * added / (before + added);
            *mean += difference * added / (before + added);
        }
        self.elements += added as usize;
        self.backend.get_or_insert_with(|| x.backend().clone());
        Ok(())
    }

    fn finish(self, gamma: &Param, beta: &Param) -> Result<PortableStatistics> {
        let Some(backend) = self.backend else {
            let (op, message) = ("group_norm", "no pixel was added to the moments".into());
            return Err(Error::from(kiln_ops::Error::Config { op, message }));
        };
        let (elements, eps) = (self.elements as f64, self.config.eps);
        let known = self.groups.iter().flat_map(|[mean, squares]| [*mean, 1.0 / (squares / elements + eps).sqrt()]);
        let known: Vec<f32> = known.map(|value| value as f32).collect();
        let moments = Tensor::from_vec(known, (1, self.config.num_groups, 2), &Device::Cpu)?;
        let moments = PortableTensor::upload(&backend, &moments)?;
        let (gamma, beta) = (gamma.portable(&backend)?, beta.portable(&backend)?);
        Ok(PortableStatistics { moments, gamma, beta, config: self.config })
    }
}
