//! The defaults of diffusers' scheduler classes for keys that a configuration does not have.

use crate::{SamplerKind, Spacing};

/// The differences between diffusers' classes for keys that are missing, or that the class does not have.
pub(crate) struct Class {
    pub(crate) beta_start: f64,
    pub(crate) beta_end: f64,
    pub(crate) scaled_linear: bool,
    pub(crate) spacing: Spacing,
    /// The default of `clip_sample`, where the class has the key.
    pub(crate) clip_sample: Option<bool>,
    pub(crate) thresholding: bool,
    pub(crate) zero_snr: bool,
    pub(crate) karras: bool,
    pub(crate) final_sigmas_type: bool,
    pub(crate) set_alpha_to_one: bool,
}

/// Source: diffusers 0.42.1, the signatures of the classes' constructors.
pub(crate) fn class(kind: SamplerKind) -> Class {
    let ddim = Class {
        beta_start: 1e-4,
        beta_end: 0.02,
        scaled_linear: false,
        spacing: Spacing::Leading,
        clip_sample: Some(true),
        thresholding: true,
        zero_snr: true,
        karras: false,
        final_sigmas_type: false,
        set_alpha_to_one: true,
    };
    let euler_a = Class { spacing: Spacing::Linspace, clip_sample: None, thresholding: false, ..ddim };
    let lcm = Class { beta_start: 0.00085, beta_end: 0.012, scaled_linear: true, clip_sample: Some(false), ..ddim };
    match kind {
        SamplerKind::Ddim | SamplerKind::DdimCfgPp | SamplerKind::Ddpm => ddim,
        SamplerKind::Pndm => {
            Class { clip_sample: None, thresholding: false, zero_snr: false, set_alpha_to_one: false, ..ddim }
        }
        SamplerKind::EulerA => euler_a,
        SamplerKind::Euler => Class { karras: true, final_sigmas_type: true, ..euler_a },
        SamplerKind::Lms => Class { karras: true, zero_snr: false, ..euler_a },
        SamplerKind::Heun => Class {
            beta_start: 0.00085,
            beta_end: 0.012,
            karras: true,
            zero_snr: false,
            clip_sample: Some(false),
            ..euler_a
        },
        SamplerKind::Dpm2 | SamplerKind::Dpm2A | SamplerKind::DpmppSde => {
            Class { beta_start: 0.00085, beta_end: 0.012, karras: true, zero_snr: false, ..euler_a }
        }
        SamplerKind::Dpmpp2m | SamplerKind::Dpmpp2mSde | SamplerKind::Dpmpp2mSdeHeun | SamplerKind::UniPc => {
            Class { karras: true, final_sigmas_type: true, thresholding: true, ..euler_a }
        }
        SamplerKind::Deis => Class { karras: true, zero_snr: false, thresholding: true, ..euler_a },
        SamplerKind::Lcm => lcm,
        // The keys exist, but diffusers' class ignores them.
        SamplerKind::Tcd => Class { clip_sample: None, thresholding: false, ..lcm },
        // diffusers has no class for these: they read the keys that Euler reads.
        SamplerKind::Dpmpp2sA
        | SamplerKind::Dpmpp3mSde
        | SamplerKind::Ipndm
        | SamplerKind::ResMultistep
        | SamplerKind::ResMultistepA
        | SamplerKind::ErSde
        | SamplerKind::EulerCfgPp
        | SamplerKind::Restart
        | SamplerKind::HeunPp2
        | SamplerKind::EulerACfgPp => Class { karras: true, ..euler_a },
    }
}
