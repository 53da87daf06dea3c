//! Images as the vision tower takes them (transformers' `Qwen2VLImageProcessor`): resized, and cut into patches.

use candle_core::{Device, Tensor};
use kiln_media::{Rgb8Image, clip_pixels_of_size};

use super::NETWORK;
use super::config::VisionConfig;
use super::windows::Windows;
use crate::error::{Error, Result};

/// The fewest and the most pixels of an image, those of Qwen2.5-VL.
const PIXELS: [usize; 2] = [56 * 56, 28 * 28 * 16384];
/// The largest quotient of the longer and the shorter side.
const MAX_RATIO: usize = 200;

/// The size `(width, height)` in which the vision tower sees an image of `size`: the nearest multiples of `multiple`, or of a smaller or
/// larger size with the same ratio if the image has too many or too few pixels (transformers' `smart_resize`).
pub fn seen_size((width, height): (usize, usize), multiple: usize) -> (usize, usize) {
    let ([fewest, most], factor) = (PIXELS, multiple.max(1));
    let (w, h, unit) = (width.max(1) as f64, height.max(1) as f64, factor as f64);
    let nearest = |side: f64| (side / unit).round_ties_even() as usize * factor;
    let (wide, high) = (nearest(w), nearest(h));
    if wide * high > most {
        let beta = (w * h / most as f64).sqrt();
        let down = |side: f64| ((side / beta / unit).floor() as usize * factor).max(factor);
        return (down(w), down(h));
    }
    if wide * high < fewest {
        let beta = (fewest as f64 / (w * h)).sqrt();
        let up = |side: f64| (side * beta / unit).ceil() as usize * factor;
        return (up(w), up(h));
    }
    (wide, high)
}

/// The patches of an image, window by window.
#[derive(Debug, Clone)]
pub struct ImagePatches {
    /// `(1, n, patch_len)` in f32 in the host's memory.
    pub(crate) values: Tensor,
    pub(crate) windows: Windows,
}

impl ImagePatches {
    /// The patches of `image`, resized.
    ///
    /// # Errors
    /// [`Error::Input`] for an image whose sides differ too much, and the errors of resizing.
    pub fn new(image: &Rgb8Image, config: &VisionConfig) -> Result<Self> {
        let (short, long) = (image.width().min(image.height()), image.width().max(image.height()));
        if long > short * MAX_RATIO {
            let (expected, found) =
                (format!("sides of a ratio up to {MAX_RATIO}"), vec![image.height(), image.width()]);
            return Err(Error::Input { network: NETWORK, input: "image", expected, found });
        }
        let (width, height) = seen_size(image.size(), config.token_side());
        let planes = clip_pixels_of_size(image, width, height)?;
        let windows = Windows::new([height / config.token_side(), width / config.token_side()], config);
        let (side, frames) = (config.patch_size, config.temporal_patch_size);
        let mut values = Vec::with_capacity(windows.patches() * config.patch_len());
        for [row, column] in windows.places() {
            for plane in planes.chunks_exact(width * height) {
                let lines = || (0..side).map(|y| (row * side + y) * width + column * side);
                (0..frames)
                    .for_each(|_| lines().for_each(|start| values.extend_from_slice(&plane[start..start + side])));
            }
        }
        let values = Tensor::from_vec(values, (1, windows.patches(), config.patch_len()), &Device::Cpu);
        Ok(Self { values: values.map_err(kiln_nn::Error::from)?, windows })
    }

    /// Patches of zeros with the shapes of an image of `size`, width and height, for plans.
    ///
    /// # Errors
    /// The errors of candle.
    pub fn blank(size: (usize, usize), config: &VisionConfig) -> Result<Self> {
        let (width, height) = seen_size(size, config.token_side());
        let windows = Windows::new([height / config.token_side(), width / config.token_side()], config);
        let shape = (1, windows.patches(), config.patch_len());
        let values = Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).map_err(kiln_nn::Error::from)?;
        Ok(Self { values, windows })
    }

    /// Numbers of all patches.
    pub fn numbers(&self) -> usize {
        self.values.elem_count()
    }

    /// Tokens of the language model in each direction, rows first.
    pub fn grid(&self) -> [usize; 2] {
        self.windows.grid()
    }

    /// Tokens of the language model.
    pub fn tokens(&self) -> usize {
        let [rows, columns] = self.grid();
        rows * columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those of `smart_resize`.
    #[test]
    fn sizes_are_multiples_in_the_range() {
        for (size, expected) in [
            ((1024, 1024), (1036, 1036)),
            ((384, 384), (392, 392)),
            ((448, 320), (448, 308)),
            ((14, 70), (28, 140)),
            ((42, 42), (56, 56)),
            ((30, 20), (84, 56)),
            ((8000, 4000), (5068, 2520)),
        ] {
            assert_eq!(seen_size(size, 28), expected, "{size:?}");
        }
    }

    #[test]
    fn an_image_that_is_too_long_is_refused() {
        let image = Rgb8Image::filled(201, 1, [9; 3]).unwrap();
        let message = ImagePatches::new(&image, &VisionConfig::default()).unwrap_err().to_string();
        assert!(message.contains("[1, 201]") && message.contains("up to 200"), "{message}");
    }
}
