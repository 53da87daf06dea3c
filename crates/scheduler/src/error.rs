//! What can go wrong between a scheduler's JSON and the last step.

use crate::SamplerKind;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every failure of this crate; each message says what was found and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not JSON, or a key has a value of the wrong type.
    #[error(
        "scheduler_config.json cannot be read: {0}; expected the JSON object that diffusers saves in a model's scheduler folder"
    )]
    Json(#[from] serde_json::Error),

    /// `_class_name` is missing, or names a scheduler that is not built here.
    #[error("scheduler class {class:?} is not supported; choose a sampler by name instead: {}", SamplerKind::ids())]
    UnknownClass {
        /// The `_class_name` found, empty where there was none.
        class: String,
    },

    /// No sampler has this name.
    #[error("unknown sampler {name:?}, did you mean {nearest}? The samplers are: {}", SamplerKind::ids())]
    UnknownSampler {
        /// The name given.
        name: String,
        /// The nearest names.
        nearest: String,
    },

    /// No sigma schedule has this name.
    #[error("unknown sigma schedule {name:?}, did you mean {nearest}? The schedules are: {known}")]
    UnknownSigmaSchedule {
        /// The name given.
        name: String,
        /// The nearest names.
        nearest: String,
        /// All of them.
        known: String,
    },

    /// An option is impossible, or says nothing to the sampler.
    #[error("`{option}` is {value}, expected {expected}")]
    Option {
        /// The option's name, as in [`crate::SamplerOptions`].
        option: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        expected: String,
    },

    /// A key of the configuration has a value that is not built here.
    #[error("scheduler_config.json: {key} = {value} is not supported; expected {expected}")]
    Unsupported {
        /// The JSON key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        expected: &'static str,
    },

    /// The number of steps is zero, or more than the model was trained with.
    #[error("{steps} sampling steps are out of range; choose between {min} and {max}")]
    Steps {
        /// The number asked for.
        steps: usize,
        /// The fewest that this sampler takes.
        min: usize,
        /// The number of training timesteps.
        max: usize,
    },

    /// So many steps that rounding gives two of them the same noise level.
    #[error(
        "{steps} sampling steps put two steps on timestep {timestep}; choose fewer steps, or another sampler or timestep_spacing"
    )]
    TooFine {
        /// The number of steps asked for.
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
        /// The index asked for.
        index: usize,
        /// The number of model evaluations.
        len: usize,
        /// Why not.
        reason: &'static str,
    },

    /// At zero signal a prediction of the noise says nothing about the image.
    #[error(
        "timestep {timestep} is pure noise (rescale_betas_zero_snr), where an epsilon prediction cannot give an image; use a v_prediction model, or drop rescale_betas_zero_snr"
    )]
    ZeroSignal {
        /// The timestep.
        timestep: f64,
    },

    /// The schedule has been walked to its end.
    #[error("all {len} model evaluations of this schedule are done; make a new stepper to start again")]
    Finished {
        /// The number of model evaluations.
        len: usize,
    },

    /// The model's answer has another shape than the latents.
    #[error(
        "the model gave shape {found:?} for latents of shape {expected:?}; it must predict one value for each latent"
    )]
    OutputShape {
        /// The shape of the latents.
        expected: Vec<usize>,
        /// The shape of the model's answer.
        found: Vec<usize>,
    },

    /// The latents hold another number of images than there are generators.
    #[error("{found} images for {expected} noise generators; make one generator for each image of the batch")]
    Images {
        /// The number of generators.
        expected: usize,
        /// The number of images.
        found: usize,
    },

    /// A sampler with CFG++ had a model that says nothing about the picture without the prompt.
    #[error("sampler {sampler} needs the model's answer without the prompt too; give one, or use another sampler")]
    NoUnconditional {
        /// The sampler.
        sampler: SamplerKind,
    },

    /// The step callback asked to stop.
    #[error("sampling was interrupted")]
    Interrupted,

    /// The model's own error. [`crate::sample`] gives it back as the caller's type; it is seen in this
    /// form only by who uses a [`crate::Denoiser`] directly.
    #[error("the model failed: {0}")]
    Model(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// An operation on tensors failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
