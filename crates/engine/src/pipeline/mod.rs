//! The pipeline: from a batch of a job's images to their pixels.
//!
//! A run is a list of stages over a batch ([`crate::Stage`]): the texts are encoded, and an initial image where
//! there is one (`first_stages`), the denoiser runs (`denoise`), the latents are decoded (`decode`). [`run_batch`] runs them, for single calls and for image sets.
//!
//! A program that makes images needs [`crate::Engine`] and nothing of this module. It is public for the crates above the
//! engine: image sets hand batches to [`run_batch`] and take latents and images from a [`BatchSink`], and measurements run
//! the guided step ([`GuidedStep`]), groups of a [`crate::RunningBatch`] and networks by themselves.

mod ahead_noise;
mod areas;
pub(crate) mod batch;
mod blended_texts;
mod block_cache;
mod call_rows;
mod calls;
pub(crate) mod conditioning;
pub(crate) mod control_images;
pub(crate) mod control_inputs;
pub(crate) mod decode;
pub(crate) mod decoder;
mod denoise;
mod evaluate;
pub(crate) mod event;
mod extra_channels;
mod first_stages;
#[cfg(test)]
mod fixed_text_tests;
pub(crate) mod group;
pub(crate) mod guidance;
mod halves;
pub(crate) mod image_encoder;
mod join;
mod kept;
mod latent_upscale;
mod lengths;
mod network_parts;
pub(crate) mod overlap;
mod overlap_thread;
mod pending_latents;
pub(crate) mod preview;
pub(crate) mod previewer;
mod projection;
pub(crate) mod prompt_inputs;
pub(crate) mod recorded;
pub(crate) mod reference_inputs;
pub(crate) mod run;
pub(crate) mod running;
mod second_checks;
pub(crate) mod second_denoiser;
pub(crate) mod second_pass;
mod self_attention;
pub(crate) mod shared_texts;
mod soft_inpaint;
pub(crate) mod start;
pub(crate) mod steering;
pub(crate) mod step;
pub(crate) mod text;
pub(crate) mod text_cache;
pub(crate) mod text_plan;
mod text_stage;
mod throttle;
pub(crate) mod tokens;
pub(crate) mod trace;
pub(crate) mod turns;

pub use crate::component::pinned_pool;
pub use crate::generated_image::DecodedImage;
pub use crate::host_memory::SystemRequests;
pub use crate::origin::Origin;
pub use crate::plan::{control_flop, decoder_flop, denoiser_flop, preparation_flop, text_flop};
pub use batch::Batch;
pub use conditioning::{ConditioningPlan, Conditions, SharedConditions, TimeIds};
pub use decode::{Latents, begin_decoding, decode};
pub use decoder::{Network as DecoderNetwork, UpcastRetry, supported_dtype};
pub use group::Group;
pub use guidance::Guidance;
pub use image_encoder::Network as EncoderNetwork;
pub use overlap::OverlappedNetworks;
pub use overlap_thread::OverlapThread;
pub use pending_latents::PendingLatents;
pub use recorded::{RUNS_UNTIL_RECORDED, RecordedStep};
pub use run::{BatchRequest, BatchSink, BatchTimes, run_batch};
pub use start::Start;
pub use step::GuidedStep;
pub use text_plan::Shape;
