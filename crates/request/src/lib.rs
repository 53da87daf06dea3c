//! Requests for images, before any weights are read.
//!
//! A [`Request`] is plain data. Its fields are the rows of one table ([`OPTIONS`]), from which arguments, batch fields, the JSON
//! schema and the settings in images follow. [`Request::resolve`] fills in a model's defaults, checks every value, reads the
//! input images, and gives a [`Job`]. Programs that only write, check or read requests need nothing above this crate.
//!
//! ```
//! use kiln_request::{Request, find_option};
//!
//! let request = Request { prompt: "a red apple".into(), steps: Some(0), ..Request::default() };
//! let errors: Vec<String> = request.range_errors().iter().map(ToString::to_string).collect();
//! assert!(errors[0].starts_with("`steps` is 0, expected a number from 1"));
//!
//! // An option has the same name everywhere, and other names that programs give it.
//! let row = find_option("cfg").unwrap();
//! assert_eq!(row.name, "cfg_scale");
//! let mut request = Request { steps: Some(20), ..request };
//! row.value_mut(&mut request).read("7.5").unwrap();
//! assert_eq!(request.cfg_scale, Some(7.5));
//! assert!(request.range_errors().is_empty());
//! ```
#![forbid(unsafe_code)]

mod block_set;
mod builder;
pub mod comfy;
mod control;
mod error;
mod few_steps;
mod flow;
mod guidance;
mod hires;
mod image_prompt;
mod init;
mod input;
mod job;
mod keyed;
pub mod limits;
mod lora;
mod network;
mod notes;
mod options;
mod parameters;
mod prompt_steps;
mod prompts;
mod reference;
mod refiner;
mod regions;
mod request;
mod seeds;
pub mod settings;
mod size_conditions;
mod strength;
mod upscaler;
mod wildcards;

pub use block_set::BlockSet;
pub use builder::{FieldError, JobField, JobSpec, RequestBuilder, UniqueJson, job_fields};
pub use control::{
    Control, ControlMode, ControlPasses, ControlType, ControlUse, Evaluation, acts, adapter_scales, is_active,
    is_adapter_active, scales,
};
pub use error::{Error, Result, message_of_file};
pub use guidance::Threshold;
pub use hires::{HiresUpscaler, LatentFilter, SecondPass};
pub use image_prompt::{IpAdapter, IpAdapterUse, PromptBlock, PromptBlocks, downsampled_mask};
pub use init::{Init, InitImage, InitLatents, Mask};
pub use input::{
    Extend, ImageSource, InpaintArea, Input, InputCache, InputSize, MaskContent, PasteBack, ResizeChoice, Rule,
    SwitchBy,
};
pub use job::Job;
pub use kiln_scheduler::NoisePart;
pub use lora::{LoraName, LoraUse, file_stem, find_lora, lora_files, weight_files};
pub use network::{CacheUse, FreeuFactors, FreeuVersion, PagLayers};
pub use notes::Notes;
pub use options::{
    FlowOptions, GuidanceOptions, ImageOptions, InfotextKey, MAX_IMAGES, ModelFeature, NetworkOptions, OPTIONS,
    OptionGroup, OptionKind, OptionRow, OptionValue, RefinerOptions, Request, SizeOptions, find_option, nearest_option,
    request_schema, respell, shown,
};
pub use parameters::{FilesInText, parameters};
pub use prompt_steps::PromptSteps;
pub use prompts::{Parsed, ParsedPrompt, PromptPart};
pub use reference::{Reference, ReferenceSize, most_references};
pub use refiner::{DenoiserSpan, Refiner};
pub use regions::{BlendText, LatentArea, Region, RegionMap, RegionUse};
pub use request::Rng;
pub use seeds::SeedOptions;
pub use settings::{ImageReport, InputFile, NamedFile, OwnSettings, PartFile, PartKind};
pub use size_conditions::{Crop, SizeConditions};
pub use upscaler::{OpenUpscaler, UpscalerChoice};
pub use wildcards::Wildcards;
