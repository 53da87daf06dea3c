//! Tensors in the memory of a back end.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};

use super::{Backend, Memory};
use crate::cpu::scratch::bytes;
use crate::error::{Error, Result};
use crate::group_norm::GroupNorm;
use crate::matrix::{MatrixType, Rows};
use crate::operation::{Cost, Operand, Operation, WeightOperand};
use crate::packing::{EightBits, Weight, WeightLayout};
use crate::trace;
use crate::workspace::Target;

/// A view of a back end's memory. A clone is a view of the same memory.
#[derive(Debug, Clone)]
pub struct PortableTensor {
    backend: Arc<dyn Backend>,
    memory: Arc<dyn Memory>,
    dims: Vec<usize>,
    /// In elements.
    strides: Vec<usize>,
    /// In elements.
    offset: usize,
    dtype: DType,
}

/// The parameter of a product: `(c_out, kh, kw, c_in)`, or `(n, 1, 1, k)` for a linear layer, row by row. Rows of a linear layer may
/// have a storage type of their own.
#[derive(Debug, Clone)]
pub struct PortableWeight {
    /// The elements, or the memory of stored rows, flat.
    tensor: PortableTensor,
    shape: [usize; 4],
    stored_rows: Option<Rows>,
}

/// The statistics of an image for its group normalization.
#[derive(Debug, Clone)]
pub struct PortableStatistics {
    /// The mean of each group and the reciprocal of its standard deviation, `(1, num_groups, 2)` in f32.
    pub moments: PortableTensor,
    /// `(c)`.
    pub gamma: PortableTensor,
    /// `(c)`.
    pub beta: PortableTensor,
    /// The groups.
    pub config: GroupNorm,
}

impl PortableTensor {
    /// A contiguous view of `memory` from element `offset` on.
    pub fn new(
        backend: &Arc<dyn Backend>,
        memory: Arc<dyn Memory>,
        dims: &[usize],
        offset: usize,
        dtype: DType,
    ) -> Self {
        let strides = contiguous_strides(dims);
        Self { backend: backend.clone(), memory, dims: dims.to_vec(), strides, offset, dtype }
    }

    /// A tensor in memory of its own, with any elements.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device has no memory for it.
    pub fn uninit(backend: &Arc<dyn Backend>, dims: &[usize], dtype: DType) -> Result<Self> {
        let bytes = dims.iter().product::<usize>() * dtype.size_in_bytes();
        Ok(Self::new(backend, backend.allocate(bytes)?, dims, 0, dtype))
    }

    /// The elements of a tensor in host memory.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device has no memory for it, or for other types than f32, f16 and bf16.
    pub fn upload(backend: &Arc<dyn Backend>, tensor: &Tensor) -> Result<Self> {
        let flat = tensor.to_device(&Device::Cpu)?.flatten_all()?;
        let memory = upload_flat(backend.as_ref(), &flat)?;
        Ok(Self::new(backend, memory, tensor.dims(), 0, tensor.dtype()))
    }

    /// The elements, in host memory.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device failed.
    pub fn download(&self) -> Result<Tensor> {
        let bytes = self.backend.download(&self.contiguous()?)?;
        Ok(Tensor::from_raw_buffer(&bytes, self.dtype, &self.dims, &Device::Cpu)?)
    }

    /// The result of an operator.
    ///
    /// # Errors
    /// The errors of the operator for its operands, and those of [`Backend::run`].
    pub fn apply(&self, operation: &impl Operation<Self>) -> Result<Self> {
        let cost = operation.cost(Target::Gpu)?;
        let result = Self::uninit(&self.backend, &cost.shape, cost.dtype)?;
        let call = operation.call();
        trace::portable(call.name(), &cost, self.backend.as_ref(), || self.backend.run(&call, &result))?;
        match operation.out() {
            // The kernel could read what it writes, if the caller's tensor is an operand's memory.
            Some(out) => {
                self.backend.copy(&result, out)?;
                Ok(out.clone())
            }
            None => Ok(result),
        }
    }

    /// The device.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The memory that it is a view of.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// The distances of neighbors in each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The index of the first element in the memory.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether the elements follow one another in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let expected = contiguous_strides(&self.dims);
        let pairs = self.strides.iter().zip(expected).zip(&self.dims);
        self.elements() == 0 || pairs.into_iter().all(|((stride, expected), &size)| size == 1 || *stride == expected)
    }

    /// The elements in another shape with as many, in the same memory if they are contiguous.
    ///
    /// # Errors
    /// [`Error::Shape`] for a shape of another number of elements.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if dims.iter().product::<usize>() != self.elements() {
            let (expected, found) = (format!("as many elements as {:?}", self.dims), dims.to_vec());
            return Err(Error::Shape { op: "reshape", operand: "dims", expected, found });
        }
        let tensor = self.contiguous()?;
        Ok(Self { dims: dims.to_vec(), strides: contiguous_strides(dims), ..tensor })
    }

    /// `len` elements of dimension `dim` from `start` on, as a view.
    ///
    /// # Errors
    /// [`Error::Shape`] for elements that are not there.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let fits = self.dims.get(dim).is_some_and(|&size| start.checked_add(len).is_some_and(|end| end <= size));
        if !fits {
            let expected = format!("elements {start} to {} in dimension {dim}", start.saturating_add(len));
            return Err(Error::Shape { op: "narrow", operand: "x", expected, found: self.dims.clone() });
        }
        let mut view = self.clone();
        view.offset += start * view.strides[dim];
        view.dims[dim] = len;
        Ok(view)
    }

    /// The view whose dimension `i` is this tensor's dimension `order[i]`. The order has each dimension once.
    pub fn permuted(&self, order: &[usize]) -> Self {
        let pick = |from: &[usize]| order.iter().map(|&dim| from[dim]).collect();
        Self { dims: pick(&self.dims), strides: pick(&self.strides), ..self.clone() }
    }

    /// These elements, contiguous: a copy if they are not.
    ///
    /// # Errors
    /// The errors of [`PortableTensor::copy`].
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A copy in its own memory.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device has no memory for it.
    pub fn copy(&self) -> Result<Self> {
        self.copy_as(self.dtype)
    }

    /// These values in another type; a clone if the type is the same.
    ///
    /// # Errors
    /// The errors of [`Backend::copy`].
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype { Ok(self.clone()) } else { self.copy_as(dtype) }
    }

    fn copy_as(&self, dtype: DType) -> Result<Self> {
        let to = Self::uninit(&self.backend, &self.dims, dtype)?;
        let cost = Cost::new(self.dims.as_slice(), dtype);
        trace::portable("copy", &cost, self.backend.as_ref(), || self.backend.copy(self, &to))?;
        Ok(to)
    }
}

impl PortableWeight {
    /// A weight with the form of `weight`, whose memory is `memory` from the element `offset` on, in the type of its tensor.
    ///
    /// # Errors
    /// [`Error::Config`] for a weight in panels or in 8 bits, which are for products on other devices.
    pub fn new(backend: &Arc<dyn Backend>, memory: Arc<dyn Memory>, offset: usize, weight: &Weight) -> Result<Self> {
        let (shape, stored_rows) = (weight.shape(), weight.stored_rows());
        let dims = match (weight.layout(), stored_rows) {
            (Some(WeightLayout::Plain), _) => &shape[..],
            (None, Some(_)) => weight.tensor().dims(),
            _ => {
                let message = "the matrix is packed for another device, expected rows";
                return Err(Error::Config { op: "weight", message: message.into() });
            }
        };
        let tensor = PortableTensor::new(backend, memory, dims, offset, weight.tensor().dtype());
        Ok(Self { tensor, shape, stored_rows })
    }

    /// A weight row by row: `(n, k)` or `(c_out, kh, kw, c_in)`, a view of the same memory if it is contiguous.
    ///
    /// # Errors
    /// [`Error::Shape`] for any other rank.
    pub fn plain(tensor: &PortableTensor) -> Result<Self> {
        let shape = match *tensor.dims() {
            [n, k] => [n, 1, 1, k],
            [c_out, kh, kw, c_in] => [c_out, kh, kw, c_in],
            _ => {
                let expected = "(n, k) or (c_out, kh, kw, c_in)".into();
                return Err(Error::Shape { op: "weight", operand: "tensor", expected, found: tensor.dims().to_vec() });
            }
        };
        Ok(Self { tensor: tensor.reshape(&shape)?, shape, stored_rows: None })
    }

    /// `(c_out, kh, kw, c_in)`, contiguous; of stored rows their memory, flat.
    pub fn tensor(&self) -> &PortableTensor {
        &self.tensor
    }

    /// The rows, if they have a storage type of their own.
    pub fn stored_rows(&self) -> Option<Rows> {
        self.stored_rows
    }

    /// The weight, in host memory.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device failed.
    pub fn download(&self) -> Result<Weight> {
        let (tensor, [n, _, _, k]) = (self.tensor.download()?, self.shape);
        match self.stored_rows {
            Some(rows) => Weight::rows(&tensor, rows.kind, [n, k], n / rows.part),
            None => Weight::plain(&tensor),
        }
    }
}

impl Operand for PortableTensor {
    type Weight = PortableWeight;
    type Statistics = PortableStatistics;

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn dtype(&self) -> DType {
        self.dtype
    }
}

impl WeightOperand for PortableWeight {
    fn shape(&self) -> [usize; 4] {
        self.shape
    }

    fn eight_bits(&self) -> Option<EightBits> {
        None
    }

    fn matrix(&self) -> Option<MatrixType> {
        self.stored_rows.map(|rows| rows.kind)
    }
}

/// The strides of contiguous elements.
fn contiguous_strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

/// Copies a flat tensor in host memory to the device.
///
/// # Errors
/// [`Error::Backend`] if the device has no memory for it, or for other types than f32, f16 and bf16.
fn upload_flat(backend: &dyn Backend, flat: &Tensor) -> Result<Arc<dyn Memory>> {
    let (storage, layout) = flat.storage_and_layout();
    let (Storage::Cpu(values), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        return Err(Error::Backend("a tensor that is not contiguous in host memory is not uploaded".into()));
    };
    backend.upload(match values {
        CpuStorage::F32(values) => bytes(&values[start..end]),
        CpuStorage::F16(values) => bytes(&values[start..end]),
        CpuStorage::BF16(values) => bytes(&values[start..end]),
        _ => {
            let found = flat.dtype().as_str();
            return Err(Error::Backend(format!("tensors of {found} are not uploaded, expected f32, f16 or bf16")));
        }
    })
}
