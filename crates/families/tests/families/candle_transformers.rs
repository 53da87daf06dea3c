//! The networks of the new families compared with candle-transformers': a second reference, with the tensor names of the models'
//! authors. The first one is diffusers (docs/parity-flow.md).

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Activation, Module, VarBuilder, VarMap};
use candle_transformers::models::mmdit::embedding::{PatchEmbedder, PositionEmbedder, Unpatchifier, VectorEmbedder};
use candle_transformers::models::mmdit::model::MMDiTCore;
use candle_transformers::models::{flux, t5, z_image};
use kiln_dit::sd3::{Sd3Config, Sd3Transformer};
use kiln_dit::z_image::{ZImageConfig, ZImageTransformer};
use kiln_dit::{FluxConfig, FluxTransformer};
use kiln_families::{FileDenoiser, of_id};
use kiln_network::slots::{CONTEXT, GUIDANCE, TEXT_EMBEDS};
use kiln_network::{Denoiser, Inputs};
use kiln_t5::{T5Config, T5Encoder};
use kiln_testkit::Parity;
use kiln_weights::ldm::Named;
use kiln_weights::{KeyRule, MapSource, ParamSource, Placement, Renamed, Segments, load};

/// In standard deviations; both sides compute in f32.
const BOUND: f64 = 1e-4;
const SIGMA: f64 = 0.6;

/// Values of about `scale` that do not repeat.
fn values(shape: &[usize], seed: usize, scale: f64) -> Tensor {
    let value = |i: usize| (((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() * 3.4 - 1.7) * scale;
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| value(i) as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// A network of candle-transformers, and its weights: matrices that keep the size of their inputs, vectors around 1 or 0.
fn of_candle<N>(build: impl FnOnce(VarBuilder<'_>) -> candle_core::Result<N>) -> (N, MapSource) {
    let map = VarMap::new();
    let network = build(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let vars = map.data().lock().unwrap();
    let set = |(name, var): (&String, &Var)| {
        let seed = name.bytes().map(usize::from).sum();
        let shape = var.dims().to_vec();
        let columns: usize = shape[1..].iter().product();
        let value = match shape.len() {
            1 if name.ends_with("bias") => values(&shape, seed, 0.1),
            1 => values(&shape, seed, 0.1).affine(1.0, 1.0).unwrap(),
            _ => values(&shape, seed, 1.0 / (columns as f64).sqrt()),
        };
        var.set(&value).unwrap();
        (name.clone(), value)
    };
    let source = vars.iter().map(set).collect();
    drop(vars);
    (network, source)
}

/// The denoiser that a family finds in a file with these tensors.
fn found(family: &str, source: &MapSource) -> FileDenoiser {
    of_id(family).unwrap().read_denoiser(source).unwrap()
}

fn load_named(segments: &Segments, source: impl ParamSource, file: &FileDenoiser) {
    let source = Named::new(source, file.names.clone());
    load(segments, &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
}

fn run(network: &dyn Denoiser, x: &Tensor, inputs: Inputs) -> Tensor {
    let timesteps = Tensor::new(&[1000.0 * SIGMA as f32], &Device::Cpu).unwrap();
    let (_, _, height, width) = x.dims4().unwrap();
    let inputs = network.prepare(network.for_size(inputs, [height, width]).unwrap()).unwrap();
    network.forward(x, &timesteps, &inputs).unwrap()
}

#[test]
fn flux() {
    let config = flux::model::Config {
        in_channels: 64,
        vec_in_dim: 24,
        context_in_dim: 48,
        hidden_size: 64,
        mlp_ratio: 4.0,
        num_heads: 4,
        depth: 2,
        depth_single_blocks: 2,
        axes_dim: vec![2, 6, 8],
        theta: 10_000,
        qkv_bias: true,
        guidance_embed: true,
    };
    let (reference, source) = of_candle(|vars| flux::model::Flux::new(&config, vars));
    let (latents, context, pooled) =
        (values(&[1, 16, 8, 12], 0, 1.0), values(&[1, 7, 48], 1, 1.0), values(&[1, 24], 2, 1.0));
    let state = flux::sampling::State::new(&context, &pooled, &latents).unwrap();
    let level = Tensor::new(&[SIGMA as f32], &Device::Cpu).unwrap();
    let guidance = Tensor::new(&[3.5f32], &Device::Cpu).unwrap();
    let expected = flux::WithForward::forward(
        &reference,
        &state.img,
        &state.img_ids,
        &state.txt,
        &state.txt_ids,
        &level,
        &state.vec,
        Some(&guidance),
    );
    let expected = flux::sampling::unpack(&expected.unwrap(), 64, 96).unwrap();

    let file = found("flux", &source);
    let network = FluxTransformer::new(FluxConfig::from_json(&file.config.to_string()).unwrap());
    load_named(network.segments(), source, &file);
    let guidance = Tensor::new(&[3500f32], &Device::Cpu).unwrap();
    let inputs = Inputs::new().with(CONTEXT, context).with(TEXT_EMBEDS, pooled).with(GUIDANCE, guidance);
    Parity::new("candle-transformers", "FLUX.1").check("velocity", &run(&network, &latents, inputs), &expected, BOUND);
}

/// The vectors of a noise level in a network with 256 frequencies: cosines first.
fn level_vectors() -> Tensor {
    let frequency = |i: usize| 1000.0 * SIGMA * (-(10_000f64.ln()) * i as f64 / 128.0).exp();
    let values: Vec<f32> =
        (0..256).map(|i| if i < 128 { frequency(i).cos() } else { frequency(i - 128).sin() } as f32).collect();
    Tensor::from_vec(values, (1, 256), &Device::Cpu).unwrap()
}

#[test]
fn stable_diffusion_3() {
    const DEPTH: usize = 2;
    const WIDTH: usize = 64 * DEPTH;
    let (latents, context) = (values(&[1, 16, 8, 12], 0, 1.0), values(&[1, 7, 48], 1, 1.0));
    let pooled = values(&[1, 24], 2, 1.0);
    // `MMDiT` has its noise level in f16 alone: its parts are put together as there.
    let build = |vars: VarBuilder<'_>| {
        let core = MMDiTCore::new(DEPTH, WIDTH, DEPTH, 2, 16, false, vars.clone())?;
        let patches = PatchEmbedder::new(2, 16, WIDTH, vars.pp("x_embedder"))?;
        let positions = PositionEmbedder::new(WIDTH, 2, 12, vars.clone())?;
        let pooled = VectorEmbedder::new(24, WIDTH, vars.pp("y_embedder"))?;
        let text = candle_nn::linear(48, WIDTH, vars.pp("context_embedder"))?;
        let level = vars.pp("t_embedder.mlp");
        let level = [candle_nn::linear(256, WIDTH, level.pp("0"))?, candle_nn::linear(WIDTH, WIDTH, level.pp("2"))?];
        Ok((core, patches, positions, pooled, text, level))
    };
    let ((core, patches, positions, of_pooled, text, level), source) = of_candle(build);
    let expected = || -> candle_core::Result<Tensor> {
        let x = patches.forward(&latents)?.broadcast_add(&positions.get_cropped_pos_embed(8, 12)?)?;
        let of_level = level[1].forward(&level[0].forward(&level_vectors())?.silu()?)?;
        let x = core.forward(&text.forward(&context)?, &x, &(of_level + of_pooled.forward(&pooled)?)?, None)?;
        Unpatchifier::new(2, 16)?.unpatchify(&x, 8, 12)
    };
    let expected = expected().unwrap();

    let file = found("sd3", &source);
    let network = Sd3Transformer::new(Sd3Config::from_json(&file.config.to_string()).unwrap());
    load_named(network.segments(), source, &file);
    let inputs = Inputs::new().with(CONTEXT, context).with(TEXT_EMBEDS, pooled);
    Parity::new("candle-transformers", "SD3").check("velocity", &run(&network, &latents, inputs), &expected, BOUND);
}

#[test]
fn z_image() {
    let json = r#"{"dim": 96, "n_heads": 6, "n_kv_heads": 6, "n_layers": 2, "n_refiner_layers": 1, "cap_feat_dim": 24,
        "in_channels": 16, "axes_dims": [4, 6, 6], "axes_lens": [64, 64, 64], "use_accelerated_attn": false}"#;
    let config: z_image::Config = serde_json::from_str(json).unwrap();
    let (reference, source) = of_candle(|vars| z_image::ZImageTransformer2DModel::new(&config, vars));
    // Multiples of 32 tokens, since candle-transformers adds no rows.
    let (latents, context) = (values(&[1, 16, 8, 16], 0, 1.0), values(&[1, 32, 24], 1, 1.0));
    let time = Tensor::new(&[1.0 - SIGMA as f32], &Device::Cpu).unwrap();
    let mask = Tensor::ones((1, 32), DType::U8, &Device::Cpu).unwrap();
    let expected = reference.forward(&latents.unsqueeze(2).unwrap(), &time, &context, &mask).unwrap();
    let expected = expected.squeeze(2).unwrap().neg().unwrap();

    let network = ZImageTransformer::new(ZImageConfig::from_json(json).unwrap());
    let file = found("z_image", &source);
    load_named(network.segments(), source, &file);
    let inputs = Inputs::new().with(CONTEXT, context);
    Parity::new("candle-transformers", "Z-Image").check("velocity", &run(&network, &latents, inputs), &expected, BOUND);
}

#[test]
fn t5_encoder() {
    let config = t5::Config {
        vocab_size: 60,
        d_model: 24,
        d_kv: 8,
        d_ff: 40,
        num_layers: 3,
        num_heads: 2,
        feed_forward_proj: t5::ActivationWithOptionalGating { gated: true, activation: Activation::NewGelu },
        use_cache: false,
        ..t5::Config::default()
    };
    let (mut reference, source) = of_candle(|vars| t5::T5EncoderModel::load(vars, &config));
    // Distances of more than 8 tokens share their buckets.
    let ids: Vec<u32> = (0..40).map(|i| (3 + 7 * i) % 60).collect();
    let expected = reference.forward(&Tensor::new(&ids[..], &Device::Cpu).unwrap().unsqueeze(0).unwrap()).unwrap();

    let config =
        T5Config { vocab_size: 60, d_model: 24, d_kv: 8, d_ff: 40, num_layers: 3, num_heads: 2, ..T5Config::xxl() };
    let encoder = T5Encoder::new(config).unwrap();
    let source = Renamed::new(source, KeyRule::T5_TABLE);
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let rows = encoder.encode(&[ids], &Device::Cpu).unwrap();
    let rows = rows[0].reshape(expected.dims()).unwrap();
    Parity::new("candle-transformers", "T5").check("rows", &rows, &expected, BOUND);
}
