//! Names of autoencoders of videos: every declared tensor to a stored one and back.

use std::collections::BTreeSet;

use safetensors::Dtype;

use super::tests::{declared, round_trip};
use super::*;

type Shapes = Vec<(String, Vec<usize>)>;

/// A convolution `(out, in, frames, rows, columns)` of kernels `size`, with a bias.
fn conv(shapes: &mut Shapes, name: String, out: usize, channels: usize, size: &[usize]) {
    shapes.push((format!("{name}.weight"), [&[out, channels], size].concat()));
    shapes.push((format!("{name}.bias"), vec![out]));
}

fn resnet(shapes: &mut Shapes, name: &str, out: usize, channels: usize) {
    for (i, channels) in [(1, channels), (2, out)] {
        shapes.push((format!("{name}.norm{i}.gamma"), vec![channels, 1, 1, 1]));
        conv(shapes, format!("{name}.conv{i}"), out, channels, &[3, 3, 3]);
    }
    if out != channels {
        conv(shapes, format!("{name}.conv_shortcut"), out, channels, &[1, 1, 1]);
    }
}

/// The tensors of an autoencoder in the names of diffusers.
fn frames(shape: &VaeShape) -> Shapes {
    let (mut shapes, z, levels) = (Shapes::new(), shape.latent_channels, &shape.channels);
    let (first, last) = (levels[0], levels[levels.len() - 1]);
    conv(&mut shapes, "quant_conv".into(), 2 * z, 2 * z, &[1, 1, 1]);
    conv(&mut shapes, "post_quant_conv".into(), z, z, &[1, 1, 1]);
    for (half, from, begin, end, to) in
        [("encoder", shape.image_channels, first, last, 2 * z), ("decoder", z, last, first, shape.image_channels)]
    {
        conv(&mut shapes, format!("{half}.conv_in"), begin, from, &[3, 3, 3]);
        shapes.push((format!("{half}.norm_out.gamma"), vec![end, 1, 1, 1]));
        conv(&mut shapes, format!("{half}.conv_out"), to, end, &[3, 3, 3]);
        resnet(&mut shapes, &format!("{half}.mid_block.resnets.0"), last, last);
        resnet(&mut shapes, &format!("{half}.mid_block.resnets.1"), last, last);
        let attention = format!("{half}.mid_block.attentions.0");
        shapes.push((format!("{attention}.norm.gamma"), vec![last, 1, 1]));
        conv(&mut shapes, format!("{attention}.to_qkv"), 3 * last, last, &[1, 1]);
        conv(&mut shapes, format!("{attention}.proj"), last, last, &[1, 1]);
    }
    let (mut from, mut place) = (first, 0);
    for (i, &channels) in levels.iter().enumerate() {
        for _ in 0..shape.layers {
            resnet(&mut shapes, &format!("encoder.down_blocks.{place}"), channels, from);
            (from, place) = (channels, place + 1);
        }
        if i + 1 < levels.len() {
            let name = format!("encoder.down_blocks.{place}");
            conv(&mut shapes, format!("{name}.resample.1"), channels, channels, &[3, 3]);
            if i > 0 {
                conv(&mut shapes, format!("{name}.time_conv"), channels, channels, &[3, 1, 1]);
            }
            place += 1;
        }
    }
    let mut from = last;
    for (i, &channels) in levels.iter().rev().enumerate() {
        for j in 0..=shape.layers {
            resnet(&mut shapes, &format!("decoder.up_blocks.{i}.resnets.{j}"), channels, from);
            from = channels;
        }
        if i + 1 < levels.len() {
            let name = format!("decoder.up_blocks.{i}.upsamplers.0");
            conv(&mut shapes, format!("{name}.time_conv"), 2 * channels, channels, &[3, 1, 1]);
            conv(&mut shapes, format!("{name}.resample.1"), channels / 2, channels, &[3, 3]);
            from = channels / 2;
        }
    }
    shapes
}

fn shape(dialect: VaeDialect, layers: usize) -> VaeShape {
    VaeShape {
        dialect,
        channels: vec![4, 8, 16, 16],
        layers,
        latent_channels: 6,
        image_channels: 3,
        quant_conv: true,
        post_quant_conv: true,
        attention: true,
        patches: false,
    }
}

#[test]
fn tensors_of_an_autoencoder_of_frames_map_both_ways() {
    for layers in 1..=2 {
        for dialect in [VaeDialect::Frames, VaeDialect::Wan] {
            let shape = shape(dialect, layers);
            let made = round_trip(&frames(&shape), Dtype::F16.into(), || shape.names());
            assert_eq!(VaeShape::read(&made), Some(shape));
        }
    }
}

/// The names are those of Wan 2.1's file, which ComfyUI has for Qwen-Image too.
#[test]
fn the_authors_number_layers_one_after_another() {
    let shape = shape(VaeDialect::Wan, 2);
    let made = round_trip(&frames(&shape), Dtype::F16.into(), || shape.names());
    let keys: BTreeSet<String> = made.keys().into_iter().collect();
    for (declared, stored) in [
        ("quant_conv.weight", "conv1.weight"),
        ("post_quant_conv.bias", "conv2.bias"),
        ("encoder.conv_in.weight", "encoder.conv1.weight"),
        ("encoder.down_blocks.2.resample.1.weight", "encoder.downsamples.2.resample.1.weight"),
        ("encoder.down_blocks.3.conv_shortcut.bias", "encoder.downsamples.3.shortcut.bias"),
        ("encoder.down_blocks.10.conv2.weight", "encoder.downsamples.10.residual.6.weight"),
        ("encoder.mid_block.attentions.0.to_qkv.weight", "encoder.middle.1.to_qkv.weight"),
        ("decoder.mid_block.resnets.1.norm1.gamma", "decoder.middle.2.residual.0.gamma"),
        ("decoder.up_blocks.0.upsamplers.0.time_conv.weight", "decoder.upsamples.3.time_conv.weight"),
        ("decoder.up_blocks.1.resnets.0.conv1.weight", "decoder.upsamples.4.residual.2.weight"),
        ("decoder.up_blocks.2.upsamplers.0.resample.1.bias", "decoder.upsamples.11.resample.1.bias"),
        ("decoder.up_blocks.3.resnets.2.norm2.gamma", "decoder.upsamples.14.residual.3.gamma"),
        ("decoder.norm_out.gamma", "decoder.head.0.gamma"),
        ("decoder.conv_out.weight", "decoder.head.2.weight"),
    ] {
        let place = shape.names().place(declared).map(|place| place.name);
        assert!(place.as_deref() == Some(stored) && keys.contains(stored), "{declared}: {place:?}");
    }
    // Wan 2.2 nests the layers of a level.
    let nested: Shapes = frames(&shape)
        .into_iter()
        .map(|(name, dims)| (shape.names().place(&name).unwrap().name, dims))
        .map(|(name, dims)| (name.replace("downsamples.", "downsamples.0.downsamples."), dims))
        .collect();
    assert_eq!(VaeShape::read(&declared(&nested, Dtype::F16.into())), None);
}
