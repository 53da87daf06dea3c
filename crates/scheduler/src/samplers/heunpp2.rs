//! Heun++ of order 3: Carzit's sd-webui-samplers-scheduler, as in ComfyUI. The slope of a step is the weighted mean of
//! the slopes at its start, at its end and at the end of the next step. The weights are the ratios of their noise
//! levels to the first one.

use super::{Context, Sampler, along, slope};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct HeunPp2 {
    /// The latents at the start of the current step, and the noise levels of its start and end.
    start: Option<(Tensor, f64, f64)>,
    /// The slopes of the current step and their noise levels, in order.
    slopes: Vec<(Tensor, f64)>,
}

impl Sampler for HeunPp2 {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (sigma, target) = (cx.point.sigma, cx.target.sigma);
        let d = slope(x, &cx.denoise(x)?.x0, sigma)?;
        let (start, from, to) = self.start.take().unwrap_or_else(|| (x.clone(), sigma, target));
        self.slopes.push((d.clone(), sigma));
        if !cx.is_last_of_step() {
            self.start = Some((start, from, to));
            return along(x, &d, target - sigma);
        }
        let slopes = std::mem::take(&mut self.slopes);
        // The first noise level of the whole schedule.
        let whole = slopes.len() as f64 * cx.schedule.range().1;
        let later: Vec<f64> = slopes[1..].iter().map(|(_, level)| level / whole).collect();
        let weights = [1.0 - later.iter().sum::<f64>()].into_iter().chain(later);
        let mean = linear(&weights.zip(slopes.iter().map(|(slope, _)| slope)).collect::<Vec<_>>())?;
        along(&start, &mean, to - from)
    }
}
