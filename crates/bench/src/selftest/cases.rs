//! The operators that are tested, at sizes of real networks and at odd ones.

use candle_core::Tensor;
use kiln_nn::{Operators, Result};
use kiln_ops::{
    Activated, Activation, BlockType, ByteNumber, Conv2d, EightBits, Hidden, MatrixType, RopePairs, Rotation,
};

use super::computation::Computation;
use super::operands::Operands;

/// Computes an operator with operands made on its device.
type OnCandle = Box<dyn Fn(&mut Operands<Tensor>) -> Result<Tensor>>;

/// An operator, and the devices that have it.
pub(super) enum Run {
    /// Every device.
    Anywhere(Computation),
    /// The CPU and CUDA, which alone compute in 8 bits.
    OnCandle(OnCandle),
}

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

impl From<Computation> for Case {
    fn from(computation: Computation) -> Self {
        let (name, shape) = (computation.name(), computation.shape());
        Self { name, shape, bound: SUMS, computed: None, run: Run::Anywhere(computation) }
    }
}

/// All cases.
pub(super) fn cases() -> Vec<Case> {
    let anywhere = [convolutions(), attentions(), norms(), element_wise()];
    let linear = linear_layers().into_iter().chain(stored_types()).map(Case::from);
    linear.chain(products_of_bytes()).chain(anywhere.into_iter().flatten().map(Case::from)).collect()
}

fn linear_layers() -> Vec<Computation> {
    let plain = [[1, 320, 1280], [77, 768, 320], [256, 640, 640], [5, 7, 3]].map(Computation::Linear);
    [&plain[..], &[Computation::GeluLinear([128, 384, 1536])]].concat()
}

/// Matrices that stay as files store them.
fn stored_types() -> Vec<Computation> {
    let rows =
        [MatrixType::F8, MatrixType::F8E5M2, MatrixType::Int8(Rotation::None), MatrixType::Int8(Rotation::By256)];
    let blocks = BlockType::ALL.map(MatrixType::Blocks);
    let of = |kind: MatrixType| [1, 130].map(|m| Computation::StoredLinear(kind, [m, 512, 320]));
    rows.into_iter().chain(blocks).flat_map(of).collect()
}

/// Linear layers that are computed in 8 bits.
fn products_of_bytes() -> Vec<Case> {
    let of = |number: ByteNumber| {
        let in_bytes = |name: &str, run: OnCandle| Case {
            name: format!("{name}, computed in {number}"),
            shape: "70 x 1280 x 1280".into(),
            bound: ROUNDED_INPUT,
            computed: Some(number),
            run: Run::OnCandle(run),
        };
        let matrix = move |on: &mut Operands<Tensor>| on.in_bytes([1280, 1280], EightBits::W8A8(number));
        [
            in_bytes(
                "linear",
                Box::new(move |on| {
                    let (x, bias) = (on.tensor(&[70, 1280])?, on.tensor(&[1280])?);
                    x.linear(&matrix(on)?, Some(&bias), None)
                }),
            ),
            in_bytes(
                "layer norm, linear",
                Box::new(move |on| {
                    let (x, gamma, beta) = (on.tensor(&[70, 1280])?, on.tensor(&[1280])?, on.tensor(&[1280])?);
                    x.normed_linear((&gamma, &beta, 1e-5), &matrix(on)?, None)
                }),
            ),
            in_bytes(
                "GEGLU, linear",
                Box::new(move |on| on.tensor(&[70, 2560])?.geglu_linear(&matrix(on)?, None, None)),
            ),
            in_bytes(
                "SwiGLU, linear",
                Box::new(move |on| {
                    let (before, x) = (on.tensor(&[70, 256])?, on.tensor(&[70, 2048])?);
                    let input =
                        Activated { before: Some(&before), hidden: Hidden::Joint(&x), function: Activation::Silu };
                    Tensor::activation_linear(input, &matrix(on)?, None, None)
                }),
            ),
        ]
    };
    [ByteNumber::E4m3, ByteNumber::Int8].into_iter().flat_map(of).collect()
}

fn convolutions() -> Vec<Computation> {
    let down = Conv2d { stride: 2, pad_before: 1, pad_after: 1 };
    [
        (3, [32, 32, 320, 320], Conv2d::same(3)),
        (3, [33, 17, 4, 320], Conv2d::same(3)),
        (3, [32, 32, 64, 128], down),
        (1, [16, 16, 640, 320], Conv2d::same(1)),
    ]
    .map(|(side, sizes, config)| Computation::Convolution(side, sizes, config))
    .into()
}

fn attentions() -> Vec<Computation> {
    let plain =
        [[256, 256, 8, 40], [300, 77, 5, 64], [64, 64, 8, 80], [128, 130, 3, 128], [64, 64, 8, 160], [96, 200, 1, 512]]
            .map(Computation::Attention);
    let others = [
        Computation::CausalAttention([77, 12, 64]),
        Computation::GroupedAttention([100, 8, 2, 128]),
        Computation::MaskedAttention([64, 8, 40]),
        Computation::ReceivedAttention([64, 64, 8, 160]),
    ];
    [&plain[..], &others].concat()
}

fn norms() -> Vec<Computation> {
    let of_groups = [[64, 64, 320], [16, 16, 1280], [7, 9, 64]].map(Computation::GroupNorm);
    let of_rows = [
        Computation::LayerNorm([300, 1280]),
        Computation::RmsNorm([300, 2560]),
        Computation::ModulatedNorm([2, 77, 1536]),
    ];
    [&of_groups[..], &of_rows].concat()
}

fn element_wise() -> Vec<Computation> {
    let rotary = [RopePairs::Interleaved, RopePairs::Halves].map(|pairs| Computation::Rope([90, 6, 128], pairs));
    let functions =
        [Activation::Silu, Activation::QuickGelu, Activation::GeluErf, Activation::GeluTanh, Activation::Relu]
            .map(|function| Computation::Activation([33, 1280], function));
    let others = [
        Computation::Geglu([64, 2560]),
        Computation::Swiglu([64, 2560]),
        Computation::GatedResidual([2, 77, 640]),
        Computation::Concatenation([2, 8, 8, 320, 640]),
        Computation::Upsampling([2, 16, 16, 320]),
        Computation::TimestepEmbedding(320),
        Computation::Changes([2, 77, 640]),
        Computation::TableRows([77, 320]),
    ];
    [&rotary[..], &functions, &others].concat()
}
