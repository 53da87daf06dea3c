//! The meaning of the channels that a denoiser takes besides the latents.

use crate::denoiser::LatentSpec;

/// The channels of [`crate::slots::EXTRA_CHANNELS`], in the order in which a denoiser takes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtraChannels {
    /// There are none.
    #[default]
    None,
    /// A mask in the size of the latents, then the latents of the masked image: inpainting models of Stable Diffusion.
    Mask,
    /// The latents of the masked image, then the mask with a channel for each pixel of a latent, row by row: FLUX.1 Fill.
    PixelMask,
    /// The latents of a control image: FLUX.1 Depth and Canny.
    Control,
    /// Others, which the pipeline cannot make.
    Other,
}

impl ExtraChannels {
    /// The meaning for a denoiser that takes nothing besides `latents` but a mask and the latents of a masked image.
    pub fn of_mask(latents: LatentSpec) -> Self {
        match latents.extra_channels {
            0 => Self::None,
            extra if extra == latents.channels + 1 => Self::Mask,
            _ => Self::Other,
        }
    }

    /// Whether a mask and the latents of a masked image are among them.
    pub fn has_mask(self) -> bool {
        matches!(self, Self::Mask | Self::PixelMask)
    }

    /// The number of channels for latents of `channels` channels that cover `downscale` by `downscale` pixels. `None` for those
    /// that the pipeline cannot make.
    pub fn count(self, channels: usize, downscale: usize) -> Option<usize> {
        match self {
            Self::None => Some(0),
            Self::Mask => Some(channels + 1),
            Self::PixelMask => Some(channels + downscale * downscale),
            Self::Control => Some(channels),
            Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_counted_by_their_meaning() {
        let of = |extra_channels| ExtraChannels::of_mask(LatentSpec { channels: 4, extra_channels, multiple: 1 });
        assert_eq!(
            [0, 5, 4, 1].map(of),
            [ExtraChannels::None, ExtraChannels::Mask, ExtraChannels::Other, ExtraChannels::Other]
        );
        let count = |of: ExtraChannels| of.count(16, 8);
        assert_eq!([ExtraChannels::None, ExtraChannels::Mask].map(count), [Some(0), Some(17)]);
        assert_eq!([ExtraChannels::PixelMask, ExtraChannels::Control].map(count), [Some(80), Some(16)]);
        assert_eq!(count(ExtraChannels::Other), None);
        assert!(ExtraChannels::PixelMask.has_mask() && !ExtraChannels::Control.has_mask());
    }
}
