//! Names of samplers with a sigma schedule.

use crate::names::MAX_NAME;
use crate::{Error, Result, SamplerKind, SigmaRange, SigmaSchedule};
use std::fmt;
use std::str::FromStr;

/// A sampler name as users write it. AUTOMATIC1111's older names end in a sigma schedule ("DPM++ 2M Karras").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SamplerChoice {
    /// The sampler.
    pub kind: SamplerKind,
    /// The sigma schedule at the end of the name, if any.
    pub schedule: Option<SigmaSchedule>,
    /// [`SigmaRange::Table`] where the name is AUTOMATIC1111's or ComfyUI's, and neither Kiln's id nor diffusers'
    /// class. In those programs sigma schedules cover the whole table.
    pub range: Option<SigmaRange>,
}

impl From<SamplerKind> for SamplerChoice {
    fn from(kind: SamplerKind) -> Self {
        Self { kind, schedule: None, range: None }
    }
}

impl fmt::Display for SamplerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The label implies the range, so that the written name parses to the same choice.
        match (self.range, self.schedule) {
            (None, None) => write!(f, "{}", self.kind),
            (None, Some(schedule)) => write!(f, "{}_{schedule}", self.kind),
            (Some(_), None) => write!(f, "{}", self.kind.label()),
            (Some(_), Some(schedule)) => write!(f, "{} {}", self.kind.label(), schedule.label()),
        }
    }
}

impl FromStr for SamplerChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let choice = |kind: SamplerKind, schedule: Option<SigmaSchedule>| {
            let ours = Self { kind, schedule, range: None };
            let is_ours = name == ours.to_string() || kind.class_name() == Some(name);
            Self { range: (!is_ours).then_some(SigmaRange::Table), ..ours }
        };
        let unknown = match name.parse() {
            Ok(kind) => return Ok(choice(kind, None)),
            Err(unknown) => unknown,
        };
        if name.len() > 2 * MAX_NAME {
            return Err(unknown);
        }
        let parts = name.char_indices().filter(|(_, c)| matches!(c, ' ' | '_' | '-'));
        let mut named = parts.filter_map(|(at, _)| {
            let (kind, schedule) = (SamplerKind::named(&name[..at])?, name[at + 1..].parse().ok()?);
            Some(choice(kind, Some(schedule)))
        });
        named.next_back().ok_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SamplerKind as K;

    /// Names from the lists of AUTOMATIC1111 (with its older names), ComfyUI, sd.cpp and diffusers.
    #[test]
    fn names_of_other_programs_resolve() {
        use SigmaSchedule as S;
        #[rustfmt::skip]
        let names: [(&str, SamplerKind, Option<S>); 42] = [
            ("DPM++ 2M", K::Dpmpp2m, None), ("DPM++ SDE", K::DpmppSde, None), ("DPM++ 2M SDE", K::Dpmpp2mSde, None),
            ("DPM++ 2M SDE Heun", K::Dpmpp2mSdeHeun, None), ("DPM++ 2S a", K::Dpmpp2sA, None),
            ("DPM++ 3M SDE", K::Dpmpp3mSde, None), ("Euler a", K::EulerA, None), ("Euler", K::Euler, None),
            ("LMS", K::Lms, None), ("Heun", K::Heun, None), ("DPM2", K::Dpm2, None), ("DPM2 a", K::Dpm2A, None),
            ("DDIM", K::Ddim, None), ("PLMS", K::Pndm, None), ("UniPC", K::UniPc, None), ("LCM", K::Lcm, None),
            ("DPM++ 2M Karras", K::Dpmpp2m, Some(S::Karras)), ("DPM++ 2S a Karras", K::Dpmpp2sA, Some(S::Karras)),
            ("DPM++ 2M SDE Exponential", K::Dpmpp2mSde, Some(S::Exponential)),
            ("DPM++ 2M SDE Heun Karras", K::Dpmpp2mSdeHeun, Some(S::Karras)), ("k_euler_a", K::EulerA, None),
            ("k_dpmpp_2m_karras", K::Dpmpp2m, Some(S::Karras)), ("LMS Karras", K::Lms, Some(S::Karras)),
            ("euler_ancestral", K::EulerA, None), ("dpm_2", K::Dpm2, None), ("dpm_2_ancestral", K::Dpm2A, None),
            ("dpmpp_2s_ancestral", K::Dpmpp2sA, None), ("dpmpp_sde_gpu", K::DpmppSde, None),
            ("dpmpp_2m_sde", K::Dpmpp2mSde, None), ("uni_pc", K::UniPc, None), ("uni_pc_bh2", K::UniPc, None),
            ("euler_ancestral_cfg_pp", K::EulerACfgPp, None), ("res_multistep_ancestral", K::ResMultistepA, None),
            ("er_sde", K::ErSde, None), ("euler_cfg_pp", K::EulerCfgPp, None), ("dpm++2s_a", K::Dpmpp2sA, None),
            ("dpm++2m", K::Dpmpp2m, None), ("KDPM2AncestralDiscreteScheduler", K::Dpm2A, None),
            ("DEISMultistepScheduler", K::Deis, None), ("IPNDMScheduler", K::Ipndm, None),
            ("Euler a SGM Uniform", K::EulerA, Some(S::SgmUniform)), ("dpmpp_2m_align_your_steps", K::Dpmpp2m, Some(S::AlignYourSteps)),
        ];
        for (name, kind, schedule) in names {
            let found = name.parse::<SamplerChoice>().unwrap();
            assert_eq!((found.kind, found.schedule), (kind, schedule), "{name}");
        }
    }

    /// Kiln's and diffusers' names select diffusers' range. Names that only other programs have select theirs.
    #[test]
    fn a_name_selects_the_range() {
        for (name, range) in [
            ("dpmpp_2m_karras", None),
            ("euler_a", None),
            ("EulerAncestralDiscreteScheduler", None),
            ("DPM++ 2M Karras", Some(SigmaRange::Table)),
            ("k_dpmpp_2m_karras", Some(SigmaRange::Table)),
            ("euler_ancestral", Some(SigmaRange::Table)),
            ("Euler", Some(SigmaRange::Table)),
        ] {
            assert_eq!(name.parse::<SamplerChoice>().unwrap().range, range, "{name}");
        }
    }
}
