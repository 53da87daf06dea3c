//! Computes `x0` and `eps` from the model's output, for every type of prediction.

use crate::mimic::limit_range;
use crate::tensor::{linear, quantile};
use crate::{Error, Point, Result};
use candle_core::{DType, Device, Tensor};

/// The model's output for latents (n, c, h, w).
#[derive(Debug, Clone)]
pub struct ModelOutput {
    /// The prediction, with guidance applied if there is guidance. It has the latents' shape.
    pub output: Tensor,
    /// The prediction without the prompt, for the samplers with CFG++.
    pub unconditional: Option<Tensor>,
    /// A prediction with a lower guidance scale, whose range the image gets.
    pub mimic: Option<MimicCfg>,
}

/// Dynamic thresholding for latents.
#[derive(Debug, Clone)]
pub struct MimicCfg {
    /// The prediction with the lower guidance scale, of the latents' shape.
    pub output: Tensor,
    /// The share of the values that is not clipped, 0 to 1.
    pub percentile: f64,
}

impl From<Tensor> for ModelOutput {
    fn from(output: Tensor) -> Self {
        Self { output, unconditional: None, mimic: None }
    }
}

/// The quantity that the model predicts: diffusers' `prediction_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prediction {
    /// The noise.
    Epsilon,
    /// The velocity `alpha * eps - sigma * x0`, arXiv 2202.00512.
    V,
    /// The image.
    Sample,
    /// The velocity `eps - x0` of a flow model, arXiv 2210.02747.
    Flow,
}

/// The treatment of a predicted image that is out of range. Latents are not images, so Stable Diffusion's
/// configurations have [`ThresholdMode::None`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ThresholdMode {
    /// The image is not changed.
    None,
    /// Clip to plus or minus this.
    Clip(f64),
    /// Dynamic thresholding, arXiv 2205.11487 section 2.3.
    Dynamic {
        /// The quantile of the image's absolute values that is the threshold.
        ratio: f64,
        /// The largest threshold.
        max: f64,
    },
}

/// The predicted image and the predicted noise of noisy latents.
#[derive(Debug, Clone)]
pub struct Denoised {
    /// The predicted image, after thresholding.
    pub x0: Tensor,
    /// The predicted noise. Thresholding of `x0` does not change it.
    pub eps: Tensor,
}

/// The model's output for the latents of one evaluation, with its type of prediction.
pub struct Denoiser {
    output: ModelOutput,
    prediction: Prediction,
    threshold: ThresholdMode,
}

impl Denoiser {
    /// Wraps an output.
    pub fn new(output: ModelOutput, prediction: Prediction, threshold: ThresholdMode) -> Self {
        Self { output, prediction, threshold }
    }

    /// The image and the noise in the latents `x`, which are at `point`.
    pub fn denoise(&self, x: &Tensor, point: Point) -> Result<Denoised> {
        let output = self.output(x, point)?;
        self.interpret(&output, x, point)
    }

    /// Like [`Denoiser::denoise`], with the image that the model predicts without the prompt, if it reports one.
    pub fn denoise_both(&self, x: &Tensor, point: Point) -> Result<(Denoised, Option<Tensor>)> {
        let ModelOutput { output, unconditional, .. } = self.evaluate(x, point)?;
        let image = |output: Tensor| Ok::<_, Error>(self.interpret(&output, x, point)?.x0);
        let unconditional = unconditional.map(image).transpose()?;
        Ok((self.interpret(&output, x, point)?, unconditional))
    }

    /// The model's output before conversion, in f32.
    pub fn output(&self, x: &Tensor, point: Point) -> Result<Tensor> {
        Ok(self.evaluate(x, point)?.output)
    }

    fn evaluate(&self, x: &Tensor, point: Point) -> Result<ModelOutput> {
        let ModelOutput { output, unconditional, mimic } = self.output.clone();
        let checked = |output: Tensor| {
            if output.dims() != x.dims() {
                return Err(Error::OutputShape { expected: x.dims().to_vec(), found: output.dims().to_vec() });
            }
            Ok(kiln_ops::cast(&output, DType::F32)?)
        };
        let unconditional = unconditional.map(checked).transpose()?;
        let mut output = checked(output)?;
        if let Some(MimicCfg { output: weaker, percentile }) = mimic {
            let image = |output: &Tensor| Ok::<_, Error>(self.interpret(output, x, point)?.x0);
            let limited = limit_range(&image(&output)?, &image(&checked(weaker)?)?, percentile)?;
            output = output_for_x0(self.prediction, &limited, x, point)?;
        }
        Ok(ModelOutput { output, unconditional, mimic: None })
    }

    /// Converts a model output for the latents `x` at `point` to `x0` and `eps`.
    ///
    /// With `a` and `s` the point's factors over its norm (1 for a variance preserving sampler):
    /// `eps`: `x0 = (x - sigma eps) / alpha`; `v`: `x0 = a x - s v`, `eps = s x + a v`, `x` normed too;
    /// `sample`: `eps = (x - alpha x0) / sigma`; `flow`: `x0 = x - sigma v`, `eps = x + alpha v`.
    pub fn interpret(&self, output: &Tensor, x: &Tensor, point: Point) -> Result<Denoised> {
        let Point { timestep, alpha, sigma, .. } = point;
        let (x0, eps) = match self.prediction {
            Prediction::Epsilon if alpha == 0.0 => return Err(Error::ZeroSignal { timestep }),
            Prediction::Epsilon => (linear(&[(1.0 / alpha, x), (-sigma / alpha, output)])?, output.clone()),
            Prediction::V => {
                let norm = point.norm();
                let (a, s) = (alpha / norm, sigma / norm);
                (linear(&[(a / norm, x), (-s, output)])?, linear(&[(s / norm, x), (a, output)])?)
            }
            Prediction::Sample => (output.clone(), linear(&[(1.0 / sigma, x), (-alpha / sigma, output)])?),
            Prediction::Flow => (linear(&[(1.0, x), (-sigma, output)])?, linear(&[(1.0, x), (alpha, output)])?),
        };
        Ok(Denoised { x0: self.threshold.apply(x0)?, eps })
    }
}

/// The model output that corresponds to the image `x0` in the latents `x` at `point`: the inverse of
/// [`Denoiser::interpret`].
pub(crate) fn output_for_x0(prediction: Prediction, x0: &Tensor, x: &Tensor, point: Point) -> Result<Tensor> {
    let Point { alpha, sigma, .. } = point;
    let norm = point.norm();
    match prediction {
        Prediction::Epsilon => linear(&[(1.0 / sigma, x), (-alpha / sigma, x0)]),
        Prediction::V => linear(&[(alpha / (norm * sigma), x), (-norm / sigma, x0)]),
        Prediction::Sample => Ok(x0.clone()),
        Prediction::Flow => linear(&[(1.0 / sigma, x), (-1.0 / sigma, x0)]),
    }
}

impl ThresholdMode {
    fn apply(self, x0: Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(x0),
            Self::Clip(range) => Ok(x0.clamp(-range, range)?),
            Self::Dynamic { ratio, max } => {
                let images = x0.dim(0)?;
                let rows: Vec<Vec<f32>> = x0.abs()?.reshape((images, ()))?.to_device(&Device::Cpu)?.to_vec2()?;
                // Below 1 this is plain clipping. As in PyTorch's `clamp`, `max` overrides that minimum of 1.
                let thresholds = rows.into_iter().map(|row| quantile(row, ratio).max(1.0).min(max as f32));
                let limited = thresholds.enumerate().map(|(i, s)| {
                    let image = x0.narrow(0, i, 1)?;
                    Ok(image.clamp(-s, s)?.affine(1.0 / f64::from(s), 0.0)?)
                });
                Ok(Tensor::cat(&limited.collect::<Result<Vec<_>>>()?, 0)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// A perfect model of each prediction type yields the true image and noise, at any point.
    #[test]
    fn predictions_agree() -> Result<()> {
        let x0 = Tensor::new(&[0.5f32, -0.25, 1.0], &Device::Cpu)?;
        let eps = Tensor::new(&[1.5f32, 0.5, -2.0], &Device::Cpu)?;
        let points = [(1.0, 14.6), (0.6, 0.8), (0.0, 1.0), (1.0, 0.03)];
        for (alpha, sigma) in points {
            let point = Point::new(7.0, alpha, sigma);
            let x = linear(&[(alpha, &x0), (sigma, &eps)])?;
            let (a, s) = (alpha / point.norm(), sigma / point.norm());
            let v = linear(&[(a, &eps), (-s, &x0)])?;
            for (prediction, truth) in [(Prediction::Epsilon, &eps), (Prediction::V, &v), (Prediction::Sample, &x0)] {
                let found = Denoiser::new(truth.clone().into(), prediction, ThresholdMode::None).denoise(&x, point);
                if alpha == 0.0 && prediction == Prediction::Epsilon {
                    assert!(matches!(found, Err(Error::ZeroSignal { .. })));
                    continue;
                }
                let found = found?;
                for (found, truth) in values(&found.x0).iter().zip(values(&x0)) {
                    assert!((found - truth).abs() < 1e-5, "{prediction:?} at {point:?}: x0 {found} for {truth}");
                }
                for (found, truth) in values(&found.eps).iter().zip(values(&eps)) {
                    let tolerance = if sigma < 0.1 { 1e-4 } else { 1e-5 };
                    assert!((found - truth).abs() < tolerance, "{prediction:?} at {point:?}: eps {found} for {truth}");
                }
            }
        }
        Ok(())
    }

    /// A perfect model of a flow's velocity yields the image and the noise, also without signal.
    #[test]
    fn flow_predictions_agree() -> Result<()> {
        let x0 = Tensor::new(&[0.5f32, -0.25, 1.0], &Device::Cpu)?;
        let eps = Tensor::new(&[1.5f32, 0.5, -2.0], &Device::Cpu)?;
        let v = linear(&[(1.0, &eps), (-1.0, &x0)])?;
        for sigma in [1.0, 0.75, 0.01] {
            let point = Point::flow(1000.0 * sigma, sigma);
            assert_eq!((point.input_scale, point.norm()), (1.0, 1.0));
            let x = linear(&[(point.alpha, &x0), (sigma, &eps)])?;
            let found = Denoiser::new(v.clone().into(), Prediction::Flow, ThresholdMode::None).denoise(&x, point)?;
            let again = output_for_x0(Prediction::Flow, &x0, &x, point)?;
            for (found, truth, tolerance) in [(&found.x0, &x0, 1e-6), (&found.eps, &eps, 1e-6), (&again, &v, 1e-4)] {
                let close = values(found).into_iter().zip(values(truth)).all(|(a, b)| (a - b).abs() < tolerance);
                assert!(close, "at {sigma}: {found} for {truth}");
            }
        }
        Ok(())
    }

    /// Weaker guidance of the same scale changes nothing, for every prediction type. A scale of one half then halves
    /// the range.
    #[test]
    fn an_image_gets_the_range_of_weaker_guidance() -> Result<()> {
        let x = Tensor::new(&[0.9f32, -0.5, 1.5, 0.1], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
        let strong = Tensor::new(&[0.2f32, 0.7, -0.4, 1.0], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
        for prediction in [Prediction::Epsilon, Prediction::V, Prediction::Sample] {
            for point in [Point::new(7.0, 1.0, 2.0), Point::new(7.0, 0.6, 0.8)] {
                let mut answer = ModelOutput::from(strong.clone());
                let expected = Denoiser::new(answer.clone(), prediction, ThresholdMode::None).denoise(&x, point)?;
                answer.mimic = Some(MimicCfg { output: strong.clone(), percentile: 1.0 });
                let found = Denoiser::new(answer, prediction, ThresholdMode::None).denoise(&x, point)?;
                for (found, expected) in [(&found.x0, &expected.x0), (&found.eps, &expected.eps)] {
                    let close = values(found).into_iter().zip(values(expected)).all(|(a, b)| (a - b).abs() < 1e-5);
                    assert!(close, "{prediction:?} at {point:?}: {found} for {expected}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn limits() -> Result<()> {
        let x0 = Tensor::new(&[[0.5f32, -3.0, 1.0, 2.0], [0.1, 0.2, 0.3, -0.4]], &Device::Cpu)?;
        assert_eq!(values(&ThresholdMode::Clip(1.0).apply(x0.clone())?), [0.5, -1.0, 1.0, 1.0, 0.1, 0.2, 0.3, -0.4]);
        // `torch.quantile([0.5, 3, 1, 2], 0.5)` is 1.5.
        let found = values(&ThresholdMode::Dynamic { ratio: 0.5, max: 10.0 }.apply(x0)?);
        let expected = [1.0 / 3.0, -1.0, 2.0 / 3.0, 1.0, 0.1, 0.2, 0.3, -0.4];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
        Ok(())
    }

    #[test]
    fn a_model_of_the_wrong_shape_is_refused() -> Result<()> {
        let x = Tensor::zeros((1, 4, 2, 2), DType::F32, &Device::Cpu)?;
        let answer = x.narrow(1, 0, 3)?.into();
        let point = Point::new(0.0, 1.0, 1.0);
        let error = Denoiser::new(answer, Prediction::V, ThresholdMode::None).denoise(&x, point).unwrap_err();
        assert!(error.to_string().contains("[1, 3, 2, 2]"), "{error}");
        Ok(())
    }
}
