//! Models before their weights are loaded: where they are, what they have, and how they are converted.
//!
//! A [`ModelFolder`] is a folder in the diffusers layout or a checkpoint file, with its configurations read and checked.
//! This crate finds models on the disk and on the Hugging Face Hub, converts and inspects them, and computes their hashes. It
//! knows nothing of prompts, requests, pipelines or flags. Errors name the file or the field.
//!
//! ```no_run
//! use kiln_models::{DTypeChoice, ModelFolder, SD, inspect, locate_model};
//!
//! let model = ModelFolder::open(&locate_model(None)?)?;
//! assert_eq!(model.family(), SD);
//! inspect(model.path(), DTypeChoice::F32)?;
//! # Ok::<(), kiln_models::Error>(())
//! ```
#![forbid(unsafe_code)]

mod components;
mod control;
mod convert;
mod defaults;
mod denoiser;
mod distillation;
mod dtype;
mod error;
mod file_kind;
mod files;
mod foreign;
mod hashes;
mod hub;
mod image_embeds;
mod image_encoder;
mod inspect;
mod installed;
mod ip_adapter;
mod latent_rgb;
pub mod limits;
mod locate;
mod model;
mod presets;
mod single_file;
mod tested;
mod text_stage;

pub use components::Component;
pub use control::ControlFile;
pub use convert::{Converted, WeightType, convert};
pub use defaults::Defaults;
pub use distillation::Distillation;
pub use dtype::{DTypeChoice, decoder_dtype};
pub use error::{Error, Result};
pub use file_kind::FileKind;
pub use files::{ModelFiles, ModelOptions};
pub use foreign::{ForeignModel, foreign_lora};
pub use hashes::{Hashed, Hashes, Scope, old_hash};
pub use hub::{HubOptions, cached, fetched, pull};
pub use image_embeds::ImageEmbeds;
pub use image_encoder::{ImageEncoderFile, encoded};
pub use inspect::{
    ComponentReport, FileModel, FileReport, FolderReport, Inspected, ListEntry, ListReport, LoraNotes, SegmentReport,
    Stored, inspect,
};
pub use installed::{InstalledModel, InstalledPlace, installed};
pub use ip_adapter::IpAdapterFile;
pub use kiln_families::{
    BuiltInTokenizer, Component as ComponentSpec, ComponentKind, Family, FamilyRef, KONTEXT_SIZES, LCM_GUIDANCE,
    ReferenceSizes, References, SD, SDXL, TextLayer, TextPart, TokenizerFiles, Variant, area_size, nearest_size,
};
pub use kiln_hub::{Error as HubError, Event as HubEvent, Listener as HubListener, Pulled, Reference as HubReference};
pub use kiln_network::ExtraChannels;
pub use latent_rgb::LatentRgb;
pub use locate::{BuiltIn, built_in_name, locate_input, locate_model, locate_named, set_built_in};
pub use model::ModelFolder;
pub use presets::{Architecture, Preset};
pub use single_file::kind::{ModelInput, Prediction};
pub use tested::{TESTED, TestedModel};
