//! The rules to follow where programs differ.

use crate::sigma_range::InitialNoise;
use crate::{
    FinalSigma, Resolved, SamplerKind, SecondOrder, SigmaGrid, SigmaRange, SigmaSchedule, ThresholdMode, TimestepRule,
    UniPcScale,
};

use SamplerKind as K;
use SigmaSchedule as S;

/// The program whose rules apply where programs differ: the range of sigma schedules, the first latents, the timesteps
/// that the model gets, discarded noise levels, and names that mean different things in two programs.
///
/// An explicit option overrides the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Convention {
    /// diffusers 0.42: the class of the sampler on the model's own configuration.
    #[default]
    Diffusers,
    /// AUTOMATIC1111's web UI 1.10, with k-diffusion.
    Automatic1111,
    /// ComfyUI's KSampler.
    ComfyUi,
}

impl Convention {
    /// The sigma schedule that "Automatic" selects in AUTOMATIC1111: the table `samplers_k_diffusion` of its
    /// `sd_samplers_kdiffusion.py`. [`SigmaSchedule::Default`] for samplers that have their own timesteps.
    pub fn automatic(kind: SamplerKind) -> SigmaSchedule {
        match kind {
            K::Dpmpp2m | K::DpmppSde | K::Dpmpp2sA | K::Dpm2 | K::Dpm2A | K::Restart => S::Karras,
            K::Dpmpp2mSde | K::Dpmpp2mSdeHeun | K::Dpmpp3mSde => S::Exponential,
            kind if Self::has_sigma_schedule(kind) => S::Normal,
            _ => S::Default,
        }
    }

    /// Whether AUTOMATIC1111 offers sigma schedules for this sampler. Its other samplers step over timesteps.
    pub fn has_sigma_schedule(kind: SamplerKind) -> bool {
        !matches!(kind, K::Ddim | K::DdimCfgPp | K::Ddpm | K::Pndm | K::UniPc | K::Lcm | K::Tcd | K::Deis)
    }

    /// Whether the program computes one level more than requested and removes the next-to-last one:
    /// `discard_next_to_last_sigma` in AUTOMATIC1111, `DISCARD_PENULTIMATE_SIGMA_SAMPLERS` in ComfyUI.
    pub fn discards_penultimate(self, kind: SamplerKind) -> bool {
        match self {
            Self::Diffusers => false,
            Self::Automatic1111 => matches!(kind, K::Dpm2 | K::Dpm2A | K::Dpmpp3mSde),
            Self::ComfyUi => matches!(kind, K::Dpm2 | K::Dpm2A | K::UniPc),
        }
    }
}

impl Resolved {
    /// Applies the rules of a program.
    pub(crate) fn follow(&mut self, convention: Convention) {
        if convention == Convention::Diffusers {
            return;
        }
        let sampler = self.sampler;
        self.convention = convention;
        self.sigma_range = SigmaRange::Table;
        self.discards_penultimate = convention.discards_penultimate(sampler);
        // Neither program clips latents.
        self.threshold = ThresholdMode::None;
        self.skip_prk_steps = true;
        if self.schedule == S::Trailing {
            self.sigmas = SigmaGrid::of(S::Trailing);
        }
        if sampler == K::Dpmpp2m {
            // k-diffusion's `sample_dpmpp_2m` has first order in the step that ends without noise, and only there.
            self.solver.order = 2;
            self.solver.second_order = SecondOrder::Midpoint;
            self.solver.lower_order_final = false;
            self.solver.euler_at_final = false;
        }
        if sampler == K::UniPc {
            self.solver.order = 3;
            self.solver.scale = UniPcScale::Bh1;
            self.solver.lower_order_final = true;
            self.solver.disable_corrector.clear();
        }
        self.final_sigma = match convention {
            Convention::Automatic1111 if self.schedule == S::KlOptimal => FinalSigma::SigmaMin,
            Convention::ComfyUi if sampler == K::UniPc => FinalSigma::Thousandth,
            _ => FinalSigma::Zero,
        };
        match convention {
            Convention::Automatic1111 => {
                self.initial_noise = InitialNoise::Sigma;
                self.timesteps = TimestepRule::Fraction;
                self.churn.draws_always = true;
                match (self.schedule, sampler) {
                    // The default of Forge for flow models.
                    (S::Default, _) if self.is_flow() => self.sigmas = SigmaGrid::of(S::Simple),
                    (S::Default, K::Ddim | K::DdimCfgPp | K::Pndm | K::UniPc) => self.sigmas = SigmaGrid::Strided,
                    (S::Default, kind) if Convention::has_sigma_schedule(kind) => {
                        self.schedule = Convention::automatic(kind);
                        self.sigmas = SigmaGrid::of(self.schedule);
                    }
                    _ => {}
                }
            }
            _ => {
                self.initial_noise = InitialNoise::Maximum;
                self.timesteps = TimestepRule::Nearest;
            }
        }
    }
}
