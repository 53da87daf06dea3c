//! Dynamic thresholding for latents: an image with strong guidance gets the range that weaker guidance has.
//!
//! Imagen's thresholding (arXiv 2205.11487) uses the known range of images, but latents have no fixed range. So the
//! range is taken from the prediction at a lower guidance scale. The method is Alex Goodwin's Dynamic Thresholding for
//! AUTOMATIC1111 and ComfyUI, with its settings `MEAN`, `AD` and separate channels.

use crate::Result;
use crate::tensor::quantile;
use candle_core::{Device, Tensor};

/// Limits `image` (n, c, h, w) to the range of `mimic`, for each channel around its mean. Values beyond the quantile
/// `percentile` are clipped, and the rest is scaled.
pub(crate) fn limit_range(image: &Tensor, mimic: &Tensor, percentile: f64) -> Result<Tensor> {
    let (n, c, h, w) = image.dims4()?;
    let rows = |tensor: &Tensor| -> Result<Vec<Vec<f32>>> {
        Ok(tensor.reshape((n * c, h * w))?.to_device(&Device::Cpu)?.to_vec2()?)
    };
    let mut values = Vec::with_capacity(image.elem_count());
    for (row, mimic) in rows(image)?.into_iter().zip(rows(mimic)?) {
        let (mean, distances) = centered(&row);
        let allowed = centered(&mimic).1.into_iter().map(f32::abs).fold(0f32, f32::max);
        let reached = quantile(distances.iter().map(|value| value.abs()).collect(), percentile);
        let most = allowed.max(reached);
        let scale = if most > 0.0 { allowed / most } else { 1.0 };
        values.extend(distances.into_iter().map(|value| value.clamp(-most, most) * scale + mean));
    }
    Ok(Tensor::from_vec(values, (n, c, h, w), &Device::Cpu)?.to_device(image.device())?)
}

/// The mean, and the difference of each value from it.
fn centered(row: &[f32]) -> (f32, Vec<f32>) {
    let mean = (row.iter().map(|&value| f64::from(value)).sum::<f64>() / row.len().max(1) as f64) as f32;
    (mean, row.iter().map(|value| value - mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_comes_from_weaker_guidance() -> Result<()> {
        let image = Tensor::new(&[-3f32, -1.0, 1.0, 7.0], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
        let mimic = Tensor::new(&[0f32, 1.0, 2.0, 3.0], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
        let values =
            |percentile| -> Result<Vec<f32>> { Ok(limit_range(&image, &mimic, percentile)?.flatten_all()?.to_vec1()?) };
        // The distances -4, -2, 0, 6 from the mean 1 are divided by four.
        assert_eq!(values(1.0)?, [0.0, 0.5, 1.0, 2.5]);
        // The median distance is 3: the largest two are clipped to it, and it becomes 1.5.
        assert_eq!(values(0.5)?, [-0.5, 0.0, 1.0, 2.5]);
        // An image within the range does not change.
        let same: Vec<f32> = limit_range(&mimic, &image, 1.0)?.flatten_all()?.to_vec1()?;
        assert_eq!(same, [0.0, 1.0, 2.0, 3.0]);
        Ok(())
    }
}
