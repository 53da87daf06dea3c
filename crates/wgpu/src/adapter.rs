//! The GPUs of this machine.

use std::fmt;

use kiln_ops::portable::BackendMemory;
use serde::{Deserialize, Serialize};

use crate::memory::memory;
use crate::workgroup_matrices;

/// The interface of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Vulkan 1.1 or newer.
    Vulkan,
    /// Metal, of Apple's GPUs.
    Metal,
    /// DirectX 12, of Windows.
    Dx12,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
        })
    }
}

/// A GPU that can be opened.
#[derive(Debug, Clone)]
pub struct Adapter {
    pub(crate) adapter: wgpu::Adapter,
    /// The interface.
    pub api: Api,
    /// The name that the driver gives.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// Whether it is a program that computes on the CPU, such as Mesa's lavapipe.
    pub is_software: bool,
    /// Whether it is known to be a GPU of this machine, with memory of its own or without. Those of virtual machines are not known to be.
    pub is_hardware: bool,
    /// Whether it has memory of its own. Others share the memory of the CPU.
    pub is_discrete: bool,
    /// Whether shaders can compute with f16.
    pub has_f16: bool,
    /// The cooperative matrices that kernels multiply; `None` if the GPU has none of a kind that they know.
    pub matrices: Option<Matrices>,
    /// Whether kernels multiply matrices of a whole workgroup, which some of NVIDIA's drivers have.
    pub has_workgroup_matrices: bool,
    /// Whether drivers choose the number of threads of a subgroup for each kernel. Kernels with matrices are checked then.
    pub has_many_subgroups: bool,
}

/// Square matrices of f16 that a subgroup multiplies, with sums in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrices {
    /// Rows and columns: 16, or 8.
    pub side: usize,
    /// Threads of a subgroup, or the most of them. Smaller subgroups compute some matrices twice.
    pub lanes: usize,
}

/// The GPUs of this machine by all interfaces: those with memory of their own first, and programs on the CPU last.
pub fn adapters() -> Vec<Adapter> {
    let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    let instance = wgpu::Instance::new(descriptor);
    let wanted = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let found = pollster::block_on(instance.enumerate_adapters(wanted));
    let mut adapters: Vec<Adapter> = found.into_iter().filter_map(Adapter::of).collect();
    adapters.sort_by_key(|adapter| (adapter.is_software, !adapter.is_discrete));
    adapters
}

/// The features of kernels with cooperative matrices.
pub(crate) const MATRICES: wgpu::Features =
    wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16).union(wgpu::Features::SUBGROUP);

/// The largest subgroups for which kernels with matrices are written.
const MOST_LANES: u32 = 128;

/// The largest of an adapter's matrices that kernels know. Metal's matrices are left out: its shaders load them from scalars only, and
/// kernels keep vectors.
fn matrices(adapter: &wgpu::Adapter, api: Api) -> Option<Matrices> {
    let info = adapter.get_info();
    let is_known = api == Api::Vulkan && adapter.features().contains(MATRICES) && info.subgroup_max_size <= MOST_LANES;
    let found = adapter.cooperative_matrix_properties();
    let has = |side: u32| {
        found.iter().any(|found| {
            (found.m_size, found.n_size, found.k_size) == (side, side, side)
                && found.ab_type == wgpu::CooperativeScalarType::F16
                && found.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    let side = [16, 8].into_iter().find(|&side| is_known && has(side))?;
    Some(Matrices { side: side as usize, lanes: info.subgroup_max_size as usize })
}

impl Adapter {
    /// Its memory now; `None` if its driver does not report it.
    pub fn memory(&self) -> Option<BackendMemory> {
        memory(&self.adapter, self.is_discrete)
    }

    /// The driver, and the features that kernels use, in words.
    pub(crate) fn features(&self) -> String {
        let driver = if self.driver.is_empty() { "without a name" } else { &self.driver };
        let f16 = if self.has_f16 { "f16" } else { "no f16" };
        let matrices = self.matrices.map_or_else(
            || "no matrices".to_string(),
            |Matrices { side, lanes }| format!("matrices of {side}x{side} for {lanes} threads"),
        );
        let larger = if self.has_workgroup_matrices { ", matrices of workgroups" } else { "" };
        format!("driver {driver}, {f16}, {matrices}{larger}")
    }

    /// `None` if it lacks what kernels need.
    fn of(adapter: wgpu::Adapter) -> Option<Self> {
        let info = adapter.get_info();
        let api = match info.backend {
            wgpu::Backend::Vulkan => Api::Vulkan,
            wgpu::Backend::Metal => Api::Metal,
            wgpu::Backend::Dx12 => Api::Dx12,
            _ => return None,
        };
        let features = adapter.features();
        let matrices = matrices(&adapter, api);
        features.contains(wgpu::Features::IMMEDIATES).then(|| Self {
            api,
            name: info.name,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            is_software: info.device_type == wgpu::DeviceType::Cpu,
            is_hardware: matches!(info.device_type, wgpu::DeviceType::DiscreteGpu | wgpu::DeviceType::IntegratedGpu),
            is_discrete: info.device_type == wgpu::DeviceType::DiscreteGpu,
            has_f16: features.contains(wgpu::Features::SHADER_F16),
            matrices,
            has_workgroup_matrices: matrices.is_some()
                && features.contains(wgpu::Features::PASSTHROUGH_SHADERS)
                && workgroup_matrices::are_usable(&adapter),
            has_many_subgroups: info.subgroup_min_size != info.subgroup_max_size,
            adapter,
        })
    }
}
