//! Networks with FLUX.1's blocks, small random weights, and inputs for them.
#![allow(dead_code, reason = "each test uses a part")]

use candle_core::{DType, Device, Tensor};
use kiln_dit::{ChromaConfig, FluxConfig};
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, GUIDANCE, TEXT_EMBEDS, TEXT_LENGTHS};
use kiln_network::{Denoiser, DenoiserConfig, Inputs, LatentSpec, TextWidths};
use kiln_weights::{Placement, RandomSource, load};

const SIZES: &str = r#""attention_head_dim": 16, "num_attention_heads": 4, "axes_dims_rope": [4, 6, 6],
    "joint_attention_dim": 48, "pooled_projection_dim": 24, "num_layers": 2, "num_single_layers": 2"#;

/// All networks by name.
pub fn networks() -> Vec<(&'static str, Box<dyn DenoiserConfig>)> {
    let flux = |more: &str| Box::new(FluxConfig::from_json(&format!("{{{SIZES}{more}}}")).unwrap()) as _;
    let chroma = r#", "approximator_num_channels": 32, "approximator_hidden_dim": 40, "approximator_layers": 2"#;
    let chroma = ChromaConfig::from_json(&format!("{{{SIZES}{chroma}}}")).unwrap();
    vec![
        ("schnell", flux("")),
        ("dev", flux(r#", "guidance_embeds": true"#)),
        ("Canny", flux(r#", "guidance_embeds": true, "in_channels": 128, "out_channels": 64"#)),
        ("Fill", flux(r#", "guidance_embeds": true, "in_channels": 384, "out_channels": 64"#)),
        ("Chroma", Box::new(chroma)),
    ]
}

/// Values of about 1 that do not repeat.
pub fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 3.4 - 1.7;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

pub fn build(config: &dyn DenoiserConfig, dtype: DType) -> Box<dyn Denoiser> {
    let network = config.build();
    let source = RandomSource::new(network.segments(), 1);
    load(network.segments(), &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    network
}

/// All inputs of `b` images of `(h, w)` latents with 7 tokens of text.
pub fn inputs(config: &dyn DenoiserConfig, latents: LatentSpec, [b, h, w]: [usize; 3]) -> Inputs {
    let TextWidths { context, pooled } = config.text();
    let mut inputs = match pooled {
        Some(pooled) => Inputs::new().with(TEXT_EMBEDS, tensor(&[b, pooled], 2)),
        None => Inputs::new().with(TEXT_LENGTHS, Tensor::new(&[5f32, 7.0, 2.0, 6.0][..b], &Device::Cpu).unwrap()),
    };
    if config.takes_guidance() {
        inputs = inputs.with(GUIDANCE, Tensor::new(&[3500f32], &Device::Cpu).unwrap());
    }
    let inputs = inputs.with(CONTEXT, tensor(&[b, 7, context.unwrap()], 1));
    match latents.extra_channels {
        0 => inputs,
        extra => inputs.with(EXTRA_CHANNELS, tensor(&[b, extra, h, w], 3)),
    }
}
