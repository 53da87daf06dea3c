//! Floating-point operations of the networks, from shapes alone: each network's `forward` runs with tensors that have no
//! elements, and the operators count ([`kiln_nn::FlopCount`]).

use candle_core::DType;
use kiln_network::text::TextStage;
use kiln_network::{Control, Denoiser, StepShape};
use kiln_nn::MetaDevice;
use kiln_ops::Target;
use kiln_vae::Tiling;

use crate::error::Result;
use crate::pipeline::decoder::Network;

/// Arithmetic does not depend on the device or the type; those of a GPU have the least to count besides.
const TARGET: Target = Target::Gpu;
const DTYPE: DType = DType::F16;

/// Operations of each of a denoiser's segments, in one call for `images` latents of `(height, width)` with `tokens` tokens
/// of text each.
///
/// # Errors
/// Errors of the network for impossible sizes.
pub fn denoiser_flop(
    denoiser: &dyn Denoiser,
    images: usize,
    (height, width): (usize, usize),
    tokens: usize,
) -> Result<Vec<f64>> {
    let device = MetaDevice::new(TARGET, DTYPE);
    let x = device.tensor(&[images, denoiser.latents().channels, height, width], DTYPE);
    let timestep = device.tensor(&[1], DType::F32);
    let shape = StepShape { rows: images, height, width, tokens };
    denoiser.forward(&x, &timestep, &denoiser.meta_inputs(&device, shape, DTYPE))?;
    Ok(device.take_flop().by_segment(denoiser.segments()))
}

/// The part of [`denoiser_flop`] for inputs that a run makes once for all steps where no weights stream: the text's keys and values.
///
/// # Errors
/// Errors of the network for impossible sizes.
pub fn preparation_flop(denoiser: &dyn Denoiser, images: usize, tokens: usize) -> Result<Vec<f64>> {
    let device = MetaDevice::new(TARGET, DTYPE);
    let shape = StepShape { rows: images, height: 1, width: 1, tokens };
    denoiser.prepare(denoiser.meta_inputs(&device, shape, DTYPE))?;
    Ok(device.take_flop().by_segment(denoiser.segments()))
}

/// Operations of each of a control network's segments in a step next to `denoiser`, in one call as [`denoiser_flop`].
///
/// # Errors
/// Errors of the networks for impossible sizes, and for a control network of another family.
pub fn control_flop(
    control: &dyn Control,
    denoiser: &dyn Denoiser,
    images: usize,
    (height, width): (usize, usize),
    tokens: usize,
) -> Result<Vec<f64>> {
    if control.step_segments().iter().next().is_none() {
        return Ok(Vec::new());
    }
    let device = MetaDevice::new(TARGET, DTYPE);
    let controlled = denoiser.with_controls(vec![control])?;
    let x = device.tensor(&[images, controlled.latents().channels, height, width], DTYPE);
    let timestep = device.tensor(&[1], DType::F32);
    let shape = StepShape { rows: images, height, width, tokens };
    let mut inputs = controlled.meta_inputs(&device, shape, DTYPE);
    controlled.add_meta_controls(&mut inputs, &device, shape, DTYPE);
    controlled.forward(&x, &timestep, &inputs)?;
    Ok(device.take_flop().by_segment(control.step_segments()))
}

/// Operations of decoding one image from latents of `(height, width)`.
///
/// # Errors
/// Errors of the network for impossible sizes.
pub fn decoder_flop(decoder: &Network, (h, w): (usize, usize)) -> Result<f64> {
    let device = MetaDevice::new(TARGET, DTYPE);
    decoder.decode(&device.tensor(&[1, decoder.latent_channels(), h, w], DType::F32), DTYPE, Tiling::Whole)?;
    Ok(device.take_flop().total())
}

/// Operations of encoding one text of `tokens` context tokens.
///
/// # Errors
/// Errors of the network for impossible sizes.
pub fn text_flop(stage: &dyn TextStage, tokens: usize) -> Result<f64> {
    let device = MetaDevice::new(TARGET, DTYPE);
    stage.dry_run(&device, DTYPE, tokens, 1)?;
    Ok(device.take_flop().total())
}

#[cfg(test)]
mod tests {
    use kiln_testkit::fixtures;
    use serde_json::Value;

    use super::*;
    use kiln_models::{Architecture, Preset, TextPart};

    /// PyTorch's counter reports the same numbers for the networks of diffusers and transformers
    /// (`tests/reference/flop.py`).
    #[test]
    fn counts_are_pytorchs() {
        let rows = std::fs::read_to_string(fixtures("flop.json")).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
        assert_eq!(rows.len(), 4, "the presets with a U-Net");
        for row in &rows {
            let preset: Preset = row["preset"].as_str().unwrap().parse().unwrap();
            let model = Architecture::preset(preset).unwrap();
            let side = row["side"].as_u64().unwrap() as usize;
            let denoiser = model.denoiser();
            let device = MetaDevice::new(TARGET, DTYPE);
            let x = device.tensor(&[2, denoiser.latents().channels, side, side], DTYPE);
            let timesteps = device.tensor(&[2], DType::F32); // diffusers has one for each image
            let shape = StepShape { rows: 2, height: side, width: side, tokens: 77 };
            denoiser.forward(&x, &timesteps, &denoiser.meta_inputs(&device, shape, DTYPE)).unwrap();
            assert_eq!(Some(device.take_flop().total()), row["unet"].as_f64(), "{}", preset.id());

            let decoder = Network::kl(model.vae.clone());
            assert_eq!(decoder_flop(&decoder, (side, side)).ok(), row["decoder"].as_f64(), "{}", preset.id());
            let text = |part: &TextPart| {
                let model = Architecture { texts: vec![part.clone()], ..model.clone() };
                text_flop(model.text_stage().unwrap().as_ref(), 77).unwrap()
            };
            let found: Vec<_> = model.texts.iter().map(text).collect();
            let expected: Vec<_> = row["texts"].as_array().unwrap().iter().map(|text| text.as_f64().unwrap()).collect();
            assert_eq!(found, expected, "{}", preset.id());
        }
    }

    /// A linear layer and a kernel perform two operations for each weight and pixel, in addition to attention's
    /// products.
    #[test]
    fn the_segments_are_the_networks() {
        // Transformers prepare whole layers: their text embedders.
        for preset in [Preset::Emoji, Preset::Sd15, Preset::Sdxl, Preset::SdTurbo] {
            let unet = Architecture::preset(preset).unwrap().denoiser();
            let flop = denoiser_flop(&*unet, 1, (8, 8), 77).unwrap();
            assert_eq!(flop.len(), unet.segments().len());
            assert!(preparation_flop(&*unet, 1, 77).unwrap().iter().zip(&flop).all(|(keys, all)| keys < all));
            for (segment, flop) in unet.segments().iter().zip(&flop) {
                let weights: usize = segment.params().iter().filter(|p| p.shape.len() > 1).map(|p| p.elements()).sum();
                let pixels = flop / 2.0 / weights as f64;
                assert!((0.9..80.0).contains(&pixels), "{}: {pixels} pixels of at most 77", segment.name());
            }
        }
    }

    #[test]
    fn odd_sizes_follow_the_skip_connections() {
        let unet = Architecture::preset(Preset::Emoji).unwrap().denoiser();
        let flop = |side| denoiser_flop(&*unet, 1, (side, side), 77).unwrap().iter().sum::<f64>();
        assert!(flop(32) < flop(33) && flop(33) < flop(34));
    }
}
