//! The memory of a GPU.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_wgpu::{Gpu, adapters};

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_memory_has_a_limit_and_what_is_free_is_given_back() {
    let adapter = adapters().into_iter().next().expect("a GPU with Vulkan, Metal or DirectX 12");
    let known = adapter.memory().expect("the driver reports its memory");
    println!("{known:?}");
    assert!(known.free > 1 << 20 && known.free <= known.total && known.is_shared != adapter.is_discrete);
    let gpu = Gpu::open(&adapter).unwrap().backend();
    gpu.set_limit(Some(10 << 20));
    let tensor = |mib: usize| PortableTensor::uninit(&gpu, &[mib << 18], DType::F32);
    let first = tensor(6).unwrap();
    let error = tensor(6).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.to_string().contains("of the 10485760 bytes that are allowed are taken"), "{error}");
    // The memory of a free buffer is given back for one of another size, though work that reads it waits.
    let copy = tensor(3).unwrap();
    PortableTensor::copy(&copy).map(drop).unwrap_err();
    drop((first, copy.copy()));
    let second = tensor(5).unwrap();
    assert!(tensor(5).is_err());
    gpu.set_limit(None);
    drop((second, tensor(5).unwrap()));
}
