//! The GPU, the operands and the bounds of all comparisons.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Tensor};
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};
use kiln_ops::{Operation, Weight};
use kiln_wgpu::{Adapter, Gpu, adapters};

/// A GPU as the tests use it, with the types that it has.
pub struct Kind {
    name: &'static str,
    pub backend: Arc<dyn Backend>,
    types: Vec<DType>,
}

/// The first GPU that is found, with each set of kernels that it can run: its own, and those of GPUs without cooperative matrices; for
/// a program on the CPU, those of GPUs too. The tests run only with `--ignored`, so that a machine without a driver does not pass
/// them; they fail there.
pub fn kinds_of_kernels() -> Vec<(&'static str, Adapter)> {
    let found = adapters().into_iter().next().expect("a GPU with Vulkan, Metal or DirectX 12");
    let (mut of_gpus, mut plain) = (found.clone(), found.clone());
    of_gpus.is_software = false;
    (plain.is_software, plain.is_discrete, plain.matrices) = (false, true, None);
    let mut kinds = vec![("its own kernels", found.clone())];
    if let (true, Some(matrices)) = (found.is_software, &mut of_gpus.matrices) {
        let plain = *matrices;
        matrices.lanes *= 2;
        kinds.push(("kernels with matrices for larger subgroups", of_gpus.clone()));
        of_gpus.matrices = Some(plain);
        kinds.push(("kernels with matrices", of_gpus));
    }
    if found.has_workgroup_matrices {
        let mut of_subgroups = found.clone();
        of_subgroups.has_workgroup_matrices = false;
        kinds.push(("kernels with matrices of subgroups", of_subgroups));
    }
    if found.is_software || found.matrices.is_some() {
        kinds.push(("kernels without matrices", plain));
    }
    kinds
}

/// The GPU with each set of kernels.
fn kinds() -> &'static [Kind] {
    static KINDS: OnceLock<Vec<Kind>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let open = |(name, adapter): (_, Adapter)| {
            let gpu = Gpu::open(&adapter).expect("the GPU can be opened");
            let types = if gpu.has_f16() { vec![DType::F32, DType::F16] } else { vec![DType::F32] };
            Kind { name, backend: gpu.backend(), types }
        };
        kinds_of_kernels().into_iter().map(open).collect()
    })
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The GPU of the comparison that runs.
pub fn gpu() -> &'static Kind {
    &kinds()[CURRENT.get()]
}

/// Values of a deterministic sequence with mean 0 and about the standard deviation 1.
pub fn values(seed: u64, dims: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 3.4
    };
    let values: Vec<f32> = (0..dims.iter().product::<usize>()).map(|_| next()).collect();
    Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
}

/// A tensor in a type, on both sides.
pub struct Pair {
    pub cpu: Tensor,
    pub gpu: PortableTensor,
}

/// [`values`] on both sides.
pub fn pair(seed: u64, dims: &[usize], dtype: DType) -> Pair {
    both(&values(seed, dims).to_dtype(dtype).unwrap())
}

/// A tensor on both sides.
pub fn both(cpu: &Tensor) -> Pair {
    Pair { cpu: cpu.clone(), gpu: PortableTensor::upload(&gpu().backend, cpu).unwrap() }
}

/// A weight on both sides, of values that are scaled by the root of the number of inputs.
pub fn weight(seed: u64, dims: &[usize], dtype: DType) -> (Weight, PortableWeight) {
    let inputs: usize = dims.iter().skip(1).product();
    let values = (values(seed, dims) / (inputs as f64).sqrt()).unwrap().to_dtype(dtype).unwrap();
    let weight = Weight::plain(&values).unwrap();
    let uploaded = PortableTensor::upload(&gpu().backend, &values).unwrap();
    let portable = PortableWeight::new(&gpu().backend, uploaded.memory().clone(), 0, &weight).unwrap();
    (weight, portable)
}

/// Compares a result with that of the CPU in f32: errors in standard deviations of the expected values.
pub fn compare(name: &str, expected: &Tensor, found: &PortableTensor) {
    let dtype = expected.dtype();
    let found = found.download().unwrap();
    assert_eq!((found.dims(), found.dtype()), (expected.dims(), dtype), "{name}");
    let flat = |x: &Tensor| x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (expected, found) = (flat(expected), flat(&found));
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let deviation = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32).sqrt();
    let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / deviation.max(1e-6);
    // A unit in the last place of the largest value, if that is more: both sides round their results.
    let largest = expected.iter().map(|x| x.abs()).fold(0.0, f32::max) / deviation.max(1e-6);
    let bound = if dtype == DType::F16 { (largest / 1024.0).max(6e-3) } else { 2e-5 };
    println!("{name} {dtype:?}: {worst:.1e}");
    assert!(worst < bound, "{name} in {dtype:?}: {worst:e} standard deviations, expected less than {bound:e}");
}

/// Runs an operator on both sides and compares.
pub fn check<'a>(
    name: &str,
    cpu: &impl Operation<Tensor>,
    gpu: &(impl Operation<PortableTensor> + 'a),
    first: &PortableTensor,
) {
    compare(name, &cpu.compute().unwrap(), &first.apply(gpu).unwrap());
}

/// Calls `test` for each set of kernels, and each type.
pub fn for_types(test: impl Fn(DType)) {
    for (index, kind) in kinds().iter().enumerate() {
        CURRENT.set(index);
        println!("{}", kind.name);
        kind.types.iter().for_each(|&dtype| test(dtype));
    }
}
