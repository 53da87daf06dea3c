//! Color images, and the values that networks take.

use crate::{Gray8Image, Rgb8Image};

/// The range of the values that a network takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRange {
    /// `v / 255 * 2 - 1`: the input of a VAE (diffusers' `VaeImageProcessor.normalize`).
    MinusOneToOne,
    /// `v / 255`: the input of an upscaler or a ControlNet.
    ZeroToOne,
}

impl Rgb8Image {
    /// The values in f32, one plane for each channel, `(3, h, w)`.
    #[must_use]
    pub fn to_planes(&self, range: ValueRange) -> Vec<f32> {
        let value = |v: u8| match range {
            ValueRange::MinusOneToOne => 2.0 * (f32::from(v) / 255.0) - 1.0,
            ValueRange::ZeroToOne => f32::from(v) / 255.0,
        };
        (0..3).flat_map(|channel| self.pixels().map(move |pixel| value(pixel[channel]))).collect()
    }

    /// The gray image of Pillow's `convert("L")`: `(19595 r + 38470 g + 7471 b + 32768) >> 16`. A pixel with three
    /// equal values keeps them.
    #[must_use]
    pub fn to_gray(&self) -> Gray8Image {
        self.map(|[r, g, b]| {
            let sum = 19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b) + 0x8000;
            [(sum >> 16) as u8] // at most 255: the weights sum to 2^16
        })
    }
}

/// The size that diffusers runs an image at when no size is given: both sides rounded down to a multiple of `unit`, at
/// least one unit (`VaeImageProcessor.get_default_height_width`).
#[must_use]
pub fn size_in_multiples(width: usize, height: usize, unit: usize) -> (usize, usize) {
    let unit = unit.max(1);
    let down = |side: usize| (side / unit * unit).max(unit);
    (down(width), down(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_channels_in_the_range_of_the_network() {
        let image = Rgb8Image::new(2, 1, vec![0, 51, 255, 255, 102, 0]).unwrap();
        let signed = image.to_planes(ValueRange::MinusOneToOne);
        assert_eq!(signed, [-1.0, 1.0, 2.0 * (51.0f32 / 255.0) - 1.0, 2.0 * (102.0f32 / 255.0) - 1.0, 1.0, -1.0]);
        assert_eq!(image.to_planes(ValueRange::ZeroToOne), [0.0, 1.0, 51.0 / 255.0, 102.0 / 255.0, 1.0, 0.0]);
    }

    #[test]
    fn sizes_are_rounded_down() {
        assert_eq!(size_in_multiples(517, 511, 8), (512, 504));
        assert_eq!(size_in_multiples(3, 64, 8), (8, 64));
    }
}
