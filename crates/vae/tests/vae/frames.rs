//! The autoencoder of Qwen-Image: values of diffusers, tilings, and configurations that do not fit.

use candle_core::{DType, Device, Tensor};
use kiln_vae::{Decoder, Encoder, Tiling, VaeConfig};
use kiln_weights::{MapSource, Placement, Segment, Segments, load};

const CONFIG: &str = r#"{"_class_name": "AutoencoderKLQwenImage", "base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2],
    "num_res_blocks": 1, "latents_mean": [0.1, -0.2, 0.3, 0], "latents_std": [1, 2, 0.5, 1.5]}"#;

/// Every 61st value of the decoder of diffusers' `AutoencoderKLQwenImage` (0.42.1) in f32 for the weights and latents below.
const IMAGE: [f32; 24] = [
    -0.064582, -0.117726, 0.023917, -0.050349, 0.153557, 0.119149, 0.147251, 0.157465, 0.000295, 0.075875, 0.016061,
    0.116707, -0.07484, 0.020981, -0.142692, -0.024338, 0.116568, 0.158169, 0.175604, 0.093643, -0.061846, -0.058594,
    0.079602, -0.025173,
];
/// Every fifth mean of its encoder.
const MEAN: [f32; 10] =
    [0.221648, 0.150837, 0.098998, 0.137372, 0.339656, 0.189162, 0.069304, 0.1311, 0.104129, 0.349496];
/// Every fifth logarithm of a variance.
const LOG_VARIANCE: [f32; 10] =
    [0.16107, 0.297639, -0.043257, -0.003239, -0.123208, 0.145904, -0.074408, 0.002983, -0.035124, -0.131862];

/// Values of about 1 that do not repeat.
fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 3.4 - 1.7;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn fill(segments: &Segments) {
    let value = |key: &str, shape: &[usize]| {
        let seed = key.bytes().map(usize::from).sum();
        match key.rsplit('.').next() {
            Some("bias") => tensor(shape, seed).affine(0.1, 0.0).unwrap(),
            Some("gamma") => tensor(shape, seed).affine(0.1, 0.5).unwrap(),
            _ => {
                let read = shape[1..].iter().product::<usize>() as f64;
                tensor(shape, seed).affine(1.0 / read.sqrt(), 0.0).unwrap()
            }
        }
    };
    let params = segments.iter().flat_map(Segment::params);
    let source: MapSource = params.map(|param| (param.key.clone(), value(&param.key, &param.shape))).collect();
    load(segments, &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
}

fn networks() -> (Decoder, Encoder) {
    let config = VaeConfig::from_json(CONFIG).unwrap();
    let (decoder, encoder) = (Decoder::new(&config), Encoder::new(&config));
    fill(decoder.segments());
    fill(encoder.segments());
    (decoder, encoder)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn check(found: &Tensor, step: usize, expected: &[f32]) {
    let found = values(found);
    assert_eq!(found.len().div_ceil(step), expected.len());
    for (found, expected) in found.iter().step_by(step).zip(expected) {
        assert!((found - expected).abs() < 2e-6, "{found} {expected}");
    }
}

#[test]
fn values_are_those_of_diffusers() {
    let (decoder, encoder) = networks();
    let image = decoder.decode(&tensor(&[2, 4, 3, 5], 3)).unwrap();
    assert_eq!(image.dims(), [2, 3, 12, 20]);
    check(&image, 61, &IMAGE);
    let posterior = encoder.encode(&tensor(&[2, 3, 8, 12], 5)).unwrap();
    assert_eq!(posterior.mean.dims(), [2, 4, 2, 3]);
    check(&posterior.mean, 5, &MEAN);
    check(&posterior.log_variance, 5, &LOG_VARIANCE);
}

#[test]
fn every_tiling_gives_the_same_values() {
    let (decoder, encoder) = networks();
    let (latents, image) = (tensor(&[2, 4, 9, 5], 3), tensor(&[2, 3, 36, 20], 5));
    let (decoded, encoded) = (decoder.decode(&latents).unwrap(), encoder.encode(&image).unwrap());
    let strips =
        [1, 11, 500].into_iter().flat_map(|rows| [false, true].map(|recompute| Tiling::Strips { rows, recompute }));
    for tiling in [Tiling::Sliced].into_iter().chain(strips) {
        assert_eq!(values(&decoder.decode_with(&latents, tiling).unwrap()), values(&decoded), "{tiling}");
        assert_eq!(values(&encoder.encode_with(&image, tiling).unwrap().mean), values(&encoded.mean), "{tiling}");
    }
}

#[test]
fn a_configuration_has_the_defaults_of_qwen_image() {
    let config = VaeConfig::from_json(r#"{"_class_name": "AutoencoderKLQwenImage"}"#).unwrap();
    assert_eq!((config.block_out_channels.as_slice(), config.latent_channels), (&[96, 192, 384, 384][..], 16));
    assert_eq!((config.downscale(), config.layers_per_block), (8, 2));
    let latents = tensor(&[1, 4, 2, 2], 1);
    let config = VaeConfig::from_json(CONFIG).unwrap();
    let back = config.scale(&config.unscale(&latents).unwrap()).unwrap();
    assert!(values(&(back - latents).unwrap()).iter().all(|error| error.abs() < 1e-6));
}

#[test]
fn errors_name_the_key() {
    for (more, expected) in [
        (r#""dim_mult": []"#, "`dim_mult` is [], expected a list of 1 to 8 factors"),
        (r#""dim_mult": [2, 4]"#, "`dim_mult` is [2, 4]"),
        (r#""base_dim": 7"#, "`base_dim` is 7"),
        (r#""attn_scales": [1.0]"#, "`attn_scales` is [1.0], expected an empty list"),
        (r#""z_dim": 0"#, "`latent_channels` is 0"),
        (r#""latents_std": [1]"#, "`latents_std` is a list of 1"),
        (r#""dim_mult": [1, 9223372036854775807]"#, "`block_out_channels`"),
    ] {
        let json = format!(r#"{{"_class_name": "AutoencoderKLQwenImage", {more}}}"#);
        let message = VaeConfig::from_json(&json).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
