//! The noise levels of a sigma schedule, `sigma / alpha`, the noisiest first and without the end.
//!
//! Sources: k-diffusion (`sampling.py`, `external.py`) for the exponential ones and `normal`; ComfyUI
//! (`comfy/samplers.py`) for `simple`, `ddim_uniform`, `beta` and `kl_optimal`; diffusers for the rest, unless a
//! function names a paper.

mod beta;
mod tables;

use crate::spacing::{Grid, interpolate, karras, linspace};
use crate::table::Table;
use crate::{Convention, SigmaSchedule};
use beta::beta_quantile;
use tables::{ALIGN_YOUR_STEPS, ALIGN_YOUR_STEPS_SDXL, gits};

/// Both parameters of the beta distribution: the paper's best value, and the default of all programs.
const BETA: f64 = 0.6;

/// The part of the noise that the linear half of `linear_quadratic` removes.
const SLOW_PART: f64 = 0.025;

/// The timesteps that consistency models are distilled on: diffusers' `original_inference_steps`.
pub(crate) const DISTILLED: usize = 50;

/// The inputs of a sigma schedule.
pub(crate) struct Range<'a> {
    pub table: &'a Table,
    /// The largest and the least noise level of the schedules that interpolate between two levels.
    pub max: f64,
    pub min: f64,
    pub steps: usize,
    /// The power of `karras` (7) and `polyexponential` (1).
    pub rho: Option<f64>,
    /// The program whose numbers `align_your_steps` and `kl_optimal` use.
    pub convention: Convention,
}

impl Range<'_> {
    /// The levels of `schedule`; `None` for [`SigmaSchedule::Default`], which is not computed here. There are `steps`
    /// of them, except for `ddim_uniform` (up to twice as many) and `beta` (fewer, if timesteps coincide).
    pub fn levels(&self, schedule: SigmaSchedule) -> Option<Vec<f64>> {
        let (n, (log_max, log_min)) = (self.steps, (self.max.ln(), self.min.ln()));
        let table = self.table.sigmas();
        let last = table.len() - 1;
        let at_index = |i: usize| table[last - i.min(last)];
        Some(match schedule {
            SigmaSchedule::Default => return None,
            SigmaSchedule::Karras => karras(self.max, self.min, n, self.rho.unwrap_or(7.0)),
            SigmaSchedule::Exponential => linspace(log_max, log_min, n).into_iter().map(f64::exp).collect(),
            SigmaSchedule::Polyexponential => {
                let ramp = linspace(1.0, 0.0, n).into_iter().map(|ramp| ramp.powf(self.rho.unwrap_or(1.0)));
                ramp.map(|ramp| (ramp * (log_max - log_min) + log_min).exp()).collect()
            }
            SigmaSchedule::Normal => self.between_timesteps(n, n),
            SigmaSchedule::SgmUniform => self.between_timesteps(n + 1, n),
            SigmaSchedule::Simple => {
                let stride = (last + 1) as f64 / n as f64;
                (0..n).map(|i| at_index((i as f64 * stride) as usize)).collect()
            }
            SigmaSchedule::DdimUniform => {
                let stride = ((last + 1) / n).max(1);
                let mut levels: Vec<f64> = table.iter().skip(1).step_by(stride).copied().collect();
                levels.reverse();
                levels
            }
            SigmaSchedule::Beta => {
                let quantile = |i: usize| beta_quantile(1.0 - i as f64 / n as f64, BETA);
                let mut timesteps: Vec<usize> =
                    (0..n).map(|i| (quantile(i) * last as f64).round_ties_even() as usize).collect();
                timesteps.dedup();
                timesteps.into_iter().map(|t| table[t]).collect()
            }
            SigmaSchedule::BetaSigmas => {
                let ramp = linspace(0.0, 1.0, n).into_iter();
                ramp.map(|x| self.min + beta_quantile(1.0 - x, BETA) * (self.max - self.min)).collect()
            }
            SigmaSchedule::AlignYourSteps => self.align_your_steps(&ALIGN_YOUR_STEPS),
            SigmaSchedule::AlignYourStepsSdxl => self.align_your_steps(&ALIGN_YOUR_STEPS_SDXL),
            SigmaSchedule::Gits => gits(n).map_or_else(|longest| resampled(longest, n), <[f64]>::to_vec),
            SigmaSchedule::KlOptimal => {
                let (from, to) = (self.max.atan(), self.min.atan());
                // AUTOMATIC1111 has one level more, which is the end: no 0 follows it.
                let levels = if self.convention == Convention::Automatic1111 { n + 1 } else { n };
                let ramp = linspace(0.0, 1.0, levels).into_iter().take(n);
                ramp.map(|x| (x * to + (1.0 - x) * from).tan()).collect()
            }
            SigmaSchedule::Trailing => {
                let train = last + 1;
                let grid = Grid { last: train, num_train_timesteps: train, steps: n, divisions: n, offset: 0 };
                let timesteps = grid.timesteps(crate::Spacing::Trailing);
                timesteps.into_iter().map(|t| interpolate(table, t)).collect()
            }
            SigmaSchedule::LinearQuadratic => {
                linear_quadratic(n).into_iter().map(|part| part * self.table.max()).collect()
            }
            SigmaSchedule::Lcm => {
                let distilled = DISTILLED.max(n).min(last + 1);
                let timesteps = distilled_timesteps((last + 1) / distilled, distilled, n);
                timesteps.into_iter().map(|t| table[t]).collect()
            }
        })
    }

    /// NVIDIA's list, resampled to the number of steps. AUTOMATIC1111 uses its least level for the last step, and not
    /// for the end.
    fn align_your_steps(&self, levels: &[f64]) -> Vec<f64> {
        match (self.convention, levels) {
            (Convention::Automatic1111, [.., least]) => {
                let above = if self.steps > 1 { resampled(levels, self.steps - 1) } else { Vec::new() };
                [above, vec![*least]].concat()
            }
            _ => resampled(levels, self.steps),
        }
    }

    /// The first `n` of `divisions` levels that are evenly spaced in timesteps between both ends. Between two timesteps
    /// the logarithm of the level of a diffusion model is linear.
    fn between_timesteps(&self, divisions: usize, n: usize) -> Vec<f64> {
        let ends = [self.max, self.min].map(|sigma| self.table.timestep_of(sigma));
        let timesteps = linspace(ends[0], ends[1], divisions).into_iter().take(n);
        timesteps.map(|t| self.table.level_at(t)).collect()
    }
}

/// The shares of the largest level of the schedule `linear_quadratic`: half of the steps go down by 0.025 in equal strides, and
/// the others follow the parabola that continues this line down to 0. Mochi's `infer.py`, as in ComfyUI.
fn linear_quadratic(n: usize) -> Vec<f64> {
    let Some(half) = Some(n / 2).filter(|&half| half > 0) else { return vec![1.0; n] };
    let (line, rest) = (half as f64, (n - half) as f64);
    let slope = SLOW_PART / line;
    // The parabola begins with the slope of the line at its end, and is 1 at `n`.
    let curve = (1.0 - SLOW_PART - slope * rest) / (rest * rest);
    let gone = |i: usize| {
        let beyond = (i as f64 - line).max(0.0);
        slope * i as f64 + curve * beyond * beyond
    };
    (0..n).map(|i| 1.0 - gone(i)).collect()
}

/// `n` of the training timesteps on which a consistency model was distilled, the noisiest first: of every `stride`-th one the first
/// `kept`. arXiv 2310.04378 section 4.3, as diffusers selects them.
pub(crate) fn distilled_timesteps(stride: usize, kept: usize, n: usize) -> Vec<usize> {
    // NumPy's `linspace` without its endpoint, rounded down.
    let step = kept as f64 / n as f64;
    (0..n).map(|i| (kept - (i as f64 * step) as usize) * stride - 1).collect()
}

/// `n` levels of a list whose last value is the end: NVIDIA's interpolation, linear in the logarithm. A list of the
/// right length is used unchanged.
fn resampled(levels: &[f64], n: usize) -> Vec<f64> {
    if levels.len() == n + 1 {
        return levels[..n].to_vec();
    }
    let logs: Vec<f64> = levels.iter().map(|level| level.ln()).collect();
    let places = linspace(0.0, (levels.len() - 1) as f64, n + 1).into_iter().take(n);
    places.map(|at| interpolate(&logs, at).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distilled_timesteps_are_diffusers() {
        assert_eq!(distilled_timesteps(20, 50, 4), [999, 759, 499, 259]);
        assert_eq!(distilled_timesteps(20, 50, 1), [999]);
        assert_eq!(distilled_timesteps(20, 50, 50).len(), 50);
        assert_eq!(distilled_timesteps(20, 35, 6), [699, 599, 479, 359, 239, 119]); // a strength of 0.7
    }

    #[test]
    fn a_list_of_the_right_length_is_taken_as_it_is() {
        assert_eq!(resampled(&[8.0, 4.0, 2.0, 1.0], 3), [8.0, 4.0, 2.0]);
        let more = resampled(&[8.0, 4.0, 2.0, 1.0], 6);
        assert!(
            more.iter()
                .zip([8.0, 32f64.sqrt(), 4.0, 8f64.sqrt(), 2.0, 2f64.sqrt()])
                .all(|(a, b)| (a - b).abs() < 1e-12)
        );
    }
}
