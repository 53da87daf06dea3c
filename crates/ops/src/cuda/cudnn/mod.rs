//! Convolutions through cuDNN 9, if it is installed.

mod api;
mod convolution;
mod descriptor;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use candle_core::cuda::cudarc::driver::CudaStream;

use self::api::{Api, Raw};
pub(crate) use self::convolution::Convolution;
use self::convolution::{Plan, id};
use self::descriptor::{Attribute, Descriptor, Kind, Type};
use super::cublaslt::Addresses;
use super::libraries::WORKSPACE;
use crate::error::Result;

/// The alignment of every operand's address, in bytes.
pub(crate) const ALIGNMENT: u64 = 16;

static API: LazyLock<Option<Api>> = LazyLock::new(|| {
    let api = Api::load();
    api.inspect_err(|error| {
        tracing::warn!("cuDNN 9 is not available ({error}); Kiln's own convolutions are slower, except on Hopper");
    })
    .ok()
});

/// A handle of cuDNN and the plans that were made with it.
pub(crate) struct Cudnn {
    api: &'static Api,
    handle: Raw,
    plans: HashMap<Convolution, Option<Plan>>,
}

// SAFETY: cuDNN's handles and descriptors may be used from any thread, one at a time, which the owner guarantees.
unsafe impl Send for Cudnn {}

impl Cudnn {
    /// A handle for the stream's device. `None` where the library is not installed.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Option<Self>> {
        let Some(api) = &*API else { return Ok(None) };
        Ok(Some(Self { api, handle: api.handle(stream.cu_stream().cast())?, plans: HashMap::new() }))
    }

    /// Launches the convolution on the handle's stream. Returns `false` where cuDNN has no engine for it.
    ///
    /// # Safety
    /// The addresses are those of contiguous operands of the convolution's type and shapes on the handle's GPU, each a
    /// multiple of [`ALIGNMENT`], and `workspace` is that of [`WORKSPACE`] bytes. All of them are used in the order of
    /// the handle's stream.
    pub(crate) unsafe fn launch(
        &mut self,
        convolution: Convolution,
        addresses: Addresses,
        workspace: u64,
    ) -> Result<bool> {
        if !self.plans.contains_key(&convolution) {
            self.plans.insert(convolution, convolution.plan(self.api, self.handle)?);
        }
        let Some(Some(plan)) = self.plans.get(&convolution) else { return Ok(false) };
        let operands = [
            (id::X, Some(addresses.x)),
            (id::WEIGHT, Some(addresses.weight)),
            (id::Y, Some(addresses.y)),
            (id::BIAS, addresses.bias),
            (id::RESIDUAL, addresses.residual),
        ];
        let present = || operands.iter().filter_map(|(id, address)| address.map(|address| (*id, address)));
        let pack = Descriptor::new(self.api, Kind::VariantPack)?;
        pack.set(Attribute::PackIds, Type::Int64, &present().map(|(id, _)| id).collect::<Vec<_>>())?;
        pack.set(Attribute::PackPointers, Type::Pointer, &present().map(|(_, address)| address).collect::<Vec<_>>())?;
        pack.set(Attribute::PackWorkspace, Type::Pointer, &[workspace])?;
        let pack = pack.finalize()?;
        // SAFETY: handle, plan and pack are alive; the operands are valid by the contract.
        self.api.check(unsafe { (self.api.execute)(self.handle, plan.plan.raw(), pack.raw()) })?;
        Ok(true)
    }
}
