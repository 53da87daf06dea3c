//! Control networks and reference images of a family.

use std::sync::Arc;

use kiln_dit::FluxControlConfig;
use kiln_dit::sd3::Sd3ControlConfig;
use kiln_network::ControlConfig;
use kiln_unet::{AdapterConfig, ControlModelConfig};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{FluxControlShape, Names, Sd3ControlShape, same_names};
use serde_json::json;

use crate::error::Result;
use crate::transformer_configs::flux_axes;

/// The name of a control network of Stable Diffusion 3, with its article.
pub(crate) const SD3_CONTROL: &str = "a Stable Diffusion 3 ControlNet";
/// The name of one of FLUX.1.
pub(crate) const FLUX_CONTROL: &str = "a FLUX.1 ControlNet";

/// diffusers' class of T2I-Adapters.
const ADAPTER: &str = "T2IAdapter";
/// The classes of control networks of U-Nets.
pub(crate) const UNET_CLASSES: &[(&str, &str)] = &[
    ("ControlNetModel", "a ControlNet for a U-Net"),
    ("ControlNetUnionModel", "a ControlNet for a U-Net"),
    (ADAPTER, "a T2I-Adapter for a U-Net"),
];

/// A control network in one file.
#[derive(Clone)]
pub struct FileControl {
    /// The names of its tensors.
    pub names: Arc<Names>,
    /// Its configuration, derived from names and shapes.
    pub config: Arc<dyn ControlConfig>,
}

/// The rule for the size of reference images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceSizes {
    /// The size `[width, height]` of these whose ratio is nearest to the image's.
    Nearest(&'static [[usize; 2]]),
    /// The image's own, after it was made smaller to so many pixels at most. Its middle is cut out, in multiples of the model.
    AtMost(usize),
    /// The size with the image's ratio and about so many pixels, in multiples of 32.
    Area(usize),
}

/// Sides of [`ReferenceSizes::Area`] are multiples of this number of pixels.
const AREA_MULTIPLE: usize = 32;

/// How a model takes reference images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    /// The sizes in which the denoiser sees them.
    pub sizes: ReferenceSizes,
    /// The sizes in which the text encoder sees them too; `None` if it sees none.
    pub text: Option<ReferenceSizes>,
    /// The largest number of images.
    pub most: usize,
}

impl References {
    /// Any number of images of these sizes, which the denoiser alone sees.
    pub fn of_denoiser(sizes: ReferenceSizes) -> Self {
        Self { sizes, text: None, most: usize::MAX }
    }
}

/// The size `[width, height]` with the ratio of `size` and about `pixels` pixels, each side rounded to a multiple of 32: the nearest,
/// of two the even one (diffusers' `calculate_dimensions` of Qwen-Image-Edit).
pub fn area_size(pixels: usize, [width, height]: [usize; 2]) -> [usize; 2] {
    let ratio = width as f64 / height.max(1) as f64;
    let width = (pixels as f64 * ratio).sqrt();
    let unit = AREA_MULTIPLE as f64;
    [width, width / ratio].map(|side| ((side / unit).round_ties_even() as usize * AREA_MULTIPLE).max(AREA_MULTIPLE))
}

/// The size `[width, height]` of `sizes` whose ratio is nearest to that of `size`; of two with one distance the narrower one. `None` for
/// an empty list.
pub fn nearest_size(sizes: &[[usize; 2]], size: [usize; 2]) -> Option<[usize; 2]> {
    let ratio = |[width, height]: [usize; 2]| width as f64 / height.max(1) as f64;
    let distance = |other: &[usize; 2]| (ratio(size) - ratio(*other)).abs();
    sizes.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.cmp(b)))
}

/// The configuration of a control network of a U-Net.
pub(crate) fn unet_control(class: &str, json: &str) -> Result<Arc<dyn ControlConfig>> {
    Ok(Arc::new(match class {
        ADAPTER => ControlModelConfig::Adapter(AdapterConfig::from_json(json)?),
        _ => ControlModelConfig::ControlNet(kiln_unet::ControlConfig::from_json(json)?),
    }))
}

/// The configuration of a control network of Stable Diffusion 3.
pub(crate) fn sd3_control(json: &str) -> Result<Arc<dyn ControlConfig>> {
    Ok(Arc::new(Sd3ControlConfig::from_json(json)?))
}

/// The configuration of a control network of FLUX.1.
pub(crate) fn flux_control(json: &str) -> Result<Arc<dyn ControlConfig>> {
    Ok(Arc::new(FluxControlConfig::from_json(json)?))
}

/// A control network of Stable Diffusion 3 in one file. Stability AI's take the pooled text (diffusers'
/// `convert_sd3_controlnet_to_diffusers.py`); for others the default of diffusers' class holds.
pub(crate) fn read_sd3_control(source: &dyn ParamSource) -> Option<Result<FileControl>> {
    let shape = Sd3ControlShape::read(source)?;
    let json = json!({
        "attention_head_dim": shape.head_dim,
        "caption_projection_dim": shape.width,
        "dual_attention_layers": shape.dual_blocks,
        "extra_conditioning_channels": shape.extra_channels,
        "force_zeros_for_pooled_projection": !shape.is_fused,
        "in_channels": shape.in_channels,
        "joint_attention_dim": shape.context_dim,
        "num_attention_heads": shape.width / shape.head_dim.max(1),
        "num_layers": shape.blocks,
        "patch_size": shape.patch,
        "pooled_projection_dim": shape.pooled_dim,
        "pos_embed_max_size": shape.positions,
        "qk_norm": shape.qk_norm.then_some("rms_norm"),
        "use_pos_embed": shape.positions.is_some(),
    });
    Some(sd3_control(&json.to_string()).map(|config| FileControl { names: Arc::new(shape.names()), config }))
}

/// A control network of FLUX.1 in one file.
pub(crate) fn read_flux_control(source: &dyn ParamSource) -> Option<Result<FileControl>> {
    let shape = FluxControlShape::read(source)?;
    let json = json!({
        "attention_head_dim": shape.head_dim,
        "axes_dims_rope": flux_axes(shape.head_dim),
        "guidance_embeds": shape.guidance,
        "in_channels": shape.in_channels,
        "joint_attention_dim": shape.context_dim,
        "num_attention_heads": shape.width / shape.head_dim.max(1),
        "num_layers": shape.double_blocks,
        "num_mode": shape.modes,
        "num_single_layers": shape.single_blocks,
        "patch_size": 1,
        "pooled_projection_dim": shape.pooled_dim,
    });
    Some(flux_control(&json.to_string()).map(|config| FileControl { names: Arc::new(same_names()), config }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those of `calculate_dimensions`.
    #[test]
    fn an_area_has_the_ratio_of_the_image() {
        for (pixels, size, expected) in [
            (1 << 20, [500, 500], [1024, 1024]),
            (1 << 20, [1920, 1080], [1376, 768]),
            (384 * 384, [1920, 1080], [512, 288]),
            (384 * 384, [30, 100], [224, 704]),
        ] {
            assert_eq!(area_size(pixels, size), expected, "{size:?}");
        }
        assert_eq!(area_size(1 << 20, [1, 16384]), [32, 131072], "no side is 0");
    }
}
