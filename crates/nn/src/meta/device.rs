//! The device of tensors without elements.

use std::cell::RefCell;
use std::rc::Rc;

use candle_core::DType;
use kiln_mempool::{Held, Ledger, Rounding};
use kiln_ops::{MatrixType, Target, Workspace};

use super::{FlopCount, MetaTensor};

/// Counts the memory of its tensors and the arithmetic of operators. Clones are the same device.
///
/// ```
/// use candle_core::DType;
/// use kiln_nn::ops::Target;
/// use kiln_nn::{MetaDevice, Operators};
///
/// let device = MetaDevice::new(Target::Gpu, DType::F16);
/// let x = device.tensor(&[2, 64, 64, 320], DType::F16);
/// let y = x.upsample_nearest((128, 128), None)?;
/// drop(x);
/// assert_eq!(device.ledger().now(), 2 * 128 * 128 * 320 * 2);
/// assert_eq!(device.ledger().peak(), 5 * 2 * 64 * 64 * 320 * 2);
/// # drop(y);
/// # Ok::<(), kiln_nn::Error>(())
/// ```
#[derive(Clone)]
pub struct MetaDevice(Rc<State>);

struct State {
    target: Target,
    /// The type of the weights of the networks that run here.
    dtype: DType,
    /// The type of the matrices of linear layers, if it differs.
    matrices: Option<MatrixType>,
    ledger: Ledger,
    /// Whether it is a GPU of [`kiln_ops::portable::Backend`].
    is_portable: bool,
    /// The buffer that the calling thread keeps ([`Workspace::kept`]).
    kept: RefCell<Option<Held>>,
    flop: RefCell<FlopCount>,
}

/// Networks run on the CPU next to a GPU ([`MetaDevice::on_host`]).
pub struct OnHost<'a> {
    device: &'a MetaDevice,
    /// The buffer of networks on the GPU.
    kept: Option<Held>,
}

impl Drop for OnHost<'_> {
    fn drop(&mut self) {
        *self.device.0.kept.borrow_mut() = self.kept.take();
    }
}

impl MetaDevice {
    /// A device without tensors, for networks with weights of type `dtype`. Sizes are rounded as in the target's pool.
    pub fn new(target: Target, dtype: DType) -> Self {
        Self::with_matrices(target, dtype, None)
    }

    /// Like [`MetaDevice::new`], for networks with another type for the matrices of linear layers.
    pub fn with_matrices(target: Target, dtype: DType, matrices: Option<MatrixType>) -> Self {
        let rounding = if target.is_gpu() { Rounding::Gpu } else { Rounding::HostPool };
        Self::with_ledger(target, (dtype, matrices), Ledger::new(rounding), false)
    }

    /// A GPU of [`kiln_ops::portable::Backend`], for networks with another type for the matrices of linear layers. Its operators take
    /// no memory besides operands and results, except for the elements of the largest stored matrix, which are kept; results that go
    /// into another tensor are there twice for a moment.
    pub fn portable(dtype: DType, matrices: Option<MatrixType>) -> Self {
        Self::with_ledger(Target::Gpu, (dtype, matrices), Ledger::new(Rounding::Gpu), true)
    }

    fn with_ledger(
        target: Target,
        (dtype, matrices): (DType, Option<MatrixType>),
        ledger: Ledger,
        is_portable: bool,
    ) -> Self {
        let (kept, flop) = (RefCell::default(), RefCell::default());
        Self(Rc::new(State { target, dtype, matrices, ledger, is_portable, kept, flop }))
    }

    /// The device on which a network would run.
    pub fn target(&self) -> Target {
        self.0.target
    }

    /// The memory of all tensors in bytes.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The size of the buffer that the calling thread keeps ([`Workspace::kept`]).
    pub fn kept(&self) -> usize {
        self.0.kept.borrow().as_ref().map_or(0, Held::bytes)
    }

    /// The floating-point operations since the last call.
    pub fn take_flop(&self) -> FlopCount {
        self.0.flop.take()
    }

    /// A new tensor.
    pub fn tensor(&self, shape: &[usize], dtype: DType) -> MetaTensor {
        let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
        let held = Some(Rc::new(self.0.ledger.hold(bytes)));
        MetaTensor { device: self.clone(), shape: shape.to_vec(), dtype, contiguous: true, held }
    }

    /// A tensor whose memory is counted elsewhere, or is too small to count.
    pub fn uncounted(&self, shape: &[usize], dtype: DType) -> MetaTensor {
        MetaTensor { device: self.clone(), shape: shape.to_vec(), dtype, contiguous: true, held: None }
    }

    /// The host of this device. It is the device itself for networks that run on the CPU. The host memory of a GPU run
    /// is not counted.
    pub(super) fn host(&self) -> Self {
        match self.0.target {
            Target::Cpu { .. } => self.clone(),
            Target::Gpu => {
                let ledger = Ledger::new(Rounding::Exact);
                Self::with_ledger(Target::Cpu { threads: 1 }, (self.0.dtype, self.0.matrices), ledger, false)
            }
        }
    }

    /// Whether it is a GPU of [`kiln_ops::portable::Backend`].
    pub(super) fn is_portable(&self) -> bool {
        self.0.is_portable
    }

    /// Whether both are the same device.
    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// The type of weights.
    pub(super) fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The type of the matrices of linear layers, if it differs from that of the weights.
    pub(super) fn matrices(&self) -> Option<MatrixType> {
        self.0.matrices
    }

    /// Counts an operator's workspace in addition to its operands and output.
    pub(super) fn takes(&self, workspace: Workspace) {
        if self.0.is_portable {
            return;
        }
        let Workspace { call, kept } = workspace;
        self.keeps(kept);
        self.0.ledger.touch(call);
    }

    /// Counts the elements of a stored matrix, which a GPU of [`kiln_ops::portable::Backend`] writes to memory that it keeps.
    pub(super) fn expands(&self, matrix: Option<MatrixType>, [n, k]: [usize; 2], dtype: DType) {
        if self.0.is_portable && matrix.and_then(|matrix| matrix.row_bytes(k)).is_some() {
            self.keeps(n * k * dtype.size_in_bytes());
        }
    }

    fn keeps(&self, bytes: usize) {
        let mut buffer = self.0.kept.borrow_mut();
        if bytes > buffer.as_ref().map_or(0, Held::bytes) {
            *buffer = None; // it is freed before the larger one is allocated
            *buffer = Some(self.0.ledger.hold(bytes));
        }
    }

    /// Sets the buffer that networks on a GPU keep aside while others run on the CPU, until the result is dropped. Theirs is forgotten
    /// then.
    pub fn on_host(&self) -> OnHost<'_> {
        OnHost { device: self, kept: self.0.kept.borrow_mut().take() }
    }

    /// Adds operations to the segment whose parameters were used last.
    pub(super) fn computes(&self, flop: f64) {
        self.0.flop.borrow_mut().add(flop);
    }

    /// Marks `segment` as the one whose parameters are in use.
    pub(super) fn uses(&self, segment: &str) {
        self.0.flop.borrow_mut().enter(segment);
    }
}
