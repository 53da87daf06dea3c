//! Previews: what the denoiser predicts, as small images without the decoder.

use candle_core::{Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_models::LatentRgb;

use crate::engine::Engine;
use crate::error::Result;
use crate::generated_image::to_byte;
use crate::pipeline::running::{GroupId, RunningBatch};

impl Engine {
    /// Small images of what a batch is about to become, one pixel for each latent. None where
    /// [`RunningBatch::keep_prediction`] kept nothing, or no factors are known for the model's autoencoder
    /// ([`kiln_models::ModelFolder::latent_rgb`]).
    ///
    /// # Errors
    /// Those of the tensors.
    pub fn preview(&self, running: &RunningBatch, id: GroupId) -> Result<Vec<Rgb8Image>> {
        match (running.prediction(id), self.model.latent_rgb()) {
            (Some(latents), Some(colors)) => images(latents, colors),
            _ => Ok(Vec::new()),
        }
    }
}

/// The colors of latents `(n, c, h, w)` in f32, where `colors` has a row for each of the `c` channels.
fn images(latents: &Tensor, colors: &LatentRgb) -> Result<Vec<Rgb8Image>> {
    let (n, c, h, w) = latents.dims4()?;
    let latents = latents.to_device(&Device::Cpu)?.reshape((n, c, h * w))?.to_vec3::<f32>()?;
    let image = |planes: Vec<Vec<f32>>| {
        let mut pixels = vec![colors.offset; h * w];
        for (plane, row) in planes.iter().zip(&colors.factors) {
            for (pixel, value) in pixels.iter_mut().zip(plane) {
                for (color, factor) in pixel.iter_mut().zip(row) {
                    *color += factor * value;
                }
            }
        }
        Ok(Rgb8Image::new(w, h, pixels.into_iter().flatten().map(to_byte).collect())?)
    };
    latents.into_iter().map(image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pixel_is_the_sum_of_its_channels() {
        let latents = Tensor::from_vec(vec![1.0f32, -1.0, 0.5, 2.0], (1, 2, 1, 2), &Device::Cpu).unwrap();
        let colors = LatentRgb { factors: vec![[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], offset: [0.0, -0.5, 0.0] };
        let found = images(&latents, &colors).unwrap();
        assert_eq!(found[0].size(), (2, 1));
        let unit = |value: f32| to_byte(value);
        assert_eq!(found[0].data(), [1.0, 0.0, 0.75, -1.0, 1.5, 0.5].map(unit));
    }
}
