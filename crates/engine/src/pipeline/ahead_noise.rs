//! Fresh noise that is drawn before a sampler asks for it, while a GPU computes.

use candle_core::{DType, Device, Shape, Tensor};
use kiln_scheduler::{NoiseSource, Result};

/// Noise of another source, in the source's order. Between a step and the sampler's update a GPU would wait while the host
/// draws.
pub(crate) struct AheadNoise {
    source: Box<dyn NoiseSource + Send>,
    /// The shape that was asked for since the last call of [`Self::draw_ahead`].
    asked: Option<Shape>,
    /// In f32 on the CPU.
    drawn: Option<Tensor>,
}

impl AheadNoise {
    /// The noise of `source`.
    pub(crate) fn new(source: Box<dyn NoiseSource + Send>) -> Self {
        Self { source, asked: None, drawn: None }
    }

    /// Draws what [`NoiseSource::sample`] returns next, if it was called since the last time: many samplers never call it.
    ///
    /// # Errors
    /// Errors of the source.
    pub(crate) fn draw_ahead(&mut self) -> Result<()> {
        if let Some(shape) = self.asked.take().filter(|_| self.drawn.is_none() && self.source.may_draw_ahead()) {
            self.drawn = Some(self.source.sample(&Tensor::zeros(shape, DType::F32, &Device::Cpu)?)?);
        }
        Ok(())
    }
}

impl NoiseSource for AheadNoise {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        self.asked = Some(like.shape().clone());
        match self.drawn.take() {
            Some(drawn) => Ok(drawn.reshape(like.shape())?.to_dtype(like.dtype())?.to_device(like.device())?),
            None => self.source.sample(like),
        }
    }

    fn brownian_increment(&mut self, like: &Tensor, range: (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        self.source.brownian_increment(like, range, from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_scheduler::ImageNoise;

    /// Whenever values are drawn ahead, a sampler gets those of the source, in their order.
    #[test]
    fn the_order_is_the_sources() {
        let like = Tensor::zeros((2, 4, 3, 3), DType::F32, &Device::Cpu).unwrap();
        let bits = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mut source = ImageNoise::new(7, 2);
        let expected = [(); 4].map(|()| bits(source.sample(&like).unwrap()));
        let path = bits(source.brownian_increment(&like, (0.1, 10.0), 5.0, 2.0).unwrap());

        let mut noise = AheadNoise::new(Box::new(ImageNoise::new(7, 2)));
        noise.draw_ahead().unwrap();
        assert!(noise.drawn.is_none(), "no one has asked");
        for (step, expected) in expected.into_iter().enumerate() {
            assert_eq!(noise.drawn.is_some(), step > 0);
            assert_eq!(bits(noise.sample(&like).unwrap()), expected, "{step}");
            noise.draw_ahead().unwrap();
            noise.draw_ahead().unwrap();
        }
        assert_eq!(bits(noise.brownian_increment(&like, (0.1, 10.0), 5.0, 2.0).unwrap()), path);
    }
}
