//! The inputs and the prediction type of a model in a file, by its shapes, a few of its tensors, and its notes.

use kiln_weights::ParamSource;
use kiln_weights::ldm::UnetShape;
use serde::Serialize;

use super::{DenoiserPart, FilePart, SingleFile};
use crate::distillation::Distillation;

/// The inputs of a U-Net in addition to noisy latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelInput {
    /// Nothing.
    Latents,
    /// A mask and the masked image: 9 channels.
    Inpainting,
    /// A depth map: 5 channels.
    Depth,
    /// An image to change: 8 channels.
    Edit,
    /// Another number of channels.
    Other,
}

impl ModelInput {
    pub(crate) fn of(unet: &UnetShape) -> Self {
        match unet.in_channels - unet.out_channels.min(unet.in_channels) {
            0 => Self::Latents,
            1 => Self::Depth,
            4 => Self::Edit,
            5 => Self::Inpainting,
            _ => Self::Other,
        }
    }

    /// A description of the input; `None` for latents only.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::Latents => None,
            Self::Inpainting => Some("inpainting"),
            Self::Depth => Some("with a depth map"),
            Self::Edit => Some("with an image to change"),
            Self::Other => Some("with other inputs"),
        }
    }
}

/// The prediction type of the denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// The noise.
    Epsilon,
    /// The velocity, arXiv 2202.00512.
    V,
    /// The velocity of a flow, arXiv 2210.02747.
    Flow,
}

impl Prediction {
    /// diffusers' name.
    pub fn id(self) -> &'static str {
        match self {
            Self::Epsilon => "epsilon",
            Self::V => "v_prediction",
            Self::Flow => "flow_prediction",
        }
    }
}

impl std::str::FromStr for Prediction {
    type Err = String;

    /// Reads diffusers' names and stable-diffusion.cpp's.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "epsilon" | "eps" => Ok(Self::Epsilon),
            "v_prediction" | "v" => Ok(Self::V),
            "flow_prediction" | "flow" => Ok(Self::Flow),
            _ => Err("expected epsilon, v or flow".into()),
        }
    }
}

/// The training step of the official Stable Diffusion 2.1 base, which predicts noise.
const SD21_BASE_STEP: &str = "875000";
/// The standard deviation of one bias above which a Stable Diffusion 2 model predicts velocity: a rule of ComfyUI
/// (`supported_models.py`, SD20). No tensor name or shape shows it.
const VELOCITY_DEVIATION: f64 = 0.09;
const TELLING_BIAS: &str = "output_blocks.11.1.transformer_blocks.0.norm1.bias";

/// The prediction type, from the notes, from marker tensors, or from values if the shape is that of Stable Diffusion 2.
pub(crate) fn prediction(file: &SingleFile) -> Prediction {
    let notes = file.checkpoint.metadata();
    match notes.get("modelspec.prediction_type").map(String::as_str) {
        Some("v" | "v_prediction") => return Prediction::V,
        Some("epsilon" | "eps") => return Prediction::Epsilon,
        _ => {}
    }
    if has_marker(file, "v_pred") {
        return Prediction::V;
    }
    let (prefix, shape) = match &file.denoiser {
        Some(DenoiserPart::Ldm(FilePart { prefix, shape })) => (prefix, shape),
        Some(DenoiserPart::OfFamily(..)) => return Prediction::Flow,
        Some(DenoiserPart::Diffusers(_)) | None => return Prediction::Epsilon,
    };
    // Models of this width with more inputs were all trained to predict noise.
    if shape.context_dim != 1024 || ModelInput::of(shape) != ModelInput::Latents {
        return Prediction::Epsilon;
    }
    if notes.get("global_step").is_some_and(|step| step == SD21_BASE_STEP) {
        return Prediction::Epsilon;
    }
    match file.values(&format!("{prefix}{TELLING_BIAS}")) {
        Some(values) if deviation(&values) <= VELOCITY_DEVIATION => Prediction::Epsilon,
        _ => Prediction::V,
    }
}

/// Whether the schedule ends at zero SNR: files with velocity prediction have a marker for it.
pub(crate) fn zero_terminal_snr(file: &SingleFile) -> bool {
    has_marker(file, "ztsnr")
}

fn has_marker(file: &SingleFile, name: &str) -> bool {
    file.checkpoint.info(name).is_some()
}

/// The distillation that the file's name or notes contain, and the steps that it was made for, where they say that.
pub(crate) fn distilled(file: &SingleFile) -> Option<(Distillation, Option<usize>)> {
    let notes = file.checkpoint.metadata();
    let name = file.path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let titles = ["modelspec.title", "general.name"].into_iter().filter_map(|key| notes.get(key).cloned());
    Distillation::in_name(&name.into_iter().chain(titles).collect::<Vec<_>>().join(" "))
}

fn deviation(values: &[f32]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / n;
    (values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / n).sqrt()
}
