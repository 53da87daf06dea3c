//! A schedule: the points of the model evaluations, in order.

mod fill;
mod flow;
mod restart;

use crate::kind::Frame;
use crate::point::Point;
use crate::table::Table;
use crate::{Error, Resolved, Result, SamplerKind, SigmaGrid, tensor};
use candle_core::Tensor;

/// The points of the model evaluations, in order, with the other data that samplers need.
#[derive(Debug, Clone)]
pub struct Schedule {
    config: Resolved,
    table: Table,
    /// One for each model evaluation.
    points: Vec<Point>,
    /// The target of the step that begins at each point.
    targets: Vec<Point>,
    /// The point of the latents before each evaluation: the evaluation's own point, unless churn raises them first.
    arrivals: Vec<Point>,
    /// The evaluation with which each step begins.
    step_starts: Vec<usize>,
    /// The least and the largest noise level at the start of a step.
    range: (f64, f64),
    init_noise_sigma: f64,
    steps: usize,
    start: usize,
}

impl Schedule {
    /// The schedule of `steps` steps, or of the given noise levels if the configuration lists them.
    pub fn new(config: &Resolved, steps: usize) -> Result<Self> {
        let (sampler, on_timesteps) = (config.sampler, config.sampler.frame() == Frame::Timesteps);
        let strided = config.sigmas == SigmaGrid::Strided;
        let own_timesteps = on_timesteps && !config.is_flow() && (config.sigmas == SigmaGrid::Training || strided);
        let max = config.distilled().map_or(config.num_train_timesteps, |(_, kept)| kept);
        // The multistep formula of order 4 needs four Runge-Kutta steps first.
        let runge_kutta = sampler == SamplerKind::Pndm && !config.skip_prk_steps;
        let min = if runge_kutta { 4 } else { 1 };
        let custom = matches!(config.sigmas, SigmaGrid::Custom(_));
        if !(min..=max).contains(&steps) && !custom {
            return Err(Error::Steps { steps, min, max });
        }
        let mut schedule = Self {
            config: config.clone(),
            table: Table::new(config, steps, !own_timesteps)?,
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
            _ if config.is_flow() => schedule.fill_flow()?,
            Frame::Timesteps if strided => schedule.fill_strided()?,
            Frame::Timesteps if own_timesteps => schedule.fill_timesteps()?,
            Frame::Timesteps => schedule.fill_between_timesteps()?,
            Frame::Exploding => schedule.fill_variance_exploding()?,
            Frame::Preserving => schedule.fill_variance_preserving()?,
        }
        let ends = schedule.targets.last().filter(|end| end.sigma > 0.0);
        let mut levels: Vec<f64> = schedule.arrivals.iter().chain(ends).map(|&point| schedule.level(point)).collect();
        levels.sort_by(f64::total_cmp);
        if let [min, .., max] | [min @ max] = levels[..] {
            schedule.range = (min, max.max(schedule.range.1));
        }
        Ok(schedule)
    }

    /// The variance preserving point of a training timestep. A negative timestep is the end.
    pub(crate) fn training_point(&self, timestep: i64) -> Result<Point> {
        let alphas = self.table.alphas_cumprod();
        let alpha_cumprod = match usize::try_from(timestep) {
            Ok(index) => *alphas.get(index).ok_or(Error::Timestep { timestep, num_train_timesteps: alphas.len() })?,
            Err(_) if self.config.set_alpha_to_one => 1.0,
            Err(_) => *alphas.first().ok_or(Error::Timestep { timestep, num_train_timesteps: 0 })?,
        };
        Ok(Point::of_alpha_cumprod(timestep as f64, f64::from(alpha_cumprod)))
    }

    /// The number of training timesteps in a step, rounded down.
    pub(crate) fn stride(&self) -> i64 {
        (self.config.num_train_timesteps / self.steps) as i64
    }

    /// The target of evaluation `index`.
    pub(crate) fn target(&self, index: usize) -> Point {
        self.targets[index]
    }

    /// The point of the latents before evaluation `index`.
    pub(crate) fn arrival(&self, index: usize) -> Point {
        self.arrivals[index]
    }

    /// Whether evaluation `index` is the first of two of its step.
    pub(crate) fn is_first_of_two(&self, index: usize) -> bool {
        let next = index + 1;
        next < self.points.len() && self.step_starts.binary_search(&next).is_err()
    }

    /// The noise level of a point: in units of the signal, and the noise's factor of a flow model.
    fn level(&self, point: Point) -> f64 {
        if self.config.is_flow() { point.sigma } else { point.ratio() }
    }

    /// The least and the largest noise level of the whole schedule: in units of the signal, and the noise's factor of a flow
    /// model.
    pub(crate) fn range(&self) -> (f64, f64) {
        self.range
    }

    /// The configuration of the schedule.
    pub fn config(&self) -> &Resolved {
        &self.config
    }

    /// The point of each model evaluation, including those before the start.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The point of the latents before each model evaluation: the evaluation's own point, unless churn raises them
    /// first.
    pub fn arrivals(&self) -> &[Point] {
        &self.arrivals
    }

    /// The training timestep whose noise level is nearest to that of evaluation `index`; the last one if there is no such
    /// evaluation.
    pub fn nearest_timestep(&self, index: usize) -> usize {
        let last = self.config.num_train_timesteps.saturating_sub(1);
        let Some(level) = self.points.get(index).map(|&point| self.level(point)) else { return last };
        if self.config.is_flow() {
            // The table of a flow model begins at the timestep 1, at its index 0.
            return ((self.table.timestep_of(level).round() as usize).saturating_sub(1)).min(last);
        }
        let distance = |timestep: &usize| (self.table.sigmas()[*timestep] - level).abs();
        (0..=last).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(last)
    }

    /// The timestep of each model evaluation, including those before the start.
    pub fn timesteps(&self) -> Vec<f64> {
        self.points.iter().map(|point| point.timestep).collect()
    }

    /// The first evaluation of a run: 0, unless the schedule is from [`Schedule::starting_at`].
    pub fn start(&self) -> usize {
        self.start
    }

    /// The evaluations at which steps begin. A run can start at each of them.
    pub fn step_starts(&self) -> &[usize] {
        &self.step_starts
    }

    /// The factor that scales unit noise to the latents at the first point.
    pub fn init_noise_sigma(&self) -> f64 {
        self.init_noise_sigma
    }

    /// Starts the schedule at evaluation `index`, for latents from [`Schedule::add_noise`].
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
            return fail("PNDM cannot start after its Runge-Kutta steps; set skip_prk_steps, or use another sampler");
        }
        Ok(Self { start: index, ..self.clone() })
    }

    /// The evaluation at which img2img with this `strength` starts: diffusers' rule. Strength 1 is the whole schedule. The
    /// number of steps that run is rounded down, and up for a flow model.
    /// If the strength is so low that no step is left, [`Schedule::starting_at`] returns an error.
    pub fn start_for_strength(&self, strength: f64) -> usize {
        let (steps, strength) = (self.steps as f64, strength.clamp(0.0, 1.0));
        let kept = match self.config.is_flow() {
            true => (steps - (steps * strength).min(steps)) as usize,
            false => self.steps - ((steps * strength) as usize).min(self.steps),
        };
        let start = self.step_starts.get(kept).filter(|_| kept < self.steps);
        start.copied().unwrap_or(self.points.len())
    }

    /// The latents at evaluation `index` for a clean image `x0` and unit `noise` of the same shape.
    pub fn add_noise(&self, x0: &Tensor, noise: &Tensor, index: usize) -> Result<Tensor> {
        let reason = "the schedule has no such evaluation";
        // At its second evaluation diffusers' DPM2 adds the noise of the step's end, and not that of the level between.
        let is_second_of_dpm2 = matches!(self.config.sampler, SamplerKind::Dpm2 | SamplerKind::Dpm2A)
            && self.step_starts.binary_search(&index).is_err();
        let points = if is_second_of_dpm2 { &self.targets } else { &self.arrivals };
        let point = points.get(index).ok_or(Error::Start { index, len: self.points.len(), reason })?;
        tensor::linear(&[(point.alpha, x0), (point.sigma, noise)])
    }
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

    /// `s = KDPM2AncestralDiscreteScheduler(.., use_karras_sigmas=True, timestep_spacing="leading", steps_offset=1)`, `s.set_timesteps(11)`,
    /// `s.timesteps`: those of first evaluations are whole, those of second ones are not, where the levels are the same, too.
    #[test]
    fn second_timesteps_of_dpm2_a_are_diffusers() -> Result<()> {
        let json = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "use_karras_sigmas": true,
            "timestep_spacing": "leading", "steps_offset": 1}"#;
        let config = SchedulerConfig::from_json(json)?.resolve(SamplerKind::Dpm2A, SigmaSchedule::Default)?;
        let expected = [
            901.0, 824.3571, 824.0, 733.1683, 733.0, 623.1572, 623.0, 491.3468, 491.0, 342.7682, 343.0, 198.9148,
            199.0, 90.3370, 90.0, 30.9667, 31.0, 7.8380, 8.0, 1.0, 1.0,
        ];
        let found = Schedule::new(&config, 11)?.timesteps();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        }
        Ok(())
    }

    /// The noise that inpainting adds between the two evaluations of a step (`add_noise` of diffusers' KDPM2DiscreteScheduler).
    #[test]
    fn dpm2_adds_the_noise_of_the_steps_end() -> Result<()> {
        let schedule =
            Schedule::new(&SchedulerConfig::default().resolve(SamplerKind::Dpm2, SigmaSchedule::Default)?, 3)?;
        let noise = Tensor::ones(1, candle_core::DType::F32, &candle_core::Device::Cpu)?;
        let zero = noise.zeros_like()?;
        let level = |index| Ok::<_, Error>(schedule.add_noise(&zero, &noise, index)?.to_vec1::<f32>()?[0]);
        let of = |index: usize| schedule.points()[index].sigma as f32;
        assert_eq!([level(0)?, level(1)?, level(2)?, level(3)?, level(4)?], [of(0), of(2), of(2), of(4), of(4)]);
        Ok(())
    }

    /// `from_config(config, timestep_spacing="trailing")`: with the class's first latents and its end.
    #[test]
    fn trailing_is_the_spacing_of_diffusers_classes() -> Result<()> {
        let json = |spacing: &str| {
            let text = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "set_alpha_to_one": false,
                "steps_offset": 1, "skip_prk_steps": true, "timestep_spacing": "SPACING"}"#;
            SchedulerConfig::from_json(&text.replace("SPACING", spacing))
        };
        for kind in SamplerKind::ALL.into_iter().filter(|kind| kind.has_trailing_class()) {
            let chosen = Schedule::new(&json("leading")?.resolve(kind, SigmaSchedule::Trailing)?, 6)?;
            let own = Schedule::new(&json("trailing")?.resolve(kind, SigmaSchedule::Default)?, 6)?;
            assert_eq!((chosen.points(), &chosen.targets), (own.points(), &own.targets), "{kind}");
            assert_eq!(chosen.init_noise_sigma(), own.init_noise_sigma(), "{kind}");
        }
        Ok(())
    }
}
