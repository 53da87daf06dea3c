//! The autoencoder of FLUX.2, whose latents are normalized patches, compared with an autoencoder of the same weights without patches.

use candle_core::{DType, Device, Tensor};
use kiln_nn::Operators;
use kiln_testkit::{Fixture, deviation, shared_data};
use kiln_vae::{Decoder, Encoder, Tiling, VaeConfig};
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, Segment, Segments, load, open_component};

const SIZES: &str = r#""block_out_channels": [16, 32], "decoder_block_out_channels": [8, 24], "layers_per_block": 1,
    "norm_num_groups": 8, "latent_channels": 3, "scaling_factor": 1"#;

fn config(class: &str) -> VaeConfig {
    VaeConfig::from_json(&format!(r#"{{"_class_name": "{class}", {SIZES}}}"#)).unwrap()
}

/// Random weights, with statistics that differ between channels.
fn weights(segments: &Segments) -> MapSource {
    let random = RandomSource::new(segments, 5);
    let tensor = |key: &str, shape: &[usize]| {
        let range = |first: f64, step: f64| {
            let values: Vec<f32> = (0..shape[0]).map(|i| (first + step * i as f64) as f32).collect();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        match key {
            "bn.running_mean" => range(-0.5, 0.1),
            "bn.running_var" => range(0.3, 0.2),
            _ => {
                let bytes = random.data(key).unwrap().unwrap().bytes;
                Tensor::from_raw_buffer(&bytes, DType::F16, shape, &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap()
            }
        }
    };
    let params = segments.iter().flat_map(Segment::params);
    params.map(|param| (param.key.clone(), tensor(&param.key, &param.shape))).collect()
}

fn fill(segments: &Segments, source: &MapSource) {
    load(segments, source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// A row of numbers `(1, 12, 1, 1)` for the channels of patches.
fn channels(of: impl Fn(f64) -> f64) -> Tensor {
    let values: Vec<f32> = (0..12).map(|i| of(f64::from(i)) as f32).collect();
    Tensor::from_vec(values, (1, 12, 1, 1), &Device::Cpu).unwrap()
}

fn wave(shape: [usize; 4]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin()).collect();
    Tensor::from_vec(values, &shape, &Device::Cpu).unwrap()
}

#[test]
fn latents_are_normalized_patches() {
    let (patched, plain) = (config("AutoencoderKLFlux2"), config("AutoencoderKL"));
    assert_eq!((patched.latent_channels, patched.downscale()), (12, 4));
    assert_eq!((plain.latent_channels, plain.downscale()), (3, 2));
    let (mean, std) = (channels(|i| -0.5 + 0.1 * i), channels(|i| (0.3 + 0.2 * i + 1e-4).sqrt()));

    let (decoder, other) = (Decoder::new(&patched), Decoder::new(&plain));
    let source = weights(decoder.segments());
    fill(decoder.segments(), &source);
    fill(other.segments(), &source);
    let latents = wave([2, 12, 3, 5]);
    let found = decoder.decode(&latents).unwrap();
    assert_eq!(found.dims(), [2, 3, 12, 20]);
    let coded = latents.broadcast_mul(&std).unwrap().broadcast_add(&mean).unwrap();
    let coded = coded.to_channels_last().unwrap().pixel_shuffle(2).unwrap().to_channels_first().unwrap();
    assert!(deviation(&found, &other.decode(&coded).unwrap()).error < 1e-5);
    let strips = decoder.decode_with(&latents, Tiling::Strips { rows: 5, recompute: true }).unwrap();
    assert_eq!(values(&strips), values(&found));

    let (encoder, other) = (Encoder::new(&patched), Encoder::new(&plain));
    let source = weights(encoder.segments());
    fill(encoder.segments(), &source);
    fill(other.segments(), &source);
    let image = wave([1, 3, 12, 20]);
    let (found, coded) = (encoder.encode(&image).unwrap(), other.encode(&image).unwrap());
    assert_eq!(found.mean.dims(), [1, 12, 3, 5]);
    let in_patches =
        |x: &Tensor| x.to_channels_last().unwrap().pixel_unshuffle(2).unwrap().to_channels_first().unwrap();
    let expected = in_patches(&coded.mean).broadcast_sub(&mean).unwrap().broadcast_div(&std).unwrap();
    assert!(deviation(&found.mean, &expected).error < 1e-5);
    let expected = in_patches(&coded.std().unwrap()).broadcast_div(&std).unwrap();
    assert!(deviation(&found.std().unwrap(), &expected).error < 1e-5);
    assert!(encoder.encode(&wave([1, 3, 12, 18])).unwrap_err().to_string().contains("multiples of 4"));
}

#[test]
fn errors_name_the_key() {
    let message = |more: &str| {
        let json = format!(r#"{{"_class_name": "AutoencoderKLFlux2", {more}}}"#);
        VaeConfig::from_json(&json).unwrap_err().to_string()
    };
    assert!(message(r#""patch_size": [1, 1]"#).contains("`patch_size` is [1, 1], expected [2, 2]"));
    assert!(message(r#""batch_norm_eps": 0"#).contains("`batch_norm_eps` is 0"));
    let found = message(r#""decoder_block_out_channels": [64, 64]"#);
    assert!(found.contains("`decoder_block_out_channels` is a list of 2, expected a list of 1"), "{found}");
    assert!(message(r#""decoder_block_out_channels": [65]"#).contains("is 65, expected a multiple of 32"));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_flux_2() {
    let folder = shared_data("families/models/flux2_klein/vae");
    let config = VaeConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let decoder = Decoder::new(&config);
    let source = open_component(&folder).unwrap();
    let source = kiln_weights::Renamed::new(source, kiln_weights::KeyRule::VAE_ATTENTION);
    load(decoder.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let name = "flux2_klein-plain-96x64-3";
    let case = Fixture::read(name, &shared_data("families").join(format!("{name}.safetensors")));
    let image = decoder.decode(&config.unscale(&case.tensor("latents")).unwrap()).unwrap();
    let image = ((image * 0.5).unwrap() + 0.5).unwrap().clamp(0f32, 1f32).unwrap();
    let error = deviation(&image, &case.tensor("image")).error;
    assert!(error < 1e-4, "{error}");
}
