//! The samplers: a table of all of them.

use crate::names::{closest, same, short_name};
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    /// Denoising diffusion implicit models, arXiv 2010.02502.
    Ddim,
    /// Euler's method on the probability flow ODE, arXiv 2206.00364.
    Euler,
    /// Euler's method with fresh noise at each step, from k-diffusion.
    EulerA,
    /// DPM-Solver++ of order 2, multistep, arXiv 2211.01095.
    Dpmpp2m,
    /// Pseudo numerical methods for diffusion models, arXiv 2202.09778.
    Pndm,
    /// Heun's method, arXiv 2206.00364 algorithm 1.
    Heun,
    /// Linear multistep of order 4, from k-diffusion.
    Lms,
    /// Unified predictor-corrector, arXiv 2302.04867.
    UniPc,
    /// Denoising diffusion probabilistic models, arXiv 2006.11239.
    Ddpm,
    /// DPM-Solver of order 2, singlestep, from k-diffusion after arXiv 2206.00927.
    Dpm2,
    /// DPM2 with fresh noise at each step, from k-diffusion.
    Dpm2A,
    /// DPM-Solver++ of order 2, singlestep, with fresh noise at each step, from k-diffusion.
    Dpmpp2sA,
    /// Stochastic DPM-Solver++ of order 2, singlestep, from k-diffusion.
    DpmppSde,
    /// Stochastic DPM-Solver++ of order 2, multistep, from k-diffusion.
    Dpmpp2mSde,
    /// DPM++ 2M SDE with Heun's rule.
    Dpmpp2mSdeHeun,
    /// Stochastic DPM-Solver++ of order 3, multistep, from k-diffusion.
    Dpmpp3mSde,
    /// Diffusion exponential integrator sampler, arXiv 2204.13902.
    Deis,
    /// Latent consistency models, arXiv 2310.04378.
    Lcm,
    /// Trajectory consistency distillation, arXiv 2402.19159.
    Tcd,
    /// Improved PNDM, arXiv 2204.13902.
    Ipndm,
    /// Refined exponential solver, multistep, arXiv 2308.02157.
    ResMultistep,
    /// RES multistep with fresh noise at each step, from ComfyUI.
    ResMultistepA,
    /// Extended reverse-time SDE, arXiv 2309.06169.
    ErSde,
    /// Euler's method with CFG++, arXiv 2406.08070.
    EulerCfgPp,
    /// Euler CFG++ with fresh noise at each step, from ComfyUI.
    EulerACfgPp,
    /// Restart sampling over Heun's steps, arXiv 2306.14878, from AUTOMATIC1111.
    Restart,
    /// Heun++ of order 3, from ComfyUI.
    HeunPp2,
    /// DDIM with CFG++, arXiv 2406.08070.
    DdimCfgPp,
}

/// How a sampler represents noisy latents, and which noise levels it visits by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Variance preserving, on whole training timesteps: `x = sqrt(a) x0 + sqrt(1 - a) eps`.
    Timesteps,
    /// Variance preserving, with noise levels between timesteps.
    Preserving,
    /// Variance exploding: `x = x0 + sigma eps`.
    Exploding,
}

/// How a sampler's formulas apply to flow models, whose latents are `(1 - sigma) x0 + sigma eps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowForm {
    /// The formulas hold unchanged.
    Exact,
    /// The sampler has formulas of its own for flow models, because it adds noise.
    Own,
    /// No program defines the sampler for flow models.
    Refused,
}

/// One row of the table of samplers.
struct Row {
    kind: SamplerKind,
    id: &'static str,
    /// AUTOMATIC1111's name.
    label: &'static str,
    /// The diffusers class.
    class: Option<&'static str>,
    /// Other names. Names that differ only in case, spaces or signs need no entry.
    aliases: &'static [&'static str],
    frame: Frame,
    /// The default share of the noise that is replaced with fresh noise, for samplers that do so.
    eta: Option<f64>,
    flow: FlowForm,
    about: &'static str,
}

use FlowForm::{Exact, Own, Refused};
use Frame::{Exploding, Preserving, Timesteps};
use SamplerKind as K;

#[rustfmt::skip]
const TABLE: [Row; 28] = [
    Row { kind: K::Ddim,           id: "ddim",              label: "DDIM",              class: Some("DDIMScheduler"),                   aliases: &[],                        frame: Timesteps,  eta: Some(0.0), flow: Refused, about: "deterministic, first order, the classic" },
    Row { kind: K::Euler,          id: "euler",             label: "Euler",             class: Some("EulerDiscreteScheduler"),          aliases: &[],                        frame: Exploding,  eta: None,      flow: Exact,   about: "deterministic, first order, SDXL's own" },
    Row { kind: K::EulerA,         id: "euler_a",           label: "Euler a",           class: Some("EulerAncestralDiscreteScheduler"), aliases: &[],                        frame: Exploding,  eta: Some(1.0), flow: Own,     about: "Euler with fresh noise at each step, varied" },
    Row { kind: K::Dpmpp2m,        id: "dpmpp_2m",          label: "DPM++ 2M",          class: Some("DPMSolverMultistepScheduler"),     aliases: &[],                        frame: Preserving, eta: None,      flow: Exact,   about: "second order multistep, good from 15 steps" },
    Row { kind: K::Pndm,           id: "pndm",              label: "PLMS",              class: Some("PNDMScheduler"),                   aliases: &[],                        frame: Timesteps,  eta: None,      flow: Refused, about: "fourth order multistep (PLMS), SD1's own" },
    Row { kind: K::Heun,           id: "heun",              label: "Heun",              class: Some("HeunDiscreteScheduler"),           aliases: &[],                        frame: Exploding,  eta: None,      flow: Exact,   about: "second order, two model evaluations a step" },
    Row { kind: K::Lms,            id: "lms",               label: "LMS",               class: Some("LMSDiscreteScheduler"),            aliases: &[],                        frame: Exploding,  eta: None,      flow: Exact,   about: "linear multistep of fourth order" },
    Row { kind: K::UniPc,          id: "unipc",             label: "UniPC",             class: Some("UniPCMultistepScheduler"),         aliases: &["uni_pc_bh2"],            frame: Preserving, eta: None,      flow: Exact,   about: "predictor-corrector, good from 8 steps" },
    Row { kind: K::Ddpm,           id: "ddpm",              label: "DDPM",              class: Some("DDPMScheduler"),                   aliases: &[],                        frame: Timesteps,  eta: None,      flow: Refused, about: "fresh noise at each step, wants many steps" },
    Row { kind: K::Dpm2,           id: "dpm2",              label: "DPM2",              class: Some("KDPM2DiscreteScheduler"),          aliases: &[],                        frame: Exploding,  eta: None,      flow: Exact,   about: "second order, two model evaluations a step" },
    Row { kind: K::Dpm2A,          id: "dpm2_a",            label: "DPM2 a",            class: Some("KDPM2AncestralDiscreteScheduler"), aliases: &[],                        frame: Exploding,  eta: Some(1.0), flow: Own,     about: "DPM2 with fresh noise at each step" },
    Row { kind: K::Dpmpp2sA,       id: "dpmpp_2s_a",        label: "DPM++ 2S a",        class: None,                                    aliases: &[],                        frame: Exploding,  eta: Some(1.0), flow: Own,     about: "second order with fresh noise, two model evaluations a step" },
    Row { kind: K::DpmppSde,       id: "dpmpp_sde",         label: "DPM++ SDE",         class: Some("DPMSolverSDEScheduler"),           aliases: &["dpmpp_sde_gpu"],         frame: Exploding,  eta: Some(1.0), flow: Own,     about: "stochastic, two model evaluations a step, detailed" },
    Row { kind: K::Dpmpp2mSde,     id: "dpmpp_2m_sde",      label: "DPM++ 2M SDE",      class: None,                                    aliases: &["dpmpp_2m_sde_gpu"],      frame: Exploding,  eta: Some(1.0), flow: Own,     about: "stochastic second order multistep" },
    Row { kind: K::Dpmpp2mSdeHeun, id: "dpmpp_2m_sde_heun", label: "DPM++ 2M SDE Heun", class: None,                                    aliases: &["dpmpp_2m_sde_heun_gpu"], frame: Exploding,  eta: Some(1.0), flow: Own,     about: "the same with Heun's rule" },
    Row { kind: K::Dpmpp3mSde,     id: "dpmpp_3m_sde",      label: "DPM++ 3M SDE",      class: None,                                    aliases: &["dpmpp_3m_sde_gpu"],      frame: Exploding,  eta: Some(1.0), flow: Own,     about: "stochastic third order multistep, wants exponential sigmas" },
    Row { kind: K::Deis,           id: "deis",              label: "DEIS",              class: Some("DEISMultistepScheduler"),          aliases: &[],                        frame: Preserving, eta: None,      flow: Exact,   about: "exponential integrator, multistep" },
    Row { kind: K::Lcm,            id: "lcm",               label: "LCM",               class: Some("LCMScheduler"),                    aliases: &[],                        frame: Timesteps,  eta: None,      flow: Own,     about: "2 to 8 steps of a consistency model" },
    Row { kind: K::Tcd,            id: "tcd",               label: "TCD",               class: Some("TCDScheduler"),                    aliases: &[],                        frame: Timesteps,  eta: Some(0.3), flow: Refused, about: "2 to 8 steps of a trajectory consistency model" },
    Row { kind: K::Ipndm,          id: "ipndm",             label: "IPNDM",             class: None,                                    aliases: &["IPNDMScheduler"],        frame: Exploding,  eta: None,      flow: Exact,   about: "fourth order multistep with even coefficients" },
    Row { kind: K::ResMultistep,   id: "res_multistep",     label: "Res Multistep",     class: None,                                    aliases: &["RES 2M"],                frame: Exploding,  eta: Some(0.0), flow: Exact,   about: "refined second order multistep" },
    Row { kind: K::ResMultistepA,  id: "res_multistep_a",   label: "Res Multistep a",   class: None,                                    aliases: &[],                        frame: Exploding,  eta: Some(1.0), flow: Refused, about: "the same with fresh noise at each step" },
    Row { kind: K::ErSde,          id: "er_sde",            label: "ER SDE",            class: None,                                    aliases: &[],                        frame: Exploding,  eta: None,      flow: Own,     about: "stochastic third order multistep" },
    Row { kind: K::EulerCfgPp,     id: "euler_cfg_pp",      label: "Euler CFG++",       class: None,                                    aliases: &[],                        frame: Exploding,  eta: Some(0.0), flow: Own,     about: "Euler with CFG++; wants a cfg scale of 0.5 to 2" },
    Row { kind: K::EulerACfgPp,    id: "euler_a_cfg_pp",    label: "Euler a CFG++",     class: None,                                    aliases: &[],                        frame: Exploding,  eta: Some(1.0), flow: Own,     about: "the same with fresh noise at each step" },
    Row { kind: K::Restart,        id: "restart",           label: "Restart",           class: None,                                    aliases: &[],                        frame: Exploding,  eta: None,      flow: Refused, about: "Heun with noise added again, from 20 steps on" },
    Row { kind: K::HeunPp2,        id: "heunpp2",           label: "HeunPP2",           class: None,                                    aliases: &["Heun++"],                frame: Exploding,  eta: None,      flow: Exact,   about: "third order, three model evaluations a step" },
    Row { kind: K::DdimCfgPp,      id: "ddim_cfg_pp",       label: "DDIM CFG++",        class: None,                                    aliases: &[],                        frame: Timesteps,  eta: Some(0.0), flow: Refused, about: "DDIM with CFG++; wants a cfg scale of 0.2 to 1" },
];

/// diffusers' classes for flow models alone.
pub(crate) const FLOW_CLASSES: [(&str, SamplerKind); 2] =
    [("FlowMatchEulerDiscreteScheduler", K::Euler), ("FlowMatchHeunDiscreteScheduler", K::Heun)];

impl SamplerKind {
    /// All samplers, in the order in which they are listed to users.
    pub const ALL: [Self; TABLE.len()] = {
        let mut all = [Self::Ddim; TABLE.len()];
        let mut i = 0;
        while i < TABLE.len() {
            all[i] = TABLE[i].kind;
            i += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        // The table is in the order of the enum. A test checks this.
        &TABLE[self as usize]
    }

    /// The name on the command line.
    pub fn id(self) -> &'static str {
        self.row().id
    }

    /// AUTOMATIC1111's name.
    pub fn label(self) -> &'static str {
        self.row().label
    }

    /// One line for a list of samplers.
    pub fn description(self) -> &'static str {
        self.row().about
    }

    /// The diffusers class that implements this sampler, if any.
    pub fn class_name(self) -> Option<&'static str> {
        self.row().class
    }

    /// Whether no diffusers scheduler implements this sampler, so that no class determines its noise levels.
    /// `dpmpp_2m_sde` is `DPMSolverMultistepScheduler` with `algorithm_type` `sde-dpmsolver++`.
    pub(crate) fn has_no_diffusers_class(self) -> bool {
        self.row().class.is_none() && self.frame() == Exploding && !self.is_multistep_sde()
    }

    /// Whether it has a class in diffusers to which the key `timestep_spacing` says something. Consistency models have timesteps
    /// of their own.
    pub(crate) fn has_trailing_class(self) -> bool {
        self.row().class.is_some() && !matches!(self, Self::Lcm | Self::Tcd)
    }

    /// Whether the sampler is diffusers' `DPMSolverMultistepScheduler` with `algorithm_type` `sde-dpmsolver++`.
    pub(crate) fn is_multistep_sde(self) -> bool {
        matches!(self, Self::Dpmpp2mSde | Self::Dpmpp2mSdeHeun)
    }

    /// Whether the sampler evaluates the model twice in each step but the last.
    pub fn evaluates_twice(self) -> bool {
        matches!(self, Self::Heun | Self::Dpm2 | Self::Dpm2A | Self::Dpmpp2sA | Self::DpmppSde | Self::Restart)
    }

    /// The default share of the noise that is replaced with fresh noise at each step. `None` for a sampler without this
    /// choice.
    pub fn default_eta(self) -> Option<f64> {
        self.row().eta
    }

    /// Whether `s_churn` raises the noise level before a step. This applies to Karras' samplers.
    pub fn has_churn(self) -> bool {
        matches!(self, Self::Euler | Self::Heun | Self::Dpm2)
    }

    /// Whether `s_noise` scales the noise that is added after the start.
    pub fn has_s_noise(self) -> bool {
        self.has_churn()
            || matches!(self, Self::ErSde | Self::Restart)
            || (self.row().eta.is_some() && self.frame() == Exploding)
    }

    /// Whether the sampler also needs the model's unconditional prediction.
    pub fn needs_unconditional(self) -> bool {
        matches!(self, Self::EulerCfgPp | Self::EulerACfgPp | Self::DdimCfgPp)
    }

    /// Whether the sampler steps from timestep to timestep and preserves the latents' variance, as DDIM does.
    pub fn is_on_timesteps(self) -> bool {
        self.frame() == Timesteps
    }

    /// How the sampler's formulas apply to flow models.
    pub fn flow(self) -> FlowForm {
        self.row().flow
    }

    pub(crate) fn frame(self) -> Frame {
        self.row().frame
    }

    /// The sampler of a diffusers class.
    pub fn from_class_name(class: &str) -> Result<Self> {
        let flow = FLOW_CLASSES.iter().find(|(name, _)| *name == class).map(|(_, kind)| *kind);
        let row = TABLE.iter().find(|row| row.class == Some(class));
        flow.or(row.map(|row| row.kind)).ok_or_else(|| Error::UnknownClass { class: class.to_owned() })
    }

    pub(crate) fn ids() -> String {
        TABLE.map(|row| row.id).join(", ")
    }

    /// The ids of the samplers for flow models, for a message.
    pub(crate) fn flow_ids() -> String {
        let ids: Vec<_> = TABLE.iter().filter(|row| row.flow != Refused).map(|row| row.id).collect();
        ids.join(", ")
    }

    /// The sampler with this name, in any spelling.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let names = |row: &Row| [row.id, row.label].into_iter().chain(row.class).any(|known| same(name, known));
        let row = TABLE.iter().find(|row| names(row) || row.aliases.iter().any(|alias| same(name, alias)));
        row.map(|row| row.kind)
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for SamplerKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| Error::UnknownSampler {
            name: short_name(name),
            nearest: closest(name, TABLE.iter().flat_map(|row| [(row.id, row.id), (row.label, row.id)])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SamplerChoice, SigmaRange, SigmaSchedule};

    #[test]
    fn names_round_trip() {
        for (kind, row) in SamplerKind::ALL.into_iter().zip(&TABLE) {
            assert_eq!(kind.row().id, row.id, "the table is in the order of the enum");
            assert_eq!(kind.id().parse::<SamplerKind>().unwrap(), kind);
            assert_eq!(kind.label().parse::<SamplerKind>().unwrap(), kind);
            assert_eq!(kind.to_string().parse::<SamplerChoice>().unwrap(), kind.into());
            if let Some(class) = kind.class_name() {
                assert_eq!(SamplerKind::from_class_name(class).unwrap(), kind);
                assert_eq!(class.parse::<SamplerKind>().unwrap(), kind);
            }
            assert!(!kind.description().is_empty());
            for schedule in SigmaSchedule::ALL {
                for range in [None, Some(SigmaRange::Table)] {
                    let choice = SamplerChoice { kind, schedule: Some(schedule), range };
                    assert_eq!(choice.to_string().parse::<SamplerChoice>().unwrap(), choice);
                }
            }
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_names() {
        let message = "DPM++ 2N".parse::<SamplerKind>().unwrap_err().to_string();
        assert!(message.contains("did you mean dpmpp_2m"), "{message}");
        assert!(message.ends_with('?'), "no list of all where a name is near: {message}");
        let message = "foo".parse::<SamplerKind>().unwrap_err().to_string();
        assert!(message.starts_with("unknown sampler \"foo\". The samplers are: "), "{message}");
        assert!(SamplerKind::ALL.iter().all(|kind| message.contains(kind.id())), "{message}");
        let message = "x_".repeat(3_000_000).parse::<SamplerChoice>().unwrap_err().to_string();
        assert!(message.len() < 2000, "{} bytes", message.len());
        let message = "ueler karras".parse::<SamplerChoice>().unwrap_err().to_string();
        assert!(message.contains("euler"), "{message}");
    }
}
