//! Networks that guide a denoiser by an image.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use candle_core::Tensor;
use kiln_nn::MetaTensor;
use kiln_weights::Segments;

use crate::error::Result;

/// The configuration of a control network, from which the network is built.
pub trait ControlConfig: Any + Debug + Send + Sync {
    /// The network, without weights.
    fn build(&self) -> Box<dyn Control>;
}

impl dyn ControlConfig {
    /// The configuration as its own type; `None` if it is of another type.
    pub fn own<C: ControlConfig>(&self) -> Option<&C> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}

/// A network that runs in the same call as a denoiser, and guides it by an image. The denoiser that it runs with makes its inputs
/// ([`crate::Denoiser::add_control`]).
pub trait Control: Embed<Tensor> + Embed<MetaTensor> + Any + Send + Sync {
    /// The properties that a request is checked with, and by which the pipeline runs the network.
    fn spec(&self) -> ControlSpec;

    /// The segments that run in every step.
    fn step_segments(&self) -> &Segments;

    /// The segments that run once an image; `None` if there are none.
    fn image_segments(&self) -> Option<&Segments> {
        None
    }
}

/// The part of a control network that runs once an image, with one type of tensor.
pub trait Embed<T: Clone> {
    /// The results for an image: pixels or latents as [`ControlSpec::takes`] says, `(b, c, h, w)`. A network that takes latents
    /// in its steps has no part of this kind.
    ///
    /// # Errors
    /// [`crate::Error::Input`] for another shape, and [`crate::Error::Failed`] for errors of a layer.
    fn embed(&self, image: &T) -> Result<Vec<T>> {
        Ok(vec![image.clone()])
    }
}

/// The properties of a control network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlSpec {
    /// Its kind with the article: `a T2I-Adapter`.
    pub label: &'static str,
    /// The form in which it takes the control image.
    pub takes: ControlTakes,
    /// When and how its results act.
    pub role: ControlRole,
    /// The number of values that it adds to the denoiser's, each of which has a factor.
    pub additions: usize,
    /// The modes that it has besides the plain one.
    pub modes: ControlModes,
    /// The rows of a batch for which it runs.
    pub rows: ControlRows,
    /// The types of control images that a Union network knows; `None` for a network of one type.
    pub types: Option<ControlTypes>,
}

impl ControlSpec {
    /// A network that runs in every step for all rows, and adds values of one weight.
    pub fn of_steps(label: &'static str, takes: ControlTakes) -> Self {
        Self {
            label,
            takes,
            role: ControlRole::Steps,
            additions: 1,
            modes: ControlModes::NONE,
            rows: ControlRows::All,
            types: None,
        }
    }
}

/// The form in which a control network takes its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlTakes {
    /// Pixels from 0 to 1, which [`Embed::embed`] embeds.
    Pixels {
        /// 3, or 1 for networks that take the luminance.
        channels: usize,
    },
    /// Latents of the model's autoencoder for pixels from -1 to 1.
    Latents {
        /// Whether they are a sample, which is drawn before the first latents, or the mean.
        sample: bool,
        /// Whether they are shifted as the denoiser's; scaled they are in any case.
        shifted: bool,
        /// Whether a mask follows as one more channel: 1 where the image stays.
        masked: bool,
    },
}

/// When and how the results of a control network act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRole {
    /// The network runs in every step.
    Steps,
    /// Feature maps are made once an image. Those of several networks are summed.
    Features,
}

/// The modes of a control network (AUTOMATIC1111's control modes, and diffusers' guess mode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlModes {
    /// diffusers' guess mode.
    pub guess: bool,
    /// "My prompt is more important": weaker at early layers.
    pub prompt: bool,
    /// "ControlNet is more important": for the conditional rows alone.
    pub control: bool,
}

impl ControlModes {
    /// All of them.
    pub const ALL: Self = Self { guess: true, prompt: true, control: true };
    /// None besides the plain one.
    pub const NONE: Self = Self { guess: false, prompt: false, control: false };
}

/// The rows of a batch for which a control network runs, if its mode says nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRows {
    /// All rows.
    All,
    /// The conditional ones. The others get nothing.
    Conditional,
    /// The conditional ones. The others get the results of these in turn.
    Repeated,
}

/// The types of control images that a network knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlTypes {
    /// Their names, in the order of their numbers.
    pub names: &'static [&'static str],
    /// Whether one call takes several images; otherwise the network runs once for each.
    pub joins: bool,
}

/// An image of a control network in a call.
#[derive(Debug, Clone)]
pub struct ControlImage<T = Tensor> {
    /// The results of [`Embed::embed`] for the last rows of the batch; feature maps already have their factors.
    pub embedded: Vec<T>,
    /// The number of its type.
    pub kind: Option<usize>,
    /// The weight.
    pub weight: f32,
    /// A factor for each of [`ControlSpec::additions`], which has the weight in it.
    pub scales: Arc<[f32]>,
    /// The factors without the weight.
    pub plain: Arc<[f32]>,
}
