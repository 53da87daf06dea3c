//! The denoiser against diffusers, block by block.

use candle_core::Tensor;
use kiln_testkit::{Fixture, Parity, Target, fixtures};
use kiln_unet::{AddedConditions, Conditioning, Unet, UnetConfig};
use kiln_weights::{Placement, load, open_component};

/// Largest error of a stage, in standard deviations: f32, f16, bf16. The networks are random and stretched, so that a
/// wrong layer shows; they stretch rounding as well, ten times more than a trained network does.
const BOUNDS: [f64; 3] = [1e-4, 4e-1, 3.0];

fn open(folder: &str, target: &Target) -> Unet {
    let folder = fixtures(folder);
    let config = UnetConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let unet = Unet::new(config);
    let source = open_component(&folder).unwrap();
    load(unet.segments(), source.as_ref(), &Placement::new(target.device.clone(), target.dtype)).unwrap();
    unet
}

fn conditioning(fixture: &Fixture, case: &str, target: &Target) -> Conditioning {
    let added = fixture.get(&format!("{case}.text_embeds")).map(|text_embeds| AddedConditions {
        text_embeds: target.tensor(&text_embeds),
        time_ids: Tensor::new(fixture.values(&format!("{case}.time_ids")), &target.device)
            .and_then(|ids| ids.reshape(((), 6)))
            .unwrap(),
    });
    Conditioning { context: target.tensor(&fixture.tensor(&format!("{case}.context"))), added, guidance: None }
}

fn check(kind: &str, folder: &str) {
    let target = Target::from_env();
    let [f32, f16, bf16] = BOUNDS;
    let bound = target.bound(f32, f16, bf16);
    let unet = open(folder, &target);
    let fixture = Fixture::open(&format!("stages/unet_{kind}.safetensors"));
    let parity = Parity::new("unet", target.label(kind));
    for case in ["s0", "s1", "s2", "s3"] {
        let sample = fixture.tensor(&format!("{case}.sample"));
        let size = format!("{}x{}", sample.dims()[2], sample.dims()[3]);
        let timestep = Tensor::new(fixture.values(&format!("{case}.timestep")), &target.device).unwrap();
        let mut seen = 0;
        let mut observe = |stage: &str, found: &Tensor| {
            let Some(expected) = fixture.get(&format!("{case}.{stage}")) else { return };
            let found = match found.rank() {
                4 => found.permute((0, 3, 1, 2)).unwrap(), // (b, c, h, w)
                _ => found.broadcast_as(expected.shape()).unwrap(),
            };
            parity.check(&format!("{size} {stage}"), &found, &expected, bound);
            seen += 1;
        };
        let out = unet
            .forward_observed(&target.tensor(&sample), &timestep, &conditioning(&fixture, case, &target), &mut observe)
            .unwrap();
        parity.check(&format!("{size} out"), &out, &fixture.tensor(&format!("{case}.out")), bound);
        assert!(seen > 0, "{case}: nothing on the way was compared");
    }
}

#[test]
fn sd1() {
    check("sd1", "models/sd1/unet");
}

#[test]
fn sd2v() {
    check("sd2v", "models/sd2v/unet");
}

#[test]
fn sdxl() {
    check("sdxl", "models/sdxl/unet");
}

#[test]
fn nine_channels_and_uneven_blocks() {
    check("inpaint", "models/unet_inpaint");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let target = Target::from_env();
    let unet = open("models/sdxl/unet", &target);
    let fixture = Fixture::open("stages/unet_sdxl.safetensors");
    let conditioning = conditioning(&fixture, "s0", &target);
    let sample = target.tensor(&fixture.tensor("s0.sample"));
    let message = |x: &Tensor, timesteps: &[f32], conditioning: &Conditioning| {
        let timesteps = Tensor::new(timesteps, &target.device).unwrap();
        unet.forward(x, &timesteps, conditioning).unwrap_err().to_string()
    };
    let narrow = sample.narrow(1, 0, 3).unwrap();
    assert!(message(&narrow, &[1.0], &conditioning).contains("`x` has shape [2, 3, 8, 8], expected (b, 4, h, w)"));
    assert!(message(&sample, &[1.0; 3], &conditioning).contains("`timesteps` has shape [3], expected (1) or (2)"));
    let without = Conditioning { added: None, ..conditioning.clone() };
    assert!(message(&sample, &[1.0], &without).contains("`text_embeds`"));
}

#[test]
fn an_image_has_the_same_bits_in_any_batch() {
    let unet = open("models/sd1/unet", &Target { device: candle_core::Device::Cpu, dtype: candle_core::DType::F32 });
    let fixture = Fixture::open("stages/unet_sd1.safetensors");
    let (sample, context) = (fixture.tensor("s0.sample"), fixture.tensor("s0.context"));
    let run = |x: &Tensor, context: Tensor| {
        let timestep = Tensor::new(&[981f32], x.device()).unwrap();
        let out = unet.forward(x, &timestep, &Conditioning { context, added: None, guidance: None }).unwrap();
        out.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let both = run(&sample, context.clone());
    let second = run(&sample.narrow(0, 1, 1).unwrap(), context.narrow(0, 1, 1).unwrap());
    assert_eq!(both[both.len() / 2..], second);
}
