//! The autoencoder compared with diffusers, in both directions.

use candle_core::{DType, Device};
use kiln_testkit::{Fixture, Parity, Target, deviation, fixtures};
use kiln_vae::{Decoder, Encoder, Tiling, VaeConfig};
use kiln_weights::{KeyRule, Placement, Renamed, load, open_component};

/// The largest error in standard deviations: f32, f16, bf16 (random networks amplify rounding).
const BOUNDS: [f64; 3] = [1e-4, 5e-2, 5e-1];

fn check(kind: &str, folder: &str) {
    let target = Target::from_env();
    let [f32, f16, bf16] = BOUNDS;
    let bound = target.bound(f32, f16, bf16);
    let input = |key: String, fixture: &Fixture| target.tensor(&fixture.tensor(&key));
    let folder = fixtures(folder);
    let config = VaeConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let (decoder, encoder) = (Decoder::new(&config), Encoder::new(&config));
    let source = Renamed::new(open_component(&folder).unwrap(), KeyRule::VAE_ATTENTION);
    for segments in [decoder.segments(), encoder.segments()] {
        load(segments, &source, &Placement::new(target.device.clone(), target.dtype)).unwrap();
    }
    let fixture = Fixture::open(&format!("stages/vae_{kind}.safetensors"));
    let parity = Parity::new("vae", target.label(kind));
    for case in 0..2 {
        let image = decoder.decode(&input(format!("d{case}.latents"), &fixture)).unwrap();
        parity.check(&format!("decode {case}"), &image, &fixture.tensor(&format!("d{case}.image")), bound);
        let strips = Tiling::Strips { rows: 6, recompute: true };
        let tiled = decoder.decode_with(&input(format!("d{case}.latents"), &fixture), strips).unwrap();
        if target.device.is_cpu() {
            assert_eq!(deviation(&tiled, &image).error, 0.0, "in strips");
        }

        let posterior = encoder.encode(&input(format!("e{case}.image"), &fixture)).unwrap();
        parity.check(&format!("mean {case}"), &posterior.mean, &fixture.tensor(&format!("e{case}.mean")), bound);
        let expected = fixture.tensor(&format!("e{case}.logvar"));
        parity.check(&format!("log variance {case}"), &posterior.log_variance, &expected, bound);
        assert!(posterior.is_finite().unwrap());
        for rows in [2, 6] {
            let strips = Tiling::Strips { rows, recompute: true };
            let tiled = encoder.encode_with(&input(format!("e{case}.image"), &fixture), strips).unwrap();
            if target.device.is_cpu() {
                assert_eq!(deviation(&tiled.mean, &posterior.mean).error, 0.0, "in strips");
            }
        }
        let samples = Fixture::open("stages/vae_samples.safetensors");
        if let (0, Some(noise)) = (case, samples.get(&format!("{kind}.noise"))) {
            let std = posterior.std().unwrap();
            parity.check("standard deviation", &std, &samples.tensor(&format!("{kind}.std")), bound);
            let sample = posterior.sample(&noise).unwrap();
            parity.check("sample", &sample, &samples.tensor(&format!("{kind}.sample")), bound);
        }
    }
}

#[test]
fn sd1() {
    check("sd1", "models/sd1/vae");
}

#[test]
fn sdxl() {
    check("sdxl", "models/sdxl/vae");
}

#[test]
fn without_quant_convolutions() {
    check("plain", "models/vae_plain");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let config = VaeConfig::from_json(r#"{"block_out_channels": [32, 32]}"#).unwrap();
    let zeros =
        |shape: (usize, usize, usize, usize)| candle_core::Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let message = Decoder::new(&config).decode(&zeros((1, 3, 8, 8))).unwrap_err().to_string();
    assert_eq!(message, "the VAE's input has shape [1, 3, 8, 8], expected (b, 4, h, w)");
    let message = Encoder::new(&config).encode(&zeros((1, 3, 9, 8))).unwrap_err().to_string();
    assert!(message.contains("multiples of 2"), "{message}");
}
