//! The networks of a run, one row for each: when it runs, how often, and how its weights are kept.

use crate::stage::Stage;

/// How often a network runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Once for each text.
    Text,
    /// Once for each control image or image prompt, for which its weights are read.
    Input,
    /// In every step of the sampler.
    Step,
    /// Once for each image of the batch.
    Image,
    /// Once between two passes.
    Pass,
}

/// How a network streams in the mode that streams weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// With resident segments and a ring that divide the memory of its stage.
    Divided,
    /// With the smallest ring that slows nothing down, next to a network that has the rest of the memory.
    Least,
    /// Not at all: all weights are resident while it runs.
    Never,
}

/// A network of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComponentSpec {
    /// The stage in which it runs.
    pub stage: Stage,
    /// How often it runs.
    pub per: Per,
    /// How it streams.
    pub streaming: Streaming,
}

impl ComponentSpec {
    /// A text encoder of any model.
    pub const TEXT: Self = Self::new(Stage::Encode, Per::Text, Streaming::Divided);
    /// The encoder of initial images.
    pub const IMAGE_ENCODER: Self = Self::new(Stage::EncodeImage, Per::Image, Streaming::Divided);
    /// An image encoder or an IP-Adapter.
    pub const IMAGE_PROMPT: Self = Self::new(Stage::ImagePrompt, Per::Input, Streaming::Divided);
    /// The part of a control network that runs in the steps of the first denoiser.
    pub const CONTROL: Self = Self::new(Stage::Denoise, Per::Step, Streaming::Least);
    /// The part of a control network that sees the control image.
    pub const CONTROL_IMAGE: Self = Self::new(Stage::Denoise, Per::Input, Streaming::Never);
    /// The decoder.
    pub const DECODER: Self = Self::new(Stage::Decode, Per::Image, Streaming::Divided);
    /// The network that enlarges images between two passes.
    pub const UPSCALER: Self = Self::new(Stage::Upscale, Per::Pass, Streaming::Never);

    const fn new(stage: Stage, per: Per, streaming: Streaming) -> Self {
        Self { stage, per, streaming }
    }

    /// The denoiser of the model with this number: 0 is the engine's own model, others follow it in a run.
    pub const fn denoiser(number: usize) -> Self {
        Self::new(Stage::of_denoiser(number), Per::Step, Streaming::Divided)
    }

    /// Whether its matrices may stay as their files store them: those of text encoders and denoisers, which have nearly all
    /// weights of a run.
    pub fn keeps_stored(&self) -> bool {
        *self == Self::TEXT || Stage::DENOISERS.contains(&self.stage) && self.streaming == Streaming::Divided
    }

    /// Whether it always runs on the CPU next to a GPU by Vulkan, Metal or DirectX 12: whatever is no text encoder, no denoiser and no
    /// autoencoder ([`ExecutionTarget::has_on_host`](crate::ExecutionTarget::has_on_host)).
    pub fn is_on_host(&self) -> bool {
        matches!(self.per, Per::Input | Per::Pass)
    }

    /// Whether networks of this kind run one after another, so that one at a time needs memory.
    pub fn takes_turns(&self) -> bool {
        matches!(self.per, Per::Text | Per::Input)
    }
}
