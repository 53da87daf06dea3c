//! Tensors of the devices that are tested: candle's, and GPUs of any vendor.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_nn::{Result, TensorLike};
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};
use kiln_ops::{MatrixType, Weight};
use kiln_weights::{Param, Placement};

/// A tensor on a device that is tested.
pub(super) trait Tested: TensorLike<Device: Clone> {
    /// A tensor in host memory, on a device.
    fn upload(tensor: &Tensor, device: &Self::Device) -> Result<Self>;

    /// These elements in host memory.
    fn download(&self) -> Result<Tensor>;

    /// The weight of a convolution with these elements.
    fn plain_weight(&self) -> Result<Self::Weight>;

    /// The matrix `(n, k)` whose rows in a storage type are in flat host memory, on a device.
    fn stored_rows(memory: &Tensor, kind: MatrixType, shape: [usize; 2], device: &Self::Device)
    -> Result<Self::Weight>;

    /// A place for the weights of networks on a device.
    fn placement(device: &Self::Device, dtype: DType) -> Placement;

    /// A parameter that was loaded to [`Self::placement`].
    fn loaded(param: &Param, device: &Self::Device) -> Result<Self::Weight>;
}

impl Tested for Tensor {
    fn upload(tensor: &Tensor, device: &Device) -> Result<Self> {
        Ok(tensor.to_device(device)?)
    }

    fn download(&self) -> Result<Tensor> {
        Ok(self.to_device(&Device::Cpu)?)
    }

    fn plain_weight(&self) -> Result<Weight> {
        Ok(Weight::plain(self)?)
    }

    fn stored_rows(memory: &Tensor, kind: MatrixType, shape: [usize; 2], device: &Device) -> Result<Weight> {
        Ok(Weight::rows(&memory.to_device(device)?, kind, shape, 1)?)
    }

    fn placement(device: &Device, dtype: DType) -> Placement {
        Placement::new(device.clone(), dtype)
    }

    fn loaded(param: &Param, _device: &Device) -> Result<Weight> {
        Ok(param.weight()?)
    }
}

impl Tested for PortableTensor {
    fn upload(tensor: &Tensor, device: &Arc<dyn Backend>) -> Result<Self> {
        Ok(Self::upload(device, tensor)?)
    }

    fn download(&self) -> Result<Tensor> {
        Ok(Self::download(self)?)
    }

    fn plain_weight(&self) -> Result<PortableWeight> {
        Ok(PortableWeight::plain(self)?)
    }

    fn stored_rows(
        memory: &Tensor,
        kind: MatrixType,
        shape: [usize; 2],
        device: &Arc<dyn Backend>,
    ) -> Result<PortableWeight> {
        let uploaded = Self::upload(device, memory)?;
        Ok(PortableWeight::new(device, uploaded.memory().clone(), 0, &Weight::rows(memory, kind, shape, 1)?)?)
    }

    fn placement(device: &Arc<dyn Backend>, dtype: DType) -> Placement {
        Placement::new(Device::Cpu, dtype).with_backend(Some(device.clone()))
    }

    fn loaded(param: &Param, device: &Arc<dyn Backend>) -> Result<PortableWeight> {
        Ok(param.portable_weight(device)?)
    }
}
