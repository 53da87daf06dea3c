//! The model families, one file each, and the list of all.
//!
//! A [`Family`] says what its models are made of ([`Component`]), how files name the parts, by which tensors and classes
//! its networks are recognized, and the defaults of a request. Every other crate reads [`FAMILIES`] instead of naming a
//! family. Families that Kiln does not run have names and marks only, so that their files are named in messages.
//!
//! ```
//! use kiln_families::{FAMILIES, of_class};
//!
//! assert_eq!(of_class("StableDiffusionXLPipeline").unwrap().id(), "sdxl");
//! assert!(FAMILIES.iter().any(|family| family.id() == "flux" && family.runs()));
//! ```
#![forbid(unsafe_code)]

mod chroma;
mod clip_unet;
mod component;
mod control;
mod defaults;
mod error;
mod family;
mod file_networks;
mod flow;
mod flux;
mod flux2;
mod held;
mod known;
mod list;
mod lora;
mod mark;
mod qwen_edit;
mod qwen_image;
mod sd;
mod sd3;
mod sdxl;
mod shared;
pub mod text;
mod text_part;
mod tiny_dit;
mod tokenizer;
mod transformer_configs;
mod variant;
mod z_image;

pub use clip_unet::unet_shape;
pub use component::{Component, ComponentKind};
pub use control::{FileControl, ReferenceSizes, References, area_size, nearest_size};
pub use defaults::{FamilyDefaults, ModelTraits};
pub use error::{Error, Result};
pub use family::{DerivedConfig, Family, FamilyRef, LatentColors, TextLayer};
pub use file_networks::{FileDenoiser, FileText};
pub use flow::FlowRules;
pub use flux::KONTEXT_SIZES;
pub use held::held_networks;
pub use list::{
    Detected, FAMILIES, class_label, control_label, control_of_class, denoiser_label, detect, known_lora, lora_family,
    of_class, of_id, of_unet, pipeline_classes, prefixes, prefixes_of_kind, runnable_labels, text_components,
};
pub use lora::{
    TEXT_ENCODER, TEXT_ENCODER_2, TEXT_ENCODER_2_T5, TEXT_ENCODER_3, TRANSFORMER_FLUX, TRANSFORMER_FLUX2,
    TRANSFORMER_SD3, TRANSFORMER_Z_IMAGE, UNET,
};
pub use mark::Mark;
pub use qwen_edit::Edit;
pub use sd::{LCM_GUIDANCE, SD, SD2};
pub use sdxl::{SDXL, SDXL_REFINER};
pub use text_part::TextPart;
pub use tokenizer::{BuiltInTokenizer, TokenizerFiles, sentencepiece_as_texts};
pub use transformer_configs::{flux_config, flux2_config, qwen_config, sd3_config, t5_config, z_image_config};
pub use variant::Variant;
