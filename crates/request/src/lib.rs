//! Floor 6: requests for images, before any weights are read.
//!
//! A [`Request`] is plain data. Its fields are the rows of one table ([`OPTIONS`]), from which arguments, batch fields, the JSON
//! schema and the settings in images follow. [`Request::resolve`] fills in a model's defaults, checks every value, reads the
//! input images, and gives a [`Job`]. Programs that only write, check or read requests need nothing above this crate.
#![forbid(unsafe_code)]

mod control;
mod error;
mod guidance;
mod hires;
mod init;
mod input;
mod job;
pub mod limits;
mod lora;
mod options;
mod parameters;
mod prompts;
mod refiner;
mod request;
mod seeds;
pub mod settings;
mod upscaler;
mod wildcards;

pub use control::{Control, ControlMode, ControlUse, is_active, scales};
pub use error::{Error, Result};
pub use guidance::Threshold;
pub use hires::{HiresUpscaler, LatentFilter, SecondPass};
pub use init::{Init, InitImage, InitLatents, Mask};
pub use input::{
    Extend, ImageSource, InpaintArea, Input, InputCache, MaskContent, PasteBack, ResizeChoice, Rule, SwitchBy,
};
pub use job::Job;
pub use lora::{LoraName, LoraUse, file_stem, find_lora, lora_files, weight_files};
pub use options::{
    GuidanceOptions, ImageOptions, InfotextKey, MAX_IMAGES, OPTIONS, OptionGroup, OptionKind, OptionRow, OptionValue,
    RefinerOptions, Request, find_option, nearest_option, request_schema, respell, shown,
};
pub use parameters::{FilesInText, parameters};
pub use prompts::{Parsed, ParsedPrompt, PromptPart};
pub use refiner::{DenoiserSpan, Refiner};
pub use request::Rng;
pub use seeds::SeedOptions;
pub use settings::{ComponentKind, ImageReport, InputFile, NamedFile, OwnSettings, PartFile};
pub use upscaler::{OpenUpscaler, UpscalerChoice};
pub use wildcards::Wildcards;
