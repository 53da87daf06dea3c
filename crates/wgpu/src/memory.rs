//! The memory that a driver reports, which wgpu does not.
#![allow(unsafe_code)]

use kiln_ops::portable::BackendMemory;

/// Bytes of a GPU's memory that the process may still take, and all that it may have.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    free: u64,
    total: u64,
}

/// The memory of a GPU; `None` if its interface does not report it. `is_discrete` is whether it has memory of its own.
pub(crate) fn memory(adapter: &wgpu::Adapter, is_discrete: bool) -> Option<BackendMemory> {
    let Bytes { free, total } = match adapter.get_info().backend {
        wgpu::Backend::Vulkan => vulkan(adapter),
        wgpu::Backend::Metal => metal(adapter),
        wgpu::Backend::Dx12 => direct_x(adapter),
        _ => None,
    }?;
    Some(BackendMemory { free: free.min(total), total, is_shared: !is_discrete })
}

/// The largest heap that is the device's, and the part of it that the driver has for this process (`VK_EXT_memory_budget`).
#[cfg(not(target_vendor = "apple"))]
fn vulkan(adapter: &wgpu::Adapter) -> Option<Bytes> {
    use ash::vk;

    // SAFETY: the handle is used while `vulkan` lives, and nothing is destroyed.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    if vulkan.shared_instance().instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    let has_budget = vulkan.physical_device_capabilities().supports_extension(ash::ext::memory_budget::NAME);
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the instance has version 1.1, the device is its own, and the chained structure is one of a supported extension.
    unsafe { instance.get_physical_device_memory_properties2(vulkan.raw_physical_device(), &mut properties) };
    let memory = properties.memory_properties;
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let (number, heap) = own.max_by_key(|(_, heap)| heap.size)?;
    let free = match has_budget {
        true => budget.heap_budget[number].saturating_sub(budget.heap_usage[number]),
        false => heap.size,
    };
    Some(Bytes { free, total: heap.size })
}

#[cfg(target_vendor = "apple")]
fn vulkan(_adapter: &wgpu::Adapter) -> Option<Bytes> {
    None
}

/// The size below which Metal promises its full speed.
#[cfg(target_vendor = "apple")]
fn metal(adapter: &wgpu::Adapter) -> Option<Bytes> {
    use objc2_metal::MTLDevice;

    // SAFETY: the handle is used while `metal` lives, and nothing is destroyed.
    let metal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = metal.raw_device();
    let total = device.recommendedMaxWorkingSetSize();
    Some(Bytes { free: total.saturating_sub(device.currentAllocatedSize() as u64), total })
}

#[cfg(not(target_vendor = "apple"))]
fn metal(_adapter: &wgpu::Adapter) -> Option<Bytes> {
    None
}

/// The budget that Windows has for this process in the GPU's local memory.
#[cfg(windows)]
fn direct_x(adapter: &wgpu::Adapter) -> Option<Bytes> {
    // SAFETY: the handle is used while `direct_x` lives, and nothing is destroyed.
    let direct_x = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    // The default is the group of local memory.
    let info = direct_x.raw_adapter().query_video_memory_info(Default::default()).ok()?;
    Some(Bytes { free: info.Budget.saturating_sub(info.CurrentUsage), total: info.Budget })
}

#[cfg(not(windows))]
fn direct_x(_adapter: &wgpu::Adapter) -> Option<Bytes> {
    None
}
