//! How much arithmetic a stage is, from configurations and sizes alone.
//!
//! Counted are the products of matrices and kernels, a multiplication and an addition each: convolutions, linear
//! layers, both products of attention. Normalisations, activations and softmax are some tenths of a percent more and
//! are left out, as everywhere in the literature.

use kiln_clip::TextEncoderConfig;
use kiln_unet::{BlockConfig, TransformerConfig, UnetConfig};
use kiln_vae::VaeConfig;

/// How much wider than its input the hidden layer of a transformer layer of the U-Net is.
const EXPANSION: usize = 4;

/// Height and width of a feature map.
type Size = (usize, usize);

/// Floating-point operations of one call of the U-Net for `batch` latents of `size` and `tokens` tokens of text each.
pub fn unet_flop(config: &UnetConfig, batch: usize, size: Size, tokens: usize) -> f64 {
    unet_segment_flop(config, batch, size, tokens).iter().sum()
}

/// Those of each of its segments, in the order of [`kiln_unet::Unet::segments`].
pub fn unet_segment_flop(config: &UnetConfig, batch: usize, size: Size, tokens: usize) -> Vec<f64> {
    let channels = config.down[0].channels;
    let mut images = Count { tokens, ..Count::default() }; // what every image of the batch costs
    if let Some(added) = &config.added_embedding {
        images.linear(1, added.input_dim, 4 * channels);
        images.linear(1, 4 * channels, 4 * channels);
    }
    if let Some(width) = config.time_cond_proj_dim {
        images.linear(1, width, channels);
    }
    images.end_segment();
    images.conv(size, config.in_channels, channels, config.conv_in_kernel);
    images.end_segment();
    let mut skips = vec![(channels, size)];
    let (mut last, mut size) = (channels, size);
    for (i, block) in config.down.iter().enumerate() {
        for layer in 0..block.layers {
            images.layer(size, block, layer, last);
            last = block.channels;
            skips.push((last, size));
        }
        if i + 1 < config.down.len() {
            size = (size.0.div_ceil(2), size.1.div_ceil(2));
            images.conv(size, last, last, 3);
            images.end_segment();
            skips.push((last, size));
        }
    }
    if let Some(block) = &config.mid {
        images.layer(size, block, 0, last);
        images.resnet(size, last, last);
    }
    for (i, block) in config.up.iter().enumerate() {
        for layer in 0..block.layers {
            let (skip, _) = skips.pop().unwrap_or_default();
            images.layer(size, block, layer, last + skip);
            last = block.channels;
        }
        if i + 1 < config.up.len() {
            size = skips.last().map_or(size, |&(_, size)| size);
            images.conv(size, last, last, 3);
            images.end_segment();
        }
    }
    images.conv(size, last, config.out_channels, config.conv_out_kernel);
    images.end_segment();
    images.segments.iter().map(|multiply_adds| 2.0 * multiply_adds * batch as f64).collect()
}

/// Floating-point operations of decoding one picture from latents of `size`.
pub fn decoder_flop(config: &VaeConfig, size: Size) -> f64 {
    let mut count = Count::default();
    let (latent, blocks) = (config.latent_channels, config.block_out_channels.len());
    let mut last = config.block_out_channels[blocks - 1];
    let mut size = size;
    if config.use_post_quant_conv {
        count.conv(size, latent, latent, 1);
    }
    count.conv(size, latent, last, 3);
    count.resnet(size, last, last);
    if config.mid_block_add_attention {
        let pixels = size.0 * size.1;
        count.attention(pixels, pixels, last, last);
    }
    count.resnet(size, last, last);
    for (i, &channels) in config.block_out_channels.iter().rev().enumerate() {
        for _ in 0..=config.layers_per_block {
            count.resnet(size, last, channels);
            last = channels;
        }
        if i + 1 < blocks {
            size = (2 * size.0, 2 * size.1);
            count.conv(size, channels, channels, 3);
        }
    }
    count.conv(size, last, config.out_channels, 3);
    2.0 * count.multiply_adds
}

/// Floating-point operations of encoding one text of `tokens` tokens.
pub fn text_flop(config: &TextEncoderConfig, tokens: usize) -> f64 {
    let mut count = Count { tokens, ..Count::default() };
    for _ in 0..config.num_hidden_layers {
        count.attention(tokens, tokens, config.hidden_size, config.hidden_size);
        count.linear(tokens, config.hidden_size, config.intermediate_size);
        count.linear(tokens, config.intermediate_size, config.hidden_size);
    }
    if config.has_projection() {
        count.linear(1, config.hidden_size, config.pooled_size());
    }
    2.0 * count.multiply_adds
}

/// Multiplications with their additions, for one image.
#[derive(Default)]
struct Count {
    /// Tokens of the text that steers.
    tokens: usize,
    multiply_adds: f64,
    /// Those of the segments that were ended.
    segments: Vec<f64>,
}

impl Count {
    /// What was counted since the last segment's end is a segment.
    fn end_segment(&mut self) {
        let before: f64 = self.segments.iter().sum();
        self.segments.push(self.multiply_adds - before);
    }

    fn linear(&mut self, rows: usize, inputs: usize, outputs: usize) {
        self.multiply_adds += rows as f64 * inputs as f64 * outputs as f64;
    }

    /// `size` is that of the result.
    fn conv(&mut self, size: Size, inputs: usize, outputs: usize, kernel: usize) {
        self.linear(size.0 * size.1, inputs * kernel * kernel, outputs);
    }

    /// A residual block, whose halves are two of a U-Net's segments.
    fn resnet(&mut self, size: Size, inputs: usize, outputs: usize) {
        self.conv(size, inputs, outputs, 3);
        self.end_segment();
        self.conv(size, outputs, outputs, 3);
        if inputs != outputs {
            self.conv(size, inputs, outputs, 1);
        }
        self.end_segment();
    }

    /// Four projections and two products, for `rows` queries and `context` keys of `context_dim` channels.
    fn attention(&mut self, rows: usize, context: usize, channels: usize, context_dim: usize) {
        self.linear(rows, channels, 2 * channels); // queries and result
        self.linear(context, context_dim, 2 * channels); // keys and values
        self.linear(rows, context, 2 * channels); // scores and their sums
    }

    /// A residual block of the U-Net and its transformer.
    fn layer(&mut self, size: Size, block: &BlockConfig, layer: usize, inputs: usize) {
        self.resnet(size, inputs, block.channels);
        if let Some(transformer) = &block.transformer {
            self.transformer(size.0 * size.1, block.channels, transformer, transformer.layers[layer]);
        }
    }

    fn transformer(&mut self, pixels: usize, channels: usize, config: &TransformerConfig, layers: usize) {
        self.linear(pixels, channels, channels);
        self.end_segment();
        for _ in 0..layers {
            self.attention(pixels, pixels, channels, channels);
            self.attention(pixels, self.tokens, channels, config.context_dim);
            self.linear(pixels, channels, 3 * EXPANSION * channels); // values and gates, then back
            self.end_segment();
        }
        self.linear(pixels, channels, channels);
        self.end_segment();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BenchModel, Preset};

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found:e}, expected {expected:e} within 2 %");
    }

    /// The expected figures were counted in PyTorch, by the operators' shapes, on diffusers' networks.
    #[test]
    fn counts_are_pytorchs() {
        let sd15 = BenchModel::preset(Preset::Sd15).unwrap();
        let sdxl = BenchModel::preset(Preset::Sdxl).unwrap();
        close(unet_flop(&sd15.unet, 2, (64, 64), 77), 1.607e12);
        close(unet_flop(&sdxl.unet, 2, (128, 128), 77), 13.52e12);
        close(decoder_flop(&sd15.vae, (64, 64)), 2.51e12);
        assert!(decoder_flop(&sdxl.vae, (128, 128)) > 4.0 * decoder_flop(&sdxl.vae, (64, 64)));
    }

    /// A linear layer and a kernel do two operations for each weight and pixel; attention's products come on top.
    #[test]
    fn the_segments_are_the_networks() {
        for preset in Preset::ALL {
            let config = BenchModel::preset(preset).unwrap().unet;
            let unet = kiln_unet::Unet::new(config.clone());
            let flop = unet_segment_flop(&config, 1, (8, 8), 77);
            assert_eq!(flop.len(), unet.segments().len());
            for (segment, flop) in unet.segments().iter().zip(&flop).skip(1) {
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
        close(text_flop(&sd15.text_encoders[0], 77), 2.0 * 77.0 * weights);
    }

    #[test]
    fn odd_sizes_follow_the_skip_connections() {
        let config = BenchModel::preset(Preset::Emoji).unwrap().unet;
        let flop = |side| unet_flop(&config, 1, (side, side), 77);
        assert!(flop(32) < flop(33) && flop(33) < flop(34));
    }
}
