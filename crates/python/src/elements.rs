//! Memory that Python reads and writes without a copy: by the buffer protocol (NumPy, memoryview) and by DLPack (PyTorch, JAX,
//! NumPy). The structures are those of `dlpack.h`, versions 0.8 and 1.0.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// The elements of an image or of latents in the host's memory, row by row.
///
/// Views share the memory: what one writes, the others see. The memory lives as long as one of them.
#[pyclass(frozen, module = "kiln._kiln")]
pub struct Elements {
    memory: Arc<Memory>,
    shape: Vec<isize>,
    /// Bytes from one element to the next, for each dimension.
    strides: Vec<isize>,
}

/// The element type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    F32,
}

/// Memory that is freed with its last owner.
struct Memory {
    /// Keeps the memory; it is read and written through `start` alone.
    _values: UnsafeCell<Values>,
    start: *mut u8,
    bytes: usize,
    kind: Kind,
}

enum Values {
    U8 { _values: Vec<u8> },
    F32 { _values: Vec<f32> },
}

// SAFETY: the struct owns the memory behind `start`, and no part of it belongs to a thread. Who writes through a view while
// another thread reads has to order the two, as for every buffer of Python.
unsafe impl Send for Memory {}
// SAFETY: as above; Rust code reads the memory only in `Memory::copy`.
unsafe impl Sync for Memory {}

impl Kind {
    fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
        }
    }

    /// The format of the module `struct`.
    fn format(self) -> &'static CStr {
        match self {
            Self::U8 => c"B",
            Self::F32 => c"f",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::F32 => "float32",
        }
    }

    /// `kDLUInt` is 1, `kDLFloat` is 2.
    fn dlpack(self) -> DataType {
        let code = match self {
            Self::U8 => 1,
            Self::F32 => 2,
        };
        DataType { code, bits: 8 * self.size() as u8, lanes: 1 }
    }
}

impl Memory {
    fn u8(mut values: Vec<u8>) -> Self {
        let (start, bytes) = (values.as_mut_ptr(), values.len());
        Self { _values: UnsafeCell::new(Values::U8 { _values: values }), start, bytes, kind: Kind::U8 }
    }

    fn f32(mut values: Vec<f32>) -> Self {
        let (start, bytes) = (values.as_mut_ptr().cast(), 4 * values.len());
        Self { _values: UnsafeCell::new(Values::F32 { _values: values }), start, bytes, kind: Kind::F32 }
    }

    /// The bytes as they are now.
    fn copy(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: `start` has `bytes` bytes while `self` lives, and the new memory is another one.
        unsafe { ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), self.bytes) };
        bytes
    }
}

impl Elements {
    /// Bytes of this shape.
    pub(crate) fn of_bytes(values: Vec<u8>, shape: &[usize]) -> Self {
        Self::new(Memory::u8(values), shape)
    }

    /// f32 values of this shape.
    pub(crate) fn of_f32(values: Vec<f32>, shape: &[usize]) -> Self {
        Self::new(Memory::f32(values), shape)
    }

    fn new(memory: Memory, shape: &[usize]) -> Self {
        let shape: Vec<isize> = shape.iter().map(|side| *side as isize).collect();
        let mut strides = vec![0; shape.len()];
        let mut step = memory.kind.size() as isize;
        for (stride, side) in strides.iter_mut().zip(&shape).rev() {
            *stride = step;
            step *= side;
        }
        assert_eq!(step as usize, memory.bytes, "the shape has as many elements as the memory");
        Self { memory: Arc::new(memory), shape, strides }
    }

    /// The bytes as they are now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.copy()
    }

    /// A copy in memory of its own.
    fn copied(&self) -> Self {
        let shape: Vec<usize> = self.shape.iter().map(|side| *side as usize).collect();
        match self.memory.kind {
            Kind::U8 => Self::of_bytes(self.bytes(), &shape),
            Kind::F32 => Self::of_f32(floats(&self.bytes()), &shape),
        }
    }
}

/// The values of bytes in the machine's order.
fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

/// The elements of a pickled array: its bytes, its shape, and `uint8` or `float32`.
#[pyfunction]
pub fn elements(bytes: Vec<u8>, shape: Vec<usize>, dtype: &str) -> PyResult<Elements> {
    let size = match dtype {
        "uint8" => 1,
        "float32" => 4,
        _ => return Err(PyValueError::new_err(format!("`dtype` is {dtype}, expected uint8 or float32"))),
    };
    let expected = shape.iter().try_fold(size, |all: usize, side| all.checked_mul(*side));
    if expected != Some(bytes.len()) {
        let found = bytes.len();
        return Err(PyValueError::new_err(format!("`bytes` has {found} bytes, expected those of the shape {shape:?}")));
    }
    Ok(if size == 1 { Elements::of_bytes(bytes, &shape) } else { Elements::of_f32(floats(&bytes), &shape) })
}

#[pymethods]
impl Elements {
    /// The length of each dimension.
    #[getter]
    fn shape(&self) -> Vec<isize> {
        self.shape.clone()
    }

    /// The element type: `uint8` or `float32`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.memory.kind.name()
    }

    /// The device of DLPack: `(1, 0)`, the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    /// A capsule of DLPack, as the array API has it: with a version where the consumer knows versions.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyValueError::new_err("`stream` is given, expected None: the memory is the CPU's"));
        }
        if dl_device.is_some_and(|device| device != (CPU, 0)) {
            return Err(PyBufferError::new_err("`dl_device` is another one than (1, 0), the CPU, where the memory is"));
        }
        let memory = if copy == Some(true) { self.copied().memory } else { self.memory.clone() };
        let size = self.memory.kind.size() as isize;
        let shape = self.shape.iter().map(|side| *side as i64).collect();
        let strides = self.strides.iter().map(|stride| (*stride / size) as i64).collect();
        let owner = Owner { _memory: memory.clone(), shape, strides };
        if max_version.is_some_and(|(major, _)| major >= 1) {
            Versioned::capsule(py, &memory, owner)
        } else {
            Managed::capsule(py, &memory, owner)
        }
    }

    /// # Safety
    /// Python calls it with a view that it owns.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view is given"));
        }
        let this = slf.get();
        let Memory { start, bytes, kind, .. } = *this.memory;
        let asks = |flag: c_int| flags & flag == flag;
        // SAFETY: the view is the caller's to write. Its pointers are to memory of `slf`, which the view keeps alive by `obj`:
        // the class is frozen, so that shape and strides stay. Nothing writes through the pointers to them.
        unsafe {
            (*view).buf = start.cast::<c_void>();
            (*view).obj = slf.clone().into_any().into_ptr();
            (*view).len = bytes as isize;
            (*view).readonly = 0;
            (*view).itemsize = kind.size() as isize;
            let format: *const c_char = if asks(ffi::PyBUF_FORMAT) { kind.format().as_ptr() } else { ptr::null() };
            (*view).format = format.cast_mut();
            let has_shape = asks(ffi::PyBUF_ND);
            (*view).ndim = if has_shape { this.shape.len() as c_int } else { 1 };
            (*view).shape = if has_shape { this.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
            let has_strides = asks(ffi::PyBUF_STRIDES);
            (*view).strides = if has_strides { this.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
        }
        Ok(())
    }
}

/// `kDLCPU`.
const CPU: i32 = 1;

/// `DLDevice`.
#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

/// `DLDataType`.
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// The owner of the memory of a capsule.
struct Owner {
    _memory: Arc<Memory>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl DlTensor {
    fn new(memory: &Memory, owner: &mut Owner) -> Self {
        Self {
            data: memory.start.cast(),
            device: DlDevice { kind: CPU, id: 0 },
            ndim: owner.shape.len() as i32,
            dtype: memory.kind.dlpack(),
            shape: owner.shape.as_mut_ptr(),
            strides: owner.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    owner: *mut Owner,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    owner: *mut Owner,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// A structure that a capsule carries under a name until a consumer takes it and renames the capsule.
trait Carried: Sized {
    const NAME: &'static CStr;

    fn new(tensor: DlTensor, owner: *mut Owner) -> Self;

    fn owner(&self) -> *mut Owner;

    fn capsule<'py>(py: Python<'py>, memory: &Memory, mut owner: Owner) -> PyResult<Bound<'py, PyAny>> {
        let tensor = DlTensor::new(memory, &mut owner);
        let carried = Box::into_raw(Box::new(Self::new(tensor, Box::into_raw(Box::new(owner)))));
        // SAFETY: the pointer is not null, the name is static, and the destructor frees what no consumer took. Without a capsule
        // the structure is freed here, which nothing else has.
        unsafe {
            let capsule = ffi::PyCapsule_New(carried.cast(), Self::NAME.as_ptr(), Some(end::<Self>));
            if capsule.is_null() {
                free(carried);
            }
            Bound::from_owned_ptr_or_err(py, capsule)
        }
    }
}

impl Carried for Managed {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: DlTensor, owner: *mut Owner) -> Self {
        Self { tensor, owner, deleter: Some(free::<Self>) }
    }

    fn owner(&self) -> *mut Owner {
        self.owner
    }
}

impl Carried for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: DlTensor, owner: *mut Owner) -> Self {
        Self { version: [1, 0], owner, deleter: Some(free::<Self>), flags: 0, tensor }
    }

    fn owner(&self) -> *mut Owner {
        self.owner
    }
}

/// Frees a structure and what it keeps alive. It may be called on any thread, without the interpreter.
///
/// # Safety
/// `carried` is from [`Carried::capsule`], and this is the only call for it.
unsafe extern "C" fn free<T: Carried>(carried: *mut T) {
    // SAFETY: both pointers are from `Box::into_raw`, and are freed once by this contract.
    unsafe {
        let carried = Box::from_raw(carried);
        drop(Box::from_raw(carried.owner()));
    }
}

/// The destructor of a capsule: one whose name is still the first was taken by no consumer.
///
/// # Safety
/// Python calls it with a capsule of [`Carried::capsule`].
unsafe extern "C" fn end<T: Carried>(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive during the call, and a capsule with this name has the pointer that it was made with.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) == 1 {
            free::<T>(ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()).cast());
        }
    }
}
