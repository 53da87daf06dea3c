//! Layers with tensors compared with the same formulas in candle's primitives.

use std::collections::HashMap;

use candle_core::{D, DType, Device, Tensor};
use kiln_nn::{
    Attention, AttentionConfig, AttentionKeys, Conv2d, Downsample, Embedding, Error, FeedForward, GroupNorm, LayerNorm,
    Linear, ResnetBlock, ResnetConfig, TensorLike, Upsample, ops,
};
use kiln_weights::{MapSource, ParamBuilder, Placement, SegmentModule, Segments, load};

/// The largest difference in f32 with another summation order, for values of about 1.
const ROUNDING: f32 = 2e-5;

/// Values between -1 and 1 that do not repeat, from a low-discrepancy sequence.
fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 2.0 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// A layer with weights, and the weights by name. Vectors that scale a normalization are added to 1.
struct Layer<M> {
    module: SegmentModule<M>,
    weights: HashMap<String, Tensor>,
}

impl<M> Layer<M> {
    fn new(build: impl FnOnce(&ParamBuilder<'_>) -> M) -> Self {
        let mut segments = Segments::default();
        let module = segments.add("layer", build);
        let mut weights = HashMap::new();
        for (seed, param) in segments[0].params().iter().enumerate() {
            let inputs = param.shape[1..].iter().product::<usize>().max(1) as f64;
            let weight = (tensor(&param.shape, seed) / inputs.sqrt()).unwrap();
            weights.insert(param.key.clone(), weight);
        }
        let source = MapSource::from_iter(weights.clone());
        load(&segments, &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
        Self { module, weights }
    }

    fn run<R>(&self, f: impl FnOnce(&M) -> kiln_nn::Result<R>) -> R {
        Tensor::run(&self.module, f).unwrap()
    }

    fn weight(&self, key: &str) -> &Tensor {
        &self.weights[key]
    }

    /// Applies the linear layer `name` to `x` `(.., k)`.
    fn linear(&self, name: &str, x: &Tensor) -> Tensor {
        let y = x.broadcast_matmul(&self.weight(&format!("{name}weight")).t().unwrap()).unwrap();
        match self.weights.get(&format!("{name}bias")) {
            Some(bias) => y.broadcast_add(bias).unwrap(),
            None => y,
        }
    }

    /// Applies the convolution `name` to `x` `(b, h, w, c)`, with zero padding: at the top and left, at the bottom and
    /// right.
    fn conv(&self, name: &str, x: &Tensor, stride: usize, [before, after]: [usize; 2]) -> Tensor {
        let x = x.permute((0, 3, 1, 2)).unwrap();
        let x = x.pad_with_zeros(2, before, after).unwrap().pad_with_zeros(3, before, after).unwrap();
        let y = x.conv2d(self.weight(&format!("{name}weight")), 0, stride, 1, 1).unwrap();
        let y = y.permute((0, 2, 3, 1)).unwrap();
        y.broadcast_add(self.weight(&format!("{name}bias"))).unwrap()
    }

    /// Applies the group normalization `name` to `x` `(b, .., c)`.
    fn group_norm(&self, name: &str, x: &Tensor, groups: usize, eps: f64) -> Tensor {
        let (b, c) = (x.dims()[0], x.dims()[x.rank() - 1]);
        let grouped = x.reshape((b, (), groups, c / groups)).unwrap().transpose(1, 2).unwrap();
        let grouped = grouped.contiguous().unwrap().flatten(2, 3).unwrap(); // (b, groups, pixels * c / groups)
        let normalized = normalize(&grouped, eps).reshape((b, groups, (), c / groups)).unwrap();
        let normalized = normalized.transpose(1, 2).unwrap().contiguous().unwrap().reshape(x.shape()).unwrap();
        self.scale_and_shift(name, &normalized)
    }

    fn scale_and_shift(&self, name: &str, x: &Tensor) -> Tensor {
        let scaled = x.broadcast_mul(self.weight(&format!("{name}weight"))).unwrap();
        scaled.broadcast_add(self.weight(&format!("{name}bias"))).unwrap()
    }
}

/// Rows with mean 0 and variance 1.
fn normalize(x: &Tensor, eps: f64) -> Tensor {
    let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1).unwrap()).unwrap();
    let variance = centered.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
    centered.broadcast_div(&(variance + eps).unwrap().sqrt().unwrap()).unwrap()
}

fn silu(x: &Tensor) -> Tensor {
    (x / (x.neg().unwrap().exp().unwrap() + 1.0).unwrap()).unwrap()
}

/// Attention over `heads` heads; `seen` `(s, t)` is 0 where a key is masked for a query.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, seen: &Tensor) -> Tensor {
    let (b, s, c) = q.dims3().unwrap();
    let split = |x: &Tensor| {
        let (b, t, c) = x.dims3().unwrap();
        x.reshape((b, t, heads, c / heads)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap()
    };
    let scores = split(q).matmul(&split(k).t().unwrap().contiguous().unwrap()).unwrap();
    let weights = (scores / ((c / heads) as f64).sqrt()).unwrap().exp().unwrap().broadcast_mul(seen).unwrap();
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1).unwrap()).unwrap();
    weights.matmul(&split(v)).unwrap().transpose(1, 2).unwrap().reshape((b, s, c)).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor) {
    assert_eq!(found.dims(), expected.dims());
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let worst = found.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst.is_finite() && largest > 0.1 && worst <= ROUNDING * largest.max(1.0), "{worst} of {largest}");
}

#[test]
fn linear_with_and_without_bias_and_residual() {
    let (x, residual) = (tensor(&[2, 5, 12], 50), tensor(&[2, 5, 7], 51));
    for bias in [false, true] {
        let layer = Layer::new(|p| Linear::new(p, 12, 7, bias));
        let expected = layer.linear("", &x);
        assert_close(&layer.run(|linear| linear.forward(&x)), &expected);
        let found = layer.run(|linear| linear.forward_add(&x, Some(&residual)));
        assert_close(&found, &(expected + &residual).unwrap());
    }
}

#[test]
fn convolutions_of_every_kernel_and_stride() {
    let x = tensor(&[2, 9, 7, 8], 50);
    for kernel in [1, 3, 5] {
        let layer = Layer::new(|p| Conv2d::new(p, 8, 6, kernel));
        let found = layer.run(|conv| conv.forward(&x));
        assert_close(&found, &layer.conv("", &x, 1, [kernel / 2; 2]));
    }
    let layer = Layer::new(|p| Conv2d::new(p, 8, 6, 3));
    let (image_bias, residual) = (tensor(&[2, 6], 51), tensor(&[2, 9, 7, 6], 52));
    let found = layer.run(|conv| conv.forward_add(&x, Some(&image_bias), Some(&residual)));
    let expected = layer.conv("", &x, 1, [1, 1]).broadcast_add(&image_bias.reshape((2, 1, 1, 6)).unwrap()).unwrap();
    assert_close(&found, &(expected + residual).unwrap());
    for padding in [0, 1] {
        let layer = Layer::new(|p| Downsample::new(p, 8, padding));
        assert_close(&layer.run(|down| down.forward(&x)), &layer.conv("conv.", &x, 2, [padding, 1]));
    }
}

#[test]
fn upsampling_takes_the_nearest_pixel() {
    let layer = Layer::new(|p| Upsample::new(p, 4));
    let x = tensor(&[1, 3, 5, 4], 50);
    let nearest =
        |h, w| x.permute((0, 3, 1, 2)).unwrap().upsample_nearest2d(h, w).unwrap().permute((0, 2, 3, 1)).unwrap();
    assert_close(&layer.run(|up| up.forward(x.clone())), &layer.conv("conv.", &nearest(6, 10), 1, [1, 1]));
    let found = layer.run(|up| up.forward_to(x.clone(), (5, 9)));
    assert_close(&found, &layer.conv("conv.", &nearest(5, 9), 1, [1, 1]));
}

#[test]
fn normalizations() {
    let x = (tensor(&[2, 3, 5, 12], 50) + 0.3).unwrap();
    for silu_follows in [false, true] {
        let config = ops::GroupNorm { num_groups: 4, eps: 1e-5, silu: silu_follows };
        let layer = Layer::new(|p| GroupNorm::new(p, 12, config));
        let expected = layer.group_norm("", &x, 4, 1e-5);
        let expected = if silu_follows { silu(&expected) } else { expected };
        assert_close(&layer.run(|norm| norm.forward(&x)), &expected);
    }
    let layer = Layer::new(|p| LayerNorm::new(p, 12, 1e-5));
    let expected = layer.scale_and_shift("", &normalize(&x, 1e-5));
    assert_close(&layer.run(|norm| norm.forward(&x)), &expected);
}

#[test]
fn a_table_gives_rows_and_refuses_others() {
    let layer = Layer::new(|p| Embedding::new(p, 5, 4));
    let found = layer.run(|table| table.forward::<Tensor>(&[3, 0, 3], &Device::Cpu));
    let row = |i| layer.weight("weight").narrow(0, i, 1).unwrap();
    assert_close(&found, &Tensor::cat(&[row(3), row(0), row(3)], 0).unwrap());
    let first = layer.run(|table| table.first_rows::<Tensor>(2, &Device::Cpu));
    assert_close(&first, &Tensor::cat(&[row(0), row(1)], 0).unwrap());
    let error = layer.module.enter().unwrap().forward::<Tensor>(&[5], &Device::Cpu).unwrap_err();
    assert!(matches!(error, Error::Index { index: 5, rows: 5 }), "{error}");
}

#[test]
fn attention_in_every_form() {
    let (heads, s, t) = (3, 6, 4);
    let config = AttentionConfig {
        channels: 24,
        context_dim: 24,
        of_text: false,
        num_heads: heads,
        qkv_bias: false,
        causal: false,
        keys: AttentionKeys::Diffusers,
    };
    let (x, residual) = (tensor(&[2, s, 24], 50), tensor(&[2, s, 24], 51));
    let all = |t| Tensor::ones((s, t), DType::F32, &Device::Cpu).unwrap();

    for qkv_bias in [false, true] {
        let layer = Layer::new(|p| Attention::new(p, AttentionConfig { qkv_bias, ..config }));
        let [q, k, v] = ["to_q.", "to_k.", "to_v."].map(|name| layer.linear(name, &x));
        let expected = layer.linear("to_out.0.", &attention(&q, &k, &v, heads, &all(s)));
        let found = layer.run(|attention| attention.forward(&x, None, &residual));
        assert_close(&found, &(expected + &residual).unwrap());
    }

    let context = tensor(&[2, t, 10], 52);
    let layer = Layer::new(|p| Attention::new(p, AttentionConfig { context_dim: 10, ..config }));
    let (q, [k, v]) = (layer.linear("to_q.", &x), ["to_k.", "to_v."].map(|name| layer.linear(name, &context)));
    let expected = layer.linear("to_out.0.", &attention(&q, &k, &v, heads, &all(t)));
    let found = layer.run(|attention| attention.forward(&x, Some(&context), &residual));
    assert_close(&found, &(expected + &residual).unwrap());

    let clip = AttentionConfig { qkv_bias: true, causal: true, keys: AttentionKeys::Clip, ..config };
    let layer = Layer::new(|p| Attention::new(p, clip));
    let [q, k, v] = ["q_proj.", "k_proj.", "v_proj."].map(|name| layer.linear(name, &x));
    let before = Tensor::tril2(s, DType::F32, &Device::Cpu).unwrap();
    let expected = layer.linear("out_proj.", &attention(&q, &k, &v, heads, &before));
    let found = layer.run(|attention| attention.forward(&x, None, &residual));
    assert_close(&found, &(expected + &residual).unwrap());

    let seen = Tensor::new(&[[1f32, 0., 1., 1., 0., 1.], [1., 1., 1., 0., 0., 0.]], &Device::Cpu).unwrap();
    let hidden = before.broadcast_mul(&seen.reshape((2, 1, 1, s)).unwrap()).unwrap(); // (2, 1, s, s)
    let expected = layer.linear("out_proj.", &attention(&q, &k, &v, heads, &hidden));
    let found = layer.run(|attention| attention.forward_masked(&x, &seen, &residual));
    assert_close(&found, &(expected + &residual).unwrap());
}

#[test]
fn a_feed_forward_layer_gates_its_values() {
    let layer = Layer::new(|p| (LayerNorm::new(&p.pp("norm"), 6, 1e-5), FeedForward::new(p, 6)));
    let x = tensor(&[2, 5, 6], 50);
    let normal = layer.scale_and_shift("norm.", &normalize(&x, 1e-5));
    let wide = layer.linear("net.0.proj.", &normal).chunk(2, 2).unwrap();
    let hidden = (&wide[0] * wide[1].gelu_erf().unwrap()).unwrap();
    let expected = (layer.linear("net.2.", &hidden) + &x).unwrap();
    assert_close(&layer.run(|(norm, ff)| ff.forward(norm, &x)), &expected);
}

#[test]
fn residual_blocks_with_and_without_time() {
    let (x, temb) = (tensor(&[2, 4, 6, 8], 50), tensor(&[1, 10], 51));
    for (out_channels, temb_channels) in [(8, None), (12, None), (12, Some(10))] {
        let config = ResnetConfig { in_channels: 8, out_channels, temb_channels, num_groups: 4, eps: 1e-5 };
        let layer = Layer::new(|p| ResnetBlock::new(p, config));
        let mut h = layer.conv("conv1.", &silu(&layer.group_norm("norm1.", &x, 4, 1e-5)), 1, [1, 1]);
        if temb_channels.is_some() {
            let time = layer.linear("time_emb_proj.", &temb).reshape((1, 1, 1, out_channels)).unwrap();
            h = h.broadcast_add(&time).unwrap();
        }
        h = layer.conv("conv2.", &silu(&layer.group_norm("norm2.", &h, 4, 1e-5)), 1, [1, 1]);
        let shortcut = if out_channels == 8 { x.clone() } else { layer.conv("conv_shortcut.", &x, 1, [0, 0]) };
        let found = layer.run(|block| block.forward(&x, temb_channels.map(|_| &temb)));
        assert_close(&found, &(h + shortcut).unwrap());
    }
}

/// On the CPU, strips of any size do not change a bit.
#[test]
fn residual_blocks_in_strips_have_the_same_bits() {
    let x = tensor(&[1, 13, 6, 8], 50);
    for out_channels in [8, 12] {
        let config = ResnetConfig { in_channels: 8, out_channels, temb_channels: None, num_groups: 4, eps: 1e-5 };
        let layer = Layer::new(|p| ResnetBlock::new(p, config));
        let expected = values(&layer.run(|block| block.forward(&x, None)));
        for pixels in [1, 24, 1000] {
            assert_eq!(values(&layer.run(|block| block.forward_strips(&x, pixels))), expected);
            let own = x.force_contiguous().unwrap(); // it is overwritten
            assert_eq!(values(&layer.run(|block| block.forward_in_place(own, pixels))), expected);
        }
    }
}

#[test]
fn errors_name_the_segment() {
    let mut segments = Segments::default();
    let layer = segments.add("mid_block.proj", |p| Linear::new(p, 4, 4, false));
    let message = Tensor::run(&layer, |layer| layer.forward(&tensor(&[1, 4], 0))).unwrap_err().to_string();
    assert_eq!(
        message,
        "mid_block.proj: segment `mid_block.proj` has no weights yet: load them before running the network"
    );
}
