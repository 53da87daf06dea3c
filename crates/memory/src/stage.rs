//! The stages of a run.

use serde::Serialize;

/// The stages of a run, in their order. A run has those that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Weights are read, converted and put in their places.
    Load,
    /// Prompts become conditions.
    Encode,
    /// Initial images become latents.
    #[serde(rename = "encode-image")]
    EncodeImage,
    /// Images that are prompts become keys and values.
    #[serde(rename = "image-prompt")]
    ImagePrompt,
    /// Noise becomes latents.
    Denoise,
    /// A second model denoises the latents further.
    Refine,
    /// Latents become pixels.
    Decode,
    /// Images become larger; between two passes latents may, too.
    Upscale,
    /// Pixels become files.
    Save,
}

impl Stage {
    /// The stages in which denoisers run, in the order of a run.
    pub const DENOISERS: [Self; 2] = [Self::Denoise, Self::Refine];

    /// The stage in which the denoiser with this number runs.
    pub const fn of_denoiser(number: usize) -> Self {
        if number == 0 { Self::Denoise } else { Self::Refine }
    }

    /// Whether it always runs on the CPU next to a GPU by Vulkan, Metal or DirectX 12.
    pub fn is_on_host(self) -> bool {
        matches!(self, Self::ImagePrompt | Self::Upscale)
    }

    /// Its name as an activity: `loading`, `encoding`, ...
    pub fn doing(self) -> &'static str {
        match self {
            Self::Load => "loading",
            Self::Encode => "encoding",
            Self::EncodeImage => "encoding the image",
            Self::ImagePrompt => "encoding the image prompt",
            Self::Denoise => "denoising",
            Self::Refine => "refining",
            Self::Decode => "decoding",
            Self::Upscale => "upscaling",
            Self::Save => "saving",
        }
    }

    /// The name in logs and traces.
    pub fn id(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Encode => "encode",
            Self::EncodeImage => "encode-image",
            Self::ImagePrompt => "image-prompt",
            Self::Denoise => "denoise",
            Self::Refine => "refine",
            Self::Decode => "decode",
            Self::Upscale => "upscale",
            Self::Save => "save",
        }
    }
}
