//! The operators that are tested, at sizes of real networks and at odd ones.

use candle_core::{DType, Tensor};
use kiln_ops::{
    Activated, Activation, Attention, BlockType, ByteNumber, Conv2d, Conv2dInputs, EightBits, GroupNorm,
    GroupedAttention, GroupedAttentionOp, Hidden, MatrixType, ModulatedNormOp, RopeOp, RopePairs, Rotation, RowNorm,
    TimestepEmbedding, activated_linear, activation, activation_linear, attention, concat_channels, conv2d,
    gated_activation, gated_residual, geglu, geglu_linear, group_norm, grouped_attention, layer_norm, linear,
    modulated_norm, normed_linear, rms_norm, rope, timestep_embedding, upsample_nearest,
};

use super::operands::{Operands, Stored};
use kiln_nn::Result;

/// Computes an operator with operands made on its device.
type Run = Box<dyn Fn(&mut Operands) -> Result<Tensor>>;

/// An operator with operands of one shape.
pub(super) struct Case {
    pub(super) name: String,
    /// The shapes.
    pub(super) shape: String,
    /// The largest error of f32, relative to the largest result.
    pub(super) bound: f64,
    /// How the matrix is computed, if not every device does so.
    pub(super) computed: Option<ByteNumber>,
    pub(super) run: Run,
}

/// Sums of f32 in another order.
const SUMS: f64 = 1e-4;
/// An input close to the middle of two numbers of 8 bits may be rounded to the other one.
const ROUNDED_INPUT: f64 = 1e-2;

fn case(name: &str, shape: String, run: impl Fn(&mut Operands) -> Result<Tensor> + 'static) -> Case {
    Case { name: name.into(), shape, bound: SUMS, computed: None, run: Box::new(run) }
}

/// All cases.
pub(super) fn cases() -> Vec<Case> {
    [linear_layers(), stored_types(), products_of_bytes(), convolutions(), attentions(), norms(), element_wise()]
        .into_iter()
        .flatten()
        .collect()
}

fn linear_layers() -> Vec<Case> {
    let of = |[m, k, n]: [usize; 3]| {
        case("linear", format!("{m} x {k} x {n}"), move |on| {
            let (x, weight) = (on.tensor(&[m, k])?, on.matrix([n, k], Stored::Plain)?);
            let (bias, residual) = (on.tensor(&[n])?, on.tensor(&[m, n])?);
            Ok(linear(&x, &weight, Some(&bias), Some(&residual), None)?)
        })
    };
    let mut cases: Vec<Case> = [[1, 320, 1280], [77, 768, 320], [256, 640, 640], [5, 7, 3]].map(of).into();
    cases.push(case("linear with GELU", "128 x 384 x 1536".into(), |on| {
        let (x, weight) = (on.tensor(&[128, 384])?, on.matrix([1536, 384], Stored::Plain)?);
        let (bias, before) = (on.tensor(&[1536])?, on.tensor(&[128, 384])?);
        Ok(activated_linear(&x, &weight, Some(&bias), Activation::GeluTanh, Some(&before))?)
    }));
    cases
}

/// Matrices that stay as files store them.
fn stored_types() -> Vec<Case> {
    let rows =
        [MatrixType::F8, MatrixType::F8E5M2, MatrixType::Int8(Rotation::None), MatrixType::Int8(Rotation::By256)];
    let blocks = BlockType::ALL.map(MatrixType::Blocks);
    let of = |kind: MatrixType| {
        [1, 130].map(|m| {
            case(&format!("linear, {kind}"), format!("{m} x 512 x 320"), move |on| {
                let (x, weight) = (on.tensor(&[m, 512])?, on.matrix([320, 512], Stored::Kept(kind))?);
                Ok(linear(&x, &weight, None, None, None)?)
            })
        })
    };
    rows.into_iter().chain(blocks).flat_map(of).collect()
}

/// Linear layers that are computed in 8 bits.
fn products_of_bytes() -> Vec<Case> {
    let of = |number: ByteNumber| {
        let stored = Stored::InBytes(EightBits::W8A8(number));
        let in_bytes = |name: &str, run: Run| Case {
            name: format!("{name}, computed in {number}"),
            shape: "70 x 1280 x 1280".into(),
            bound: ROUNDED_INPUT,
            computed: Some(number),
            run,
        };
        let matrix = move |on: &mut Operands| on.matrix([1280, 1280], stored);
        [
            in_bytes(
                "linear",
                Box::new(move |on| {
                    let (x, bias) = (on.tensor(&[70, 1280])?, on.tensor(&[1280])?);
                    Ok(linear(&x, &matrix(on)?, Some(&bias), None, None)?)
                }),
            ),
            in_bytes(
                "layer norm, linear",
                Box::new(move |on| {
                    let (x, gamma, beta) = (on.tensor(&[70, 1280])?, on.tensor(&[1280])?, on.tensor(&[1280])?);
                    Ok(normed_linear(&x, (&gamma, &beta, 1e-5), &matrix(on)?, None, None)?)
                }),
            ),
            in_bytes(
                "GEGLU, linear",
                Box::new(move |on| Ok(geglu_linear(&on.tensor(&[70, 2560])?, &matrix(on)?, None, None)?)),
            ),
            in_bytes(
                "SwiGLU, linear",
                Box::new(move |on| {
                    let (before, x) = (on.tensor(&[70, 256])?, on.tensor(&[70, 2048])?);
                    let input =
                        Activated { before: Some(&before), hidden: Hidden::Joint(&x), function: Activation::Silu };
                    Ok(activation_linear(input, &matrix(on)?, None, None)?)
                }),
            ),
        ]
    };
    [ByteNumber::E4m3, ByteNumber::Int8].into_iter().flat_map(of).collect()
}

fn convolutions() -> Vec<Case> {
    let of = |(kernel, [h, w, c, n], config): (usize, [usize; 4], Conv2d)| {
        let shape = format!("{kernel}x{kernel}, {h} x {w} x {c} to {n}, stride {}", config.stride);
        case("convolution", shape, move |on| {
            let (x, weight) = (on.tensor(&[2, h, w, c])?, on.kernel(&[n, kernel, kernel, c])?);
            let (bias, image_bias) = (on.tensor(&[n])?, on.tensor(&[2, n])?);
            let inputs = Conv2dInputs {
                x: &x,
                weight: &weight,
                bias: Some(&bias),
                image_bias: Some(&image_bias),
                residual: None,
            };
            Ok(conv2d(inputs, config, None)?)
        })
    };
    let down = Conv2d { stride: 2, pad_before: 1, pad_after: 1 };
    [
        (3, [32, 32, 320, 320], Conv2d::same(3)),
        (3, [33, 17, 4, 320], Conv2d::same(3)),
        (3, [32, 32, 64, 128], down),
        (1, [16, 16, 640, 320], Conv2d::same(1)),
    ]
    .map(of)
    .into()
}

fn attentions() -> Vec<Case> {
    let of = |[s, t, heads, width]: [usize; 4]| {
        case("attention", format!("{s} to {t}, {heads} heads of {width}"), move |on| {
            let c = heads * width;
            let (q, k, v) = (on.tensor(&[2, s, c])?, on.tensor(&[2, t, c])?, on.tensor(&[2, t, c])?);
            Ok(attention(&q, &k, &v, Attention { num_heads: heads, causal: false }, None)?)
        })
    };
    let mut cases: Vec<Case> =
        [[256, 256, 8, 40], [300, 77, 5, 64], [64, 64, 8, 80], [128, 130, 3, 128], [64, 64, 8, 160]].map(of).into();
    cases.push(case("causal attention", "77, 12 heads of 64".into(), |on| {
        let [q, k, v] = [on.tensor(&[1, 77, 768])?, on.tensor(&[1, 77, 768])?, on.tensor(&[1, 77, 768])?];
        Ok(attention(&q, &k, &v, Attention { num_heads: 12, causal: true }, None)?)
    }));
    cases.push(case("grouped attention with lengths", "100 to 100, 8 and 2 heads of 128".into(), |on| {
        let (q, k, v) = (on.tensor(&[2, 100, 1024])?, on.tensor(&[2, 100, 256])?, on.tensor(&[2, 100, 256])?);
        let lengths = on.values(&[100.0, 37.0])?;
        let config = GroupedAttention { num_heads: 8, num_kv_heads: 2, causal: false, scale: None };
        let inputs = GroupedAttentionOp { q: &q, k: &k, v: &v, bias: None, lengths: Some(&lengths), config };
        Ok(grouped_attention(inputs, None)?)
    }));
    cases
}

fn norms() -> Vec<Case> {
    let group = |[h, w, c]: [usize; 3]| {
        case("group norm with SiLU", format!("{h} x {w} x {c}"), move |on| {
            let (x, gamma, beta) = (on.tensor(&[2, h, w, c])?, on.tensor(&[c])?, on.tensor(&[c])?);
            Ok(group_norm(&x, &gamma, &beta, GroupNorm { num_groups: 32, eps: 1e-5, silu: true }, None)?)
        })
    };
    let mut cases: Vec<Case> = [[64, 64, 320], [16, 16, 1280], [7, 9, 64]].map(group).into();
    cases.push(case("layer norm", "300 x 1280".into(), |on| {
        let (x, gamma, beta) = (on.tensor(&[300, 1280])?, on.tensor(&[1280])?, on.tensor(&[1280])?);
        Ok(layer_norm(&x, &gamma, &beta, 1e-5, None)?)
    }));
    cases.push(case("RMS norm", "300 x 2560".into(), |on| {
        let (x, gamma) = (on.tensor(&[300, 2560])?, on.tensor(&[2560])?);
        Ok(rms_norm(&x, Some(&gamma), 1e-6, None)?)
    }));
    cases.push(case("modulated layer norm", "2 x 77 x 1536".into(), |on| {
        let (x, scale, shift) = (on.tensor(&[2, 77, 1536])?, on.tensor(&[2, 1536])?, on.tensor(&[2, 1536])?);
        let (scale, shift) = (Some(&scale), Some(&shift));
        let inputs = ModulatedNormOp { x: &x, norm: RowNorm::Layer, gamma: None, scale, shift, eps: 1e-6 };
        Ok(modulated_norm(inputs, None)?)
    }));
    cases
}

fn element_wise() -> Vec<Case> {
    let mut cases: Vec<Case> = [RopePairs::Interleaved, RopePairs::Halves]
        .map(|pairs| {
            case("rotary embedding", format!("90 x 6 heads of 128, {pairs:?}").to_lowercase(), move |on| {
                let (x, gamma) = (on.tensor(&[1, 90, 768])?, on.tensor(&[128])?);
                let (cos, sin) = (on.tensor_f32(&[90, 64])?, on.tensor_f32(&[90, 64])?);
                let norm = Some((&gamma, 1e-6));
                Ok(rope(RopeOp { x: &x, cos: &cos, sin: &sin, norm, num_heads: 6, pairs }, None)?)
            })
        })
        .into();
    let functions =
        [Activation::Silu, Activation::QuickGelu, Activation::GeluErf, Activation::GeluTanh, Activation::Relu];
    cases.extend(functions.map(|function| {
        case(&format!("{function:?}"), "33 x 1280".into(), move |on| {
            Ok(activation(&on.tensor(&[33, 1280])?, function, None)?)
        })
    }));
    cases.push(case("GEGLU", "64 x 2560".into(), |on| Ok(geglu(&on.tensor(&[64, 2560])?, None)?)));
    cases.push(case("SwiGLU", "64 x 2560".into(), |on| {
        Ok(gated_activation(Activation::Silu, &on.tensor(&[64, 2560])?, None, None)?)
    }));
    cases.push(case("gated residual", "2 x 77 x 640".into(), |on| {
        let (x, gate, y) = (on.tensor(&[2, 77, 640])?, on.tensor(&[2, 640])?, on.tensor(&[2, 77, 640])?);
        Ok(gated_residual(&x, &gate, &y, None)?)
    }));
    cases.push(case("concatenation", "2 x 8 x 8 x 320 and 640".into(), |on| {
        Ok(concat_channels(&on.tensor(&[2, 8, 8, 320])?, &on.tensor(&[2, 8, 8, 640])?, None)?)
    }));
    cases.push(case("upsampling", "2 x 16 x 16 x 320".into(), |on| {
        Ok(upsample_nearest(&on.tensor(&[2, 16, 16, 320])?, (32, 32), None)?)
    }));
    cases.push(case("timestep embedding", "2 x 320".into(), |on| {
        let config = TimestepEmbedding { dim: 320, flip_sin_to_cos: true, freq_shift: 0.0 };
        Ok(timestep_embedding(&on.values(&[999.0, 1.0])?, config, DType::F32, None)?)
    }));
    cases
}
