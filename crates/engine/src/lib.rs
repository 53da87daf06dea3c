//! Pipelines that generate images for a [`Request`].
//!
//! This crate combines the parts of Stable Diffusion: the text encoders of a family, the conditioning of the denoiser,
//! and guidance. A request is plain data; crates below do not depend on it.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use kiln_engine::{Engine, Event, ModelFolder, Output, Request, Setup};
//!
//! let model = ModelFolder::open("models/emoji".as_ref())?;
//! let request = Request { prompt: "a red apple".into(), seed: Some(42), ..Request::default() };
//! let job = request.resolve(&model)?;
//! let mut output = Output::plan(Some("apple.png"), false, &job)?; // refused before the model is loaded
//! let mut engine = Engine::load(model, &Setup::default(), &mut |_| ControlFlow::Continue(()))?;
//! engine.txt2img(&job, &mut |event| {
//!     if let Event::Image(image) = event {
//!         println!("{}", output.save(&image)?.display());
//!     }
//!     Ok(ControlFlow::Continue(()))
//! })?;
//! # Ok::<(), kiln_engine::Error>(())
//! ```
#![forbid(unsafe_code)]

mod applied_loras;
mod calibration;
mod engine;
mod engines;
mod inspect;
mod job_networks;
mod loaded_controls;
mod loaded_model;
mod loaded_prompts;
mod memory_manager;
mod memory_need;
mod networks;
mod open_files;
pub mod pipeline;
mod plan;
mod plan_chooser;
mod prompt_length;
mod stage_memory;
mod tested_models;
mod token_count;
mod words;

use kiln_memory::{component, component_spec, read_ahead, residency};
pub use kiln_results::embedding_names;
use kiln_results::{generated_image, origin};
use kiln_setup::{
    ceiling, error, host_memory, machine, memory, mode, room, scales_file, second_device, setup, threads,
};

pub use calibration::{Calibration, CalibrationEvent, CalibrationLimits, CalibrationStage};
pub use engine::Engine;
pub use engines::Engines;
pub use inspect::{Inspection, inspect};
pub use kiln_enlarge::{
    Enlarger, EnlargerEvent, OpenUpscaler, TileRows, UpscaleEvent, UpscaleOptions, UpscaleReport, UpscaleRun,
    UpscalerChoice, upscaled_texts,
};
pub use kiln_files::{ByteSize, PlannedFile, cache_folder};
pub use kiln_media::{ForeignSettings, ImageText, Infotext, PngLevel};
pub use kiln_mempool::{HostPool, SystemMemory, ignore_file_size_signal};
pub use kiln_models::{
    Architecture, ComponentReport, Converted, DTypeChoice, Defaults, Family, FamilyRef, FileKind, FileModel,
    FileReport, FolderReport, ForeignModel, HubError, HubEvent, HubListener, HubOptions, HubReference, ListEntry,
    ListReport, LoraNotes, ModelFolder, ModelInput, ModelOptions, Prediction, Preset, Pulled, SD, SDXL, SegmentReport,
    Stored, WeightType, convert, fetched, locate_input, locate_model, pull,
};
pub use kiln_ops::StopSign;
pub use kiln_prompt::{ChunkCut, Emphasis};
pub use kiln_request::{
    Control, ControlMode, ControlPasses, ControlType, ControlUse, DenoiserSpan, Extend, GuidanceOptions, HiresUpscaler,
    ImageOptions, ImageReport, ImageSource, InfotextKey, Init, InitImage, InitLatents, InpaintArea, InputFile,
    IpAdapter, IpAdapterUse, Job, LatentFilter, LoraName, LoraUse, Mask, MaskContent, NamedFile, NetworkOptions,
    OPTIONS, OptionGroup, OptionKind, OptionRow, OptionValue, OwnSettings, PartFile, PartKind, PromptBlock,
    PromptBlocks, Reference, ReferenceSize, Refiner, RefinerOptions, Request, ResizeChoice, Rng, Rule, SecondPass,
    SeedOptions, SwitchBy, find_lora, find_option, limits, lora_files, nearest_option, request_schema, respell,
};
pub use kiln_results::{GeneratedImage, LatentsFile, Like, Output};
pub use kiln_scheduler::{
    Convention, CpuRng, CudaRng, FlowForm, InitialNoise, SamplerChoice, SamplerKind, SamplerOptions, ScheduleChoice,
    SigmaRange, SigmaSchedule, UniPcScale, number_text,
};
pub use kiln_setup::{
    AutoChoice, CardInfo, ComputeScales, ComputeType, CpuSet, DeviceChoice, DeviceList, Devices, Error, HostWeights,
    LayerScales, LinearWeightType, Link, LinkChoice, LinkRate, LinkSource, Machine, MemoryOptions, Mode, ModeChoice,
    Overlap, Parallel, PortableDevice, PortableInfo, PreviewMethod, PreviewOptions, ResolvedDevice, Result, Room,
    SecondDevice, Setup, Threads, VaeMemory, devices, host_bytes, proceed, start_threads, usual_threads,
};
pub use kiln_weights::SharedSlabs;
pub use loaded_controls::control_configs;
pub use loaded_prompts::{PromptPlan, prompt_blocks, prompt_plans};
pub use memory_need::MemoryNeed;
pub use pipeline::event::{Event, OnEvent, Stage, Timings};
pub use pipeline::running::{GroupId, RunningBatch};
pub use pipeline::shared_texts::TextStore;
pub use pipeline::steering::{NoiseDraw, Steering, StepChange};
pub use pipeline::trace::{StepTrace, TraceFile};
pub use plan::{
    BatchSize, Enlargement, ExecutionTarget, Pass, Plan, PlanReport, Planner, Rates, ReferenceWork, SecondPassWork,
    StagePlan, TextWork, Workload, process_bytes,
};
pub use prompt_length::{LongPrompt, PromptCounter};
pub use tested_models::{Here, TestedNeeds, tested_models};
pub use token_count::{TokenCount, TokenCounter};

/// The example of `docs/library.md`, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryPage;
