//! What the fields of AUTOMATIC1111's text are called: the same for [`crate::parameters`], which writes them, and for
//! [`super::from_infotext`], which reads them. Those that AUTOMATIC1111 or its extensions have are called as there.

pub(crate) const STEPS: &str = "Steps";
pub(crate) const SAMPLER: &str = "Sampler";
pub(crate) const SCHEDULE_TYPE: &str = "Schedule type";
pub(crate) const CFG_SCALE: &str = "CFG scale";
pub(crate) const SEED: &str = "Seed";
pub(crate) const SIZE: &str = "Size";
pub(crate) const MODEL_HASH: &str = "Model hash";
pub(crate) const MODEL: &str = "Model";
pub(crate) const SIGMAS: &str = "Sigmas";
pub(crate) const CONVENTION: &str = "Sampling convention";
pub(crate) const SIGMA_RANGE: &str = "Sigma range";
pub(crate) const SIGMA_MIN: &str = "Schedule min sigma";
pub(crate) const SIGMA_MAX: &str = "Schedule max sigma";
pub(crate) const DISCARD: &str = "Discard penultimate sigma";
pub(crate) const SGM_NOISE: &str = "SGM noise multiplier";
pub(crate) const UNIPC_VARIANT: &str = "UniPC variant";
pub(crate) const ETA: &str = "Eta";
/// What AUTOMATIC1111 calls the same for DDIM.
pub(crate) const ETA_DDIM: &str = "Eta DDIM";
pub(crate) const S_CHURN: &str = "Sigma churn";
pub(crate) const S_TMIN: &str = "Sigma tmin";
pub(crate) const S_TMAX: &str = "Sigma tmax";
pub(crate) const S_NOISE: &str = "Sigma noise";
pub(crate) const RHO: &str = "Schedule rho";
pub(crate) const GUIDANCE_RESCALE: &str = "CFG Rescale";
pub(crate) const GUIDANCE_START: &str = "Guidance start";
pub(crate) const GUIDANCE_END: &str = "Guidance end";
pub(crate) const THRESHOLDING: &str = "Dynamic thresholding enabled";
pub(crate) const MIMIC_SCALE: &str = "MimicCfg scale";
pub(crate) const PERCENTILE: &str = "Threshold percentile";
pub(crate) const SUBSEED: &str = "Variation seed";
pub(crate) const SUBSEED_STRENGTH: &str = "Variation seed strength";
pub(crate) const RESIZE_FROM: &str = "Seed resize from";
pub(crate) const CLIP_SKIP: &str = "Clip skip";
pub(crate) const ENSD: &str = "ENSD";
pub(crate) const RNG: &str = "RNG";
pub(crate) const RNG_CPU: &str = "CPU";
pub(crate) const RNG_CUDA: &str = "NV";
pub(crate) const EMPHASIS: &str = "Emphasis";
pub(crate) const PAD_CONDS: &str = "Pad conds";
pub(crate) const LORA_HASHES: &str = "Lora hashes";
pub(crate) const TEMPLATE: &str = "Template";
pub(crate) const NEGATIVE_TEMPLATE: &str = "Negative Template";
pub(crate) const VERSION: &str = "Version";
/// What a version of ours begins with.
pub(crate) const KILN: &str = "Kiln ";
