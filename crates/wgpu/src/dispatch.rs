//! One call of a kernel.

use std::sync::Arc;

use kiln_ops::Result;

use crate::buffers::Buffer;
use crate::gpu::Gpu;
use crate::pipelines::{Kernel, Pipeline};

/// The largest number of workgroups in a dimension.
pub(crate) const MOST_GROUPS: usize = 65535;

/// A call of a kernel.
pub(crate) struct Dispatch<'a> {
    pipeline: Arc<Pipeline>,
    buffers: Vec<&'a Buffer>,
    numbers: Vec<u8>,
    groups: [usize; 3],
}

/// The numbers of a call, in the order of the kernel's `Params`.
#[derive(Clone, Default)]
pub(crate) struct Numbers(Vec<u8>);

impl Numbers {
    pub(crate) fn u32(mut self, value: usize) -> Self {
        self.0.extend((value as u32).to_ne_bytes());
        self
    }

    pub(crate) fn all(self, values: impl IntoIterator<Item = usize>) -> Self {
        values.into_iter().fold(self, Self::u32)
    }

    pub(crate) fn f32(mut self, value: f64) -> Self {
        self.0.extend((value as f32).to_ne_bytes());
        self
    }
}

impl<'a> Dispatch<'a> {
    /// `buffers` are those of the kernel's bindings, the result last.
    pub(crate) fn new(gpu: &Gpu, kernel: Kernel, buffers: Vec<&'a Buffer>, numbers: Numbers) -> Result<Self> {
        let pipeline = gpu.pipelines().get(kernel, buffers.len())?;
        Ok(Self { pipeline, buffers, numbers: numbers.0, groups: [1; 3] })
    }

    /// A thread for each of `count` elements, in groups of `size`.
    pub(crate) fn over(self, count: usize, size: usize) -> Self {
        let groups = count.div_ceil(size);
        let columns = groups.min(MOST_GROUPS);
        self.groups([columns, groups.div_ceil(columns.max(1)), 1])
    }

    /// So many workgroups.
    pub(crate) fn groups(self, groups: [usize; 3]) -> Self {
        Self { groups, ..self }
    }

    /// The buffers for the kernel.
    pub(crate) fn bindings(&self, device: &wgpu::Device) -> wgpu::BindGroup {
        let buffers = self.buffers.iter().zip(0..);
        let entries: Vec<_> = buffers
            .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.wgpu().as_entire_binding() })
            .collect();
        let layout = &self.pipeline.layout.bindings;
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }

    /// Adds the call to a pass.
    pub(crate) fn record(&self, pass: &mut wgpu::ComputePass<'static>, bindings: &wgpu::BindGroup) {
        if self.groups.contains(&0) {
            return;
        }
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, bindings, &[]);
        pass.set_immediates(0, &self.numbers);
        let [x, y, z] = self.groups.map(|groups| groups as u32);
        pass.dispatch_workgroups(x, y, z);
    }
}
