//! The SD3 transformer without elements compared with a run: shapes, floating-point operations and memory.

use candle_core::{DType, Device, Tensor};
use kiln_dit::sd3::{Sd3Config, Sd3ControlConfig, Sd3ControlNet, Sd3Transformer};
use kiln_mempool::HostPool;
use kiln_network::{Denoiser, Inputs, Slot, StepShape};
use kiln_nn::ops::trace::record;
use kiln_nn::ops::{Error, Target};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::{Placement, RandomSource, Segments, load};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// Bytes outside the pool: requests below its limit.
const SMALL: f64 = 100e3;

/// The peaks of `run`'s memory above the level before: the least and the largest of several runs. A thread without an earlier task
/// allocates its buffer in the first run, and on a busy machine fewer threads run at once.
fn measured<T>(run: impl Fn() -> T) -> [f64; 2] {
    let once = || {
        HostPool::reset_peaks();
        let before = HostPool::statistics().used;
        drop(run());
        HostPool::statistics().peak_used - before
    };
    let runs: Vec<f64> = (0..5).map(|_| once() as f64).collect();
    [runs.iter().copied().fold(f64::INFINITY, f64::min), runs.iter().copied().fold(0.0, f64::max)]
}

fn fill(segments: &Segments, dtype: DType) {
    load(segments, &RandomSource::new(segments, 1), &Placement::new(Device::Cpu, dtype)).unwrap();
}

/// Inputs of zeros in the shapes of `meta`.
fn zeros(meta: &Inputs<MetaTensor>) -> Inputs {
    let zeros = |_: &Slot, x: &MetaTensor| Tensor::zeros(x.dims(), x.dtype(), &Device::Cpu);
    meta.map(zeros).unwrap()
}

fn check(what: &str, denoiser: &dyn Denoiser, add: &dyn Fn(&mut Inputs<MetaTensor>, &MetaDevice), dtype: DType) {
    let device = MetaDevice::new(Target::of(&Device::Cpu), dtype);
    let shape = StepShape { rows: 2, height: 32, width: 32, tokens: 77 };
    let mut inputs = denoiser.meta_inputs(&device, shape, dtype);
    add(&mut inputs, &device);
    let real = zeros(&inputs);
    let dims = [shape.rows, denoiser.latents().channels, shape.height, shape.width];
    for is_prepared in [false, true] {
        let (inputs, real) = match is_prepared {
            true => (denoiser.prepare(inputs.clone()).unwrap(), denoiser.prepare(real.clone()).unwrap()),
            false => (inputs.clone(), real.clone()),
        };
        let (x, timestep) = (device.tensor(&dims, dtype), device.tensor(&[1], DType::F32));
        let run = || denoiser.forward(&x, &timestep, &inputs).unwrap();
        drop(run()); // allocates what threads keep
        device.take_flop();
        device.ledger().reset_peak();
        let before = device.ledger().now();
        let expected = run();
        let flop = device.take_flop().total();
        let predicted = (device.ledger().peak() - before) as f64;

        let x = Tensor::zeros(&dims, dtype, &Device::Cpu).unwrap();
        let timestep = Tensor::new(&[500f32], &Device::Cpu).unwrap();
        let run = || denoiser.forward(&x, &timestep, &real).unwrap();
        let (found, trace) = record(&Device::Cpu, || Ok::<_, Error>(run())).unwrap();
        assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()), "{what}");
        assert_eq!(trace.operators.iter().map(|operator| operator.flop).sum::<f64>(), flop, "{what}");
        let [least, largest] = measured(run);
        println!("{what}, {dtype:?}: {predicted} predicted, {least} to {largest} measured");
        let fits = (0.95 * least - SMALL..=1.05 * largest + SMALL).contains(&predicted);
        assert!(fits, "{what}: {predicted}, measured {least} to {largest}");
    }
}

/// One test, because the counters apply to the whole process.
#[test]
fn runs_without_elements_are_those_with_them() {
    let json = r#"{"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "caption_projection_dim": 64,
        "joint_attention_dim": 96, "pooled_projection_dim": 80, "pos_embed_max_size": 32, "qk_norm": "rms_norm",
        "dual_attention_layers": [0]}"#;
    let transformer = Sd3Transformer::new(Sd3Config::from_json(json).unwrap());
    let net = Sd3ControlNet::new(Sd3ControlConfig::from_json(json).unwrap());
    for dtype in [DType::BF16, DType::F32] {
        fill(transformer.segments(), dtype);
        check("transformer", &transformer, &|_, _| {}, dtype);
    }
    fill(net.segments(), DType::F32);
    let controlled = transformer.with_controls(vec![&net]).unwrap();
    let add = |inputs: &mut Inputs<MetaTensor>, device: &MetaDevice| {
        net.add_meta_inputs(inputs, 0, device, (2, 32, 32), DType::F32);
    };
    check("with a control network", &*controlled, &add, DType::F32);
}
