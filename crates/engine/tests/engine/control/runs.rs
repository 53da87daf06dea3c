//! The same bits in every mode, batch and pass, and what settings say of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use candle_core::{DType, Device, Tensor};
use kiln_engine::{ControlMode, ControlPasses, ControlType, ControlUse, Event, Request, Rule, SamplerKind};
use kiln_testkit::{TinyControl, write_tensors};

use super::{Files, hires, two_nets};

use crate::support::cases::{assert_same_in_every_mode, images_as_alone};
use crate::support::{bits, cpu, images, request, run, tiny};

/// Adapters and Union networks have the same bits in every mode and batch, next to a ControlNet.
#[test]
fn adapters_are_the_same_in_every_mode_and_batch() {
    let files = Files::new();
    for (kind, form) in [("sd1", "full"), ("sdxl", "union"), ("sdxl", "lllite")] {
        let kind_of = (form == "union").then_some(ControlType::Depth);
        let adapter = ControlUse { kind: kind_of, end: 0.6, ..files.control(&files.other(kind, form, 0)) };
        let net = ControlUse { weight: 0.5, ..files.control(&files.net(kind, 1, false)) };
        let three = Request {
            controls: vec![adapter, net],
            batch_size: Some(3),
            sampler: Some(SamplerKind::EulerA.into()),
            ..request("a pear", (64, 64), 4, 7)
        };
        let expected = images_as_alone(&mut tiny(kind, &cpu()), &three);
        assert_same_in_every_mode(kind, &three, &expected);
    }
}

/// A control LoRA gives the image of the ControlNet that it stands for.
#[test]
fn a_control_lora_is_the_controlnet_that_it_stands_for() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let own = TinyControl::full(0).tensors("sd1");
    let model = engine.model().files().denoiser_weights().unwrap();
    let is_own = |key: &str| key.starts_with("controlnet_");
    let unet = |key: &str| {
        let data = model.data(key).unwrap().unwrap();
        Tensor::from_vec(data.to_f32().unwrap(), data.info.shape.clone(), &Device::Cpu).unwrap()
    };
    // The encoder is the U-Net's own.
    let merged: BTreeMap<String, Tensor> =
        own.iter().map(|(key, tensor)| (key.clone(), if is_own(key) { tensor.clone() } else { unet(key) })).collect();
    write_tensors(&merged, &files.path("merged.safetensors"));
    let mut lora =
        BTreeMap::from([("lora_controlnet".to_string(), Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap())]);
    for (key, tensor) in own.iter().filter(|(key, _)| is_own(key)) {
        let name = match key.split('.').collect::<Vec<_>>()[..] {
            ["controlnet_down_blocks", i, part] => format!("zero_convs.{i}.0.{part}"),
            ["controlnet_mid_block", part] => format!("middle_block_out.0.{part}"),
            [_, "conv_in", part] => format!("input_hint_block.0.{part}"),
            [_, "conv_out", part] => format!("input_hint_block.14.{part}"),
            [_, "blocks", i, part] => format!("input_hint_block.{}.{part}", 2 * i.parse::<usize>().unwrap() + 2),
            _ => panic!("{key}"),
        };
        lora.insert(name, tensor.clone());
    }
    write_tensors(&lora, &files.path("lora.safetensors"));
    let mut with = |name: &str| {
        let controls = vec![files.control(&files.path(name))];
        bits(&images(&mut engine, &Request { controls, ..request("a pear", (64, 64), 3, 7) }))
    };
    assert!(with("merged.safetensors") == with("lora.safetensors"));
}

#[test]
fn an_image_is_the_same_in_every_mode_and_batch() {
    let files = Files::new();
    let three = two_nets(&files);
    let mut engine = tiny("sd1", &cpu());
    let expected = images_as_alone(&mut engine, &three);
    // Without the networks another image, and the same again with them.
    let plain = Request { controls: Vec::new(), ..three.clone() };
    assert!(bits(&images(&mut engine, &plain)) != bits(&expected));
    assert!(bits(&images(&mut engine, &three)) == bits(&expected));
    assert_same_in_every_mode("sd1", &three, &expected);
}

/// The networks of both passes see their image in the pass's size. A canny map, whose edges have one pixel in both, guides weakly
/// in the second pass by AUTOMATIC1111's rule.
#[test]
fn controls_act_in_their_passes() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let net = files.control(&files.net("sd1", 0, false));
    let adapter = files.control(&files.other("sd1", "full", 0));
    let canny = ControlUse { preprocess: Some("canny".into()), ..net.clone() };
    let both = |controls: &[&ControlUse], rule: Rule| Request {
        controls: controls.iter().map(|control| (*control).clone()).collect(),
        rule: Some(rule),
        sampler: Some(SamplerKind::EulerA.into()),
        ..hires(0.6, request("a pear", (64, 64), 4, 7))
    };
    let in_pass = |control: &ControlUse, passes: ControlPasses| ControlUse { passes, ..control.clone() };
    let (first, second) = (ControlPasses::First, ControlPasses::Second);
    let mut run = |request: &Request| bits(&images(&mut engine, request));
    let whole = run(&both(&[&net], Rule::Diffusers));
    assert!(run(&both(&[&in_pass(&net, first), &in_pass(&net, second)], Rule::Diffusers)) == whole);
    let others =
        [run(&both(&[&in_pass(&net, first)], Rule::Diffusers)), run(&both(&[&in_pass(&net, second)], Rule::Diffusers))];
    assert!(others[0] != others[1] && !others.contains(&whole) && !others.contains(&run(&both(&[], Rule::Diffusers))));
    let weak = ControlUse { mode: ControlMode::Prompt, ..in_pass(&canny, second) };
    let of_rule = run(&both(&[&canny], Rule::Automatic1111));
    assert!(of_rule == run(&both(&[&in_pass(&canny, first), &weak], Rule::Automatic1111)));
    assert!(run(&both(&[&canny], Rule::Comfy)) != run(&both(&[&in_pass(&canny, first), &weak], Rule::Comfy)));

    let three = Request { batch_size: Some(3), ..both(&[&in_pass(&net, first), &adapter], Rule::Diffusers) };
    let expected = images_as_alone(&mut engine, &three);
    assert_same_in_every_mode("sd1", &three, &expected);
    let one_pass = Request { hires_scale: None, hires_strength: None, rule: None, ..three };
    let error = one_pass.resolve(engine.model()).unwrap_err().to_string();
    assert!(error.contains("`controls` is passes=first, expected `hires_scale`"), "{error}");
}

/// Jobs with their own control images share a batch, and groups with other strengths take turns.
#[test]
fn running_batches_keep_their_bits() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let base = Request { batch_size: None, ..two_nets(&files) };
    let weaker = {
        let controls = base.controls.iter().map(|control| ControlUse { weight: 0.3, ..control.clone() }).collect();
        Request { controls, seed: Some(9), ..base.clone() }
    };
    let jobs = [base, weaker].map(|request| request.resolve(engine.model()).unwrap());
    let alone: Vec<Vec<u32>> = jobs.iter().map(|job| bits(&run(&mut engine, job))).collect();
    let mut running = kiln_engine::RunningBatch::new();
    let mut watch = |_: Event| ControlFlow::Continue(());
    let mut ids = Vec::new();
    for job in &jobs {
        ids.push(engine.join(&mut running, job, 0, &mut watch).unwrap());
    }
    let other = Request { controls: Vec::new(), ..request("a pear", (64, 64), 4, 7) }.resolve(engine.model()).unwrap();
    let message = engine.join(&mut running, &other, 0, &mut watch).unwrap_err().to_string();
    assert!(message.contains("`controls`"), "{message}");
    while engine.step(&mut running, &mut watch).unwrap().len() < 2 {}
    for ((id, job), alone) in ids.into_iter().zip(&jobs).zip(alone) {
        let images = engine.finish(&mut running, id, (job, 0), &mut watch).unwrap();
        assert!(bits(&images) == alone);
    }
}

/// AUTOMATIC1111's control modes (`scripts/hook.py` of sd-webui-controlnet): soft weights `0.825 ** (12 - i)`, and with
/// "ControlNet is more important" for the conditional half alone.
#[test]
fn control_modes_change_the_factors() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let mut with = |mode: ControlMode, weight: f64| {
        let control = ControlUse { mode, weight, ..files.control(&files.net("sd1", 0, false)) };
        let request = Request { controls: vec![control], ..request("a pear", (64, 64), 4, 7) };
        let job = request.resolve(engine.model()).unwrap();
        bits(&run(&mut engine, &job))
    };
    let all = [ControlMode::Balanced, ControlMode::Prompt, ControlMode::Control].map(|mode| with(mode, 1.0));
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    // Without a weight they are all the same: the plain image.
    let none = [ControlMode::Balanced, ControlMode::Prompt, ControlMode::Control].map(|mode| with(mode, 0.0));
    assert!(none[0] == none[1] && none[1] == none[2]);
}

#[test]
fn settings_make_the_image_again() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let request = Request { batch_size: None, ..two_nets(&files) };
    let job = request.resolve(engine.model()).unwrap();
    let images = run(&mut engine, &job);
    let settings: serde_json::Value = serde_json::from_str(&images[0].settings).unwrap();
    let controls = &settings["request"]["controls"];
    assert_eq!(controls[0]["net"], "sd1-0-false");
    assert_eq!((&controls[1]["guess"], &controls[1]["end"]), (&true.into(), &0.5.into()));
    assert_eq!(controls[0]["image"], "control.png");
    assert_eq!(settings["controls"][1]["name"], "sd1-1-false");
    assert_eq!(settings["inputs"][0]["option"], "controls[0].image");
    assert!(!images[0].settings.contains(&files.0.path().display().to_string()));
}
