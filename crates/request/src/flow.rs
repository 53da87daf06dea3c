//! Flow models: their noise levels, and the guidance scale that distilled ones take.

use kiln_models::{Defaults, FamilyRef, ModelFolder};
use kiln_scheduler::{Error, FlowShift, Resolved};

use crate::job::Job;
use crate::options::{FlowOptions, ImageOptions, Request};

impl Request {
    /// The options for flow models, with the guidance scale that the denoiser of `model` takes.
    pub(crate) fn flow_options(&self, model: &ModelFolder) -> FlowOptions {
        let guidance = self.guidance.or(model.defaults().guidance).filter(|_| model.takes_guidance());
        FlowOptions { shift: self.shift, guidance }
    }

    /// The request with a model's default of `strength`, if that is another one than the option's and the request has an input
    /// image without a strength.
    pub(crate) fn with_default_strength(&self, defaults: Defaults) -> Option<Self> {
        let is_masked = self.mask.is_some() || self.extend.is_some();
        let strength = if is_masked { defaults.mask_strength } else { defaults.strength };
        let is_missing = self.init.is_some() && self.strength.is_none();
        let is_other = strength != ImageOptions::default().strength;
        (is_missing && is_other).then(|| Self { strength: Some(strength), ..self.clone() })
    }
}

impl Job {
    /// The sampler's configuration for a model of `family`, with the inputs of a flow model.
    ///
    /// # Errors
    /// [`Error::Option`] for a shift that is out of range.
    pub(crate) fn with_flow(&self, config: Resolved, family: FamilyRef) -> Result<Resolved, Error> {
        let Some(flow) = config.flow() else { return Ok(config) };
        let is_dynamic = matches!(flow.shift, FlowShift::Dynamic { .. });
        let rules = family.flow(is_dynamic, self.sampling.convention).unwrap_or_default();
        let inputs = rules.inputs((self.width, self.height), self.flow.shift);
        config.with_flow(inputs)
    }

    /// The guidance input of the denoiser in its own unit, if it takes one. Latent consistency models take 1000 times what
    /// `cfg_scale` is over 1 ([`kiln_unet::guidance_input`]), FLUX.1 takes 1000 times `guidance`.
    pub fn guidance_input(&self) -> Option<f32> {
        match self.guidance_inside {
            true => Some(kiln_unet::guidance_input(self.cfg_scale)),
            false => self.flow.guidance.map(|guidance| guidance as f32 * 1000.0),
        }
    }

    /// Whether a scale of classifier-free guidance has no effect, since diffusers' pipeline of the model's family turns it off
    /// without a negative prompt.
    pub fn lacks_negative_prompt(&self) -> bool {
        self.needs_negative_prompt && self.negative_prompt.is_none()
    }
}

#[cfg(test)]
mod tests;
