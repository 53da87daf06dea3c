//! diffusers' `scheduler_config.json`, unchanged.

use crate::{Error, SamplerKind};
use serde::{Deserialize, Deserializer, de};

/// The keys of a `scheduler_config.json` that any of our samplers reads.
///
/// Every key is optional. The meaning of a missing key depends on the sampler's class, and [`SchedulerConfig::resolve`]
/// decides it. Unknown keys are ignored, as in diffusers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SchedulerConfig {
    /// The diffusers class that the folder was saved with.
    #[serde(rename = "_class_name")]
    pub class_name: Option<String>,
    /// The length of the training schedule.
    pub num_train_timesteps: Option<usize>,
    /// The first beta.
    pub beta_start: Option<f64>,
    /// The last beta.
    pub beta_end: Option<f64>,
    /// `linear`, `scaled_linear` or `squaredcos_cap_v2`.
    pub beta_schedule: Option<String>,
    /// The betas as a list, instead of a schedule.
    pub trained_betas: Option<Vec<f32>>,
    /// Rescale the betas to zero terminal SNR, arXiv 2305.08891.
    pub rescale_betas_zero_snr: Option<bool>,
    /// `epsilon`, `v_prediction`, `sample`, or `flow_prediction` with [`Self::use_flow_sigmas`].
    pub prediction_type: Option<String>,
    /// `leading`, `trailing` or `linspace`.
    pub timestep_spacing: Option<String>,
    /// Added to every timestep of `leading`.
    pub steps_offset: Option<i64>,
    /// Clip the predicted image.
    pub clip_sample: Option<bool>,
    /// The bound of that clipping: plus or minus this value.
    pub clip_sample_range: Option<f64>,
    /// Threshold the predicted image dynamically.
    pub thresholding: Option<bool>,
    /// The quantile that is the threshold.
    pub dynamic_thresholding_ratio: Option<f64>,
    /// The largest threshold.
    pub sample_max_value: Option<f64>,
    /// Whether the last step of DDIM and PNDM goes to alpha 1, or to the first training alpha.
    pub set_alpha_to_one: Option<bool>,
    /// Leave out PNDM's Runge-Kutta steps.
    pub skip_prk_steps: Option<bool>,
    /// Karras sigmas, arXiv 2206.00364.
    pub use_karras_sigmas: Option<bool>,
    /// Sigmas even in log-SNR, arXiv 2206.00927.
    pub use_lu_lambdas: Option<bool>,
    /// Sigmas even in their logarithm.
    pub use_exponential_sigmas: Option<bool>,
    /// Sigmas at the quantiles of a beta distribution, arXiv 2407.12173.
    pub use_beta_sigmas: Option<bool>,
    /// The levels of a flow model, in classes that are for diffusion models too.
    pub use_flow_sigmas: Option<bool>,
    /// The static shift of those levels.
    pub flow_shift: Option<f64>,
    /// The static shift of `FlowMatchEulerDiscreteScheduler` and `FlowMatchHeunDiscreteScheduler`.
    pub shift: Option<f64>,
    /// Whether the shift depends on the image's size.
    pub use_dynamic_shifting: Option<bool>,
    /// The exponent of the shift at `base_image_seq_len` tokens.
    pub base_shift: Option<f64>,
    /// The exponent of the shift at `max_image_seq_len` tokens.
    pub max_shift: Option<f64>,
    /// A number of image tokens.
    pub base_image_seq_len: Option<usize>,
    /// Another number of image tokens.
    pub max_image_seq_len: Option<usize>,
    /// `exponential` or `linear`.
    pub time_shift_type: Option<String>,
    /// The level to which the last one is stretched.
    pub shift_terminal: Option<f64>,
    /// Not supported.
    pub invert_sigmas: Option<bool>,
    /// Whether each step takes the predicted image and adds fresh noise.
    pub stochastic_sampling: Option<bool>,
    /// Only `linear` is supported.
    pub interpolation_type: Option<String>,
    /// Only `discrete` is supported.
    pub timestep_type: Option<String>,
    /// Not supported.
    pub sigma_min: Option<f64>,
    /// Not supported.
    pub sigma_max: Option<f64>,
    /// The last noise level: `zero` or `sigma_min`.
    pub final_sigmas_type: Option<String>,
    /// The order of a multistep solver.
    pub solver_order: Option<usize>,
    /// `midpoint` or `heun` for DPM-Solver++, `bh1` or `bh2` for UniPC.
    pub solver_type: Option<String>,
    /// Only `dpmsolver++` is supported.
    pub algorithm_type: Option<String>,
    /// Lower the order at the end of a short schedule.
    pub lower_order_final: Option<bool>,
    /// Take the last step of DPM-Solver++ at first order.
    pub euler_at_final: Option<bool>,
    /// Leave out the training timesteps whose log-SNR is below this. diffusers writes its default as `-Infinity`.
    #[serde(deserialize_with = "bound")]
    pub lambda_min_clipped: Option<f64>,
    /// Only `true` is supported.
    pub predict_x0: Option<bool>,
    /// The steps after which UniPC's corrector is off.
    pub disable_corrector: Option<Vec<usize>>,
    /// DDPM's noise: `fixed_small` or `fixed_large`.
    pub variance_type: Option<String>,
    /// The number of timesteps that a consistency model was distilled on.
    pub original_inference_steps: Option<usize>,
    /// The factor of a consistency model's timesteps in its boundary condition.
    pub timestep_scaling: Option<f64>,
}

impl SchedulerConfig {
    /// Reads the text of a `scheduler_config.json`.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        Ok(serde_json::from_str(&quote_python_floats(text))?)
    }

    /// The configuration as diffusers' `StableDiffusionPipeline` corrects it, also for folders that are older than
    /// these keys: latents are not clipped (`clip_sample` is false), and `steps_offset` is 1.
    /// `StableDiffusionXLPipeline` uses a configuration unchanged. Source: diffusers 0.42.1, the constructor in
    /// `pipeline_stable_diffusion.py`. There, the scheduler's class fills in missing keys first.
    pub fn for_stable_diffusion(self) -> Self {
        Self { steps_offset: Some(1), clip_sample: Some(false), ..self }
    }

    /// The sampler that `_class_name` names. The stochastic DPM-Solver++ is a separate sampler here, and the stochastic
    /// flow of `FlowMatchEulerDiscreteScheduler` is LCM.
    pub fn sampler(&self) -> Result<SamplerKind, Error> {
        let kind = SamplerKind::from_class_name(self.class_name.as_deref().unwrap_or_default())?;
        if kind == SamplerKind::Euler && self.is_flow() && self.stochastic_sampling == Some(true) {
            return Ok(SamplerKind::Lcm);
        }
        Ok(match (kind, self.algorithm_type.as_deref(), self.solver_type.as_deref()) {
            (SamplerKind::Dpmpp2m, Some("sde-dpmsolver++"), Some("heun")) => SamplerKind::Dpmpp2mSdeHeun,
            (SamplerKind::Dpmpp2m, Some("sde-dpmsolver++"), _) => SamplerKind::Dpmpp2mSde,
            _ => kind,
        })
    }
}

/// Python writes infinities and NaN as bare words, which JSON does not have. This function quotes them. No number field
/// accepts the resulting strings, except for those with [`bound`].
fn quote_python_floats(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    // Every second piece between quotes is a string, which may contain the words (or an escaped quote).
    let mut in_string = false;
    for piece in text.split_inclusive('"') {
        if in_string {
            clean.push_str(piece);
        } else {
            let marked = piece.replace("-Infinity", "\u{1}").replace("Infinity", "\u{2}").replace("NaN", "\"NaN\"");
            clean.push_str(&marked.replace('\u{1}', NO_BOUND).replace('\u{2}', "\"Infinity\""));
        }
        let escaped =
            in_string && piece.trim_end_matches('"').chars().rev().take_while(|&c| c == '\\').count() % 2 == 1;
        if piece.ends_with('"') && !escaped {
            in_string = !in_string;
        }
    }
    clean
}

/// The string that replaces Python's `-Infinity`.
const NO_BOUND: &str = "\"-Infinity\"";

/// A lower bound, where minus infinity means none.
fn bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bound {
        Number(f64),
        Word(String),
    }
    match Option::<Bound>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Bound::Number(bound)) => Ok(Some(bound)),
        Some(Bound::Word(word)) if NO_BOUND.trim_matches('"') == word => Ok(None),
        Some(Bound::Word(word)) => Err(de::Error::custom(format!("lambda_min_clipped is {word}, expected a number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_infinities_are_defaults() {
        let text = r#"{"_class_name": "a \" -Infinity", "lambda_min_clipped": -Infinity, "other": NaN}"#;
        let config = SchedulerConfig::from_json(text).unwrap();
        assert_eq!(config.class_name.as_deref(), Some("a \" -Infinity"));
        assert_eq!(config.lambda_min_clipped, None);
        let text = r#"{"lambda_min_clipped": -5.1}"#;
        assert_eq!(SchedulerConfig::from_json(text).unwrap().lambda_min_clipped, Some(-5.1));
    }

    #[test]
    fn values_that_are_not_numbers_are_refused() {
        for text in [
            r#"{"beta_start": NaN}"#,
            r#"{"beta_end": Infinity}"#,
            r#"{"sigma_max": -Infinity}"#,
            r#"{"num_train_timesteps": NaN}"#,
            r#"{"lambda_min_clipped": NaN}"#,
            r#"{"trained_betas": [0.1, NaN]}"#,
        ] {
            let message = SchedulerConfig::from_json(text).unwrap_err().to_string();
            assert!(message.contains("NaN") || message.contains("Infinity"), "{text}: {message}");
        }
    }

    #[test]
    fn the_pipeline_corrects_old_configurations() {
        let old = r#"{"_class_name": "DDIMScheduler", "clip_sample": true, "steps_offset": 0}"#;
        for text in [old, r#"{"_class_name": "DDIMScheduler"}"#] {
            let config = SchedulerConfig::from_json(text).unwrap().for_stable_diffusion();
            assert_eq!((config.steps_offset, config.clip_sample), (Some(1), Some(false)));
        }
    }

    #[test]
    fn unknown_keys_and_nulls_are_ignored_and_wrong_types_are_not() {
        let config =
            SchedulerConfig::from_json(r#"{"trained_betas": null, "new_key": [1], "steps_offset": 1}"#).unwrap();
        assert_eq!(config, SchedulerConfig { steps_offset: Some(1), ..Default::default() });
        let error = SchedulerConfig::from_json(r#"{"steps_offset": "one"}"#).unwrap_err();
        assert!(error.to_string().contains("expected i64"), "{error}");
        assert!(config.sampler().unwrap_err().to_string().contains("euler_a"));
    }
}
