//! The U-Net with cross attention (diffusers' `UNet2DConditionModel`), which predicts the
//! noise of latents.
//!
//! It is built from `config.json` alone: no model family is hard-coded. The latents at input and output are `(b, c, h,
//! w)`. Inside, everything is channels-last, so that a feature map is its own token matrix.
//!
//! This crate does not depend on files, text, schedules or guidance.
//!
//! ```
//! use candle_core::DType;
//! use kiln_unet::{Unet, UnetConfig};
//!
//! let config = UnetConfig::from_json(r#"{
//!     "block_out_channels": [32, 64], "layers_per_block": 1, "cross_attention_dim": 48, "attention_head_dim": 4,
//!     "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
//!     "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]
//! }"#)?;
//! let unet = Unet::new(config);
//! println!("{} segments, {} bytes", unet.segments().len(), unet.segments().bytes(DType::F16));
//! # Ok::<(), kiln_unet::Error>(())
//! ```
#![forbid(unsafe_code)]

mod blocks;
mod conditioning;
mod config;
mod control;
mod cross_layers;
mod denoiser;
mod encoder;
mod error;
mod hooks;
mod image_prompt;
mod inputs;
mod raw_config;
mod time_embedding;
mod transformer;
mod unet;

pub use conditioning::{AddedConditions, Conditioning, ControlInput, Residuals, guidance_input};
pub use config::{AddedEmbedding, BlockConfig, SCORE_TIME_IDS, SIZE_TIME_IDS, TransformerConfig, UnetConfig};
pub use control::{
    AdapterConfig, AdapterForm, ControlConfig, ControlHint, ControlKinds, ControlModel, ControlModelConfig, ControlNet,
    Lllite, LlliteConfig, LlliteModule, LlliteProjection, T2iAdapter, UnionConfig,
};
pub use cross_layers::CrossLayer;
pub use error::{Error, Result};
pub use hooks::{
    AttentionMap, BlockId, DeepShrink, FeatureCache, FreeU, FreeuRule, HookInputs, LayerId, LayerSelection,
    PerturbedAttention,
};
pub use image_prompt::{
    FaceConfig, ImagePrompt, ImagePromptConfig, ImagePromptNet, KeysValues, Projection, PromptFeatures, PromptInput,
    ResamplerConfig,
};
pub use unet::Unet;
