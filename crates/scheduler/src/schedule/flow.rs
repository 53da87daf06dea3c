//! Computes the points of a flow model.

use super::Schedule;
use crate::flow::SolverClass;
use crate::kind::Frame;
use crate::point::Point;
use crate::table::Table;
use crate::{Convention, FinalSigma, FlowForm, Result, SamplerKind, SigmaGrid, SigmaRange, SigmaSchedule};

/// The distance from 1 of the first level of samplers that compute with its log-SNR: `UniPCMultistepScheduler`.
const BELOW_ONE: f64 = 1e-6;

/// The level before the shift that takes the place of 1 for the samplers that compute with its log-SNR and add noise:
/// `offset_first_sigma_for_snr` in ComfyUI's `k_diffusion/sampling.py`.
const FIRST_OF_SDE: f64 = 1.0 - 1e-4;

impl Schedule {
    /// The points of a flow model, for all of its samplers.
    pub(super) fn fill_flow(&mut self) -> Result<()> {
        let mut levels = self.flow_levels()?;
        let top = levels.first().copied().unwrap_or(1.0);
        if let Some(first) = levels.first_mut() {
            if self.adds_noise_by_snr() && *first as f32 >= 1.0 {
                *first = self.table.level_at(FIRST_OF_SDE * self.config.num_train_timesteps as f64);
            }
            let by_snr = self.config.sampler.frame() == Frame::Preserving && self.is_diffusers();
            if by_snr && (*first - 1.0).abs() < BELOW_ONE {
                *first -= BELOW_ONE;
            }
        }
        let mut points: Vec<Point> = levels.iter().map(|&sigma| self.flow_point(sigma)).collect();
        let end = match self.config.final_sigma {
            FinalSigma::Zero => 0.0,
            FinalSigma::SigmaMin => self.config.sigma_min.unwrap_or(self.table.sigmas()[0]),
            FinalSigma::Thousandth => 1e-3,
            FinalSigma::Repeated => points.last().map_or(0.0, |point| point.sigma),
        };
        points.push(Point::flow(0.0, end));
        // diffusers' first latents are the noise, ComfyUI's are the first level of it.
        self.init_noise_sigma = if self.is_diffusers() { 1.0 } else { f64::from(top as f32) };
        self.set_chain(points)?;
        self.insert_second_evaluations();
        // The Brownian paths of ComfyUI's samplers reach the first level before it was moved.
        self.range.1 = f64::from(top as f32);
        Ok(())
    }

    /// The levels, the noisiest first and without the end.
    fn flow_levels(&self) -> Result<Vec<f64>> {
        let (Table::Flow { shift, train, .. }, Some(flow)) = (&self.table, self.config.flow()) else {
            return Ok(Vec::new());
        };
        let own = || flow.levels(self.config.sampler, (self.level_count(), *train), *shift);
        match &self.config.sigmas {
            SigmaGrid::Training => Ok(self.without_penultimate(own())),
            grid => {
                let has_range = grid.schedule().is_some_and(|schedule| self.flow_schedule(schedule).has_range());
                if has_range && self.config.sigma_range == SigmaRange::Spacing {
                    let own: Vec<f64> = own().into_iter().rev().collect();
                    return self.levels(&own);
                }
                self.levels(self.table.sigmas())
            }
        }
    }

    /// diffusers' `use_beta_sigmas` is the form that the schedule `beta` has for flow models.
    pub(super) fn flow_schedule(&self, schedule: SigmaSchedule) -> SigmaSchedule {
        match schedule {
            SigmaSchedule::Beta if self.config.is_flow() && self.is_diffusers() => SigmaSchedule::BetaSigmas,
            other => other,
        }
    }

    fn flow_point(&self, sigma: f64) -> Point {
        let rounded = f64::from(sigma as f32);
        // diffusers casts the timesteps of these classes to integers.
        let is_whole = SolverClass::of(self.config.sampler) != SolverClass::Euler
            && self.config.sigmas == SigmaGrid::Training
            && self.is_diffusers();
        let timestep = if is_whole { self.table.timestep_of(sigma).trunc() } else { self.table.timestep_of(rounded) };
        Point::flow(f64::from(timestep as f32), rounded)
    }

    fn adds_noise_by_snr(&self) -> bool {
        let kind = self.config.sampler;
        kind.flow() == FlowForm::Own
            && matches!(
                kind,
                SamplerKind::DpmppSde
                    | SamplerKind::Dpmpp2mSde
                    | SamplerKind::Dpmpp2mSdeHeun
                    | SamplerKind::Dpmpp3mSde
                    | SamplerKind::ErSde
            )
    }

    fn is_diffusers(&self) -> bool {
        self.config.convention == Convention::Diffusers
    }
}
