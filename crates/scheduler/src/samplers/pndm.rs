//! Pseudo numerical methods for diffusion models: arXiv 2202.09778, algorithm 2 and equations 9, 12, 13.
//!
//! A classical method for an ODE gives a better mean of the model's answers; equation 9 then transfers
//! the latents with it. As in diffusers the mean is taken of the bare answers, before a velocity is
//! turned into noise.

use super::{Context, Sampler, ipndm::adams_bashforth};
use crate::tensor::linear;
use crate::{Point, Result, SigmaGrid};
use candle_core::Tensor;

/// The evaluations of the three Runge-Kutta steps.
const RUNGE_KUTTA: usize = 12;

#[derive(Default)]
pub(crate) struct Pndm {
    /// Evaluations made.
    count: usize,
    /// The model's answers at the last whole steps, newest first, at most four.
    answers: Vec<Tensor>,
    /// The latents at the start of the step that is under way, and where they are.
    base: Option<(Tensor, Point)>,
    /// The answers of the Runge-Kutta step that is under way.
    stages: Vec<Tensor>,
}

impl Sampler for Pndm {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let answer = cx.denoiser.output(x, cx.point)?;
        let skip_runge_kutta = cx.schedule.config().skip_prk_steps;
        let count = self.count;
        self.count += 1;
        match count {
            _ if !skip_runge_kutta && count < RUNGE_KUTTA => self.runge_kutta(x, answer, cx),
            1 if skip_runge_kutta => self.second_evaluation(&answer, cx),
            _ => self.multistep(x, answer, cx),
        }
    }
}

impl Pndm {
    /// Equation 13: two evaluations half-way, one at the end, all from the same latents.
    fn runge_kutta(&mut self, x: &Tensor, answer: Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let stage = self.stages.len();
        if stage == 0 {
            self.base = Some((x.clone(), cx.point));
            self.remember(answer.clone());
        }
        let (base, from) = self.base.clone().expect("stage 0 set it");
        // Stages 0 and 2 ask for half a step from where they were evaluated, 1 and 3 for none.
        let half = if stage.is_multiple_of(2) { cx.schedule.stride() / 2 } else { 0 };
        let to = cx.schedule.training_point(cx.point.timestep as i64 - half)?;
        self.stages.push(answer);
        if stage < 3 {
            return transfer(&base, &self.stages[stage], from, to, cx);
        }
        let k = std::mem::take(&mut self.stages);
        let mean = linear(&[(1.0 / 6.0, &k[0]), (1.0 / 3.0, &k[1]), (1.0 / 3.0, &k[2]), (1.0 / 6.0, &k[3])])?;
        transfer(&base, &mean, from, to, cx)
    }

    /// Without Runge-Kutta the first step is taken twice, the second time with the mean of the answers at
    /// both of its ends (crowsonkb's PLMS, CompVis/latent-diffusion pull request 51).
    fn second_evaluation(&mut self, answer: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (base, start) = self.base.take().expect("the first evaluation set it");
        let mean = linear(&[(0.5, answer), (0.5, &self.answers[0])])?;
        // On timesteps diffusers counts back from here, which rounding may take beside the start.
        let on_timesteps = cx.schedule.config().sigmas == SigmaGrid::Training;
        let counted = || cx.schedule.training_point(cx.point.timestep as i64 + cx.schedule.stride());
        let from = if on_timesteps { counted()? } else { start };
        transfer(&base, &mean, from, cx.point, cx)
    }

    /// Equation 12: Adams-Bashforth, of as high an order as there are answers.
    fn multistep(&mut self, x: &Tensor, answer: Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        if self.count == 1 {
            self.base = Some((x.clone(), cx.point));
        }
        self.remember(answer);
        let weights = adams_bashforth(self.answers.len());
        let mean = linear(&weights.iter().copied().zip(&self.answers).collect::<Vec<_>>())?;
        transfer(x, &mean, cx.point, cx.target, cx)
    }

    fn remember(&mut self, answer: Tensor) {
        self.answers.insert(0, answer);
        self.answers.truncate(4);
    }
}

/// Equation 9, which is DDIM's step with the given answer.
fn transfer(x: &Tensor, answer: &Tensor, from: Point, to: Point, cx: &Context<'_>) -> Result<Tensor> {
    let eps = cx.denoiser.interpret(answer, x, from)?.eps;
    let scale = to.alpha / from.alpha;
    linear(&[(scale, x), (to.sigma - scale * from.sigma, &eps)])
}
