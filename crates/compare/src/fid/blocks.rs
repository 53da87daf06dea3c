//! The blocks of Inception V3 (Szegedy et al., "Rethinking the Inception architecture for computer vision", 2015) in the variant of
//! TensorFlow's network of 2015-12-05: means of windows leave out padding, and the last block has the largest values instead.

use candle_core::Tensor;
use kiln_nn::ops::{Conv2d as Geometry, Conv2dEpilogue, Slope};
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::ParamBuilder;

use crate::pool::{Pool, Reduce};

/// The kernel and the geometry of a convolution.
#[derive(Clone, Copy)]
pub(super) enum Kernel {
    /// Rows and columns, both odd, at stride 1: the result has the map's size.
    Same(usize, usize),
    /// A side and a stride, without padding.
    Inside(usize, usize),
}

use Kernel::{Inside, Same};

/// A convolution by its name, its output channels and its kernel.
type Spec = (&'static str, usize, Kernel);

/// A convolution with ReLU.
struct Conv {
    conv: Conv2d,
    /// Rows and columns that the result has too many on each side: padding is that of the longer side in both directions.
    excess: [usize; 2],
}

/// A layer of a branch.
enum Layer {
    Conv(Conv),
    Pool(Pool),
    /// Two convolutions of one map, whose results lie side by side in the channels.
    Fork([Conv; 2]),
}

/// Branches of one map, whose results lie side by side in the channels.
pub(super) struct Block(Vec<Vec<Layer>>);

impl Conv {
    fn new(p: &ParamBuilder<'_>, inputs: usize, (name, outputs, kernel): Spec) -> Self {
        let (sides, geometry) = match kernel {
            Same(rows, columns) => ([rows, columns], Geometry::same(rows.max(columns))),
            Inside(side, stride) => ([side; 2], Geometry { stride, pad_before: 0, pad_after: 0 }),
        };
        let conv = Conv2d::with_kernel(&p.pp(name).pp("conv"), inputs, outputs, sides, geometry);
        let excess = match kernel {
            Same(..) => sides.map(|side| geometry.pad_before - side / 2),
            Inside(..) => [0; 2],
        };
        Self { conv, excess }
    }

    fn forward(&self, x: &Tensor) -> kiln_nn::Result<Tensor> {
        let relu = Conv2dEpilogue { slope: Slope::Constant(0.0), ..Conv2dEpilogue::default() };
        let x = self.conv.forward_fused(&[x], relu, None, None)?;
        let (_, h, w, _) = x.dims4()?;
        let [rows, columns] = self.excess;
        TensorLike::contiguous(&x.narrow(1, rows, h - 2 * rows)?.narrow(2, columns, w - 2 * columns)?)
    }
}

impl Layer {
    fn forward(&self, x: &Tensor) -> kiln_nn::Result<Tensor> {
        match self {
            Self::Conv(conv) => conv.forward(x),
            Self::Pool(pool) => pool.forward(x),
            Self::Fork([first, second]) => TensorLike::cat(&[&first.forward(x)?, &second.forward(x)?], 3),
        }
    }
}

/// Convolutions that follow one another.
fn chain(p: &ParamBuilder<'_>, mut inputs: usize, specs: &[Spec]) -> Vec<Layer> {
    let conv = |&spec: &Spec| {
        let conv = Conv::new(p, inputs, spec);
        inputs = spec.1;
        Layer::Conv(conv)
    };
    specs.iter().map(conv).collect()
}

impl Block {
    /// One convolution under its own name.
    pub(super) fn conv(
        p: &ParamBuilder<'_>,
        name: &'static str,
        inputs: usize,
        outputs: usize,
        kernel: Kernel,
    ) -> Self {
        Self(vec![chain(p, inputs, &[(name, outputs, kernel)])])
    }

    /// Pooling alone.
    pub(super) fn pool(pool: Pool) -> Self {
        Self(vec![vec![Layer::Pool(pool)]])
    }

    /// `InceptionA`: `inputs` channels to 224 and those of its pooled branch.
    pub(super) fn a(p: &ParamBuilder<'_>, inputs: usize, pooled: usize) -> Self {
        let chain = |specs: &[Spec]| chain(p, inputs, specs);
        Self(vec![
            chain(&[("branch1x1", 64, Same(1, 1))]),
            chain(&[("branch5x5_1", 48, Same(1, 1)), ("branch5x5_2", 64, Same(5, 5))]),
            chain(&[
                ("branch3x3dbl_1", 64, Same(1, 1)),
                ("branch3x3dbl_2", 96, Same(3, 3)),
                ("branch3x3dbl_3", 96, Same(3, 3)),
            ]),
            after(Pool::around(Reduce::Mean), chain(&[("branch_pool", pooled, Same(1, 1))])),
        ])
    }

    /// `InceptionB`: 288 channels to 768, half as wide and high.
    pub(super) fn b(p: &ParamBuilder<'_>) -> Self {
        let chain = |specs: &[Spec]| chain(p, 288, specs);
        Self(vec![
            chain(&[("branch3x3", 384, Inside(3, 2))]),
            chain(&[
                ("branch3x3dbl_1", 64, Same(1, 1)),
                ("branch3x3dbl_2", 96, Same(3, 3)),
                ("branch3x3dbl_3", 96, Inside(3, 2)),
            ]),
            vec![Layer::Pool(Pool::max(3, 2))],
        ])
    }

    /// `InceptionC`: 768 channels to 768, with `inner` channels between factors of kernels of 7 by 7.
    pub(super) fn c(p: &ParamBuilder<'_>, inner: usize) -> Self {
        let chain = |specs: &[Spec]| chain(p, 768, specs);
        Self(vec![
            chain(&[("branch1x1", 192, Same(1, 1))]),
            chain(&[
                ("branch7x7_1", inner, Same(1, 1)),
                ("branch7x7_2", inner, Same(1, 7)),
                ("branch7x7_3", 192, Same(7, 1)),
            ]),
            chain(&[
                ("branch7x7dbl_1", inner, Same(1, 1)),
                ("branch7x7dbl_2", inner, Same(7, 1)),
                ("branch7x7dbl_3", inner, Same(1, 7)),
                ("branch7x7dbl_4", inner, Same(7, 1)),
                ("branch7x7dbl_5", 192, Same(1, 7)),
            ]),
            after(Pool::around(Reduce::Mean), chain(&[("branch_pool", 192, Same(1, 1))])),
        ])
    }

    /// `InceptionD`: 768 channels to 1280, half as wide and high.
    pub(super) fn d(p: &ParamBuilder<'_>) -> Self {
        let chain = |specs: &[Spec]| chain(p, 768, specs);
        Self(vec![
            chain(&[("branch3x3_1", 192, Same(1, 1)), ("branch3x3_2", 320, Inside(3, 2))]),
            chain(&[
                ("branch7x7x3_1", 192, Same(1, 1)),
                ("branch7x7x3_2", 192, Same(1, 7)),
                ("branch7x7x3_3", 192, Same(7, 1)),
                ("branch7x7x3_4", 192, Inside(3, 2)),
            ]),
            vec![Layer::Pool(Pool::max(3, 2))],
        ])
    }

    /// `InceptionE`: `inputs` channels to 2048. `reduce` is what its pooled branch does.
    pub(super) fn e(p: &ParamBuilder<'_>, inputs: usize, reduce: Reduce) -> Self {
        let chain = |specs: &[Spec]| chain(p, inputs, specs);
        let forked = |mut layers: Vec<Layer>, names: [&'static str; 2]| {
            let kernels = [Same(1, 3), Same(3, 1)];
            layers.push(Layer::Fork([0, 1].map(|i| Conv::new(p, 384, (names[i], 384, kernels[i])))));
            layers
        };
        let double = [("branch3x3dbl_1", 448, Same(1, 1)), ("branch3x3dbl_2", 384, Same(3, 3))];
        Self(vec![
            chain(&[("branch1x1", 320, Same(1, 1))]),
            forked(chain(&[("branch3x3_1", 384, Same(1, 1))]), ["branch3x3_2a", "branch3x3_2b"]),
            forked(chain(&double), ["branch3x3dbl_3a", "branch3x3dbl_3b"]),
            after(Pool::around(reduce), chain(&[("branch_pool", 192, Same(1, 1))])),
        ])
    }

    /// A map `(b, h, w, c)`.
    pub(super) fn forward(&self, x: &Tensor) -> kiln_nn::Result<Tensor> {
        let branch = |layers: &Vec<Layer>| layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x));
        let branches = self.0.iter().map(branch).collect::<kiln_nn::Result<Vec<_>>>()?;
        match branches.as_slice() {
            [single] => Ok(single.clone()),
            _ => TensorLike::cat(&branches.iter().collect::<Vec<_>>(), 3),
        }
    }
}

/// Layers behind a pooling.
fn after(pool: Pool, layers: Vec<Layer>) -> Vec<Layer> {
    std::iter::once(Layer::Pool(pool)).chain(layers).collect()
}
