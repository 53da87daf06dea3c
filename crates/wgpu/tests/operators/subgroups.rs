//! Drivers that compute otherwise with cooperative matrices than kernels expect.

use candle_core::DType;
use kiln_ops::LinearOp;
use kiln_ops::portable::{PortableTensor, PortableWeight};
use kiln_wgpu::{Gpu, adapters};

use crate::harness::values;

/// Half of the threads of a subgroup would read other matrices than the others.
#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_matrices_with_wrong_results_are_not_used() {
    let mut adapter = adapters().into_iter().next().expect("a GPU with Vulkan, Metal or DirectX 12");
    let Some(matrices) = adapter.matrices.as_mut() else {
        println!("{} has no cooperative matrices", adapter.name);
        return;
    };
    let expected = matrices.lanes;
    (adapter.is_software, adapter.has_workgroup_matrices) = (false, false);
    let product = |adapter: &_| {
        let backend = &Gpu::open(adapter).unwrap().backend();
        let [x, weight] = [(1, [130, 256]), (2, [192, 256])].map(|(seed, dims)| {
            PortableTensor::upload(backend, &values(seed, &dims).to_dtype(DType::F16).unwrap()).unwrap()
        });
        let weight = PortableWeight::plain(&weight).unwrap();
        let y = x.apply(&LinearOp { x: &x, weight: &weight, bias: None, residual: None }).unwrap();
        backend.download(&y).unwrap()
    };
    let mut plain = adapter.clone();
    plain.matrices = None;
    let without = product(&plain);
    adapter.has_many_subgroups = true;
    assert!(product(&adapter) != without, "sums of matrices have another order");
    adapter.matrices.as_mut().unwrap().lanes = expected / 2;
    assert!(product(&adapter) == without, "the kernels without matrices");
}
