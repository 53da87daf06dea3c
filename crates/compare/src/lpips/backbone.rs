//! The networks whose features LPIPS compares: the convolutions of AlexNet and of VGG16, as torchvision has them, in five stages.

use candle_core::Tensor;
use kiln_nn::Conv2d;
use kiln_nn::ops::{Conv2d as Geometry, Conv2dEpilogue, Slope};
use kiln_weights::ParamBuilder;

use crate::pool::Pool;

/// The stages of both networks.
pub(super) const STAGES: usize = 5;

/// A network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backbone {
    AlexNet,
    Vgg16,
}

/// A layer of a network. Activations follow convolutions.
enum Layer {
    Conv(Conv2d),
    Pool(Pool),
}

/// The layers up to the features of one head.
pub(super) struct Stage(Vec<Layer>);

impl Backbone {
    /// The network whose first convolution has weights of this shape.
    pub(super) fn of(first: Option<&[usize]>) -> Option<Self> {
        match first? {
            [64, 3, 11, 11] => Some(Self::AlexNet),
            [64, 3, 3, 3] => Some(Self::Vgg16),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AlexNet => "AlexNet",
            Self::Vgg16 => "VGG16",
        }
    }

    /// The channels of each stage's features.
    pub(super) fn channels(self) -> [usize; STAGES] {
        match self {
            Self::AlexNet => [64, 192, 384, 256, 256],
            Self::Vgg16 => [64, 128, 256, 512, 512],
        }
    }

    /// The least width and height for which every layer has a window.
    pub(super) fn least_side(self) -> usize {
        match self {
            Self::AlexNet => 31,
            Self::Vgg16 => 16,
        }
    }

    /// Memory for a pixel of two images: features of the largest stage, of both images, and their copies in convolutions and in
    /// comparisons, with some room.
    pub(super) fn bytes_per_pixel(self) -> usize {
        match self {
            Self::AlexNet => 256,
            Self::Vgg16 => 2048,
        }
    }

    /// The convolutions of a stage: the number of the layer in torchvision's list, the kernel's side and its geometry.
    fn convolutions(self, stage: usize) -> Vec<(usize, usize, Geometry)> {
        let same = |number: usize| (number, 3, Geometry::same(3));
        match (self, stage) {
            (Self::AlexNet, 0) => vec![(0, 11, Geometry { stride: 4, pad_before: 2, pad_after: 2 })],
            (Self::AlexNet, 1) => vec![(3, 5, Geometry::same(5))],
            (Self::AlexNet, _) => vec![same(2 * stage + 2)],
            (Self::Vgg16, 0) => vec![same(0), same(2)],
            (Self::Vgg16, 1) => vec![same(5), same(7)],
            (Self::Vgg16, _) => (0..3).map(|i| same(7 * stage - 4 + 2 * i)).collect(),
        }
    }

    /// The pooling before a stage.
    fn pool(self, stage: usize) -> Option<Layer> {
        match (self, stage) {
            (Self::AlexNet, 1 | 2) => Some(Layer::Pool(Pool::max(3, 2))),
            (Self::Vgg16, 1..) => Some(Layer::Pool(Pool::max(2, 2))),
            _ => None,
        }
    }
}

impl Stage {
    /// Declares stage `stage` with the names of `lpips`: `slice2.3.weight` has the layer's number in the whole network.
    pub(super) fn new(p: &ParamBuilder<'_>, backbone: Backbone, stage: usize) -> Self {
        let channels = backbone.channels();
        let mut inputs = if stage == 0 { 3 } else { channels[stage - 1] };
        let own = p.pp(format!("slice{}", stage + 1));
        let convolutions = backbone.convolutions(stage).into_iter().map(|(number, side, geometry)| {
            let conv = Conv2d::with_geometry(&own.pp(number), inputs, channels[stage], side, geometry);
            inputs = channels[stage];
            Layer::Conv(conv)
        });
        Self(backbone.pool(stage).into_iter().chain(convolutions).collect())
    }

    /// Features `(1, h, w, c)` of the stage before to those of this one.
    pub(super) fn forward(&self, x: &Tensor) -> kiln_nn::Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.0 {
            x = match layer {
                Layer::Conv(conv) => {
                    let relu = Conv2dEpilogue { slope: Slope::Constant(0.0), ..Conv2dEpilogue::default() };
                    conv.forward_fused(&[&x], relu, None, None)?
                }
                Layer::Pool(pool) => pool.forward(&x)?,
            };
        }
        Ok(x)
    }
}
