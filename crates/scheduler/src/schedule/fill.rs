//! Computes the points of a schedule.

use super::Schedule;
use crate::point::Point;
use crate::samplers::second_evaluation;
use crate::sigmas::{Range, distilled_timesteps};
use crate::spacing::{Grid, interpolate, linspace, lu};
use crate::{
    BetaSchedule, Convention, Error, FinalSigma, InitialNoise, Process, Result, SamplerKind, SigmaGrid, SigmaRange,
    SigmaSchedule, Spacing, TimestepRule,
};

/// The largest rounding error of a whole timestep that was computed through the logarithms of noise levels.
const ROUNDING: f64 = 1e-4;

impl Schedule {
    /// DDIM, PNDM, DDPM, LCM, TCD: points are training timesteps.
    pub(super) fn fill_timesteps(&mut self) -> Result<()> {
        let sampler = self.config.sampler;
        let mut timesteps: Vec<i64> = if matches!(sampler, SamplerKind::Lcm | SamplerKind::Tcd) {
            let train = self.config.num_train_timesteps;
            let (stride, kept) = self.config.distilled().unwrap_or((1, train));
            distilled_timesteps(stride, kept, self.steps).into_iter().map(|t| t as i64).collect()
        } else {
            let timesteps = self.grid(self.steps, self.config.num_train_timesteps).timesteps(self.config.spacing);
            timesteps.into_iter().map(|t| t.round_ties_even() as i64).collect()
        };
        if sampler == SamplerKind::Pndm {
            timesteps = self.pndm_evaluations(&timesteps);
        }
        self.points = timesteps.iter().map(|&t| self.training_point(t)).collect::<Result<_>>()?;
        let next = |end: Point| self.points[1..].iter().copied().chain([end]).collect();
        self.targets = match sampler {
            SamplerKind::Ddpm | SamplerKind::Lcm => next(Point::of_alpha_cumprod(0.0, 1.0)),
            // TCD ends on a timestep.
            SamplerKind::Tcd => next(self.training_point(0)?),
            // This is not the next point: where the spacing is not a whole number the two differ a little.
            _ => timesteps.iter().map(|&t| self.training_point(t - self.stride())).collect::<Result<_>>()?,
        };
        self.arrivals = self.points.clone();
        self.step_starts = (0..self.points.len()).collect();
        Ok(())
    }

    /// Fills the samplers on noise levels between timesteps.
    pub(super) fn fill_between_timesteps(&mut self) -> Result<()> {
        let levels = self.levels(self.table.sigmas())?;
        let mut points: Vec<Point> = levels.into_iter().map(|sigma| self.between(sigma)).collect();
        points.push(Point::preserving(0.0, 0.0));
        self.set_variance_preserving(points)
    }

    /// DDIM and PLMS with AUTOMATIC1111's timesteps: the last one is the target of the last step.
    pub(super) fn fill_strided(&mut self) -> Result<()> {
        let timesteps = self.strided();
        if timesteps.len() < 2 {
            return Err(Error::Steps { steps: self.steps, min: 2, max: self.config.num_train_timesteps });
        }
        let points = timesteps.into_iter().map(|t| self.training_point(t)).collect::<Result<_>>()?;
        self.set_variance_preserving(points)
    }

    /// `range(0, n, n // steps) + 1`, the noisiest first: `CompVisSampler.get_timesteps` in AUTOMATIC1111's
    /// `sd_samplers_timesteps.py`.
    fn strided(&self) -> Vec<i64> {
        let train = self.config.num_train_timesteps;
        let stride = (train / self.level_count()).max(1);
        let mut timesteps: Vec<i64> = (0..train).step_by(stride).map(|t| (t + 1).min(train - 1) as i64).collect();
        timesteps.reverse();
        timesteps
    }

    /// Sets the points of a variance preserving sampler, the end last.
    fn set_variance_preserving(&mut self, points: Vec<Point>) -> Result<()> {
        self.set_chain(points)?;
        let Point { alpha, sigma, .. } = self.points[0];
        self.init_noise_sigma = match self.config.initial_noise {
            // With its own timesteps AUTOMATIC1111 starts as diffusers does.
            _ if self.config.sigmas == SigmaGrid::Strided => 1.0,
            InitialNoise::Spacing => 1.0,
            other => self.initial_noise(other, sigma / alpha) * alpha,
        };
        if self.config.sampler == SamplerKind::Pndm && self.steps > 1 {
            // The second point occurs twice.
            for list in [&mut self.points, &mut self.targets, &mut self.arrivals] {
                list.insert(1, list[1]);
            }
            self.targets[1] = self.points[1];
            self.step_starts = (0..self.points.len()).collect();
        }
        Ok(())
    }

    /// PNDM has more model evaluations than steps. With Runge-Kutta the first three steps take four evaluations each,
    /// two of them at the midpoint. Without it, the second timestep occurs twice.
    fn pndm_evaluations(&self, timesteps: &[i64]) -> Vec<i64> {
        if self.config.skip_prk_steps {
            let second = if timesteps.len() > 1 { &timesteps[1..2] } else { &[] };
            let head = &timesteps[..timesteps.len().min(2)];
            return [head, second, &timesteps[head.len()..]].concat();
        }
        let half = self.stride() / 2;
        let runge_kutta = timesteps[..4].windows(2).flat_map(|pair| [pair[0], pair[1] + half, pair[1] + half, pair[1]]);
        runge_kutta.chain(timesteps[3..].iter().copied()).collect()
    }

    /// Euler and related samplers: variance exploding.
    pub(super) fn fill_variance_exploding(&mut self) -> Result<()> {
        let levels: Vec<(f64, f64)> = match &self.config.sigmas {
            _ if self.config.sampler.is_multistep_sde() => self.multistep_levels()?,
            SigmaGrid::Training => self.without_penultimate(self.visited()),
            grid => {
                // diffusers rounds for these two samplers only.
                let rounds = matches!(self.config.sampler, SamplerKind::Dpm2 | SamplerKind::Dpm2A)
                    && *grid == SigmaGrid::Karras
                    && self.config.timesteps == TimestepRule::Class;
                let has_range = grid.schedule().is_some_and(SigmaSchedule::has_range);
                let levels = if has_range && self.config.sigma_range == SigmaRange::Spacing {
                    let visited: Vec<f64> = self.visited().into_iter().rev().map(|(_, sigma)| sigma).collect();
                    self.levels(&visited)?
                } else {
                    self.levels(self.table.sigmas())?
                };
                let timestep =
                    |sigma| if rounds { self.timestep_at(sigma).round_ties_even() } else { self.timestep_at(sigma) };
                levels.into_iter().map(|sigma| (timestep(sigma), sigma)).collect()
            }
        };
        let mut points: Vec<Point> =
            levels.iter().map(|&(t, sigma)| Point::exploding(round_to_f32(t), round_to_f32(sigma))).collect();
        points.push(Point::exploding(0.0, self.final_ratio()));

        self.init_noise_sigma = self.initial_noise(self.config.initial_noise, points[0].sigma);
        if self.config.sampler == SamplerKind::Restart {
            let levels: Vec<f64> = levels.iter().map(|&(_, sigma)| sigma).collect();
            self.fill_restart(&levels)?;
        } else {
            self.set_chain(points)?;
        }
        self.raise_by_churn();
        self.insert_second_evaluations();
        Ok(())
    }

    /// The factor of unit noise in the variance exploding form, where `sigma` is the first level.
    fn initial_noise(&self, rule: InitialNoise, sigma: f64) -> f64 {
        let is_with_image = match rule {
            InitialNoise::Sigma => false,
            InitialNoise::Variance => true,
            // `leading` does not start at the noisiest level, so the first latents have the variance of an image plus
            // noise.
            InitialNoise::Spacing => self.config.spacing == Spacing::Leading,
            // Python's `isclose` with a relative tolerance of 1e-5.
            InitialNoise::Maximum => sigma >= self.table.max() * (1.0 - 1e-5),
        };
        if is_with_image { sigma.hypot(1.0) } else { sigma }
    }

    /// The timesteps of the configuration's spacing, and their noise levels.
    fn visited(&self) -> Vec<(f64, f64)> {
        let steps = self.level_count();
        let timesteps = self.grid(steps, self.config.num_train_timesteps).timesteps(self.config.spacing);
        let timesteps = timesteps.into_iter().map(round_to_f32);
        timesteps.map(|t| (t, interpolate(self.table.sigmas(), t))).collect()
    }

    /// Raises the noise level at the start of steps, for Karras' samplers with churn.
    fn raise_by_churn(&mut self) {
        for i in 0..self.points.len() {
            let sigma = self.points[i].sigma;
            let raised = self.config.churn.raised(sigma, self.steps);
            if raised > sigma {
                self.points[i] = Point::exploding(self.timestep_at(raised), raised);
            }
        }
    }

    /// Inserts the second evaluations of singlestep samplers of second order, and the third ones of Heun++.
    pub(super) fn insert_second_evaluations(&mut self) {
        let (points, targets) = (std::mem::take(&mut self.points), std::mem::take(&mut self.targets));
        let arrivals = std::mem::take(&mut self.arrivals);
        self.step_starts.clear();
        for (i, ((point, target), arrival)) in points.into_iter().zip(&targets).zip(arrivals).enumerate() {
            self.step_starts.push(self.points.len());
            self.points.push(point);
            self.arrivals.push(arrival);
            let second = second_evaluation(&self.config, point, *target).map(|sigma| {
                // The level between of `dpm2_a` may be the target's by rounding: diffusers rounds the target's timestep alone.
                let is_target = sigma == target.sigma && self.config.sampler != SamplerKind::Dpm2A;
                let timestep = if is_target { target.timestep } else { self.timestep_at(sigma) };
                let timestep = round_to_f32(timestep);
                if self.config.is_flow() { Point::flow(timestep, sigma) } else { Point::exploding(timestep, sigma) }
            });
            let is_third = |after: &&Point| self.config.sampler == SamplerKind::HeunPp2 && after.sigma > 0.0;
            let third = targets.get(i + 1).filter(is_third).copied();
            for more in second.into_iter().chain(third) {
                self.targets.push(more);
                self.points.push(more);
                self.arrivals.push(more);
            }
            self.targets.push(*target);
        }
    }

    /// DPM-Solver++, UniPC, DEIS: variance preserving, with whole timesteps where diffusers has them.
    pub(super) fn fill_variance_preserving(&mut self) -> Result<()> {
        if self.config.sigmas == SigmaGrid::Strided {
            return self.fill_even_in_time();
        }
        let levels = self.multistep_levels()?;
        let mut points: Vec<Point> =
            levels.iter().map(|&(t, ratio)| Point::preserving(round_to_f32(t), round_to_f32(ratio))).collect();
        points.push(match self.config.convention {
            Convention::Diffusers => Point::preserving(0.0, self.final_ratio()),
            // There, latents are the image plus noise, and the last step leads to them.
            _ => Point::exploding(0.0, self.final_ratio()),
        });
        self.set_variance_preserving(points)
    }

    /// AUTOMATIC1111's UniPC: `skip_type` `time_uniform`, from the noisiest timestep to the timestep 0, with as many
    /// evaluations as its other samplers have timesteps. The logarithm of alpha is linear between timesteps.
    fn fill_even_in_time(&mut self) -> Result<()> {
        let logs: Vec<f64> = self.table.alphas_cumprod().iter().map(|&alpha| f64::from(alpha).ln()).collect();
        let timesteps = linspace((logs.len() - 1) as f64, 0.0, self.strided().len() + 1);
        let point = |t: f64| Point::of_alpha_cumprod(t, interpolate(&logs, t).exp());
        self.set_variance_preserving(timesteps.into_iter().map(point).collect())
    }

    /// Timesteps and noise levels of diffusers' multistep classes, the noisiest first.
    fn multistep_levels(&self) -> Result<Vec<(f64, f64)>> {
        let multistep = self.is_dpm_solver();
        let noisiest = self.config.num_train_timesteps - if multistep { self.clipped_timesteps() } else { 0 };
        let logs = self.table.log_sigmas();
        let (log_max, log_min) = (logs[logs.len() - 1], logs[0]);
        let timestep = |sigma: f64| match (&self.config.sigmas, self.config.timesteps) {
            (SigmaGrid::Karras | SigmaGrid::Lu, TimestepRule::Class) => self.whole_timestep_of(sigma),
            (SigmaGrid::Scheduled(SigmaSchedule::Exponential | SigmaSchedule::BetaSigmas), TimestepRule::Class) => {
                // diffusers truncates here. The first level is the last timestep's, which the logarithm misses by a
                // rounding error: NumPy 1 computes 999 there, and NumPy 2 computes 998.99999994, which diffusers
                // truncates to 998.
                (self.timestep_of(sigma) + ROUNDING).floor()
            }
            _ => self.timestep_at(sigma),
        };
        let levels = match self.config.sigmas {
            SigmaGrid::Training => {
                let timesteps = self.grid(self.level_count() + 1, noisiest).timesteps(self.config.spacing);
                let whole = timesteps.into_iter().map(f64::round_ties_even);
                return Ok(self.without_penultimate(whole.map(|t| (t, interpolate(self.table.sigmas(), t))).collect()));
            }
            SigmaGrid::Lu => self.without_penultimate(lu(log_max, log_min, self.level_count())),
            _ => self.levels(self.table.sigmas())?,
        };
        Ok(levels.into_iter().map(|sigma| (timestep(sigma), sigma)).collect())
    }

    /// Whether the sampler is diffusers' `DPMSolverMultistepScheduler`.
    fn is_dpm_solver(&self) -> bool {
        self.config.sampler == SamplerKind::Dpmpp2m || self.config.sampler.is_multistep_sde()
    }

    /// The number of computed levels: one more than the steps if the next-to-last one is removed.
    pub(super) fn level_count(&self) -> usize {
        self.steps + usize::from(self.config.discards_penultimate)
    }

    /// Removes the next-to-last level if the configuration asks for it. `levels` are without the end, the noisiest
    /// first.
    pub(super) fn without_penultimate<T>(&self, mut levels: Vec<T>) -> Vec<T> {
        if self.config.discards_penultimate && levels.len() > 1 {
            levels.pop();
        }
        levels
    }

    /// The noise levels of the sigma schedule between the ends of `visited`, the least first.
    pub(super) fn levels(&self, visited: &[f64]) -> Result<Vec<f64>> {
        let config = &self.config;
        let schedule = match &config.sigmas {
            SigmaGrid::Custom(levels) => return Ok(levels.clone()),
            grid => self.flow_schedule(grid.schedule().unwrap_or(SigmaSchedule::Karras)),
        };
        let (min, max) = (visited[0], visited[visited.len() - 1]);
        let (min, max) = (config.sigma_min.unwrap_or(min), config.sigma_max.unwrap_or(max));
        let is_range = min < max || (config.sigma_min.is_none() && config.sigma_max.is_none());
        if !is_range {
            let expected =
                format!("noise levels between which a schedule has room; without it they are {max} and less");
            let (option, value) = if config.sigma_min.is_some() { ("sigma_min", min) } else { ("sigma_max", max) };
            return Err(Error::Option { option, value: value.to_string(), expected });
        }
        let (steps, convention) = (self.level_count(), config.convention);
        let range = Range { table: &self.table, max, min, steps, rho: config.rho, convention };
        Ok(self.without_penultimate(range.levels(schedule).unwrap_or_else(|| visited.iter().rev().copied().collect())))
    }

    /// The variance preserving point of a noise level between timesteps.
    fn between(&self, sigma: f64) -> Point {
        Point::preserving(round_to_f32(self.timestep_at(sigma)), round_to_f32(sigma))
    }

    /// Sets points where each leads to the next, with one evaluation a step.
    ///
    /// No two evaluations may share a noise level. The end may coincide with the last one.
    pub(super) fn set_chain(&mut self, points: Vec<Point>) -> Result<()> {
        self.steps = points.len() - 1;
        if let Some(pair) = points[..self.steps].windows(2).find(|pair| pair[1].sigma >= pair[0].sigma) {
            return Err(Error::TooFine { steps: self.steps, timestep: pair[1].timestep });
        }
        self.targets = points[1..].to_vec();
        self.points = points;
        self.points.pop();
        self.arrivals = self.points.clone();
        self.step_starts = (0..self.steps).collect();
        Ok(())
    }

    fn grid(&self, divisions: usize, last: usize) -> Grid {
        let num_train_timesteps = self.config.num_train_timesteps;
        Grid { last, num_train_timesteps, steps: self.level_count(), divisions, offset: self.config.steps_offset }
    }

    /// The number of noisiest timesteps whose log-SNR is below the bound.
    fn clipped_timesteps(&self) -> usize {
        let bound = self.config.solver.lambda_min_clipped;
        let clipped = self.table.log_sigmas().iter().filter(|&&log_sigma| -log_sigma < bound).count();
        clipped.min(self.config.num_train_timesteps - 1)
    }

    fn timestep_of(&self, sigma: f64) -> f64 {
        self.table.timestep_of(sigma)
    }

    /// The timestep that the model gets at a noise level, where diffusers' class allows fractions.
    pub(super) fn timestep_at(&self, sigma: f64) -> f64 {
        let timestep = self.timestep_of(sigma);
        if self.config.timesteps != TimestepRule::Nearest || self.config.is_flow() {
            return timestep;
        }
        // Computed in f32 as in ComfyUI: where a level is half-way between two timesteps, rounding decides.
        let log_sigma = (sigma as f32).ln();
        let distance = |t: f64| (interpolate(self.table.log_sigmas(), t) as f32 - log_sigma).abs();
        let (below, above) = (timestep.floor(), timestep.ceil());
        if distance(above) < distance(below) { above } else { below }
    }

    /// diffusers rounds, except for DPM-Solver++ with the cosine schedule, where it truncates.
    fn whole_timestep_of(&self, sigma: f64) -> f64 {
        let cosine = matches!(self.config.process, Process::Betas { schedule: BetaSchedule::SquaredCosCapV2, .. });
        let timestep = self.timestep_of(sigma);
        if cosine && self.is_dpm_solver() { timestep.floor() } else { timestep.round_ties_even() }
    }

    /// The ratio of noise to signal after the last step.
    fn final_ratio(&self) -> f64 {
        match self.config.final_sigma {
            FinalSigma::Zero | FinalSigma::Repeated => 0.0,
            FinalSigma::SigmaMin => self.config.sigma_min.unwrap_or(self.table.sigmas()[0]),
            FinalSigma::Thousandth => 1e-3,
        }
    }
}

/// diffusers stores its timesteps and sigmas in f32.
fn round_to_f32(value: f64) -> f64 {
    f64::from(value as f32)
}
