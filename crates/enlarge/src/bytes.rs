//! Images of bytes on their way into a network and out of it.

use candle_core::{DType, Device, Tensor};
use kiln_media::{Rgb8Image, ValueRange};

use kiln_setup::error::{Error, Result};

/// Rows that are in f32 at once.
const ROWS: usize = 64;

/// An image as a tensor from 0 to 1: `(1, 3, h, w)`, or `(3, 1, h, w)` for a network of one channel, which runs over each
/// color on its own.
pub(super) fn to_tensor(image: &Rgb8Image, channels: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let (width, height) = image.size();
    let shape = if channels == 1 { (3, 1, height, width) } else { (1, 3, height, width) };
    let values = Tensor::from_vec(image.to_planes(ValueRange::ZeroToOne), shape, &Device::Cpu)?;
    Ok(values.to_dtype(dtype)?.to_device(device)?)
}

/// The bytes of a tensor of [`to_tensor`]'s shape, rounded half to even as NumPy does (AUTOMATIC1111's
/// `upscaler_utils.torch_bgr_to_pil_image`).
///
/// # Errors
/// [`Error::NotANumber`] with the number of values that are none.
pub(super) fn to_image(tensor: &Tensor) -> Result<Rgb8Image> {
    let (b, c, height, width) = tensor.dims4()?;
    let tensor = tensor.reshape((b * c, height, width))?;
    let mut bytes = Vec::with_capacity(3 * height * width);
    let mut count = 0;
    for row in (0..height).step_by(ROWS) {
        let rows = tensor.narrow(1, row, ROWS.min(height - row))?.contiguous()?.to_device(&Device::Cpu)?;
        let pixels = rows.to_dtype(DType::F32)?.permute((1, 2, 0))?.flatten_all()?.to_vec1::<f32>()?;
        count += pixels.iter().filter(|value| !value.is_finite()).count();
        bytes.extend(pixels.into_iter().map(|value| (value.clamp(0.0, 1.0) * 255.0).round_ties_even() as u8));
    }
    if count > 0 {
        return Err(Error::NotANumber { stage: "the upscaler", count, remedy: "its file may be damaged".into() });
    }
    Ok(Rgb8Image::new(width, height, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_both_shapes() {
        let bytes: Vec<u8> = (0..3 * 5 * 130).map(|i| (i * 7 % 256) as u8).collect();
        let image = Rgb8Image::new(5, 130, bytes).unwrap();
        for channels in [1, 3] {
            for dtype in [DType::F32, DType::F16] {
                let tensor = to_tensor(&image, channels, dtype, &Device::Cpu).unwrap();
                assert_eq!(tensor.dims()[1], channels);
                assert_eq!(to_image(&tensor).unwrap(), image, "{channels} {dtype:?}");
            }
        }
    }

    #[test]
    fn values_are_limited_and_counted() {
        let tensor = Tensor::new(&[[[[-1f32]], [[0.5]], [[7.0]]]], &Device::Cpu).unwrap();
        assert_eq!(to_image(&tensor).unwrap().data(), [0, 128, 255]);
        let tensor = Tensor::new(&[[[[f32::NAN]], [[0.5]], [[f32::INFINITY]]]], &Device::Cpu).unwrap();
        assert!(matches!(to_image(&tensor), Err(Error::NotANumber { count: 2, .. })));
    }
}
