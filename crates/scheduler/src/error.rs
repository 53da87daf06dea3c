//! The errors of this crate.

use crate::{SamplerKind, SigmaSchedule};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A sentence with all known names, where no name is near.
fn all(nearest: &str, kind: &str, known: &str) -> String {
    if nearest == "." { format!(" The {kind} are: {known}") } else { String::new() }
}

/// Every error of this crate. Each message reports the value found and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not JSON, or a key has a value of the wrong type.
    #[error(
        "scheduler_config.json cannot be read: {0}; expected the JSON object that diffusers saves in a model's scheduler folder"
    )]
    Json(#[from] serde_json::Error),

    /// `_class_name` is missing, or names a scheduler that is not implemented.
    #[error("scheduler class {class:?} is not supported; choose a sampler by name instead: {}", SamplerKind::ids())]
    UnknownClass {
        /// The `_class_name` found, empty where there was none.
        class: String,
    },

    /// No sampler has this name.
    #[error("unknown sampler {name:?}{nearest}{}", all(nearest, "samplers", &SamplerKind::ids()))]
    UnknownSampler {
        /// The name given, cut by [`crate::short_name`].
        name: String,
        /// The nearest names, by [`crate::closest`].
        nearest: String,
    },

    /// No sigma schedule has this name.
    #[error("unknown sigma schedule {name:?}{nearest}{}", all(nearest, "schedules", known))]
    UnknownSigmaSchedule {
        /// The name given, cut by [`crate::short_name`].
        name: String,
        /// The nearest names, by [`crate::closest`].
        nearest: String,
        /// All of them.
        known: String,
    },

    /// An option has an impossible value, or no effect on the sampler.
    #[error("`{option}` is {value}, expected {expected}")]
    Option {
        /// The option's name, as in [`crate::SamplerOptions`].
        option: &'static str,
        /// Its value.
        value: String,
        /// The accepted values.
        expected: String,
    },

    /// A key of the configuration has a value that is not supported.
    #[error("scheduler_config.json: {key} = {value} is not supported; expected {expected}")]
    Unsupported {
        /// The JSON key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },

    /// A sampler that is not defined for flow models.
    #[error(
        "sampler {sampler} is not defined for flow models; the samplers that work are: {}",
        SamplerKind::flow_ids()
    )]
    FlowSampler {
        /// The sampler.
        sampler: SamplerKind,
    },

    /// A sigma schedule that has no levels for flow models.
    #[error(
        "sigma schedule {schedule} has no noise levels for flow models; the schedules that work are: {}",
        SigmaSchedule::flow_ids()
    )]
    FlowSchedule {
        /// The schedule.
        schedule: SigmaSchedule,
    },

    /// The shift of the noise levels depends on the image's size, which was not set.
    #[error("this model's noise levels depend on the image's size; set FlowInputs::image_tokens, or a static shift")]
    NoImageTokens,

    /// The number of steps is zero, or more than the model was trained with.
    #[error("{steps} sampling steps are out of range; choose between {min} and {max}")]
    Steps {
        /// The requested number.
        steps: usize,
        /// The minimum of this sampler.
        min: usize,
        /// The number of training timesteps.
        max: usize,
    },

    /// The number of steps is so high that two of them have the same noise level after rounding.
    #[error(
        "{steps} sampling steps put two steps on timestep {timestep}; choose fewer steps, or another sampler or timestep_spacing"
    )]
    TooFine {
        /// The requested number of steps.
        steps: usize,
        /// The timestep that came twice.
        timestep: f64,
    },

    /// A timestep outside the training range, which only `steps_offset` can cause.
    #[error(
        "timestep {timestep} is outside of the {num_train_timesteps} training timesteps; choose fewer steps, or a smaller steps_offset"
    )]
    Timestep {
        /// The timestep.
        timestep: i64,
        /// The length of the training schedule.
        num_train_timesteps: usize,
    },

    /// A start index that this schedule cannot start at.
    #[error("cannot start at model evaluation {index} of {len}: {reason}")]
    Start {
        /// The requested index.
        index: usize,
        /// The number of model evaluations.
        len: usize,
        /// The reason.
        reason: &'static str,
    },

    /// At zero signal, an epsilon prediction does not determine the image.
    #[error(
        "timestep {timestep} is pure noise (rescale_betas_zero_snr), where an epsilon prediction cannot give an image; use a v_prediction model, or drop rescale_betas_zero_snr"
    )]
    ZeroSignal {
        /// The timestep.
        timestep: f64,
    },

    /// All steps of the schedule are done.
    #[error("all {len} model evaluations of this schedule are done; make a new stepper to start again")]
    Finished {
        /// The number of model evaluations.
        len: usize,
    },

    /// The model's output does not have the shape of the latents.
    #[error(
        "the model gave shape {found:?} for latents of shape {expected:?}; it must predict one value for each latent"
    )]
    OutputShape {
        /// The shape of the latents.
        expected: Vec<usize>,
        /// The shape of the model's output.
        found: Vec<usize>,
    },

    /// The number of images differs from the number of generators.
    #[error("{found} images for {expected} noise generators; make one generator for each image of the batch")]
    Images {
        /// The number of generators.
        expected: usize,
        /// The number of images.
        found: usize,
    },

    /// A sampler with CFG++ got no unconditional prediction from the model.
    #[error("sampler {sampler} also needs the model's unconditional prediction; return one, or use another sampler")]
    NoUnconditional {
        /// The sampler.
        sampler: SamplerKind,
    },

    /// The step callback asked to stop.
    #[error("sampling was interrupted")]
    Interrupted,

    /// An operation on tensors failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),

    /// An operator failed.
    #[error(transparent)]
    Ops(#[from] kiln_ops::Error),
}
