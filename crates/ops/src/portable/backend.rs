//! A device and its memory.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::{Call, PortableTensor};
use crate::error::Result;

/// A device that runs operators on memory of its own.
///
/// Work is queued: results are complete when they are read ([`Backend::download`]). Calls of several threads take turns.
pub trait Backend: Debug + Send + Sync {
    /// The name of the device.
    fn name(&self) -> &str;

    /// Its driver with the version, and the features that kernels use, in words.
    fn features(&self) -> &str;

    /// Memory of `bytes` bytes, with any contents.
    ///
    /// # Errors
    /// [`crate::Error::OutOfGpuMemory`] if the device has no such memory, and [`crate::Error::Backend`] if no buffer may be so large.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Memory with these bytes.
    ///
    /// # Errors
    /// The errors of [`Backend::allocate`].
    fn upload(&self, bytes: &[u8]) -> Result<Arc<dyn Memory>>;

    /// The memory that a process may use now; `None` if the driver does not report it.
    fn memory(&self) -> Option<BackendMemory>;

    /// Refuses memory beyond `bytes` bytes in all from now on, and gives back what waits beyond it; `None` for no limit but the
    /// device's.
    fn set_limit(&self, bytes: Option<u64>);

    /// Gives memory that waits for the next request back to the driver, once the work that uses it is complete.
    fn trim(&self);

    /// The bytes of a contiguous tensor, once all work that was queued before is complete.
    ///
    /// # Errors
    /// [`crate::Error::Backend`] if the device failed since the last download.
    fn download(&self, tensor: &PortableTensor) -> Result<Vec<u8>>;

    /// Writes the elements of `from` to `to`, a view of the same shape, in its type. The two do not overlap.
    ///
    /// # Errors
    /// [`crate::Error::Backend`] for types that the device does not have.
    fn copy(&self, from: &PortableTensor, to: &PortableTensor) -> Result<()>;

    /// Writes the mean of each group of neighboring channels of `x` `(1, .., c)`, and the sum of the squared differences from it, to
    /// `result` `(1, num_groups, 2)` in f32.
    ///
    /// # Errors
    /// [`crate::Error::Backend`] for types that the device does not have.
    fn moments(&self, x: &PortableTensor, result: &PortableTensor) -> Result<()>;

    /// Runs an operator whose operands have been checked. `result` has the shape and the type of its result, is contiguous, and
    /// shares no memory with operands.
    ///
    /// # Errors
    /// [`crate::Error::Backend`] for an operator or a type that the device has no kernel for.
    fn run(&self, call: &Call<'_, PortableTensor>, result: &PortableTensor) -> Result<()>;

    /// Runs `work`, which queues operators, waits for them, and returns the seconds that the device computed.
    ///
    /// # Errors
    /// The errors of `work`, and [`crate::Error::Backend`] if the device failed.
    fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64>;
}

/// Bytes of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendMemory {
    /// The bytes that this process may still take. The total if the driver does not say how many are taken.
    pub free: u64,
    /// All bytes that a process may have.
    pub total: u64,
    /// Whether they are a part of the host's memory.
    pub is_shared: bool,
}

/// Memory of a [`Backend`], which is free again once it is dropped and the work that uses it is complete.
pub trait Memory: Debug + Send + Sync {
    /// This memory in the back end's own type.
    fn as_any(&self) -> &dyn Any;
}
