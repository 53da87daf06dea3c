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
