//! The run of a network without elements compared with a real one. It is the only test here: the counters of the memory pool belong
//! to the process.
#![allow(missing_docs)]

mod common;

use candle_core::{DType, Device, Tensor};
use common::{build, inputs, networks, tensor};
use kiln_mempool::HostPool;
use kiln_network::StepShape;
use kiln_nn::ops::trace::record;
use kiln_nn::ops::{self, Target};
use kiln_nn::{MetaDevice, MetaTensor};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The run without elements has the shape, the operations and the memory of a real one.
#[test]
fn a_dry_run_equals_a_run() {
    const SMALL: f64 = 200e3;
    // The others differ in the first layers alone.
    for (name, config) in networks().into_iter().filter(|(name, _)| ["dev", "Fill", "Chroma"].contains(name)) {
        for (dtype, rows) in [(DType::F32, 2), (DType::BF16, 1)] {
            let network = build(config.as_ref(), dtype);
            let latents = network.latents();
            let (h, w) = (32, 24);
            let x = tensor(&[rows, latents.channels, h, w], 0).to_dtype(dtype).unwrap();
            let all = inputs(config.as_ref(), latents, [rows, h, w]).to_dtype(dtype).unwrap();
            let all = network.prepare(all).unwrap();
            let timesteps = Tensor::new(&[700f32], &Device::Cpu).unwrap();
            let real = || network.forward(&x, &timesteps, &all).unwrap();
            let (y, trace) = record(&Device::Cpu, || Ok::<_, ops::Error>(real())).unwrap();
            let flop: f64 = trace.operators.iter().map(|operator| operator.flop).sum();
            let once = || {
                HostPool::reset_peaks();
                let before = HostPool::statistics().used;
                drop(real());
                HostPool::statistics().peak_used - before
            };
            let measured = (0..2).map(|_| once()).min().unwrap() as f64;

            let device = MetaDevice::new(Target::of(&Device::Cpu), dtype);
            let shape = StepShape { rows, height: h, width: w, tokens: 7 };
            let inputs = network.prepare(network.meta_inputs(&device, shape, dtype)).unwrap();
            assert_eq!(inputs.key(), all.key(), "{name}");
            let x = device.tensor(&[rows, latents.channels, h, w], dtype);
            let timesteps = device.tensor(&[1], DType::F32);
            let dry = || -> MetaTensor { network.forward(&x, &timesteps, &inputs).unwrap() };
            drop(dry());
            device.take_flop();
            device.ledger().reset_peak();
            let before = device.ledger().now();
            let found = dry();
            let expected = (device.ledger().peak() - before) as f64;
            assert_eq!(found.dims(), y.dims(), "{name}");
            let count = device.take_flop();
            assert_eq!(count.total(), flop, "{name} {dtype:?}");
            assert_eq!(count.by_segment(network.segments()).iter().sum::<f64>(), flop, "{name} {dtype:?}");
            println!("{name} {dtype:?} {rows}: {expected} expected, {measured} measured");
            let off = (expected - measured).abs();
            assert!(off <= 0.03 * measured + SMALL, "{name} {dtype:?}: {expected}, measured {measured}");
        }
    }
}
