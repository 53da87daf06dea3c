//! Floating-point operations of the networks, from shapes alone: each network's `forward` runs with tensors that have no
//! elements, and the operators count ([`kiln_nn::FlopCount`]).

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder, Words};
use kiln_nn::MetaDevice;
use kiln_ops::Target;
use kiln_unet::Unet;
use kiln_vae::Tiling;

use crate::decoder::Network;
use crate::error::Result;

/// Arithmetic does not depend on the device or the type; those of a card have the least to count besides.
const TARGET: Target = Target::Gpu;
const DTYPE: DType = DType::F16;

/// Operations of each of the U-Net's segments, in one call for `images` latents of `(height, width)` with `tokens` tokens
/// of text each.
pub(crate) fn unet_flop(unet: &Unet, images: usize, (h, w): (usize, usize), tokens: usize) -> Result<Vec<f64>> {
    let device = MetaDevice::new(TARGET, DTYPE);
    let x = device.tensor(&[images, unet.config().in_channels, h, w], DTYPE);
    let timestep = device.tensor(&[1], DType::F32);
    unet.forward(&x, &timestep, &unet.meta_conditioning(&device, images, tokens, DTYPE))?;
    Ok(device.take_flop().by_segment(unet.segments()))
}

/// Operations of decoding one image from latents of `(height, width)`.
pub(crate) fn decoder_flop(decoder: &Network, (h, w): (usize, usize)) -> Result<f64> {
    let device = MetaDevice::new(TARGET, DTYPE);
    decoder.decode(&device.tensor(&[1, decoder.latent_channels(), h, w], DType::F32), DTYPE, Tiling::Whole)?;
    Ok(device.take_flop().total())
}

/// Operations of encoding one text of `tokens` tokens.
pub(crate) fn text_flop(encoder: &TextEncoder, tokens: usize) -> Result<f64> {
    let device = MetaDevice::new(TARGET, DTYPE);
    let (layer, words) = (HiddenLayer::LAST, Words::default());
    encoder.forward::<kiln_nn::MetaTensor>(&[vec![0; tokens]], None, layer, &device, &words, &mut |_, _| ())?;
    Ok(device.take_flop().total())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BenchModel, Preset};

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found:e}, expected {expected:e} within 2 %");
    }

    fn unet(preset: Preset) -> Unet {
        Unet::new(BenchModel::preset(preset).unwrap().unet)
    }

    fn step(unet: &Unet, images: usize, size: (usize, usize)) -> f64 {
        unet_flop(unet, images, size, 77).unwrap().iter().sum()
    }

    /// The expected figures were counted in PyTorch, by the operators' shapes, on diffusers' networks.
    #[test]
    fn counts_are_pytorchs() {
        close(step(&unet(Preset::Sd15), 2, (64, 64)), 1.607e12);
        close(step(&unet(Preset::Sdxl), 2, (128, 128)), 13.52e12);
        let decoder = Network::kl(BenchModel::preset(Preset::Sd15).unwrap().vae);
        close(decoder_flop(&decoder, (64, 64)).unwrap(), 2.51e12);
        let decoder = Network::kl(BenchModel::preset(Preset::Sdxl).unwrap().vae);
        let flop = |side| decoder_flop(&decoder, (side, side)).unwrap();
        assert!(flop(128) > 4.0 * flop(64));
    }

    /// A linear layer and a kernel do two operations for each weight and pixel; attention's products come on top.
    #[test]
    fn the_segments_are_the_networks() {
        for preset in Preset::ALL {
            let unet = unet(preset);
            let flop = unet_flop(&unet, 1, (8, 8), 77).unwrap();
            assert_eq!(flop.len(), unet.segments().len());
            for (segment, flop) in unet.segments().iter().zip(&flop) {
                let weights: usize = segment.params().iter().filter(|p| p.shape.len() > 1).map(|p| p.elements()).sum();
                let pixels = flop / 2.0 / weights as f64;
                assert!((0.9..80.0).contains(&pixels), "{}: {pixels} pixels of at most 77", segment.name());
            }
        }
    }

    #[test]
    fn an_encoder_does_two_operations_for_each_weight_and_token() {
        let sd15 = BenchModel::preset(Preset::Sd15).unwrap();
        let weights = 12.0 * (4.0 * 768.0 * 768.0 + 2.0 * 768.0 * 3072.0);
        let encoder = TextEncoder::new(sd15.text_encoders[0].clone()).unwrap();
        close(text_flop(&encoder, 77).unwrap(), 2.0 * 77.0 * weights);
    }

    #[test]
    fn odd_sizes_follow_the_skip_connections() {
        let unet = unet(Preset::Emoji);
        let flop = |side| step(&unet, 1, (side, side));
        assert!(flop(32) < flop(33) && flop(33) < flop(34));
    }
}
