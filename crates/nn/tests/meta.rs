//! Tensors without elements compared with tensors: shapes, types, floating-point operations and memory of every layer.
#![allow(missing_docs)]

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use kiln_mempool::HostPool;
use kiln_nn::ops::trace::record;
use kiln_nn::ops::{self, Activation, BlockType, MatrixType, Target};
use kiln_nn::strips::{Convolved, Prepare, Stored, collect};
use kiln_nn::{
    Attention, AttentionConfig, AttentionKeys, Conv2d, Downsample, Elementwise, Embedding, FeedForward,
    GatedFeedForward, GroupNorm, LayerNorm, Linear, MetaDevice, MetaTensor, Mlp, Modulation, Operators, Reduction,
    ResnetBlock, ResnetConfig, Result, RmsNorm, Rope, RopeTables, TensorLike, Upsample, modulate,
};
use kiln_weights::{ParamBuilder, Placement, RandomSource, Segments, load};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The pool's counters belong to the process, so layers are measured one at a time.
static MEASURING: Mutex<()> = Mutex::new(());

/// Bytes outside the pool: requests below its limit.
const SMALL: f64 = 100e3;

fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

/// The peak of `run`'s memory above the level before. A thread without an earlier task allocates its buffer in the
/// first run, so the minimum of several runs is used.
fn measured<T>(run: impl Fn() -> T) -> f64 {
    let once = || {
        HostPool::reset_peaks();
        let before = HostPool::statistics().used;
        drop(run());
        HostPool::statistics().peak_used - before
    };
    (0..6).map(|_| once()).min().unwrap_or(0) as f64
}

/// The peak on a device without elements.
fn predicted<T>(device: &MetaDevice, run: impl Fn() -> T) -> f64 {
    drop(run()); // allocates what threads keep
    device.ledger().reset_peak();
    let before = device.ledger().now();
    drop(run());
    (device.ledger().peak() - before) as f64
}

/// Runs a layer with tensors and without elements, in every type, and compares the two. All inputs of a type have their
/// shapes in brackets.
macro_rules! check {
    ($what:expr, $build:expr, [$($x:ident: $shape:expr),+], |$module:ident| $forward:expr) => {{
        let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let what = format!("{}, {dtype:?}", $what);
            let mut segments = Segments::default();
            let layer = segments.add("layer", $build);
            load(&segments, &RandomSource::new(&segments, 1), &Placement::new(Device::Cpu, dtype)).unwrap();

            let ($($x,)+) = ($(tensor(&$shape, dtype),)+);
            let run = || Tensor::run(&layer, |$module| { $(let $x = $x.clone();)+ $forward }).unwrap();
            let (y, trace) = record(&Device::Cpu, || Ok::<_, ops::Error>(run())).unwrap();
            let found = measured(run);
            let flop: f64 = trace.operators.iter().map(|operator| operator.flop).sum();

            let device = MetaDevice::new(Target::of(&Device::Cpu), dtype);
            let ($($x,)+) = ($(device.tensor(&$shape, dtype),)+);
            let run = || MetaTensor::run(&layer, |$module| { $(let $x = $x.clone();)+ $forward }).unwrap();
            device.take_flop();
            let shape = run();
            let count = device.take_flop();
            let expected = predicted(&device, run);

            assert_eq!((shape.dims(), shape.dtype()), (y.dims(), y.dtype()), "{what}");
            assert_eq!(count.total(), flop, "{what}");
            assert_eq!(count.by_segment(&segments), [flop], "{what}");
            println!("{what}: {expected} expected, {found} measured");
            assert!((expected - found).abs() <= 0.02 * found + SMALL, "{what}: {expected}, measured {found}");
        }
    }};
}

fn attention(qkv_bias: bool, context_dim: usize, causal: bool) -> AttentionConfig {
    let of_text = context_dim != 128;
    AttentionConfig {
        channels: 128,
        context_dim,
        of_text,
        num_heads: 4,
        qkv_bias,
        causal,
        keys: AttentionKeys::Diffusers,
    }
}

fn resnet(in_channels: usize, temb_channels: Option<usize>) -> ResnetConfig {
    ResnetConfig { in_channels, out_channels: 64, temb_channels, num_groups: 8, eps: 1e-5 }
}

#[test]
fn products() {
    check!("linear", |p| Linear::new(p, 96, 160, true), [x: [2, 1500, 96]], |linear| linear.forward(&x));
    check!("linear and a residual", |p| Linear::new(p, 96, 160, false), [x: [3000, 96], y: [3000, 160]], |linear| {
        linear.forward_add(&x, Some(&y))
    });
    for kernel in [1, 3, 5] {
        let what = format!("a kernel of {kernel}");
        check!(what, |p| Conv2d::new(p, 32, 48, kernel), [x: [2, 60, 52, 32]], |conv| conv.forward(&x));
    }
    check!("all that is added", |p| Conv2d::new(p, 32, 48, 3), [x: [2, 60, 52, 32], b: [2, 48], y: [2, 60, 52, 48]], |conv| {
        conv.forward_add(&x, Some(&b), Some(&y))
    });
    check!("few channels", |p| Conv2d::new(p, 4, 64, 3), [x: [1, 128, 128, 4]], |conv| conv.forward(&x));
    let feed_forward = |p: &ParamBuilder<'_>| (LayerNorm::new(&p.pp("norm"), 64, 1e-5), FeedForward::new(p, 64));
    check!("feed forward", feed_forward, [x: [2, 900, 64]], |layer| layer.1.forward(&layer.0, &x));
}

#[test]
fn sizes_and_normalizations() {
    for padding in [0, 1] {
        check!("half", |p| Downsample::new(p, 48, padding), [x: [2, 65, 64, 48]], |down| down.forward(&x));
    }
    check!("double", |p| Upsample::new(p, 48), [x: [1, 33, 40, 48]], |up| up.forward(x));
    check!("an odd size", |p| Upsample::new(p, 48), [x: [1, 33, 40, 48]], |up| up.forward_to(x, (65, 79)));
    let config = ops::GroupNorm { num_groups: 8, eps: 1e-5, silu: true };
    check!("group norm", |p| GroupNorm::new(p, 64, config), [x: [2, 60, 50, 64]], |norm| norm.forward(&x));
    check!("rms norm", |p| RmsNorm::new(p, 640, 1e-5), [x: [2, 300, 640], y: [2, 640]], |norm| {
        norm.forward_scaled(&norm.forward(&x)?, &y)
    });
    check!("layer norm", |p| LayerNorm::new(p, 640, 1e-5), [x: [2, 300, 640]], |norm| norm.forward(&x));
}

#[test]
fn attention_and_residual_blocks() {
    for (what, config) in [("self", attention(false, 128, false)), ("causal, with biases", attention(true, 128, true))]
    {
        check!(what, |p| Attention::new(p, config), [x: [2, 700, 128], y: [2, 700, 128]], |attention| {
            attention.forward(&x, None, &y)
        });
    }
    let cross = attention(false, 96, false);
    check!("cross", |p| Attention::new(p, cross), [x: [2, 700, 128], c: [2, 77, 96], y: [2, 700, 128]], |attention| {
        attention.forward(&x, Some(&c), &y)
    });
    check!("residual block", |p| ResnetBlock::new(p, resnet(64, None)), [x: [1, 64, 64, 64]], |block| {
        block.forward(&x, None)
    });
    check!("other channels, time", |p| ResnetBlock::new(p, resnet(48, Some(80))), [x: [2, 40, 64, 48], t: [1, 80]], |block| {
        block.forward(&x, Some(&t))
    });
}

#[test]
fn layers_of_transformers() {
    let names = ["gate", "values", "last"];
    let gated = |p: &ParamBuilder<'_>| GatedFeedForward::new(p, names, 96, 256, Activation::Silu);
    check!("gated", gated, [x: [2, 900, 96]], |ff| ff.forward(&x, Some(&x)));
    let joint = |p: &ParamBuilder<'_>| GatedFeedForward::joint(p, ["first", "last"], 96, 256, Activation::GeluTanh);
    check!("gated, joint", joint, [x: [2, 900, 96]], |ff| ff.forward(&x, None));
    let mlp = |p: &ParamBuilder<'_>| Mlp::new(p, ["first", "last"], [96, 256, 128], Activation::GeluTanh, true);
    check!("mlp", mlp, [x: [2, 900, 96]], |mlp| mlp.forward(&x));
    check!("modulation", |p| Modulation::new(p, [96, 128], 3, true, true), [x: [2, 900, 128], emb: [2, 96]], |layer| {
        let vectors = layer.forward(&emb)?;
        let y = modulate(&x, &vectors[0], Some(&vectors[1]), 1e-6)?;
        x.gated_residual(&vectors[2], &y)
    });
    let normed = |p: &ParamBuilder<'_>| Rope::normed(p, 4, 32, ops::RopePairs::Interleaved, 1e-6);
    check!("normed heads", normed, [x: [2, 900, 128]], |rope| rope.forward(&x, None));
    check!("rotated heads", normed, [x: [2, 900, 128], angles: [900, 16]], |rope| {
        let angles = angles.to_dtype(DType::F32)?;
        rope.forward(&x, Some(&RopeTables { cos: angles.clone(), sin: angles.clone() }))
    });
    for (num_kv_heads, causal) in [(4, false), (2, true), (1, false)] {
        let config = ops::GroupedAttention { num_heads: 4, num_kv_heads, causal, scale: None };
        let c = 32 * num_kv_heads;
        check!("groups", |p| Linear::new(p, 128, 128, false), [x: [2, 700, 128], k: [2, 700, c], n: [2]], |linear| {
            linear.forward(&x)?.grouped_attention([&k, &k], None, Some(&n.to_dtype(DType::F32)?), config)
        });
    }
}

#[test]
fn strips() {
    for pixels in [256, 1 << 11] {
        check!("strips", |p| ResnetBlock::new(p, resnet(64, None)), [x: [1, 96, 64, 64]], |block| {
            block.forward_strips(&x, pixels)
        });
        check!("other channels", |p| ResnetBlock::new(p, resnet(48, None)), [x: [1, 96, 64, 48]], |block| {
            block.forward_strips(&x, pixels)
        });
        check!("in place", |p| ResnetBlock::new(p, resnet(64, None)), [x: [1, 96, 64, 64]], |block| {
            block.forward_in_place(x.copy()?, pixels)
        });
        check!("double", |p| Upsample::new(p, 48), [x: [1, 65, 40, 48]], |up| collect(up.strips(&x, pixels)));
    }
}

/// The primitives that networks use between layers.
#[test]
fn shapes_between_layers() {
    fn run<T: TensorLike>(x: &T, other: &T) -> Result<Vec<T>> {
        let half = x.narrow(1, 3, 4)?;
        let column = other.reshape(&[1, 6])?;
        Ok(vec![
            x.reshape(&[6, 16])?,
            half.reshape(&[8, 6])?,
            half.contiguous()?,
            T::cat(&[&half, x, &half], 1)?,
            x.index_select(&[1, 0, 1])?,
            x.affine(2.0, 1.0)?.tanh()?.clamp(-0.5, 0.5)?,
            x.add(x)?.sub(x)?.mul(x)?,
            x.broadcast_add(&column)?.broadcast_mul(&column)?,
            x.broadcast_div(&column)?.reduce(Reduction::Mean, 2)?,
            x.reduce(Reduction::Min, 1)?.sub(&x.reduce(Reduction::Max, 1)?)?,
            x.premultiplied(&x.reshape(&[12, 8])?)?,
            x.new_empty(&[7])?,
            x.new_constant(&Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?,
            x.to_dtype(DType::F16)?,
            x.copy()?.activation(Activation::Silu)?.concat_channels(x)?,
            x.geglu()?,
            other.timestep_embedding(
                ops::TimestepEmbedding { dim: 5, flip_sin_to_cos: true, freq_shift: 0.0 },
                DType::F32,
            )?,
            x.reshape(&[2, 4, 2, 6])?.to_channels_first()?,
            x.reshape(&[2, 4, 2, 6])?.to_channels_last()?,
            x.guidance(&other.narrow(0, 0, 1)?, None)?,
        ])
    }
    let device = MetaDevice::new(Target::Cpu { threads: 1 }, DType::F32);
    let tensors = run(&tensor(&[2, 8, 6], DType::F32), &tensor(&[6], DType::F32));
    let shapes = run(&device.tensor(&[2, 8, 6], DType::F32), &device.tensor(&[6], DType::F32));
    let found: Vec<_> = shapes.unwrap().iter().map(|x| (x.dims().to_vec(), x.dtype())).collect();
    let expected: Vec<_> = tensors.unwrap().iter().map(|x| (x.dims().to_vec(), x.dtype())).collect();
    assert_eq!(found, expected);
}

/// Shapes that operators reject are rejected without elements too, with the same messages.
#[test]
fn invalid_shapes_are_refused_with_the_same_messages() {
    fn refused<T: TensorLike>(make: impl Fn(&[usize]) -> T) -> Vec<String> {
        let message = |result: Result<T>| result.err().map_or_else(|| "taken".to_string(), |error| error.to_string());
        let mut segments = Segments::default();
        let linear = segments.add("linear", |p| Linear::new(&p.pp("linear"), 8, 6, true));
        let conv = segments.add("conv", |p| Conv2d::new(&p.pp("conv"), 8, 6, 3));
        let norm = segments
            .add("norm", |p| GroupNorm::new(&p.pp("norm"), 6, ops::GroupNorm { num_groups: 4, eps: 0.0, silu: false }));
        load(&segments, &RandomSource::new(&segments, 1), &Placement::new(Device::Cpu, DType::F32)).unwrap();
        let x = make(&[2, 5, 8]);
        let config = ops::Attention { num_heads: 2, causal: false };
        let grouped = ops::GroupedAttention { num_heads: 2, num_kv_heads: 1, causal: false, scale: None };
        let half = make(&[2, 5, 4]);
        vec![
            message(T::run(&linear, |linear| linear.forward(&make(&[2, 7])))),
            message(T::run(&linear, |linear| linear.forward_add(&x, Some(&make(&[2, 5, 7]))))),
            message(T::run(&conv, |conv| conv.forward(&make(&[1, 4, 4, 7])))),
            message(T::run(&conv, |conv| conv.forward_add(&make(&[2, 4, 4, 8]), Some(&make(&[3, 6])), None))),
            message(T::run(&conv, |conv| conv.forward_add(&make(&[1, 4, 4, 8]), None, Some(&make(&[1, 4, 4, 7]))))),
            message(T::run(&norm, |norm| norm.forward(&make(&[1, 4, 6])))),
            message(x.attention(&make(&[2, 4, 6]), &make(&[2, 4, 8]), config)),
            message(x.attention(&make(&[2, 4, 8]), &make(&[2, 3, 8]), config)),
            message(x.concat_channels(&make(&[2, 4, 8]))),
            message(make(&[2, 3]).geglu()),
            message(x.guidance(&make(&[2]), None)),
            message(make(&[3, 1]).guidance(&make(&[1]), None)),
            message(x.timestep_embedding(
                ops::TimestepEmbedding { dim: 4, flip_sin_to_cos: false, freq_shift: 0.0 },
                DType::F32,
            )),
            message(x.size4().and_then(|_| x.copy())),
            message(x.rms_norm(Some(&make(&[7])), 1e-6)),
            message(x.modulated_norm(ops::RowNorm::Layer, [None, Some(&make(&[3, 8])), None], 1e-6)),
            message(x.gated_residual(&make(&[8]), &x)),
            message(x.gated_activation(Activation::Silu, Some(&make(&[2, 5, 4])))),
            message(x.rope([&make(&[5, 4]), &make(&[5, 4])], None, 2, ops::RopePairs::Halves)),
            message(x.grouped_attention([&x, &x], None, None, grouped)),
            message(x.grouped_attention([&half, &half], Some(&make(&[2, 2, 5, 4])), None, grouped)),
            message(x.grouped_attention([&half, &half], None, Some(&make(&[3])), grouped)),
        ]
    }
    let device = MetaDevice::new(Target::Cpu { threads: 1 }, DType::F32);
    let messages = refused(|shape| tensor(shape, DType::F32));
    assert_eq!(refused(|shape| device.tensor(shape, DType::F32)), messages);
    assert!(messages.iter().all(|message| message != "taken"), "{messages:#?}");
    assert_eq!(messages[0], "linear: linear: x has shape [2, 7], expected (.., 8)");

    // candle has its own messages for these.
    let x = device.tensor(&[2, 6], DType::F32);
    let cases = [
        x.reshape(&[5]),
        x.narrow(1, 4, 3),
        x.narrow(2, 0, 1),
        x.index_select(&[2]),
        x.add(&device.tensor(&[6], DType::F32)),
        x.broadcast_add(&device.tensor(&[2, 2, 6], DType::F32)),
        x.broadcast_add(&device.tensor(&[5], DType::F32)),
        MetaTensor::cat(&[&x, &device.tensor(&[2, 5], DType::F32)], 0),
        MetaTensor::cat(&[], 0),
    ];
    assert!(cases.iter().all(|case| case.is_err()));
    assert!(x.slice_set(&x, 0, 1).is_err() && x.slice_set(&x, 0, 0).is_ok());
}

/// A clone shares its memory, a view keeps all of it allocated, and parameters take none.
#[test]
fn memory_is_held_while_a_clone_lives() {
    let device = MetaDevice::new(Target::Gpu, DType::F16);
    let x = device.tensor(&[1, 4, 1024], DType::F16);
    assert_eq!((x.bytes(), device.ledger().now()), (8192, 8192));
    let part = x.narrow(2, 0, 8).unwrap();
    drop(x);
    assert_eq!((part.bytes(), device.ledger().now()), (8192, 8192));
    let dense = part.contiguous().unwrap();
    drop(part);
    assert_eq!((dense.bytes(), device.ledger().now()), (512, 512)); // the pool's granularity
    let rows = dense.narrow(1, 1, 2).unwrap().contiguous().unwrap();
    assert_eq!((rows.bytes(), device.ledger().now()), (512, 512)); // rows of one image are contiguous

    let mut segments = Segments::default();
    let table = segments.add_on_host("table", |p| Embedding::new(p, 100, 1000));
    let found: MetaTensor = MetaTensor::run(&table, |table| table.forward(&[7, 8], &device)).unwrap();
    assert_eq!((found.dims(), found.dtype()), (&[2, 1000][..], DType::F16));
    assert_eq!(device.ledger().now(), 512); // host memory is not GPU memory
    let first: MetaTensor = MetaTensor::run(&table, |table| table.first_rows(7, &device)).unwrap();
    assert_eq!((first.dims(), first.bytes()), (&[7, 1000][..], 0));
    let moved = found.to_device(&device).unwrap();
    assert_eq!((moved.bytes(), device.ledger().now()), (4096, 4608));
}

#[test]
fn operations_belong_to_segments() {
    let mut segments = Segments::default();
    let first = segments.add("first", |p| Attention::new(&p.pp("first"), attention(false, 128, false)));
    let idle = segments.add("idle", |p| Linear::new(&p.pp("idle"), 128, 8, false));
    let last = segments.add("last", |p| Linear::new(&p.pp("last"), 128, 8, false));
    let device = MetaDevice::new(Target::Gpu, DType::F16);
    let x = device.tensor(&[1, 10, 128], DType::F16);
    for _ in 0..2 {
        MetaTensor::run(&first, |first| first.forward(&x, None, &x)).unwrap();
        MetaTensor::run(&last, |last| last.forward(&x)).unwrap();
    }
    let count = device.take_flop();
    let attention = 2.0 * (10 * 4 * 128 * 128 + 2 * 10 * 10 * 128) as f64;
    assert_eq!(count.by_segment(&segments), [2.0 * attention, 0.0, 2.0 * (2 * 10 * 128 * 8) as f64]);
    assert_eq!(count.total(), count.by_segment(&segments).iter().sum::<f64>());
    assert_eq!(device.take_flop().total(), 0.0);
    drop(idle);
}

#[test]
fn fused_convolutions_and_shuffled_pixels() {
    let parts: [(&str, usize); 2] = [("aligned parts", 32), ("parts that fill no vector", 9)];
    for (what, c) in parts {
        check!(
            what,
            |p| Conv2d::new(p, 64 + c, 48, 3),
            [x: [1, 60, 52, 64], y: [1, 60, 52, c], z: [1, 60, 52, 48]],
            |conv| {
                let addends = [Some((0.2, &z)), None];
                let epilogue = ops::Conv2dEpilogue { scale: 0.2, addends, slope: ops::Slope::Constant(0.1) };
                conv.forward_fused(&[&x, &y], epilogue, None, None)
            }
        );
    }
    check!("in strips", |p| Conv2d::new(p, 48, 48, 3), [x: [1, 90, 70, 48]], |conv| {
        let strips = Convolved::new(Stored::new(&x, 16), Prepare::Upsample, conv);
        collect(Convolved::new(strips.activated(ops::Slope::Constant(0.2)), Prepare::Keep, conv))
    });
    check!("shuffled", |p| Conv2d::new(p, 16, 48, 1), [x: [1, 60, 52, 16]], |conv| {
        conv.forward(&x)?.pixel_shuffle(4)?.pixel_unshuffle(2)
    });
}

/// A GPU of any vendor writes the elements of a stored matrix to memory that grows to the largest one and stays.
#[test]
fn the_largest_stored_matrix_is_counted_once() {
    let q8_0 = MatrixType::Blocks(BlockType::Q8_0);
    let kept = |matrices: Option<MatrixType>, sizes: &[[usize; 2]]| {
        let device = MetaDevice::portable(DType::F16, matrices);
        for &[n, k] in sizes {
            let mut segments = Segments::default();
            let layer = segments.add("layer", |p| Linear::new(p, k, n, true));
            let x = device.tensor(&[3, k], DType::F16);
            drop(MetaTensor::run(&layer, |layer| layer.forward(&x)).unwrap());
            assert_eq!(device.ledger().now() - device.kept(), x.bytes());
        }
        let bytes = device.kept();
        let on_host = device.on_host();
        assert_eq!((device.kept(), device.ledger().now()), (0, bytes));
        drop(on_host);
        assert_eq!(device.kept(), bytes, "the GPU's again");
        bytes
    };
    assert_eq!(kept(Some(q8_0), &[[512, 256]]), 512 * 256 * 2);
    assert_eq!(kept(Some(q8_0), &[[512, 256], [1024, 512], [64, 256]]), 1024 * 512 * 2);
    assert_eq!(kept(Some(q8_0), &[[512, 250]]), 0, "rows of 250 are no blocks");
    assert_eq!(kept(None, &[[512, 256]]), 0);
}
