//! The configurations of a model in one file, in the form of a diffusers folder.
//!
//! Most values follow from tensor shapes; the others are properties of the official models: heads, groups, the scaling
//! factor of latents, the noise schedule.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln_clip::{ClipPadding, TextEncoderConfig};
use kiln_families::{
    BuiltInTokenizer, Component, ComponentKind, FamilyRef, FileDenoiser, FileText, SD2, SDXL_REFINER, of_unet,
};
use kiln_network::text::EncoderConfig;
use kiln_weights::ldm::{ClipDialect, ClipShape, UnetLevel, UnetShape};
use serde_json::{Value, json};

use super::kind::{ModelInput, Prediction, prediction, zero_terminal_snr};
use super::vae_config::{vae_class, vae_config};
use super::{FilePart, SingleFile};
use crate::error::{Error, Result};
use crate::file_kind::FileKind;

/// A folder's configurations by relative path.
pub(crate) type Configs = BTreeMap<String, Value>;

/// Channels of an attention head in every model since Stable Diffusion 2.
const HEAD_DIM: usize = 64;
/// Heads in Stable Diffusion 1, whose outer projections are convolutions.
const SD1_HEADS: usize = 8;
/// Layers of OpenCLIP's ViT-H.
const OPENCLIP_H_LAYERS: usize = 24;
/// Channels of CLIP's first text encoder (OpenAI's ViT-L), which has its own activation.
pub(crate) const OPENAI_WIDTH: usize = 768;
/// Channels of OpenCLIP's ViT-H and ViT-bigG, which some files store under the names of transformers.
const OPENCLIP_WIDTHS: [usize; 2] = [1024, 1280];

/// The configurations of the model. `others` may provide some of its components.
///
/// # Errors
/// [`Error::Incomplete`] if a component is missing.
pub(crate) fn configs(file: &SingleFile, others: &[Arc<SingleFile>]) -> Result<Configs> {
    if let Some((family, denoiser)) = file.of_family() {
        return of_family(family, denoiser, file, others);
    }
    let unet = file.unet_shape();
    let is_xl = unet.is_some_and(|unet| unet.added_dim.is_some());
    let is_refiner = unet.is_some_and(|unet| of_unet(unet).variant(unet) == SDXL_REFINER);
    let vae = file.vae.as_ref().or_else(|| others.iter().find_map(|other| other.vae.as_ref()));
    let own = file.clip_of("text_encoder");
    // Of two encoders, OpenAI's narrow one is the first, whichever file contains it.
    let elsewhere = |first: bool| {
        let texts = others.iter().flat_map(|other| other.texts.iter().filter_map(|(_, part)| part.shape.clip()));
        texts
            .filter(|_| own.is_none())
            .find(|shape| !is_xl || is_refiner || (shape.hidden_size == OPENAI_WIDTH) == first)
    };
    let first = own.or_else(|| elsewhere(true));
    let second = file.clip_of("text_encoder_2").or_else(|| elsewhere(false).filter(|_| is_xl && !is_refiner));
    let (Some(unet), Some(FilePart { shape: vae, .. }), Some(first)) = (unet, vae, first) else {
        return Err(incomplete(file));
    };
    let predicted = prediction(file);
    let mut configs = Configs::new();
    configs.insert("unet/config.json".into(), unet_config(unet, predicted));
    configs.insert("vae/config.json".into(), vae_config(vae, of_unet(unet)));
    // Of XL's two encoders the refiner has the second.
    let is_second = is_xl && second.is_none();
    let place = if is_second { "text_encoder_2/config.json" } else { "text_encoder/config.json" };
    configs.insert(place.into(), text_config(first, is_second, !is_xl));
    if let Some(second) = second {
        configs.insert("text_encoder_2/config.json".into(), text_config(second, true, false));
    }
    let scheduler = match unet.guidance_dim {
        Some(_) => lcm_scheduler(predicted),
        None => scheduler(is_xl, predicted, zero_terminal_snr(file)),
    };
    let mut index = model_index(unet, second.is_some());
    index["scheduler"] = json!(["diffusers", scheduler["_class_name"]]);
    configs.insert("scheduler/scheduler_config.json".into(), scheduler);
    configs.insert("model_index.json".into(), index);
    Ok(configs)
}

/// The configurations of a model whose denoiser `family` recognized.
fn of_family(
    family: FamilyRef,
    denoiser: &FileDenoiser,
    file: &SingleFile,
    others: &[Arc<SingleFile>],
) -> Result<Configs> {
    let vae = file.vae.as_ref().or_else(|| others.iter().find_map(|other| other.vae.as_ref()));
    let Some(FilePart { shape: vae, .. }) = vae else { return Err(incomplete(file)) };
    let mut configs = Configs::new();
    let scheduler = family.derived_scheduler(denoiser);
    let mut index = json!({
        "_class_name": family.class_of_file(denoiser),
        "scheduler": ["diffusers", scheduler["_class_name"]],
        "vae": ["diffusers", vae_class(vae)],
    });
    // Text encoders in other files, the narrow ones of a kind first, as families have them.
    let mut elsewhere: Vec<(ComponentKind, &FileText)> =
        others.iter().flat_map(|other| &other.texts).map(|(kind, part)| (*kind, &part.shape)).collect();
    elsewhere.sort_by_key(|(_, text)| text.width());
    for component in family.components() {
        let config = match component.kind {
            ComponentKind::Vae => vae_config(vae, family),
            _ if component.is_denoiser() => denoiser.config.clone(),
            kind => {
                let own =
                    file.text_of(component.folder, kind).and_then(|i| file.texts.get(i)).map(|(_, part)| &part.shape);
                let other = elsewhere.iter().position(|(other, _)| own.is_none() && *other == kind);
                let Some(text) = own.or_else(|| other.map(|i| elsewhere.remove(i).1)) else {
                    if !family.texts_are_optional() {
                        return Err(incomplete(file));
                    }
                    index[component.folder] = json!([null, null]);
                    continue;
                };
                let clip = |clip: &ClipShape| text_config(clip, clip.projection_dim.is_some(), false);
                text.config().or_else(|| text.clip().map(clip)).unwrap_or_default()
            }
        };
        if component.kind != ComponentKind::Vae {
            let library = if component.is_denoiser() { "diffusers" } else { "transformers" };
            let class = config["_class_name"].as_str().or_else(|| config["architectures"][0].as_str());
            index[component.folder] = json!([library, class]);
        }
        configs.insert(component.config(), config);
    }
    configs.insert("scheduler/scheduler_config.json".into(), scheduler);
    configs.insert("model_index.json".into(), index);
    Ok(configs)
}

/// The error for a file that does not contain a whole model.
fn incomplete(file: &SingleFile) -> Error {
    let all: Vec<(ComponentKind, bool)> = match file.of_family() {
        Some((family, _)) => {
            let needed = |kind: ComponentKind| !kind.is_text_encoder() || !family.texts_are_optional();
            let has = |component: &Component| match component.kind {
                ComponentKind::Vae => file.vae.is_some(),
                kind => component.is_denoiser() || file.text_of(component.folder, kind).is_some(),
            };
            let all = family.components().iter().map(|component| (component.kind, has(component)));
            all.filter(|&(kind, there)| there || needed(kind)).collect()
        }
        None => vec![
            (ComponentKind::Unet, file.denoiser.is_some()),
            (ComponentKind::Vae, file.vae.is_some()),
            (ComponentKind::Clip, !file.texts.is_empty()),
        ],
    };
    let list = |there: bool| all.iter().filter(|one| one.1 == there).map(|one| one.0).collect();
    let (missing, found): (_, Vec<ComponentKind>) = (list(false), list(true));
    let kind = FileKind::of(file.checkpoint.as_ref());
    if found.is_empty() && !matches!(kind, FileKind::Unknown | FileKind::Checkpoint) {
        return Error::OtherKind { path: file.path.clone(), kind };
    }
    Error::Incomplete {
        path: file.path.clone(),
        missing,
        found,
        is_known: file.unet_shape().is_some() || file.of_family().is_some(),
    }
}

fn model_index(unet: &UnetShape, two_encoders: bool) -> Value {
    let class = match (unet.added_dim.is_some(), two_encoders, ModelInput::of(unet)) {
        (false, _, ModelInput::Inpainting) => "StableDiffusionInpaintPipeline",
        (false, _, ModelInput::Depth) => "StableDiffusionDepth2ImgPipeline",
        (false, _, ModelInput::Edit) => "StableDiffusionInstructPix2PixPipeline",
        (false, ..) if unet.guidance_dim.is_some() => "LatentConsistencyModelPipeline",
        (false, ..) => "StableDiffusionPipeline",
        (true, false, _) => "StableDiffusionXLImg2ImgPipeline",
        (true, true, ModelInput::Inpainting) => "StableDiffusionXLInpaintPipeline",
        (true, true, _) => "StableDiffusionXLPipeline",
    };
    let mut index = json!({
        "_class_name": class,
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    });
    if unet.added_dim.is_some() && !two_encoders {
        (index["text_encoder"], index["tokenizer"]) = (json!([null, null]), json!([null, null]));
        index["requires_aesthetics_score"] = json!(true);
    }
    if unet.added_dim.is_some() {
        index["text_encoder_2"] = json!(["transformers", "CLIPTextModelWithProjection"]);
        index["tokenizer_2"] = json!(["transformers", "CLIPTokenizer"]);
    }
    if unet.added_dim.is_some() {
        index["force_zeros_for_empty_prompt"] = json!(two_encoders);
    }
    index
}

/// One number if all are equal, else a list.
fn one_or_each<T: PartialEq + Into<Value> + Copy>(values: &[T]) -> Value {
    match values {
        [first, rest @ ..] if rest.iter().all(|value| value == first) => (*first).into(),
        _ => json!(values.iter().map(|&value| value.into()).collect::<Vec<Value>>()),
    }
}

pub(crate) fn unet_config(unet: &UnetShape, prediction: Prediction) -> Value {
    let has_transformer = |level: &UnetLevel| level.depths.iter().any(|&depth| depth > 0);
    let types = |levels: &[UnetLevel], cross: &str, plain: &str| -> Vec<String> {
        levels.iter().map(|level| if has_transformer(level) { cross } else { plain }.to_string()).collect()
    };
    // A level without transformers has no depth; the depth of the last level applies to the middle block.
    let middle = unet.middle.filter(|&depth| depth > 0);
    let depth = |(i, level): (usize, &UnetLevel), count: usize| -> Value {
        match (has_transformer(level), middle) {
            (true, _) => one_or_each(&level.depths),
            (false, Some(middle)) if i + 1 == count => middle.into(),
            (false, _) => 1.into(),
        }
    };
    let down: Vec<Value> = unet.down.iter().enumerate().map(|level| depth(level, unet.down.len())).collect();
    let up: Vec<Value> = unet.up.iter().enumerate().map(|level| depth(level, 0)).collect();
    let mirrored = unet.down.iter().rev().zip(&unet.up).all(|(down, up)| {
        let depths: Vec<usize> = down.depths.iter().chain(&up.depths).copied().collect();
        depths.iter().all(|depth| *depth == depths[0])
    });
    let channels: Vec<usize> = unet.down.iter().map(|level| level.channels).collect();
    let layers: Vec<usize> = unet.down.iter().map(|level| level.depths.len()).collect();
    let heads = match unet.linear_projection {
        true => json!(channels.iter().map(|channels| (channels / HEAD_DIM).max(1)).collect::<Vec<_>>()),
        false => json!(SD1_HEADS),
    };
    let mut config = json!({
        "_class_name": "UNet2DConditionModel",
        "act_fn": "silu",
        "attention_head_dim": heads,
        "block_out_channels": channels,
        "center_input_sample": false,
        "cross_attention_dim": unet.context_dim.max(1),
        "down_block_types": types(&unet.down, "CrossAttnDownBlock2D", "DownBlock2D"),
        "downsample_padding": 1,
        "flip_sin_to_cos": true,
        "freq_shift": 0,
        "in_channels": unet.in_channels,
        "layers_per_block": one_or_each(&layers),
        "mid_block_scale_factor": 1,
        "mid_block_type": match unet.middle {
            Some(0) => json!("UNetMidBlock2D"),
            Some(_) => json!("UNetMidBlock2DCrossAttn"),
            None => Value::Null,
        },
        "norm_eps": 1e-5,
        "norm_num_groups": 32,
        "out_channels": unet.out_channels,
        "sample_size": match (unet.added_dim.is_some(), prediction, unet.context_dim) {
            (true, ..) => 128,
            (false, Prediction::V, 1024) => 96,
            _ => 64,
        },
        "up_block_types": types(&unet.up, "CrossAttnUpBlock2D", "UpBlock2D"),
        "use_linear_projection": unet.linear_projection,
    });
    if down.iter().any(|depth| *depth != json!(1)) || !mirrored {
        config["transformer_layers_per_block"] = json!(down);
    }
    if !mirrored {
        config["reverse_transformer_layers_per_block"] = json!(up);
    }
    if let Some(dim) = unet.added_dim {
        config["addition_embed_type"] = json!("text_time");
        config["addition_time_embed_dim"] = json!(256);
        config["projection_class_embeddings_input_dim"] = json!(dim);
    }
    if let Some(dim) = unet.guidance_dim {
        config["time_cond_proj_dim"] = json!(dim);
    }
    if of_unet(unet).variant(unet) == SD2 && prediction == Prediction::V {
        // As in Stable Diffusion 2.1: its attention overflows in f16 without this. Kiln always computes it so.
        config["upcast_attention"] = json!(true);
    }
    config
}

/// The tokenizer of a text encoder of `kind` in a single file of `family` without a tokenizer.
pub(crate) fn built_in_tokenizer(
    family: FamilyRef,
    kind: ComponentKind,
    config: &dyn EncoderConfig,
) -> Option<BuiltInTokenizer> {
    let padding = |config: &TextEncoderConfig| {
        let dialect = if config.hidden_act == "gelu" { ClipDialect::OpenClip } else { ClipDialect::Transformers };
        clip_padding(dialect, config.hidden_size)
    };
    family.built_in_tokenizer(kind, config.own::<TextEncoderConfig>().map_or(ClipPadding::End, padding))
}

/// The padding of CLIP's tokenizer for a text encoder of `width` channels.
pub(crate) fn clip_padding(dialect: ClipDialect, width: usize) -> ClipPadding {
    if is_openai(dialect, width) { ClipPadding::End } else { ClipPadding::Zero }
}

/// Whether a text encoder is OpenAI's (its activation and padding differ from OpenCLIP's): by the official widths, and
/// for other widths by the naming scheme.
pub(crate) fn is_openai(dialect: ClipDialect, width: usize) -> bool {
    match width {
        OPENAI_WIDTH => true,
        _ if OPENCLIP_WIDTHS.contains(&width) => false,
        _ => matches!(dialect, ClipDialect::Transformers | ClipDialect::Bare),
    }
}

/// `without_last`: Stable Diffusion 2 uses the penultimate layer of its encoder, OpenCLIP's ViT-H, so its folders have
/// one layer less.
pub(super) fn text_config(text: &ClipShape, projected: bool, without_last: bool) -> Value {
    let is_open = !is_openai(text.dialect, text.hidden_size);
    let layers = text.layers - usize::from(without_last && text.layers == OPENCLIP_H_LAYERS);
    json!({
        "architectures": [if projected { "CLIPTextModelWithProjection" } else { "CLIPTextModel" }],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": if is_open { "gelu" } else { "quick_gelu" },
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": text.positions,
        "model_type": "clip_text_model",
        "num_attention_heads": (text.hidden_size / HEAD_DIM).max(1),
        "num_hidden_layers": layers,
        "pad_token_id": 1,
        "projection_dim": text.projection_dim.filter(|_| projected).unwrap_or(text.hidden_size),
        "vocab_size": text.vocab_size,
    })
}

/// The schedule of SimianLuo/LCM_Dreamshaper_v7, the first latent consistency model.
fn lcm_scheduler(prediction: Prediction) -> Value {
    json!({
        "_class_name": "LCMScheduler",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "clip_sample": false,
        "num_train_timesteps": 1000,
        "original_inference_steps": 50,
        "prediction_type": prediction.id(),
        "set_alpha_to_one": true,
        "steps_offset": 0,
        "timestep_scaling": 10.0,
        "timestep_spacing": "leading",
        "trained_betas": null,
    })
}

fn scheduler(is_xl: bool, prediction: Prediction, zero_snr: bool) -> Value {
    let mut config = json!({
        "_class_name": match (is_xl, prediction) {
            (true, _) => "EulerDiscreteScheduler",
            (false, Prediction::V) => "DDIMScheduler",
            (false, Prediction::Epsilon | Prediction::Flow) => "PNDMScheduler",
        },
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "clip_sample": false,
        "num_train_timesteps": 1000,
        "prediction_type": prediction.id(),
        "set_alpha_to_one": false,
        "skip_prk_steps": true,
        "steps_offset": 1,
        "trained_betas": null,
    });
    if is_xl {
        config["interpolation_type"] = json!("linear");
        config["timestep_spacing"] = json!(if zero_snr { "trailing" } else { "leading" });
    }
    if zero_snr {
        config["rescale_betas_zero_snr"] = json!(true);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_families::unet_shape;
    use kiln_scheduler::{SamplerKind, SchedulerConfig};
    use kiln_unet::UnetConfig;

    /// A distilled U-Net in a file equals one in a folder: the width of its embedding, the class, the schedule.
    #[test]
    fn a_tensor_shows_guidance_embedding() {
        let text = std::fs::read_to_string(kiln_testkit::fixtures("lcm/unet/config.json")).unwrap();
        let shape = unet_shape(&UnetConfig::from_json(&text).unwrap());
        assert_eq!(shape.guidance_dim, Some(10));
        assert_eq!(unet_config(&shape, Prediction::Epsilon)["time_cond_proj_dim"], 10);
        assert_eq!(model_index(&shape, false)["_class_name"], "LatentConsistencyModelPipeline");
        let schedule = SchedulerConfig::from_json(&lcm_scheduler(Prediction::Epsilon).to_string()).unwrap();
        assert_eq!(schedule.sampler().unwrap(), SamplerKind::Lcm);
    }

    #[test]
    fn names_identify_a_text_encoder_of_unusual_width() {
        let shape = |dialect, hidden_size| ClipShape {
            dialect,
            vocab_size: 100,
            positions: 77,
            hidden_size,
            intermediate_size: 64,
            layers: 2,
            projection_dim: None,
        };
        let act = |dialect, width| text_config(&shape(dialect, width), false, true)["hidden_act"].clone();
        assert_eq!(act(ClipDialect::Transformers, 512), "quick_gelu");
        assert_eq!(act(ClipDialect::OpenClip, 512), "gelu");
        assert_eq!(act(ClipDialect::OpenClip, 768), "quick_gelu");
        assert_eq!(act(ClipDialect::Transformers, 1024), "gelu", "Stable Diffusion 2 by other programs");
    }

    /// The official file of Stable Diffusion 2.1 contains it, and diffusers reads it.
    #[test]
    fn stable_diffusion_2_with_velocities_upcasts_its_attention() {
        let text = r#"{"block_out_channels": [320, 640, 1280, 1280], "cross_attention_dim": 1024,
            "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": true}"#;
        let shape = unet_shape(&UnetConfig::from_json(text).unwrap());
        assert_eq!(unet_config(&shape, Prediction::V)["upcast_attention"], true);
        assert_eq!(unet_config(&shape, Prediction::Epsilon)["upcast_attention"], Value::Null);
    }
}
