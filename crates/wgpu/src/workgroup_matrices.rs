//! Cooperative matrices of a whole workgroup: `VK_NV_cooperative_matrix2`, of NVIDIA's GPUs since Turing with drivers since 565.
//!
//! The driver divides them among the subgroups and loads them from workgroup memory as the GPU does best, which WGSL's matrices of a
//! subgroup leave to the kernel.
#![allow(unsafe_code)]

#[cfg(not(target_vendor = "apple"))]
pub(crate) use vulkan::{are_usable, open};

/// Threads of kernels' workgroups, and numbers of which rows, columns and depth of their matrices are multiples.
#[cfg(not(target_vendor = "apple"))]
const SIZE: (u32, [u32; 3]) = (128, [32, 32, 16]);
/// The largest rows, columns and depth, and bytes of workgroup memory that kernels use (`operators/workgroup_tiles.rs`).
#[cfg(not(target_vendor = "apple"))]
const MOST: (u32, u32) = (160, 36 << 10);

#[cfg(not(target_vendor = "apple"))]
mod vulkan {
    use std::ffi::{CStr, c_void};
    use std::ptr;

    use ash::vk;

    use super::{MOST, SIZE};

    const NAME: &CStr = c"VK_NV_cooperative_matrix2";
    const QUERY: &CStr = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";

    /// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`.
    #[repr(C)]
    struct Features {
        s_type: vk::StructureType,
        next: *mut c_void,
        workgroup_scope: vk::Bool32,
        flexible_dimensions: vk::Bool32,
        reductions: vk::Bool32,
        conversions: vk::Bool32,
        per_element_operations: vk::Bool32,
        tensor_addressing: vk::Bool32,
        block_loads: vk::Bool32,
    }

    impl Features {
        fn new(wanted: bool) -> Self {
            let wanted = vk::Bool32::from(wanted);
            Self {
                s_type: vk::StructureType::from_raw(1_000_593_000),
                next: ptr::null_mut(),
                workgroup_scope: wanted,
                flexible_dimensions: wanted,
                per_element_operations: wanted,
                tensor_addressing: wanted,
                // No kernel has them.
                reductions: vk::FALSE,
                conversions: vk::FALSE,
                block_loads: vk::FALSE,
            }
        }

        /// Whether it has all that kernels use.
        fn suffice(&self) -> bool {
            let used =
                [self.workgroup_scope, self.flexible_dimensions, self.per_element_operations, self.tensor_addressing];
            used.into_iter().all(|feature| feature == vk::TRUE)
        }
    }

    /// `VkPhysicalDeviceCooperativeMatrix2PropertiesNV`.
    #[repr(C)]
    struct Properties {
        s_type: vk::StructureType,
        next: *mut c_void,
        most_threads: u32,
        /// The largest number of rows, columns, and depth.
        most: u32,
        /// Bytes of workgroup memory that the driver needs itself.
        reserved_memory: u32,
    }

    impl Properties {
        fn of(instance: &ash::Instance, device: vk::PhysicalDevice) -> Self {
            let s_type = vk::StructureType::from_raw(1_000_593_002);
            let mut own = Self { s_type, next: ptr::null_mut(), most_threads: 0, most: 0, reserved_memory: 0 };
            let mut all =
                vk::PhysicalDeviceProperties2 { p_next: ptr::from_mut(&mut own).cast(), ..Default::default() };
            // SAFETY: the device is the instance's, which has version 1.3, and the chained structure is one of a supported extension.
            unsafe { instance.get_physical_device_properties2(device, &mut all) };
            own
        }

        /// Whether they suffice for kernels on a device with so many bytes of workgroup memory.
        fn suffice(&self, memory: u32) -> bool {
            let ((most, used), (threads, _)) = (MOST, SIZE);
            self.most_threads >= threads && self.most >= most && memory.saturating_sub(self.reserved_memory) >= used
        }
    }

    /// `VkCooperativeMatrixFlexibleDimensionsPropertiesNV`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Dimensions {
        s_type: vk::StructureType,
        next: *mut c_void,
        /// Rows of the result, its columns, and the depth.
        granularity: [u32; 3],
        /// The types of the matrices A, B and C and of the result of `A B + C`: `VkComponentTypeKHR`.
        types: [i32; 4],
        saturates: vk::Bool32,
        scope: i32,
        threads: u32,
    }

    /// `VK_COMPONENT_TYPE_FLOAT16_KHR` and `VK_COMPONENT_TYPE_FLOAT32_KHR`.
    const F16: i32 = 0;
    const F32: i32 = 1;
    /// `VK_SCOPE_WORKGROUP_KHR`.
    const WORKGROUP: i32 = 2;

    impl Dimensions {
        fn empty() -> Self {
            Self {
                s_type: vk::StructureType::from_raw(1_000_593_001),
                next: ptr::null_mut(),
                granularity: [0; 3],
                types: [0; 4],
                saturates: vk::FALSE,
                scope: 0,
                threads: 0,
            }
        }

        /// Whether the sizes of kernels with workgroups of so many threads are multiples of its own.
        fn is_for(&self, (threads, kept): (u32, [u32; 3])) -> bool {
            let fits = |(granularity, kept): (u32, u32)| granularity > 0 && kept.is_multiple_of(granularity);
            (self.types, self.scope, self.threads) == ([F16, F16, F32, F32], WORKGROUP, threads)
                && self.saturates == vk::FALSE
                && self.granularity.into_iter().zip(kept).all(fits)
        }
    }

    type Query = unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut Dimensions) -> vk::Result;

    /// Whether an adapter has such matrices of f16, with sums in f32, in the sizes of kernels.
    pub(crate) fn are_usable(adapter: &wgpu::Adapter) -> bool {
        // SAFETY: the handle is used while `vulkan` lives, and nothing is destroyed.
        let Some(vulkan) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else { return false };
        let shared = vulkan.shared_instance();
        // Kernels are SPIR-V 1.6, of Vulkan 1.3.
        let known = vulkan.physical_device_capabilities();
        let is_known = shared.instance_api_version() >= vk::API_VERSION_1_3
            && known.properties().api_version >= vk::API_VERSION_1_3
            && known.supports_extension(NAME);
        if !is_known {
            return false;
        }
        let (instance, device) = (shared.raw_instance(), vulkan.raw_physical_device());
        let mut features = Features::new(false);
        let mut all = vk::PhysicalDeviceFeatures2 { p_next: ptr::from_mut(&mut features).cast(), ..Default::default() };
        // SAFETY: the device is the instance's, which has version 1.3, and the chained structure is one of a supported extension.
        unsafe { instance.get_physical_device_features2(device, &mut all) };
        features.suffice()
            && Properties::of(instance, device).suffice(known.properties().limits.max_compute_shared_memory_size)
            && dimensions(shared.entry(), instance.handle(), device).iter().any(|found| found.is_for(SIZE))
    }

    /// The sizes that a device multiplies.
    fn dimensions(entry: &ash::Entry, instance: vk::Instance, device: vk::PhysicalDevice) -> Vec<Dimensions> {
        // SAFETY: the instance is alive, and the name ends with a zero.
        let Some(found) = (unsafe { entry.get_instance_proc_addr(instance, QUERY.as_ptr()) }) else {
            return Vec::new();
        };
        // SAFETY: the function of this name has this type.
        let query: Query = unsafe { std::mem::transmute(found) };
        let mut count = 0;
        // SAFETY: without a place for them, the driver writes their number.
        if unsafe { query(device, &mut count, ptr::null_mut()) } != vk::Result::SUCCESS {
            return Vec::new();
        }
        let mut found = vec![Dimensions::empty(); count as usize];
        // SAFETY: there is place for `count` of them, each with its type.
        let result = unsafe { query(device, &mut count, found.as_mut_ptr()) };
        found.truncate(count as usize);
        if result == vk::Result::SUCCESS { found } else { Vec::new() }
    }

    /// Opens an adapter with such matrices, which [`are_usable`]; `None` if its driver refuses.
    pub(crate) fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor<'_>,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        let mut wanted = Features::new(true);
        let wanted = &mut wanted;
        let opened = {
            // SAFETY: the handle is used while `vulkan` lives, and nothing is destroyed.
            let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
            let add = Box::new(move |arguments: wgpu::hal::vulkan::CreateDeviceCallbackArgs<'_, '_, '_>| {
                arguments.extensions.push(NAME);
                wanted.next = arguments.create_info.p_next.cast_mut();
                arguments.create_info.p_next = ptr::from_mut(wanted).cast();
            });
            let (features, limits, hints) =
                (descriptor.required_features, &descriptor.required_limits, &descriptor.memory_hints);
            // SAFETY: the adapter supports the extension and its features. The device is made within this call, and the structure with the
            // features lives until this function returns.
            unsafe { vulkan.open_with_callback(features, limits, hints, Some(add)) }.ok()?
        };
        // SAFETY: the device was made by this adapter, with the features and limits of the descriptor.
        unsafe { adapter.create_device_from_hal(opened, descriptor) }.ok()
    }
}

/// Metal has none.
#[cfg(target_vendor = "apple")]
pub(crate) fn are_usable(_adapter: &wgpu::Adapter) -> bool {
    false
}

#[cfg(target_vendor = "apple")]
pub(crate) fn open(
    _adapter: &wgpu::Adapter,
    _descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    None
}
