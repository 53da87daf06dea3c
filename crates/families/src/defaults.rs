//! The defaults of a request, which depend on a model's variant.

use kiln_network::ExtraChannels;

/// The properties of a model that tell which variant of its family it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ModelTraits<'a> {
    /// The class of its pipeline in diffusers.
    pub class: &'a str,
    /// The name of its folder or file.
    pub name: &'a str,
    /// Whether its denoiser takes a guidance scale as an input.
    pub takes_guidance: bool,
    /// The meaning of the channels that its denoiser takes besides the latents.
    pub extra_channels: ExtraChannels,
    /// `is_distilled` of `model_index.json`.
    pub is_distilled: Option<bool>,
    /// `shift` of `scheduler_config.json`.
    pub shift: Option<f64>,
}

impl ModelTraits<'_> {
    /// Whether its name has `part`, in any case.
    pub(crate) fn is_named(&self, part: &str) -> bool {
        self.name.to_ascii_lowercase().contains(part)
    }
}

/// Defaults of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FamilyDefaults {
    /// The number of steps.
    pub steps: usize,
    /// The guidance scale of classifier-free guidance; 1 is none.
    pub cfg_scale: f64,
    /// The guidance scale that the denoiser takes as an input, for models that have it with classifier-free guidance.
    pub guidance: Option<f64>,
    /// The fraction of the steps that runs on an input image.
    pub strength: f64,
    /// The fraction of the steps that runs on an input image with a mask.
    pub mask_strength: f64,
    /// Whether the model was made to change reference images as a prompt says.
    pub edits: bool,
}

impl FamilyDefaults {
    /// The defaults with this number of steps and this guidance scale.
    pub const fn new(steps: usize, cfg_scale: f64) -> Self {
        Self { steps, cfg_scale, guidance: None, strength: 0.75, mask_strength: 0.75, edits: false }
    }

    /// Sets the strengths of input images without and with a mask.
    pub const fn with_strengths(self, strength: f64, mask_strength: f64) -> Self {
        Self { strength, mask_strength, ..self }
    }

    /// For a model that was made to change reference images.
    pub const fn with_edits(self) -> Self {
        Self { edits: true, ..self }
    }

    /// Sets the guidance scale that the denoiser takes.
    pub const fn with_guidance(self, guidance: f64) -> Self {
        Self { guidance: Some(guidance), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::FAMILIES;

    #[test]
    fn variants_have_their_own_defaults() {
        let of = |id: &str, model: ModelTraits<'_>| {
            let family = FAMILIES.iter().find(|family| family.id() == id).unwrap();
            let found = family.defaults(&model);
            (found.steps, found.cfg_scale, found.guidance)
        };
        let named = |name| ModelTraits { name, ..ModelTraits::default() };
        assert_eq!(of("sd3", named("stable-diffusion-3-medium")), (28, 7.0, None));
        assert_eq!(of("sd3", named("sd3.5_large")), (28, 3.5, None));
        assert_eq!(of("sd3", named("SD3.5_medium")), (40, 4.5, None));
        assert_eq!(of("sd3", named("stable-diffusion-3.5-large-turbo")), (4, 1.0, None));
        let flux = |name, class| ModelTraits { name, class, takes_guidance: true, ..ModelTraits::default() };
        assert_eq!(of("flux", named("flux")), (4, 1.0, None));
        assert_eq!(of("flux", flux("dev", "FluxPipeline")), (28, 1.0, Some(3.5)));
        assert_eq!(of("flux", flux("FLUX.1-Krea-dev", "FluxPipeline")), (28, 1.0, Some(4.5)));
        assert_eq!(of("flux", flux("x", "FluxKontextPipeline")), (28, 1.0, Some(2.5)));
        assert_eq!(of("flux", flux("x", "FluxFillPipeline")), (50, 1.0, Some(30.0)));
        assert_eq!(of("flux", flux("FLUX.1-Depth-dev", "FluxControlPipeline")), (28, 1.0, Some(10.0)));
        let with = |name, extra_channels| ModelTraits { extra_channels, ..flux(name, "FluxPipeline") };
        assert_eq!(of("flux", with("x", ExtraChannels::PixelMask)), (50, 1.0, Some(30.0)));
        assert_eq!(of("flux", with("x", ExtraChannels::Control)), (28, 1.0, Some(30.0)));
        assert_eq!(of("flux", with("flux1-depth-dev", ExtraChannels::Control)), (28, 1.0, Some(10.0)));
        assert_eq!(of("flux2", ModelTraits { is_distilled: Some(true), ..named("klein") }), (4, 1.0, None));
        assert_eq!(of("flux2", ModelTraits { is_distilled: Some(false), ..named("klein") }), (50, 4.0, None));
        assert_eq!(of("z_image", ModelTraits { shift: Some(3.0), ..named("z") }), (9, 1.0, None));
        assert_eq!(of("z_image", ModelTraits { shift: Some(6.0), ..named("z") }), (50, 6.0, None));
        assert_eq!(of("sdxl", named("x")), (20, 5.0, None));
    }
}
