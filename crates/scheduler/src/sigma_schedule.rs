//! The names of the sigma schedules.

use crate::names::{closest, same, short_name};
use crate::{Error, Result, SigmaRange};
use std::fmt;
use std::str::FromStr;

/// The spacing of the noise levels between the first and the last step. Every schedule works with every sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SigmaSchedule {
    /// The schedule of the model's configuration.
    #[default]
    Default,
    /// Even in `sigma^(1/7)`, arXiv 2206.00364 equation 5.
    Karras,
    /// Even in `log sigma`.
    Exponential,
    /// Even in `log sigma`, with a power of the steps, from k-diffusion.
    Polyexponential,
    /// Even in timesteps from the noisiest to the least noisy one, from k-diffusion.
    Normal,
    /// [`Self::Normal`] without the last level, as in Stability's code.
    SgmUniform,
    /// Training noise levels at even indices, from the noisiest down.
    Simple,
    /// Training noise levels at even indices, from the least noisy up.
    DdimUniform,
    /// Timesteps at the quantiles of a beta distribution, arXiv 2407.12173.
    Beta,
    /// Noise levels at those quantiles, as in diffusers and AUTOMATIC1111.
    BetaSigmas,
    /// Optimized for SD1.5, arXiv 2404.14507.
    AlignYourSteps,
    /// Optimized for SDXL, arXiv 2404.14507.
    AlignYourStepsSdxl,
    /// Derived from the geometry of trajectories, arXiv 2405.11326.
    Gits,
    /// Even in `atan sigma`, which is optimal for Gaussian data: arXiv 2404.14507, theorem 3.1.
    KlOptimal,
    /// Down from the last training timestep in equal strides, for Turbo, Lightning and Hyper models.
    Trailing,
    /// A subset of the 50 timesteps that consistency models are distilled on.
    Lcm,
    /// Half of the steps down to 0.975 of the noisiest level in equal strides, then a parabola, from Mochi.
    LinearQuadratic,
}

/// Kind, id, label, other names, one-line description.
type Row = (SigmaSchedule, &'static str, &'static str, &'static [&'static str], &'static str);

use SigmaSchedule as S;

#[rustfmt::skip]
const TABLE: [Row; 17] = [
    (S::Default,            "default",               "Automatic",        &[],                           "the schedule of the model's configuration"),
    (S::Karras,             "karras",                "Karras",           &["ka"],                       "more steps at low noise"),
    (S::Exponential,        "exponential",           "Exponential",      &["exp"],                      "even in the logarithm of the noise"),
    (S::Polyexponential,    "polyexponential",       "Polyexponential",  &[],                           "as exponential, with `rho` as power"),
    (S::Normal,             "normal",                "Uniform",          &["Discrete"],                 "even in timesteps, both ends included"),
    (S::SgmUniform,         "sgm_uniform",           "SGM Uniform",      &[],                           "even in timesteps, without the last"),
    (S::Simple,             "simple",                "Simple",           &[],                           "training noise levels, from the noisiest down"),
    (S::DdimUniform,        "ddim_uniform",          "DDIM",             &["ddim"],                     "training noise levels, from the least noisy up"),
    (S::Beta,               "beta",                  "Beta",             &[],                           "more steps at both ends, in timesteps"),
    (S::BetaSigmas,         "beta_sigmas",           "Beta sigmas",      &[],                           "more steps at both ends, in noise levels"),
    (S::AlignYourSteps,     "align_your_steps",      "Align Your Steps", &["ays", "AYS SD1"],           "optimized, for few steps"),
    (S::AlignYourStepsSdxl, "align_your_steps_sdxl", "Align Your Steps SDXL", &["ays_sdxl"],            "as align_your_steps, with SDXL's levels"),
    (S::Gits,               "gits",                  "GITS",             &["align_your_steps_GITS"],    "optimized, for few steps"),
    (S::KlOptimal,          "kl_optimal",            "KL Optimal",       &[],                           "even in the arc tangent of the noise"),
    (S::Trailing,           "trailing",              "Turbo",            &["sd_turbo"],                 "from the noisiest timestep down, for distilled models"),
    (S::Lcm,                "lcm",                   "LCM",              &[],                           "of 50 timesteps, for consistency models"),
    (S::LinearQuadratic,    "linear_quadratic",      "Linear Quadratic", &[],                           "half of the steps at high noise, then a parabola"),
];

impl SigmaSchedule {
    /// All sigma schedules, in the order in which they are listed to users.
    pub const ALL: [Self; TABLE.len()] = {
        let mut all = [Self::Default; TABLE.len()];
        let mut i = 0;
        while i < TABLE.len() {
            all[i] = TABLE[i].0;
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
        self.row().1
    }

    /// AUTOMATIC1111's name, or a similar one.
    pub fn label(self) -> &'static str {
        self.row().2
    }

    /// One line for a list of schedules.
    pub fn description(self) -> &'static str {
        self.row().4
    }

    /// Whether the schedule interpolates between two noise levels, which [`SigmaRange`] selects.
    pub fn has_range(self) -> bool {
        matches!(self, Self::Karras | Self::Exponential | Self::Polyexponential | Self::BetaSigmas)
    }

    /// Whether `sigma_min` and `sigma_max` affect the schedule.
    pub fn has_bounds(self) -> bool {
        self.has_range() || matches!(self, Self::Normal | Self::SgmUniform | Self::KlOptimal)
    }

    /// The ids of the schedules for which `takes` returns true, for a message.
    pub(crate) fn ids_that(takes: impl Fn(Self) -> bool) -> String {
        let ids: Vec<_> = Self::ALL.into_iter().filter(|&schedule| takes(schedule)).map(Self::id).collect();
        ids.join(", ")
    }

    /// Whether the schedule has levels for flow models. Lists that were optimized for Stable Diffusion do not.
    pub fn works_for_flow(self) -> bool {
        !matches!(self, Self::AlignYourSteps | Self::AlignYourStepsSdxl | Self::Gits | Self::Lcm)
    }

    /// The ids of the schedules for flow models, for a message.
    pub(crate) fn flow_ids() -> String {
        Self::ids_that(Self::works_for_flow)
    }

    /// Whether `rho` affects the schedule.
    pub fn has_rho(self) -> bool {
        matches!(self, Self::Karras | Self::Polyexponential)
    }

    fn ids() -> String {
        TABLE.map(|row| row.1).join(", ")
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
        let named = |(_, id, label, aliases, _): &&Row| {
            same(name, id) || same(name, label) || aliases.iter().any(|alias| same(name, alias))
        };
        let found = TABLE.iter().find(named).map(|row| row.0);
        found.ok_or_else(|| Error::UnknownSigmaSchedule {
            name: short_name(name),
            nearest: closest(name, TABLE.iter().map(|row| (row.1, row.1))),
            known: Self::ids(),
        })
    }
}

/// A sigma schedule name as users write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScheduleChoice {
    /// The schedule.
    pub schedule: SigmaSchedule,
    /// [`SigmaRange::Table`] where the name is not Kiln's id, as AUTOMATIC1111's "Karras". There, sigma schedules cover
    /// the whole table. `None` for schedules that do not interpolate between two levels.
    pub range: Option<SigmaRange>,
}

impl FromStr for ScheduleChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let schedule: SigmaSchedule = name.parse()?;
        let is_theirs = name != schedule.id() && schedule.has_range();
        Ok(Self { schedule, range: is_theirs.then_some(SigmaRange::Table) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_selects_the_range() {
        let range = |name: &str| name.parse::<ScheduleChoice>().unwrap().range;
        assert_eq!([range("karras"), range("beta_sigmas"), range("Simple")], [None; 3]);
        assert_eq!([range("Karras"), range("Exponential")], [Some(SigmaRange::Table); 2]);
    }

    #[test]
    fn names_round_trip() {
        for (i, schedule) in SigmaSchedule::ALL.into_iter().enumerate() {
            assert_eq!(schedule as usize, i, "the table is in the order of the enum");
            assert_eq!(schedule.to_string().parse::<SigmaSchedule>().unwrap(), schedule);
            assert_eq!(schedule.label().parse::<SigmaSchedule>().unwrap(), schedule);
            assert!(!schedule.description().is_empty());
        }
        for (name, schedule) in [
            ("sgm_uniform", SigmaSchedule::SgmUniform),
            ("SGM Uniform", SigmaSchedule::SgmUniform),
            ("Uniform", SigmaSchedule::Normal),
            ("automatic", SigmaSchedule::Default),
            ("Turbo", SigmaSchedule::Trailing),
            ("AYS", SigmaSchedule::AlignYourSteps),
        ] {
            assert_eq!(name.parse::<SigmaSchedule>().unwrap(), schedule);
        }
        let message = "karas".parse::<SigmaSchedule>().unwrap_err().to_string();
        assert!(message.contains("did you mean karras"), "{message}");
    }
}
