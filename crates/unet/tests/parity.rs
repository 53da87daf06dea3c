//! The U-Net compared with diffusers, block by block.

use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};
use kiln_testkit::{Fixture, Limits, Parity, Target, fixtures, similarity};
use kiln_unet::{AddedConditions, Conditioning, ImagePrompt, Residuals, Unet, UnetConfig};
use kiln_weights::{Placement, load, open_component};

/// Largest error of a stage in f32, in standard deviations.
const F32_BOUND: f64 = 1e-4;
/// The required similarity of a stage in f16 and bf16. The networks are random and have a large gain, so that a wrong
/// layer is detected. The gain also amplifies rounding, so that the largest error of a few thousand values is not
/// meaningful.
///
/// On the CPU the worst of 100 stages have a mean error of 4.8e-3 and a cosine of 0.999984 in f16, 5.0e-2 and 0.9978 in
/// bf16.
const F16_LIMITS: Limits = Limits { cosine: 0.99995, error: 8e-3 };
const BF16_LIMITS: Limits = Limits { cosine: 0.996, error: 8e-2 };
/// The tensors of a case that are not compared with anything.
const INPUTS: [&str; 5] = ["sample", "timestep", "context", "text_embeds", "time_ids"];

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
    Conditioning { added, ..Conditioning::of_text(target.tensor(&fixture.tensor(&format!("{case}.context")))) }
}

fn check(kind: &str, folder: &str) {
    let target = Target::from_env();
    let unet = open(folder, &target);
    let fixture = Fixture::open(&format!("stages/unet_{kind}.safetensors"));
    let parity = Parity::new("unet", target.label(kind));
    let compare = |stage: &str, found: &Tensor, expected: &Tensor| match target.dtype {
        DType::F16 => parity.check_similar(stage, found, expected, F16_LIMITS),
        DType::BF16 => parity.check_similar(stage, found, expected, BF16_LIMITS),
        _ => parity.check(stage, found, expected, F32_BOUND),
    };
    let mut unseen: BTreeSet<String> = stages(&fixture).into_iter().collect();
    for case in ["s0", "s1", "s2", "s3"] {
        let sample = fixture.tensor(&format!("{case}.sample"));
        let size = format!("{}x{}", sample.dims()[2], sample.dims()[3]);
        let timestep = Tensor::new(fixture.values(&format!("{case}.timestep")), &target.device).unwrap();
        let mut observe = |stage: &str, found: &Tensor| {
            let key = format!("{case}.{stage}");
            let Some(expected) = fixture.get(&key) else { return };
            let found = match found.rank() {
                4 => found.permute((0, 3, 1, 2)).unwrap(), // (b, c, h, w)
                _ => found.broadcast_as(expected.shape()).unwrap(),
            };
            compare(&format!("{size} {stage}"), &found, &expected);
            unseen.remove(&key);
        };
        let out = unet
            .forward_observed(&target.tensor(&sample), &timestep, &conditioning(&fixture, case, &target), &mut observe)
            .unwrap();
        compare(&format!("{size} out"), &out, &fixture.tensor(&format!("{case}.out")));
        unseen.remove(&format!("{case}.out"));
    }
    assert!(unseen.is_empty(), "{kind}: nothing was compared with {unseen:?}");
}

/// The names of the expected outputs in the fixture: all tensors except the inputs.
fn stages(fixture: &Fixture) -> Vec<String> {
    let is_input = |key: &&str| INPUTS.iter().any(|input| key.ends_with(&format!(".{input}")));
    fixture.keys().into_iter().filter(|key| !is_input(key)).map(String::from).collect()
}

/// In every half precision the limits reject noise, zeros, and the output of another stage or another input.
#[test]
fn limits_refuse_noise_zeros_and_other_stages() {
    for kind in ["sd1", "sd2v", "sdxl", "inpaint"] {
        let fixture = Fixture::open(&format!("stages/unet_{kind}.safetensors"));
        let keys = stages(&fixture);
        for limits in [F16_LIMITS, BF16_LIMITS] {
            let mut others = 0;
            for key in &keys {
                let expected = fixture.tensor(key);
                let refuse = |what: &str, found: &Tensor| {
                    let alike = similarity(found, &expected);
                    assert!(!limits.accept(alike), "{kind} {key}: {what}: {alike:?} is within {limits:?}");
                };
                assert!(limits.accept(similarity(&expected, &expected)), "{kind} {key}");
                refuse("zeros", &expected.zeros_like().unwrap());
                refuse("its channels in another order", &expected.flip(&[1]).unwrap());
                let noise = (0..expected.elem_count()).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 - 0.5);
                let noise = Tensor::from_iter(noise, &Device::Cpu).unwrap().reshape(expected.shape()).unwrap();
                let size = |x: &Tensor| f64::from(x.abs().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap());
                refuse("noise", &(&noise * (size(&expected) / size(&noise))).unwrap());
                for other in keys.iter().filter(|other| *other != key) {
                    let found = fixture.tensor(other);
                    if found.dims() == expected.dims() {
                        refuse(other, &found);
                        others += 1;
                    }
                }
            }
            assert!(others > keys.len() / 2, "{kind}: {others} other results for {} stages", keys.len());
        }
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
    let unet = open("models/sd1/unet", &Target { device: Device::Cpu, dtype: DType::F32 });
    let fixture = Fixture::open("stages/unet_sd1.safetensors");
    let (sample, context) = (fixture.tensor("s0.sample"), fixture.tensor("s0.context"));
    let run = |x: &Tensor, context: Tensor| {
        let timestep = Tensor::new(&[981f32], x.device()).unwrap();
        let out = unet.forward(x, &timestep, &Conditioning::of_text(context)).unwrap();
        out.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let both = run(&sample, context.clone());
    let second = run(&sample.narrow(0, 1, 1).unwrap(), context.narrow(0, 1, 1).unwrap());
    assert_eq!(both[both.len() / 2..], second);
}

/// What a network with nine channels gets in parts, and a timestep for each row, change no bit.
#[test]
fn inputs_in_parts_have_the_same_bits() {
    let unet = open("models/unet_inpaint", &Target { device: Device::Cpu, dtype: DType::F32 });
    let fixture = Fixture::open("stages/unet_inpaint.safetensors");
    let (sample, context) = (fixture.tensor("s0.sample"), fixture.tensor("s0.context"));
    let run = |x: &Tensor, timesteps: &[f32], conditioning: &Conditioning| {
        let timesteps = Tensor::new(timesteps, x.device()).unwrap();
        let out = unet.forward(x, &timesteps, conditioning).unwrap();
        out.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let whole = run(&sample, &[981.0], &Conditioning::of_text(context.clone()));
    let (latents, extra) = (sample.narrow(1, 0, 4).unwrap(), sample.narrow(1, 4, 5).unwrap());
    let extra = extra.contiguous().unwrap();
    let parts = Conditioning { extra_channels: Some(extra), ..Conditioning::of_text(context.clone()) };
    assert_eq!(run(&latents.contiguous().unwrap(), &[981.0], &parts), whole);
    assert_eq!(run(&sample, &[981.0, 981.0], &Conditioning::of_text(context.clone())), whole);
    // Each row has its own timestep.
    let rows = run(&sample, &[981.0, 21.0], &Conditioning::of_text(context.clone()));
    let second =
        run(&sample.narrow(0, 1, 1).unwrap(), &[21.0], &Conditioning::of_text(context.narrow(0, 1, 1).unwrap()));
    let half = whole.len() / 2;
    assert!(rows[..half] == whole[..half] && rows[half..] == second);
    // The text's keys and values may be made before the step.
    let text_keys = unet.text_keys(&context).unwrap();
    assert_eq!(text_keys.len(), unet.config().cross_layers().len());
    let keyed = Conditioning { text_keys, ..Conditioning::of_text(context.clone()) };
    assert_eq!(run(&sample, &[981.0], &keyed), whole);
    // An image prompt that acts nowhere changes nothing, and one for other layers is refused.
    let prompt = |layers: usize| ImagePrompt { layers: vec![None; layers], masks: Vec::new() };
    let prompted = |layers| Conditioning { image_prompts: vec![prompt(layers)], ..keyed.clone() };
    assert_eq!(run(&sample, &[981.0], &prompted(keyed.text_keys.len())), whole);
    let timestep = Tensor::new(&[981f32], sample.device()).unwrap();
    let message = unet.forward(&sample, &timestep, &prompted(1)).unwrap_err().to_string();
    assert!(message.contains("`image_prompts`"), "{message}");
}

/// Residuals of zeros change nothing, others do, and a wrong number of them is refused.
#[test]
fn residuals_are_added_to_the_skip_connections() {
    let unet = open("models/sd1/unet", &Target { device: Device::Cpu, dtype: DType::F32 });
    let fixture = Fixture::open("stages/unet_sd1.safetensors");
    let (sample, context) = (fixture.tensor("s0.sample"), fixture.tensor("s0.context"));
    let timestep = Tensor::new(&[981f32], sample.device()).unwrap();
    let run = |residuals: Option<Residuals>| {
        let conditioning = Conditioning { residuals, ..Conditioning::of_text(context.clone()) };
        let out = unet.forward(&sample, &timestep, &conditioning)?;
        Ok::<_, kiln_unet::Error>(out.flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    let (mut maps, mut mid) = (Vec::new(), None);
    let text = Conditioning::of_text(context.clone());
    let mut observe = |name: &str, map: &Tensor| {
        if name == "mid" {
            mid = Some(map.clone());
        }
    };
    unet.forward_observed(&sample, &timestep, &text, &mut observe).unwrap();
    // Shapes of the skip connections: of the first convolution, then of every layer and every downsampling.
    let config = unet.config();
    let [b, _, mut h, mut w] = sample.dims4().map(|(b, c, h, w)| [b, c, h, w]).unwrap();
    let zeros = |h, w, c| Tensor::zeros((b, h, w, c), DType::F32, sample.device()).unwrap();
    maps.push(zeros(h, w, config.down[0].channels));
    for (i, block) in config.down.iter().enumerate() {
        (0..block.layers).for_each(|_| maps.push(zeros(h, w, block.channels)));
        if i + 1 < config.down.len() {
            (h, w) = (h.div_ceil(2), w.div_ceil(2));
            maps.push(zeros(h, w, block.channels));
        }
    }
    let mid = mid.unwrap().zeros_like().unwrap();
    let plain = run(None).unwrap();
    assert_eq!(run(Some(Residuals { down: maps.clone(), mid: mid.clone() })).unwrap(), plain);
    for i in 0..=maps.len() {
        let (mut down, mut mid) = (maps.clone(), mid.clone());
        let changed = if i < down.len() { &mut down[i] } else { &mut mid };
        *changed = (&*changed + 1.0).unwrap();
        assert_ne!(run(Some(Residuals { down, mid })).unwrap(), plain, "residual {i}");
    }
    let message = run(Some(Residuals { down: maps[1..].to_vec(), mid })).unwrap_err().to_string();
    assert!(message.contains("`residuals.down`"), "{message}");
}
