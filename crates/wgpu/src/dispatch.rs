//! One call of a kernel.

use std::sync::Arc;

use kiln_ops::Result;

use crate::buffers::Buffer;
use crate::compiler::Pipeline;
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// The largest number of workgroups in a dimension.
pub(crate) const MOST_GROUPS: usize = 65535;

/// A call of a kernel.
pub(crate) struct Dispatch<'a> {
    buffers: Vec<&'a Buffer>,
    call: KernelCall,
}

/// A call of a kernel without its buffers.
#[derive(Debug)]
pub(crate) struct KernelCall {
    pipeline: Arc<Pipeline>,
    numbers: Vec<u8>,
    groups: [usize; 3],
    /// How it is divided, if the kernel's last number is the first workgroup of a dimension.
    division: Option<Division>,
}

/// The parts in which a call can be computed.
#[derive(Debug, Clone, Copy)]
struct Division {
    along: Along,
    /// The workgroups there.
    groups: usize,
    /// Floating point operations of all.
    flop: f64,
}

/// The dimension of workgroups in which a call is divided.
#[derive(Debug, Clone, Copy)]
enum Along {
    /// The first one.
    Blocks,
    /// The second and the third one, which count rows together.
    Rows,
}

/// A part of a call: some of its workgroups.
pub(crate) struct Part {
    groups: [usize; 3],
    /// The number of the first one, if the call is divided.
    first: Option<usize>,
    /// Floating point operations, if they are known.
    pub(crate) flop: f64,
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
        Ok(Self { buffers, call: KernelCall { pipeline, numbers: numbers.0, groups: [1; 3], division: None } })
    }

    /// A thread for each of `count` elements, in groups of `size`.
    pub(crate) fn over(self, count: usize, size: usize) -> Self {
        let groups = count.div_ceil(size);
        let columns = groups.min(MOST_GROUPS);
        self.groups([columns, groups.div_ceil(columns.max(1)), 1])
    }

    /// So many workgroups.
    pub(crate) fn groups(mut self, groups: [usize; 3]) -> Self {
        self.call.groups = groups;
        self
    }

    /// Workgroups in columns and rows, which compute `flop` floating point operations. The rows may be computed in parts: the kernel's
    /// last number is the first row, which `numbers` lack.
    pub(crate) fn rows(self, rows: usize, columns: usize, flop: f64) -> Self {
        self.groups([columns, 1, 1]).divided(Division { along: Along::Rows, groups: rows, flop })
    }

    /// Workgroups in three dimensions, of which the first may be computed in parts, as rows in [`Dispatch::rows`].
    pub(crate) fn blocks(self, groups: [usize; 3], flop: f64) -> Self {
        self.groups(groups).divided(Division { along: Along::Blocks, groups: groups[0], flop })
    }

    fn divided(mut self, division: Division) -> Self {
        self.call.division = Some(division);
        self
    }

    pub(crate) fn into_call(self) -> KernelCall {
        self.call
    }

    /// The buffers for the kernel.
    pub(crate) fn bindings(&self, device: &wgpu::Device) -> wgpu::BindGroup {
        let buffers = self.buffers.iter().zip(0..);
        let entries: Vec<_> = buffers
            .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.wgpu().as_entire_binding() })
            .collect();
        let layout = &self.call.pipeline.layout.bindings;
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }
}

impl KernelCall {
    /// Whether the kernel has been compiled, or the driver has refused it.
    pub(crate) fn is_compiled(&self) -> bool {
        self.pipeline.is_compiled()
    }

    /// Parts of about the same size, with at most about `most` floating point operations, or one row of workgroups.
    pub(crate) fn parts(&self, most: f64) -> Vec<Part> {
        let Some(Division { along, groups, flop }) = self.division else {
            return vec![Part { groups: self.groups, first: None, flop: 0.0 }];
        };
        let count = ((flop / most).ceil() as usize).clamp(1, groups.max(1));
        let part = |i: usize| {
            let [first, end] = [i, i + 1].map(|i| groups * i / count);
            let here = end - first;
            let [columns, second, third] = self.groups;
            let groups = match along {
                Along::Blocks => [here, second, third],
                Along::Rows => [columns, here.min(MOST_GROUPS), here.div_ceil(MOST_GROUPS)],
            };
            Part { groups, first: Some(first), flop: flop / count as f64 }
        };
        (0..count).map(part).collect()
    }

    /// Adds a part of the call to a pass, once the kernel is compiled.
    ///
    /// # Errors
    /// [`kiln_ops::Error::Backend`] if the driver refuses the kernel.
    pub(crate) fn record(
        &self,
        part: &Part,
        pass: &mut wgpu::ComputePass<'static>,
        bindings: &wgpu::BindGroup,
    ) -> Result<()> {
        if part.groups.contains(&0) {
            return Ok(());
        }
        pass.set_pipeline(self.pipeline.compiled()?);
        pass.set_bind_group(0, bindings, &[]);
        pass.set_immediates(0, &self.numbers);
        if let Some(first) = part.first {
            pass.set_immediates(self.numbers.len() as u32, &(first as u32).to_ne_bytes());
        }
        let [x, y, z] = part.groups.map(|groups| groups as u32);
        pass.dispatch_workgroups(x, y, z);
        Ok(())
    }
}
