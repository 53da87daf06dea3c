//! Pseudo numerical methods for diffusion models: arXiv 2202.09778, algorithm 2 and equations 9, 12, 13.
//!
//! A classical ODE method gives a better mean of the model's outputs, and equation 9 then transfers the latents with
//! it. As in diffusers, the mean is taken over the outputs before a velocity is converted to noise.

use super::{Context, Sampler, ipndm::adams_bashforth};
use crate::tensor::linear;
use crate::{Point, Result, SigmaGrid};
use candle_core::Tensor;

/// The number of evaluations in the three Runge-Kutta steps.
const RUNGE_KUTTA: usize = 12;

#[derive(Default)]
pub(crate) struct Pndm {
    /// The number of evaluations so far.
    count: usize,
    /// The model's outputs at the last whole steps, newest first, at most four.
    outputs: Vec<Tensor>,
    /// The latents at the start of the current step, and their point.
    base: Option<(Tensor, Point)>,
    /// The outputs of the current Runge-Kutta step.
    stages: Vec<Tensor>,
}

impl Sampler for Pndm {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let output = cx.denoiser.output(x, cx.point)?;
        let skip_runge_kutta = cx.schedule.config().skip_prk_steps;
        let count = self.count;
        self.count += 1;
        match count {
            _ if !skip_runge_kutta && count < RUNGE_KUTTA => self.runge_kutta(x, output, cx),
            1 if skip_runge_kutta => self.second_evaluation(&output, cx),
            _ => self.multistep(x, output, cx),
        }
    }
}

impl Pndm {
    /// Equation 13: two evaluations at the midpoint, one at the end, all from the same latents.
    fn runge_kutta(&mut self, x: &Tensor, output: Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let stage = self.stages.len();
        if stage == 0 {
            self.base = Some((x.clone(), cx.point));
            self.remember(output.clone());
        }
        let (base, from) = self.base.clone().expect("stage 0 set it");
        // Stages 0 and 2 go half a step on from their point, stages 1 and 3 do not.
        let half = if stage.is_multiple_of(2) { cx.schedule.stride() / 2 } else { 0 };
        let to = cx.schedule.training_point(cx.point.timestep as i64 - half)?;
        self.stages.push(output);
        if stage < 3 {
            return transfer(&base, &self.stages[stage], from, to, cx);
        }
        let k = std::mem::take(&mut self.stages);
        let mean = linear(&[(1.0 / 6.0, &k[0]), (1.0 / 3.0, &k[1]), (1.0 / 3.0, &k[2]), (1.0 / 6.0, &k[3])])?;
        transfer(&base, &mean, from, to, cx)
    }

    /// Without Runge-Kutta the first step is taken twice, the second time with the mean of the outputs at both of its
    /// ends (crowsonkb's PLMS, CompVis/latent-diffusion pull request 51).
    fn second_evaluation(&mut self, output: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (base, start) = self.base.take().expect("the first evaluation set it");
        let mean = linear(&[(0.5, output), (0.5, &self.outputs[0])])?;
        // On timesteps diffusers counts back from here. Rounding may move the result away from the start.
        let on_timesteps = cx.schedule.config().sigmas == SigmaGrid::Training;
        let counted = || cx.schedule.training_point(cx.point.timestep as i64 + cx.schedule.stride());
        let from = if on_timesteps { counted()? } else { start };
        transfer(&base, &mean, from, cx.point, cx)
    }

    /// Equation 12: Adams-Bashforth, of the highest order that the stored outputs allow.
    fn multistep(&mut self, x: &Tensor, output: Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        if self.count == 1 {
            self.base = Some((x.clone(), cx.point));
        }
        self.remember(output);
        let weights = adams_bashforth(self.outputs.len());
        let mean = linear(&weights.iter().copied().zip(&self.outputs).collect::<Vec<_>>())?;
        transfer(x, &mean, cx.point, cx.target, cx)
    }

    fn remember(&mut self, output: Tensor) {
        self.outputs.insert(0, output);
        self.outputs.truncate(4);
    }
}

/// Equation 9, which is DDIM's step with the given output.
fn transfer(x: &Tensor, output: &Tensor, from: Point, to: Point, cx: &Context<'_>) -> Result<Tensor> {
    let eps = cx.denoiser.interpret(output, x, from)?.eps;
    let scale = to.alpha / from.alpha;
    linear(&[(scale, x), (to.sigma - scale * from.sigma, &eps)])
}
