//! Compiled kernels of an earlier process.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_ops::portable::PortableTensor;
use kiln_ops::{Activation, ActivationOp};
use kiln_wgpu::{Gpu, KernelStore, adapters};
use parking_lot::Mutex;

use crate::harness::{compare, values};

#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<HashMap<String, Vec<u8>>>>);

impl KernelStore for Kept {
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().get(name).cloned()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        self.0.lock().insert(name.into(), bytes.to_vec());
    }
}

/// Runs an operator on a GPU that is opened for it.
fn run(store: &Kept) {
    let adapter = adapters().into_iter().next().expect("a GPU with Vulkan, Metal or DirectX 12");
    let gpu = Gpu::open_with(&adapter, Some(Box::new(store.clone()))).unwrap().backend();
    let x = values(1, &[300]);
    let on_gpu = PortableTensor::upload(&gpu, &x).unwrap();
    let y = on_gpu.apply(&ActivationOp { x: &on_gpu, function: Activation::Relu }).unwrap();
    compare("a kernel of a store", &x.relu().unwrap(), &y);
}

#[test]
#[ignore = "needs a GPU with Vulkan, or Mesa's lavapipe"]
fn vulkan_kernels_are_kept_and_foreign_ones_are_ignored() {
    let store = Kept::default();
    run(&store);
    let (name, first) = store.0.lock().iter().next().map(|(name, bytes)| (name.clone(), bytes.clone())).unwrap();
    assert!(name.contains("vulkan") && !first.is_empty(), "{name}");
    run(&store);
    assert_eq!(store.0.lock().len(), 1);
    for foreign in [Vec::new(), vec![0; 4], first[..first.len() / 2].to_vec(), vec![0xff; first.len()]] {
        store.0.lock().insert(name.clone(), foreign.clone());
        run(&store);
        assert_ne!(store.0.lock()[&name], foreign, "kernels that were compiled again are kept");
    }
}
