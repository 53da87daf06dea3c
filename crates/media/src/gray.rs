//! Masks and gray images.

use crate::{Gray8Image, Rgb8Image};

impl Gray8Image {
    /// 255 where this is 0, and the reverse.
    #[must_use]
    pub fn invert(&self) -> Self {
        self.map(|[v]| [255 - v])
    }

    /// 255 where the value is above `level`, else 0. AUTOMATIC1111 rounds the alpha of a mask at 128
    /// (`create_binary_mask`); diffusers' masks have 255 from 128 up, which is a level of 127.
    #[must_use]
    pub fn threshold(&self, level: u8) -> Self {
        self.map(|[v]| [if v > level { 255 } else { 0 }])
    }

    /// Twice the value, at most 255: the mask with which AUTOMATIC1111 pastes the input over a result of the whole
    /// image (`processing.py`, `mask_for_overlay`).
    #[must_use]
    pub fn doubled(&self) -> Self {
        self.map(|[v]| [v.saturating_mul(2)])
    }

    /// The values as `v / 255`, `(h, w)`, 0 to 1.
    #[must_use]
    pub fn to_unit(&self) -> Vec<f32> {
        self.data().iter().map(|&v| f32::from(v) / 255.0).collect()
    }

    /// The value in each of three channels.
    #[must_use]
    pub fn to_rgb(&self) -> Rgb8Image {
        self.map(|[v]| [v; 3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_inverted_rounded_and_doubled() {
        let mask = Gray8Image::new(5, 1, vec![0, 127, 128, 129, 255]).unwrap();
        assert_eq!(mask.invert().data(), [255, 128, 127, 126, 0]);
        assert_eq!(mask.threshold(127).data(), [0, 0, 255, 255, 255]);
        assert_eq!(mask.threshold(128).data(), [0, 0, 0, 255, 255]);
        assert_eq!(mask.doubled().data(), [0, 254, 255, 255, 255]);
        assert_eq!(mask.to_unit(), [0.0, 127.0 / 255.0, 128.0 / 255.0, 129.0 / 255.0, 1.0]);
        assert_eq!(mask.to_rgb().to_gray(), mask);
    }
}
