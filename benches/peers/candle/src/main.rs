//! candle-transformers' Stable Diffusion 1.5, measured in the same way as in `kiln bench`: one guided step (U-Net batch
//! 2 n, guidance) and decoding an image, with random weights. Prints JSON of the form of `kiln bench --json -`.
//!
//! candle reads the number of its threads from `RAYON_NUM_THREADS`.

use std::time::Instant;

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use candle_transformers::models::stable_diffusion::unet_2d::{
    BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
};
use candle_transformers::models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
use serde_json::{Value, json};

const SIDE: usize = 512;
const CFG_SCALE: f64 = 7.0;

struct Options {
    stages: Vec<String>,
    dtype: DType,
    batch: usize,
    runs: usize,
    warmup: usize,
}

fn options() -> std::result::Result<Options, String> {
    let mut options =
        Options { stages: vec!["step".into(), "vae".into()], dtype: DType::F32, batch: 1, runs: 5, warmup: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|error| format!("{flag} {value}: {error}"));
        match flag.as_str() {
            "--stages" => options.stages = value.split(',').map(String::from).collect(),
            "--dtype" => {
                options.dtype = value.parse().map_err(|_| format!("--dtype {value}: expected f32, bf16 or f16"))?
            }
            "--batch" => options.batch = number()?,
            "--runs" => options.runs = number()?,
            "--warmup" => options.warmup = number()?,
            _ => return Err(format!("{flag}: expected --stages, --dtype, --batch, --runs or --warmup")),
        }
    }
    if options.runs == 0 || options.batch == 0 {
        return Err("--runs and --batch are at least 1".into());
    }
    Ok(options)
}

/// Random weights of standard deviation `1 / sqrt(fan_in)`; scales of normalizations are 1, and biases 0.
struct RandomWeights;

impl SimpleBackend for RandomWeights {
    fn get(&self, shape: Shape, name: &str, _: candle_nn::Init, dtype: DType, device: &Device) -> Result<Tensor> {
        match shape.dims() {
            [_, inputs @ ..] if !inputs.is_empty() => {
                let bound = (3.0 / inputs.iter().product::<usize>() as f32).sqrt();
                Tensor::rand(-bound, bound, shape, device)?.to_dtype(dtype)
            }
            _ if name.ends_with("weight") => Tensor::ones(shape, dtype, device),
            _ => Tensor::zeros(shape, dtype, device),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("the shape of {name} is unknown")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn unet(weights: VarBuilder) -> Result<UNet2DConditionModel> {
    let block = |out_channels, use_cross_attn| BlockConfig { out_channels, use_cross_attn, attention_head_dim: 8 };
    let blocks = vec![block(320, Some(1)), block(640, Some(1)), block(1280, Some(1)), block(1280, None)];
    let config = UNet2DConditionModelConfig { blocks, cross_attention_dim: 768, ..Default::default() };
    UNet2DConditionModel::new(weights, 4, 4, false, config)
}

fn vae(weights: VarBuilder) -> Result<AutoEncoderKL> {
    let config = AutoEncoderKLConfig {
        block_out_channels: vec![128, 256, 512, 512],
        layers_per_block: 2,
        latent_channels: 4,
        norm_num_groups: 32,
        use_quant_conv: true,
        use_post_quant_conv: true,
    };
    AutoEncoderKL::new(weights, 3, 3, config)
}

fn time(options: &Options, stage: &str, run: impl Fn() -> Result<Tensor>) -> Result<Value> {
    let mut runs = Vec::new();
    for i in 0..options.warmup + options.runs {
        let start = Instant::now();
        run()?;
        if i >= options.warmup {
            runs.push(start.elapsed().as_secs_f64());
        }
    }
    let mut sorted = runs.clone();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let median = (sorted[n / 2] + sorted[(n - 1) / 2]) / 2.0;
    let seconds = json!({ "median": median, "min": sorted[0], "max": sorted[n - 1] });
    Ok(json!({ "stage": stage, "seconds": seconds, "runs": runs }))
}

fn measure(options: &Options, stage: &str) -> Result<Value> {
    let (device, dtype) = (Device::Cpu, options.dtype);
    let weights = VarBuilder::from_backend(Box::new(RandomWeights), dtype, device.clone());
    let normal = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &device)?.to_dtype(dtype);
    let (n, latent) = (options.batch, SIDE / 8);
    if stage == "vae" {
        let (vae, latents) = (vae(weights)?, normal(&[1, 4, latent, latent])?);
        return time(options, stage, || vae.decode(&(&latents / 0.18215)?));
    }
    let unet = unet(weights)?;
    let (latents, context) = (normal(&[n, 4, latent, latent])?, normal(&[2 * n, 77, 768])?);
    time(options, stage, || {
        let both = unet.forward(&Tensor::cat(&[&latents, &latents], 0)?, 500.0, &context)?;
        let (uncond, cond) = (both.narrow(0, 0, n)?, both.narrow(0, n, n)?);
        &uncond + ((cond - &uncond)? * CFG_SCALE)?
    })
}

/// The first line of a file in `/proc` that begins with `key`, after its colon.
fn fact(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let mut stages = Vec::new();
    for stage in &options.stages {
        match stage.as_str() {
            "step" | "vae" => stages.push(measure(&options, stage)?),
            _ => eprintln!("skipped: {stage} is not measured here"),
        }
    }
    let peak = fact("/proc/self/status", "VmHWM").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    let report = json!({
        "engine": "candle-transformers",
        "version": "0.11.1",
        "commit": null,
        "machine": {
            "processor": fact("/proc/cpuinfo", "model name"),
            "threads": candle_core::utils::get_num_threads(),
            "device": "cpu",
        },
        "dtype": format!("{:?}", options.dtype).to_lowercase(),
        "warmup": options.warmup,
        "peak_resident_bytes": peak.map(|kib| kib * 1024),
        "models": [{ "name": "sd15-512", "width": SIDE, "height": SIDE, "batch": options.batch, "stages": stages }],
    });
    println!("{report:#}");
    Ok(())
}
