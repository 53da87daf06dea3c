//! The speed of the products of SD1.5, SDXL and the decoder on a GPU: `kiln_ops --ignored --nocapture measure_products`. The host's
//! time for launches: `measure_launches`.
//!
//! Every shape is launched from a graph, with weights that rotate through more memory than the L2 cache has, as in a
//! step. Activations stay in the cache, where they fit.

use std::time::Instant;

use candle_core::{Device, Tensor};

use crate::graph::{Graph, prepare};
use crate::test_support::TARGET;
use crate::{Attention, Conv2d, Conv2dInputs, Error, Weight, conv2d, linear};

/// `(count, b, extent, c_in, c_out, stride, residual)`: 3x3 convolutions.
type Convolutions = &'static [(usize, usize, usize, usize, usize, usize, bool)];
/// `(count, m, k, n, residual)`.
type Products = &'static [(usize, usize, usize, usize, bool)];

const SD15: (&str, Convolutions, Products) = (
    "SD1.5 512x512, a guided step",
    &[
        (1, 2, 64, 4, 320, 1, false),
        (7, 2, 64, 320, 320, 1, false),
        (7, 2, 64, 320, 320, 1, true),
        (1, 2, 64, 320, 320, 2, false),
        (1, 2, 64, 640, 640, 1, false),
        (1, 2, 64, 960, 320, 1, false),
        (2, 2, 64, 640, 320, 1, false),
        (1, 2, 32, 320, 640, 1, false),
        (1, 2, 32, 640, 640, 1, false),
        (5, 2, 32, 640, 640, 1, true),
        (1, 2, 32, 640, 640, 2, false),
        (1, 2, 32, 1280, 1280, 1, false),
        (1, 2, 32, 1920, 640, 1, false),
        (1, 2, 32, 1280, 640, 1, false),
        (1, 2, 32, 960, 640, 1, false),
        (1, 2, 16, 640, 1280, 1, false),
        (2, 2, 16, 1280, 1280, 1, false),
        (5, 2, 16, 1280, 1280, 1, true),
        (1, 2, 16, 1280, 1280, 2, false),
        (2, 2, 16, 2560, 1280, 1, false),
        (1, 2, 16, 1920, 1280, 1, false),
        (4, 2, 8, 1280, 1280, 1, false),
        (7, 2, 8, 1280, 1280, 1, true),
        (3, 2, 8, 2560, 1280, 1, false),
        (1, 2, 64, 320, 4, 1, false),
    ],
    &[
        (10, 8192, 320, 320, false),
        (15, 8192, 320, 320, true),
        (5, 8192, 320, 960, false),
        (5, 8192, 320, 2560, false),
        (5, 8192, 1280, 320, true),
        (10, 154, 768, 320, false),
        (10, 2048, 640, 640, false),
        (15, 2048, 640, 640, true),
        (5, 2048, 640, 1920, false),
        (5, 2048, 640, 5120, false),
        (5, 2048, 2560, 640, true),
        (10, 154, 768, 640, false),
        (10, 512, 1280, 1280, false),
        (15, 512, 1280, 1280, true),
        (5, 512, 1280, 3840, false),
        (5, 512, 1280, 10240, false),
        (5, 512, 5120, 1280, true),
        (12, 154, 768, 1280, false),
        (2, 128, 1280, 1280, false),
        (3, 128, 1280, 1280, true),
        (1, 128, 1280, 3840, false),
        (1, 128, 1280, 10240, false),
        (1, 128, 5120, 1280, true),
        (1, 8192, 960, 320, false),
        (2, 8192, 640, 320, false),
        (1, 2048, 320, 640, false),
        (1, 2048, 1920, 640, false),
        (1, 2048, 1280, 640, false),
        (1, 2048, 960, 640, false),
        (1, 512, 640, 1280, false),
        (2, 512, 2560, 1280, false),
        (1, 512, 1920, 1280, false),
        (3, 128, 2560, 1280, false),
        (22, 1, 1280, 1280, false),
    ],
);

const SDXL: (&str, Convolutions, Products) = (
    "SDXL 1024x1024, a guided step",
    &[
        (1, 2, 128, 4, 320, 1, false),
        (5, 2, 128, 320, 320, 1, false),
        (5, 2, 128, 320, 320, 1, true),
        (1, 2, 128, 320, 320, 2, false),
        (1, 2, 128, 640, 640, 1, false),
        (1, 2, 128, 960, 320, 1, false),
        (2, 2, 128, 640, 320, 1, false),
        (1, 2, 64, 320, 640, 1, false),
        (1, 2, 64, 640, 640, 1, false),
        (5, 2, 64, 640, 640, 1, true),
        (1, 2, 64, 640, 640, 2, false),
        (1, 2, 64, 1280, 1280, 1, false),
        (1, 2, 64, 1920, 640, 1, false),
        (1, 2, 64, 1280, 640, 1, false),
        (1, 2, 64, 960, 640, 1, false),
        (1, 2, 32, 640, 1280, 1, false),
        (3, 2, 32, 1280, 1280, 1, false),
        (7, 2, 32, 1280, 1280, 1, true),
        (2, 2, 32, 2560, 1280, 1, false),
        (1, 2, 32, 1920, 1280, 1, false),
        (1, 2, 128, 320, 4, 1, false),
    ],
    &[
        (20, 8192, 640, 640, false),
        (20, 8192, 640, 640, true),
        (10, 8192, 640, 1920, false),
        (10, 8192, 640, 5120, false),
        (10, 8192, 2560, 640, true),
        (20, 154, 2048, 640, false),
        (72, 2048, 1280, 1280, false),
        (120, 2048, 1280, 1280, true),
        (60, 2048, 1280, 3840, false),
        (60, 2048, 1280, 10240, false),
        (60, 2048, 5120, 1280, true),
        (120, 154, 2048, 1280, false),
        (17, 1, 1280, 1280, false),
    ],
);

const DECODER: (&str, Convolutions, Products) = (
    "decoder 512x512",
    &[
        (1, 1, 64, 4, 512, 1, false),
        (5, 1, 64, 512, 512, 1, false),
        (5, 1, 64, 512, 512, 1, true),
        (4, 1, 128, 512, 512, 1, false),
        (3, 1, 128, 512, 512, 1, true),
        (1, 1, 256, 512, 512, 1, false),
        (1, 1, 256, 512, 256, 1, false),
        (2, 1, 256, 256, 256, 1, false),
        (3, 1, 256, 256, 256, 1, true),
        (1, 1, 512, 256, 256, 1, false),
        (1, 1, 512, 256, 128, 1, false),
        (2, 1, 512, 128, 128, 1, false),
        (3, 1, 512, 128, 128, 1, true),
        (1, 1, 512, 128, 3, 1, false),
    ],
    &[(4, 4096, 512, 512, false), (1, 65536, 512, 256, false), (1, 262_144, 256, 128, false)],
);

#[test]
#[ignore = "a measurement, needs a GPU: KILN_TEST_DEVICE=cuda"]
fn measure_products() {
    let (device, dtype) = &*TARGET;
    assert!(device.is_cuda(), "this measures a GPU: KILN_TEST_DEVICE=cuda");
    for (name, convolutions, products) in [SD15, SDXL, DECODER] {
        println!("{name}, {dtype:?}");
        let mut sums = [(0.0, 0.0); 2]; // (milliseconds, operations)
        for &(count, b, extent, c_in, c_out, stride, residual) in convolutions {
            let config = Conv2d { stride, ..Conv2d::same(3) };
            let y = random(&[b, extent / stride, extent / stride, c_out]);
            let operations = 18.0 * (c_in * y.elem_count()) as f64;
            let (x, bias) = (random(&[b, extent, extent, c_in]), random(&[c_out]));
            let addend = residual.then(|| random(y.dims()));
            let us = time(&[c_out, 3, 3, c_in], operations, |weight| {
                let (bias, residual) = (Some(&bias), addend.as_ref());
                let inputs = Conv2dInputs { x: &x, weight, bias, image_bias: None, residual };
                conv2d(inputs, config, Some(&y)).unwrap();
            });
            let shape = format!("conv {b}x{extent}x{extent} {c_in} to {c_out} stride {stride}");
            row(&mut sums[0], count, &shape, residual, us, operations);
        }
        for &(count, m, k, n, residual) in products {
            let (x, bias, y) = (random(&[m, k]), random(&[n]), random(&[m, n]));
            let operations = 2.0 * (m * n * k) as f64;
            let addend = residual.then(|| random(&[m, n]));
            let us = time(&[n, k], operations, |weight| {
                linear(&x, weight, Some(&bias), addend.as_ref(), Some(&y)).unwrap();
            });
            row(&mut sums[1], count, &format!("linear {m} rows {k} to {n}"), residual, us, operations);
        }
        for (kind, (milliseconds, operations)) in ["convolutions", "linear layers"].into_iter().zip(sums) {
            println!("  {kind}: {milliseconds:.3} ms, {:.0} TFLOP/s", operations / milliseconds / 1e9);
        }
    }
}

/// The host's time for a launch in microseconds, which bounds text encoders and networks whose weights are streamed.
#[test]
#[ignore = "a measurement, needs a GPU: KILN_TEST_DEVICE=cuda"]
fn measure_launches() {
    const LAUNCHES: usize = 200; // fewer than the driver queues
    let (device, dtype) = &*TARGET;
    assert!(device.is_cuda(), "this measures a GPU: KILN_TEST_DEVICE=cuda");
    let (m, c) = (77, 768);
    let (x, y, gamma) = (random(&[1, m, c]), random(&[1, m, c]), random(&[c]));
    let weight = Weight::plain(&random(&[c, c])).unwrap();
    let attention = Attention { num_heads: 12, causal: true };
    let measure = |name: &str, launch: &dyn Fn()| {
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                device.synchronize().unwrap();
                let start = Instant::now();
                (0..LAUNCHES).for_each(|_| launch());
                start.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64
            })
            .collect();
        times.remove(0);
        times.sort_by(f64::total_cmp);
        println!("  {:6.2} us  {name}", times[times.len() / 2]);
    };
    println!("the host's time for a launch, {dtype:?}");
    measure("memory for a result alone", &|| drop(crate::uninit(&[1, m, c], *dtype, device).unwrap()));
    measure("activation", &|| drop(crate::activation(&x, crate::Activation::QuickGelu, None).unwrap()));
    measure("layer norm", &|| drop(crate::layer_norm(&x, &gamma, &gamma, 1e-5, None).unwrap()));
    measure("linear", &|| drop(linear(&x, &weight, Some(&gamma), Some(&x), None).unwrap()));
    measure("linear into a result", &|| drop(linear(&x, &weight, Some(&gamma), Some(&x), Some(&y)).unwrap()));
    measure("attention", &|| drop(crate::attention(&x, &x, &x, attention, None).unwrap()));
}

fn row(sum: &mut (f64, f64), count: usize, shape: &str, residual: bool, us: f64, operations: f64) {
    let with = if residual { " + residual" } else { "" };
    println!("  {count:3} x {us:7.1} us {:4.0} TFLOP/s  {shape}{with}", operations / us / 1e6);
    sum.0 += count as f64 * us / 1e3;
    sum.1 += count as f64 * operations;
}

fn random(shape: &[usize]) -> Tensor {
    let (device, dtype) = &*TARGET;
    // By the CPU: CUDA's own generator is a library that not all machines have.
    let values = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
    values.to_dtype(*dtype).unwrap().to_device(device).unwrap()
}

/// Microseconds of one launch: the median of some replays of a graph of many.
fn time(shape: &[usize], operations: f64, launch: impl Fn(&Weight) + Sync) -> f64 {
    let (device, dtype) = &*TARGET;
    let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
    let values = random(shape);
    let weights: Vec<_> =
        (0..(130_000_000 / bytes).clamp(1, 64)).map(|_| Weight::plain(&values.copy().unwrap()).unwrap()).collect();
    let launches = weights.len().max(if operations > 2e11 { 4 } else { 16 });
    let run = || -> Result<(), Error> {
        weights.iter().cycle().take(launches).for_each(&launch);
        Ok(())
    };
    let (result, prepared) = prepare(device, run).unwrap();
    result.unwrap();
    let mut graph = Graph::record(device, &prepared, &[], run).unwrap();
    let mut times: Vec<f64> = (0..6)
        .map(|_| {
            device.synchronize().unwrap();
            let start = Instant::now();
            for _ in 0..4 {
                graph.replay().unwrap();
            }
            device.synchronize().unwrap();
            start.elapsed().as_secs_f64() * 1e6 / (4 * launches) as f64
        })
        .collect();
    times.remove(0);
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
