//! A schedule: the points at which the model is asked, in order.

use crate::kind::Frame;
use crate::point::Point;
use crate::samplers::second_evaluation;
use crate::sigmas::{Range, distilled_timesteps};
use crate::spacing::{Grid, interpolate, lu, timestep_of};
use crate::training::Training;
use crate::{
    BetaSchedule, Error, FinalSigma, Resolved, Result, SamplerKind, SigmaGrid, SigmaSchedule, Spacing, tensor,
};
use candle_core::Tensor;

/// The points at which the model is asked, in order, and what the sampler needs besides.
#[derive(Debug, Clone)]
pub struct Schedule {
    config: Resolved,
    training: Training,
    /// One for each model evaluation.
    points: Vec<Point>,
    /// Where the step that begins at a point leads.
    targets: Vec<Point>,
    /// Where the latents are before an evaluation: at its point, but where churn raises them first.
    arrivals: Vec<Point>,
    /// The evaluation with which each step begins.
    step_starts: Vec<usize>,
    /// The least and the largest noise level that a step begins with.
    range: (f64, f64),
    init_noise_sigma: f64,
    steps: usize,
    start: usize,
}

impl Schedule {
    /// The schedule of `steps` steps, or of as many as there are where the noise levels are given one by one.
    pub fn new(config: &Resolved, steps: usize) -> Result<Self> {
        let (sampler, on_timesteps) = (config.sampler, config.sampler.frame() == Frame::Timesteps);
        let own_timesteps = on_timesteps && config.sigmas == SigmaGrid::Training;
        let distilled = matches!(sampler, SamplerKind::Lcm | SamplerKind::Tcd) && own_timesteps;
        let max = if distilled { config.distilled_timesteps } else { config.num_train_timesteps };
        // The multistep formula of order 4 stands on four steps of Runge-Kutta.
        let runge_kutta = sampler == SamplerKind::Pndm && !config.skip_prk_steps;
        let min = if runge_kutta { 4 } else { 1 };
        let custom = matches!(config.sigmas, SigmaGrid::Custom(_));
        if !(min..=max).contains(&steps) && !custom {
            return Err(Error::Steps { steps, min, max });
        }
        let mut schedule = Self {
            config: config.clone(),
            training: Training::new(config, !own_timesteps),
            points: Vec::new(),
            targets: Vec::new(),
            arrivals: Vec::new(),
            step_starts: Vec::new(),
            range: (0.0, 0.0),
            init_noise_sigma: 1.0,
            steps,
            start: 0,
        };
        match sampler.frame() {
            Frame::Timesteps if own_timesteps => schedule.fill_timesteps()?,
            Frame::Timesteps => schedule.fill_between_timesteps()?,
            Frame::Exploding => schedule.fill_exploding()?,
            Frame::Preserving => schedule.fill_preserving()?,
        }
        let mut levels: Vec<f64> = schedule.arrivals.iter().map(|point| point.sigma / point.alpha).collect();
        levels.sort_by(f64::total_cmp);
        if let [min, .., max] | [min @ max] = levels[..] {
            schedule.range = (min, max);
        }
        Ok(schedule)
    }

    /// DDIM, PNDM, DDPM, LCM, TCD: points are training timesteps.
    fn fill_timesteps(&mut self) -> Result<()> {
        let sampler = self.config.sampler;
        let mut timesteps: Vec<i64> = if matches!(sampler, SamplerKind::Lcm | SamplerKind::Tcd) {
            let (train, distilled) = (self.config.num_train_timesteps, self.config.distilled_timesteps);
            distilled_timesteps(train, distilled, self.steps).into_iter().map(|t| t as i64).collect()
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
            // TCD lands on a timestep.
            SamplerKind::Tcd => next(self.training_point(0)?),
            // Not the next point: where the spacing is no whole number the two differ a little.
            _ => timesteps.iter().map(|&t| self.training_point(t - self.stride())).collect::<Result<_>>()?,
        };
        self.arrivals = self.points.clone();
        self.step_starts = (0..self.points.len()).collect();
        Ok(())
    }

    /// The same samplers on noise levels between timesteps.
    fn fill_between_timesteps(&mut self) -> Result<()> {
        let levels = self.levels(&self.training.sigmas)?;
        let mut points: Vec<Point> = levels.into_iter().map(|sigma| self.between(sigma)).collect();
        points.push(Point::preserving(0.0, 0.0));
        self.set_chain(points)?;
        if self.config.sampler == SamplerKind::Pndm && self.steps > 1 {
            // The second point comes twice.
            for list in [&mut self.points, &mut self.targets, &mut self.arrivals] {
                list.insert(1, list[1]);
            }
            self.targets[1] = self.points[1];
            self.step_starts = (0..self.points.len()).collect();
        }
        Ok(())
    }

    /// PNDM evaluates the model more often than it steps. With Runge-Kutta the first three steps take
    /// four evaluations each, two of them half-way; without, the second timestep comes twice.
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

    /// Euler and its relatives: noise is added to the image as it is.
    fn fill_exploding(&mut self) -> Result<()> {
        let levels: Vec<(f64, f64)> = match self.config.sigmas {
            SigmaGrid::Training => self.visited(),
            // Between the first and the last level that would be visited, as in diffusers.
            SigmaGrid::Karras | SigmaGrid::Scheduled(SigmaSchedule::Exponential | SigmaSchedule::BetaSigmas) => {
                let visited: Vec<f64> = self.visited().into_iter().rev().map(|(_, sigma)| sigma).collect();
                // diffusers rounds for these two alone.
                let rounds = matches!(self.config.sampler, SamplerKind::Dpm2 | SamplerKind::Dpm2A)
                    && self.config.sigmas == SigmaGrid::Karras;
                let timestep =
                    |sigma| if rounds { self.timestep_of(sigma).round_ties_even() } else { self.timestep_of(sigma) };
                self.levels(&visited)?.into_iter().map(|sigma| (timestep(sigma), sigma)).collect()
            }
            _ => {
                self.levels(&self.training.sigmas)?.into_iter().map(|sigma| (self.timestep_of(sigma), sigma)).collect()
            }
        };
        let mut points: Vec<Point> =
            levels.iter().map(|&(t, sigma)| Point::exploding(round_to_f32(t), round_to_f32(sigma))).collect();
        points.push(Point::exploding(0.0, self.final_ratio()));

        let sigma_max = points[0].sigma;
        let from_pure_noise = matches!(self.config.spacing, Spacing::Linspace | Spacing::Trailing);
        // `leading` does not begin at the noisiest level, so the start is an image's variance and noise.
        self.init_noise_sigma = if from_pure_noise { sigma_max } else { sigma_max.hypot(1.0) };
        self.set_chain(points)?;
        self.raise_by_churn();
        self.insert_second_evaluations();
        Ok(())
    }

    /// Timesteps of the configuration's spacing, and their noise levels.
    fn visited(&self) -> Vec<(f64, f64)> {
        let timesteps = self.grid(self.steps, self.config.num_train_timesteps).timesteps(self.config.spacing);
        let timesteps = timesteps.into_iter().map(round_to_f32);
        timesteps.map(|t| (t, interpolate(&self.training.sigmas, t))).collect()
    }

    /// Karras' samplers may begin a step with more noise than the last one left.
    fn raise_by_churn(&mut self) {
        for i in 0..self.points.len() {
            let sigma = self.points[i].sigma;
            let raised = self.config.churn.raised(sigma, self.steps);
            if raised > sigma {
                self.points[i] = Point::exploding(self.timestep_of(raised), raised);
            }
        }
    }

    /// The samplers of second order that remember nothing ask the model twice a step.
    fn insert_second_evaluations(&mut self) {
        let (points, targets) = (std::mem::take(&mut self.points), std::mem::take(&mut self.targets));
        let arrivals = std::mem::take(&mut self.arrivals);
        self.step_starts.clear();
        for ((point, target), arrival) in points.into_iter().zip(targets).zip(arrivals) {
            self.step_starts.push(self.points.len());
            self.points.push(point);
            self.arrivals.push(arrival);
            if let Some(sigma) = second_evaluation(&self.config, point.sigma, target.sigma) {
                let timestep = if sigma == target.sigma { target.timestep } else { self.timestep_of(sigma) };
                let second = Point::exploding(round_to_f32(timestep), sigma);
                self.targets.push(second);
                self.points.push(second);
                self.arrivals.push(second);
            }
            self.targets.push(target);
        }
    }

    /// DPM-Solver++, UniPC, DEIS: variance kept, and whole timesteps where diffusers has them.
    fn fill_preserving(&mut self) -> Result<()> {
        let multistep = self.config.sampler == SamplerKind::Dpmpp2m;
        let noisiest = self.config.num_train_timesteps - if multistep { self.clipped_timesteps() } else { 0 };
        let timesteps = self.grid(self.steps + 1, noisiest).timesteps(self.config.spacing);
        let logs = &self.training.log_sigmas;
        let (log_max, log_min) = (logs[logs.len() - 1], logs[0]);
        let levels: Vec<(f64, f64)> = match self.config.sigmas {
            SigmaGrid::Training => {
                let whole = timesteps.into_iter().map(f64::round_ties_even);
                whole.map(|t| (t, interpolate(&self.training.sigmas, t))).collect()
            }
            SigmaGrid::Karras => {
                let grid = self.levels(&self.training.sigmas)?;
                grid.into_iter().map(|sigma| (self.whole_timestep_of(sigma), sigma)).collect()
            }
            SigmaGrid::Lu => {
                let grid = lu(log_max, log_min, self.steps);
                grid.into_iter().map(|sigma| (self.whole_timestep_of(sigma), sigma)).collect()
            }
            SigmaGrid::Scheduled(SigmaSchedule::Exponential | SigmaSchedule::BetaSigmas) => {
                let grid = self.levels(&self.training.sigmas)?;
                // diffusers drops the fraction here.
                grid.into_iter().map(|sigma| (self.timestep_of(sigma).floor(), sigma)).collect()
            }
            SigmaGrid::Scheduled(_) | SigmaGrid::Custom(_) => {
                let grid = self.levels(&self.training.sigmas)?;
                grid.into_iter().map(|sigma| (self.timestep_of(sigma), sigma)).collect()
            }
        };
        let mut points: Vec<Point> =
            levels.iter().map(|&(t, ratio)| Point::preserving(round_to_f32(t), round_to_f32(ratio))).collect();
        points.push(Point::preserving(0.0, self.final_ratio()));
        self.set_chain(points)
    }

    /// The noise levels that the sigma schedule lays between the ends of `visited`, the least first.
    fn levels(&self, visited: &[f64]) -> Result<Vec<f64>> {
        let schedule = match &self.config.sigmas {
            SigmaGrid::Custom(levels) => return Ok(levels.clone()),
            SigmaGrid::Scheduled(schedule) => *schedule,
            _ => SigmaSchedule::Karras,
        };
        let (min, max) = (visited[0], visited[visited.len() - 1]);
        let range = Range { training: &self.training, max, min, steps: self.steps, rho: self.config.rho };
        Ok(range.levels(schedule).unwrap_or_else(|| visited.iter().rev().copied().collect()))
    }

    /// A variance preserving point between timesteps.
    fn between(&self, sigma: f64) -> Point {
        Point::preserving(round_to_f32(self.timestep_of(sigma)), round_to_f32(sigma))
    }

    /// Each point leads to the next, one evaluation a step.
    ///
    /// No two evaluations may share a noise level; the end may be where the last one is.
    fn set_chain(&mut self, points: Vec<Point>) -> Result<()> {
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
        Grid { last, num_train_timesteps, steps: self.steps, divisions, offset: self.config.steps_offset }
    }

    /// How many of the noisiest timesteps have a log-SNR below the bound.
    fn clipped_timesteps(&self) -> usize {
        let bound = self.config.solver.lambda_min_clipped;
        let clipped = self.training.log_sigmas.iter().filter(|&&log_sigma| -log_sigma < bound).count();
        clipped.min(self.config.num_train_timesteps - 1)
    }

    fn timestep_of(&self, sigma: f64) -> f64 {
        timestep_of(sigma, &self.training.log_sigmas)
    }

    /// diffusers rounds, but for DPM-Solver++ on the cosine schedule it drops the fraction.
    fn whole_timestep_of(&self, sigma: f64) -> f64 {
        let cosine = self.config.betas == BetaSchedule::SquaredCosCapV2;
        let timestep = self.timestep_of(sigma);
        if cosine && self.config.sampler == SamplerKind::Dpmpp2m {
            timestep.floor()
        } else {
            timestep.round_ties_even()
        }
    }

    /// Noise over signal after the last step.
    fn final_ratio(&self) -> f64 {
        match self.config.final_sigma {
            FinalSigma::Zero => 0.0,
            FinalSigma::SigmaMin => self.training.sigmas[0],
        }
    }

    /// The variance preserving point of a training timestep; below 0 lies the end.
    pub(crate) fn training_point(&self, timestep: i64) -> Result<Point> {
        let alphas = &self.training.alphas_cumprod;
        let alpha_cumprod = match usize::try_from(timestep) {
            Ok(index) => *alphas.get(index).ok_or(Error::Timestep { timestep, num_train_timesteps: alphas.len() })?,
            Err(_) if self.config.set_alpha_to_one => 1.0,
            Err(_) => alphas[0],
        };
        Ok(Point::of_alpha_cumprod(timestep as f64, f64::from(alpha_cumprod)))
    }

    /// The whole number of training timesteps in a step.
    pub(crate) fn stride(&self) -> i64 {
        (self.config.num_train_timesteps / self.steps) as i64
    }

    /// Where evaluation `index` leads.
    pub(crate) fn target(&self, index: usize) -> Point {
        self.targets[index]
    }

    /// Where the latents are before evaluation `index`.
    pub(crate) fn arrival(&self, index: usize) -> Point {
        self.arrivals[index]
    }

    /// Whether evaluation `index` is the first of two of its step.
    pub(crate) fn is_first_of_two(&self, index: usize) -> bool {
        let next = index + 1;
        next < self.points.len() && self.step_starts.binary_search(&next).is_err()
    }

    /// The least and the largest noise level of the whole schedule, in units of the signal.
    pub(crate) fn range(&self) -> (f64, f64) {
        self.range
    }

    /// What the schedule was made from.
    pub fn config(&self) -> &Resolved {
        &self.config
    }

    /// The point of each model evaluation, those before the start included.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The timestep of each model evaluation, those before the start included.
    pub fn timesteps(&self) -> Vec<f64> {
        self.points.iter().map(|point| point.timestep).collect()
    }

    /// The first evaluation that is made: 0, but for a schedule from [`Schedule::starting_at`].
    pub fn start(&self) -> usize {
        self.start
    }

    /// The evaluations with which steps begin: where the schedule can be entered.
    pub fn step_starts(&self) -> &[usize] {
        &self.step_starts
    }

    /// What unit noise is multiplied by to be the latents at the first point.
    pub fn init_noise_sigma(&self) -> f64 {
        self.init_noise_sigma
    }

    /// The same schedule entered at evaluation `index`, with latents from [`Schedule::add_noise`].
    pub fn starting_at(&self, index: usize) -> Result<Self> {
        let fail = |reason| Err(Error::Start { index, len: self.points.len(), reason });
        let sampler = self.config.sampler;
        if index >= self.points.len() {
            return fail("at least one evaluation must be left; raise the strength or the number of steps");
        }
        if self.step_starts.binary_search(&index).is_err() {
            return fail("this sampler evaluates twice a step, so it starts at an even index");
        }
        if sampler == SamplerKind::Pndm && !self.config.skip_prk_steps && index > 0 {
            return fail(
                "PNDM cannot be entered behind its Runge-Kutta steps; set skip_prk_steps, or use another sampler",
            );
        }
        Ok(Self { start: index, ..self.clone() })
    }

    /// The evaluation at which an image is entered that keeps `1 - strength` of itself: diffusers' rule
    /// for img2img. Strength 1 is the whole schedule; too little strength leaves no step at all, which
    /// [`Schedule::starting_at`] refuses.
    pub fn start_for_strength(&self, strength: f64) -> usize {
        let kept = self.steps - ((self.steps as f64 * strength.clamp(0.0, 1.0)) as usize).min(self.steps);
        let start = self.step_starts.get(kept).filter(|_| kept < self.steps);
        start.copied().unwrap_or(self.points.len())
    }

    /// The latents at evaluation `index` of a clean image `x0` and unit `noise` of the same shape.
    pub fn add_noise(&self, x0: &Tensor, noise: &Tensor, index: usize) -> Result<Tensor> {
        let reason = "the schedule has no such evaluation";
        let point = self.arrivals.get(index).ok_or(Error::Start { index, len: self.points.len(), reason })?;
        tensor::linear(&[(point.alpha, x0), (point.sigma, noise)])
    }
}

/// diffusers keeps its timesteps and sigmas in f32.
fn round_to_f32(value: f64) -> f64 {
    f64::from(value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SchedulerConfig, SigmaSchedule};

    /// `s = Class(beta_start=.00085, beta_end=.012, beta_schedule="scaled_linear",
    /// timestep_spacing="leading", steps_offset=1, use_karras_sigmas=...); s.set_timesteps(5)`, then
    /// `s.sigmas`, `s.timesteps` and `s.init_noise_sigma`. More of them are in `tests/fixtures`.
    #[test]
    fn sigmas_are_diffusers() -> Result<()> {
        let json = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
            "timestep_spacing": "leading", "steps_offset": 1}"#;
        let config = SchedulerConfig::from_json(json)?;
        #[rustfmt::skip]
        let cases = [
            (SamplerKind::Euler, SigmaSchedule::Default, 5.230909,
                [(5.134433, 801.0), (2.292855, 601.0), (1.168216, 401.0), (0.5740508, 201.0), (0.04131448, 1.0)]),
            (SamplerKind::Euler, SigmaSchedule::Karras, 5.230909,
                [(5.134433, 801.0), (2.024807, 565.8301), (0.6921506, 248.593), (0.1946933, 38.4223), (0.04131448, 1.0)]),
            (SamplerKind::Dpmpp2m, SigmaSchedule::Karras, 1.0,
                [(14.61465, 999.0), (4.796544, 786.0), (1.274105, 427.0), (0.2479517, 59.0), (0.02916753, 0.0)]),
        ];
        for (kind, spacing, init_noise_sigma, levels) in cases {
            let schedule = Schedule::new(&config.resolve(kind, spacing)?, 5)?;
            assert!((schedule.init_noise_sigma() / init_noise_sigma - 1.0).abs() < 1e-6);
            for (point, (sigma, timestep)) in schedule.points().iter().zip(levels) {
                let found = point.sigma / point.alpha;
                assert!((found / sigma - 1.0).abs() < 1e-6, "{kind} {spacing}: sigma {found} for {sigma}");
                assert!(
                    (point.timestep - timestep).abs() <= 1e-6 * timestep,
                    "{kind} {spacing}: {point:?} for {timestep}"
                );
            }
            assert_eq!(schedule.target(4).sigma, 0.0);
        }
        Ok(())
    }
}
