//! The names of the samplers and of the sigma schedules.

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
    /// Heun's method, arXiv 2206.00364 algorithm 1 without churn.
    Heun,
    /// Linear multistep of order 4, from k-diffusion.
    Lms,
    /// Unified predictor-corrector, arXiv 2302.04867.
    UniPc,
    /// Denoising diffusion probabilistic models, arXiv 2006.11239.
    Ddpm,
}

/// One row of the table of samplers.
struct Row {
    kind: SamplerKind,
    id: &'static str,
    class: &'static str,
    karras: bool,
    about: &'static str,
}

#[rustfmt::skip]
const TABLE: [Row; 9] = [
    Row { kind: SamplerKind::Ddim,    id: "ddim",     class: "DDIMScheduler",                   karras: false, about: "deterministic, first order, the classic" },
    Row { kind: SamplerKind::Euler,   id: "euler",    class: "EulerDiscreteScheduler",          karras: true,  about: "deterministic, first order, SDXL's own" },
    Row { kind: SamplerKind::EulerA,  id: "euler_a",  class: "EulerAncestralDiscreteScheduler", karras: true,  about: "Euler with fresh noise at each step, varied" },
    Row { kind: SamplerKind::Dpmpp2m, id: "dpmpp_2m", class: "DPMSolverMultistepScheduler",     karras: true,  about: "second order multistep, good from 15 steps" },
    Row { kind: SamplerKind::Pndm,    id: "pndm",     class: "PNDMScheduler",                   karras: false, about: "fourth order multistep (PLMS), SD1's own" },
    Row { kind: SamplerKind::Heun,    id: "heun",     class: "HeunDiscreteScheduler",           karras: true,  about: "second order, two model evaluations a step" },
    Row { kind: SamplerKind::Lms,     id: "lms",      class: "LMSDiscreteScheduler",            karras: true,  about: "linear multistep of fourth order" },
    Row { kind: SamplerKind::UniPc,   id: "unipc",    class: "UniPCMultistepScheduler",         karras: true,  about: "predictor-corrector, good from 8 steps" },
    Row { kind: SamplerKind::Ddpm,    id: "ddpm",     class: "DDPMScheduler",                   karras: false, about: "fresh noise at each step, wants many steps" },
];

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
        // The table is in the order of the enum, which a test holds.
        &TABLE[self as usize]
    }

    /// The name on the command line.
    pub fn id(self) -> &'static str {
        self.row().id
    }

    /// One line for a list of samplers.
    pub fn description(self) -> &'static str {
        self.row().about
    }

    /// The diffusers class that is this sampler.
    pub fn class_name(self) -> &'static str {
        self.row().class
    }

    /// Whether the sampler can walk Karras sigmas.
    pub fn has_karras(self) -> bool {
        self.row().karras
    }

    /// The sampler of a diffusers class.
    pub fn from_class_name(class: &str) -> Result<Self> {
        let row = TABLE.iter().find(|row| row.class == class);
        row.map(|row| row.kind).ok_or_else(|| Error::UnknownClass { class: class.to_owned() })
    }

    pub(crate) fn ids() -> String {
        TABLE.map(|row| row.id).join(", ")
    }

    pub(crate) fn karras_ids() -> String {
        let ids: Vec<_> = TABLE.iter().filter(|row| row.karras).map(|row| row.id).collect();
        ids.join(", ")
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
        let found = TABLE.iter().find(|row| row.id == name);
        found.map(|row| row.kind).ok_or_else(|| {
            let wanted = name.to_lowercase();
            let nearest = Self::ALL.into_iter().min_by_key(|kind| edit_distance(&wanted, kind.id()));
            Error::UnknownSampler { name: name.to_owned(), nearest: nearest.unwrap_or(Self::Euler) }
        })
    }
}

/// How the noise levels between the first and the last step are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SigmaSchedule {
    /// What the configuration says.
    #[default]
    Default,
    /// Even in `sigma^(1/7)`, arXiv 2206.00364 equation 5.
    Karras,
}

impl SigmaSchedule {
    /// All sigma schedules.
    pub const ALL: [Self; 2] = [Self::Default, Self::Karras];

    /// The name on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Karras => "karras",
        }
    }
}

impl fmt::Display for SigmaSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for SigmaSchedule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|schedule| schedule.id() == name);
        found.ok_or_else(|| Error::UnknownSigmaSchedule { name: name.to_owned() })
    }
}

/// Levenshtein's distance, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (kind, row) in SamplerKind::ALL.into_iter().zip(&TABLE) {
            assert_eq!(kind.row().id, row.id, "the table is in the order of the enum");
            assert_eq!(kind.id().parse::<SamplerKind>().unwrap(), kind);
            assert_eq!(SamplerKind::from_class_name(kind.class_name()).unwrap(), kind);
            assert!(!kind.description().is_empty());
        }
        for schedule in SigmaSchedule::ALL {
            assert_eq!(schedule.to_string().parse::<SigmaSchedule>().unwrap(), schedule);
        }
    }

    #[test]
    fn a_wrong_name_gets_the_nearest_and_the_list() {
        let message = "DPM++2m".parse::<SamplerKind>().unwrap_err().to_string();
        assert!(message.contains("did you mean dpmpp_2m?"), "{message}");
        assert!(SamplerKind::ALL.iter().all(|kind| message.contains(kind.id())), "{message}");
    }
}
