//! The tiny autoencoder compared with diffusers, in both directions, with random weights and TAESD's real weights.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use kiln_testkit::{Fixture, Parity, Target, fixtures, shared_data};
use kiln_vae::{TinyConfig, TinyDecoder, TinyEncoder};
use kiln_weights::{KeyRule, MapSource, ParamSource, Placement, Renamed, SafetensorsFile, load, open_component};

/// The largest error in standard deviations: f32, f16, bf16.
const BOUNDS: [f64; 3] = [1e-4, 1e-2, 1e-1];
/// The bounds for the real weights, which amplify rounding more: with those for SDXL, diffusers' own f32 output differs
/// from its f64 output by 1e-4.
const REAL_BOUNDS: [f64; 3] = [1e-3, 1e-1, 5e-1];

struct Tiny {
    decoder: TinyDecoder,
    encoder: TinyEncoder,
    target: Target,
}

impl Tiny {
    fn load(config: &TinyConfig, source: &dyn ParamSource) -> Self {
        let (decoder, encoder, target) = (TinyDecoder::new(config), TinyEncoder::new(config), Target::from_env());
        for segments in [decoder.segments(), encoder.segments()] {
            load(segments, source, &Placement::new(target.device.clone(), target.dtype)).unwrap();
        }
        Self { decoder, encoder, target }
    }

    fn decode(&self, latents: &Tensor) -> Tensor {
        self.decoder.decode(&self.target.tensor(latents)).unwrap()
    }

    fn encode(&self, image: &Tensor) -> Tensor {
        self.encoder.encode(&self.target.tensor(image)).unwrap()
    }
}

fn config(folder: &Path) -> TinyConfig {
    TinyConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

fn check(kind: &str) {
    let folder = fixtures(&format!("taesd/{kind}"));
    let tiny = Tiny::load(&config(&folder), open_component(&folder).unwrap().as_ref());
    let fixture = Fixture::open(&format!("taesd/{kind}.safetensors"));
    let parity = Parity::new("taesd", tiny.target.label(kind));
    let bound = tiny.target.bound(BOUNDS[0], BOUNDS[1], BOUNDS[2]);
    for case in 0..2 {
        let image = tiny.decode(&fixture.tensor(&format!("d{case}.latents")));
        parity.check(&format!("decode {case}"), &image, &fixture.tensor(&format!("d{case}.image")), bound);
        let latents = tiny.encode(&fixture.tensor(&format!("e{case}.image")));
        parity.check(&format!("encode {case}"), &latents, &fixture.tensor(&format!("e{case}.latents")), bound);
    }
}

#[test]
fn by_default() {
    check("default");
}

#[test]
fn other_stages_channels_and_scales() {
    check("odd");
}

/// The real weights: every file compared with diffusers, and the fp8 file with the fp16 one.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_real_weights() {
    let folder = shared_data("taesd");
    let fixture = Fixture::open("taesd/real.safetensors");
    let original = fixture.tensor("picture").to_dtype(DType::F32).unwrap(); // (h, w, 3), 0 to 255
    let original = original.permute((2, 0, 1)).unwrap().unsqueeze(0).unwrap().affine(1.0 / 127.5, -1.0).unwrap();
    let run = |name: &str| {
        let file = SafetensorsFile::open(&folder.join(format!("{name}.safetensors"))).unwrap();
        let tiny = Tiny::load(&TinyConfig::default(), &file);
        let (latents, image) = (fixture.tensor(&format!("{name}.latents")), fixture.tensor(&format!("{name}.image")));
        let found = tiny.encode(&original);
        let parity = Parity::new("taesd", tiny.target.label(name));
        let bound = tiny.target.bound(REAL_BOUNDS[0], REAL_BOUNDS[1], REAL_BOUNDS[2]);
        parity.check("encode", &found, &latents, bound);
        parity.check("decode", &tiny.decode(&latents), &image, bound);
        let again = tiny.decode(&found);
        if tiny.target.dtype == DType::F32 {
            parity.check("encode and decode", &again, &image, bound); // one's rounding, amplified by the other
        }
        (tiny.target, found, again)
    };
    let (target, latents_fp16, image_fp16) = run("taesd_sd_fp16");
    let (_, latents_fp8, image_fp8) = run("taesd_sd_fp8");
    run("taesd_sdxl_fp8");

    // The files' matrices are equal. The biases are f32 in one, and rounded to f16 in the other. That alone makes
    // diffusers' images differ by 2.7e-3, a sixth of a level of 255.
    if target.dtype == DType::F32 {
        let parity = Parity::new("taesd", "taesd_sd fp8 and fp16");
        parity.check("encode", &latents_fp8, &latents_fp16, 1e-3);
        parity.check("encode and decode", &image_fp8, &image_fp16, 4e-3);
    }
}

/// TAESD's own two files number their layers from 0, including the decoder's clamp, and have no prefix.
#[test]
fn the_original_names() {
    let folder = fixtures("taesd/default");
    let weights = Fixture::read("weights", &folder.join("diffusion_pytorch_model.safetensors"));
    let file = |half: &str, shift: usize| -> Renamed<MapSource> {
        let renamed = weights.keys().into_iter().filter_map(|key| {
            let (layer, rest) = key.strip_prefix(half)?.split_once('.').unwrap();
            Some((format!("{}.{rest}", layer.parse::<usize>().unwrap() + shift), weights.tensor(key)))
        });
        Renamed::new(renamed.collect(), KeyRule::TAESD)
    };
    let (decoder_file, encoder_file) = (file("decoder.layers.", 1), file("encoder.layers.", 0));
    let config = config(&folder);
    let (decoder, encoder) = (TinyDecoder::new(&config), TinyEncoder::new(&config));
    let placement = Placement::new(Device::Cpu, DType::F32);
    load(decoder.segments(), &decoder_file, &placement).unwrap();
    load(encoder.segments(), &encoder_file, &placement).unwrap();
    let (decoder_2, encoder_2) = (TinyDecoder::new(&config), TinyEncoder::new(&config));
    let source = open_component(&folder).unwrap();
    load(decoder_2.segments(), source.as_ref(), &placement).unwrap();
    load(encoder_2.segments(), source.as_ref(), &placement).unwrap();

    let values = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let image = Tensor::rand(-1f32, 1., (1, 3, 24, 16), &Device::Cpu).unwrap();
    let latents = encoder.encode(&image).unwrap();
    assert_eq!(values(latents.clone()), values(encoder_2.encode(&image).unwrap()));
    assert_eq!(values(decoder.decode(&latents).unwrap()), values(decoder_2.decode(&latents).unwrap()));

    let message = load(decoder.segments(), &encoder_file, &placement).unwrap_err().to_string();
    assert!(message.contains("tensor `decoder.layers.0.weight` is missing"), "{message}");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let config = TinyConfig::default();
    let zeros = |shape: (usize, usize, usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let message = TinyDecoder::new(&config).decode(&zeros((1, 3, 8, 8))).unwrap_err().to_string();
    assert_eq!(message, "the VAE's input has shape [1, 3, 8, 8], expected (b, 4, h, w)");
    let message = TinyEncoder::new(&config).encode(&zeros((1, 3, 0, 8))).unwrap_err().to_string();
    assert!(message.contains("[1, 3, 0, 8]"), "{message}");
    let message = TinyEncoder::new(&config).encode(&zeros((1, 3, 8, 8))).unwrap_err().to_string();
    assert!(message.contains("segment `encoder.layers` has no weights yet"), "{message}");
}
