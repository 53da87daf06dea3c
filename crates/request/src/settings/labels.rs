//! Keys of AUTOMATIC1111's text that code names: those of files, templates and the program, and of options that are written
//! or read by rules of their own. All others are in the table of options ([`crate::OPTIONS`]).

pub(crate) const SAMPLER: &str = "Sampler";
pub(crate) const SCHEDULE_TYPE: &str = "Schedule type";
pub(crate) const HIRES_SAMPLER: &str = "Hires sampler";
pub(crate) const HIRES_SCHEDULE_TYPE: &str = "Hires schedule type";
pub(crate) const DENOISING_STRENGTH: &str = "Denoising strength";
pub(crate) const SIZE: &str = "Size";
/// The first ten digits of the SHA-256 of a model in one file.
pub const MODEL_HASH: &str = "Model hash";
/// The name of the model.
pub const MODEL: &str = "Model";
pub(crate) const CONVENTION: &str = "Sampling convention";
pub(crate) const THRESHOLDING: &str = "Dynamic thresholding enabled";
pub(crate) const MIMIC_SCALE: &str = "Mimic scale";
pub(crate) const PERCENTILE: &str = "Threshold percentile";
/// The MD5 of the input's pixels.
pub const INIT_IMAGE_HASH: &str = "Init image hash";
/// Forge's, before the values of deep shrink.
pub(crate) const DEEP_SHRINK: &str = "kohya_hrfix_enabled";
/// Forge's, before the factors.
pub(crate) const FREEU: &str = "freeu_enabled";
pub(crate) const MASK_MODE: &str = "Mask mode";
/// The value of that key for an inverted mask.
pub(crate) const NOT_MASKED: &str = "Inpaint not masked";
/// The model that took over the last steps.
pub const REFINER: &str = "Refiner";
pub(crate) const REFINER_SWITCH: &str = "Refiner switch at";
/// The key that AUTOMATIC1111 writes from 1.9 on if its option counts steps.
pub(crate) const REFINER_BY_STEPS: &str = "Refiner switch by sampling steps";
pub(crate) const RNG: &str = "RNG";
/// The names and hashes of the LoRAs.
pub const LORA_HASHES: &str = "Lora hashes";
pub(crate) const TEMPLATE: &str = "Template";
pub(crate) const NEGATIVE_TEMPLATE: &str = "Negative Template";
pub(crate) const VERSION: &str = "Version";
/// The prefix of Kiln's versions.
pub(crate) const KILN: &str = "Kiln ";
