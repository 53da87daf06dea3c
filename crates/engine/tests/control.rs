//! ControlNets against diffusers' pipelines, in every mode and batch.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_engine::{
    Control, ControlMode, ControlPasses, ControlType, ControlUse, Event, Job, Request, Rule, SamplerKind,
};
use kiln_media::{Gray8Image, Preprocessor, Rgb8Image, StillFormat, encode};
use kiln_testkit::{Fixture, Parity, TinyAdapter, TinyControl, TinyLllite, TinyUnion, control_pixels, write_tensors};
use serde::Deserialize;

use support::cases::{Case, assert_same_in_every_mode, images_as_alone, init_of_task, job_with};
use support::{bits, cpu, images, latents, request, run, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;
/// The size of the control image in the cases, which is resized.
const CONTROL_SIZE: (usize, usize) = (80, 48);

/// What a case of `control.json` has besides.
#[derive(Deserialize)]
struct Controls {
    task: String,
    strength: f64,
    guess: bool,
    /// Form, weight, start, end.
    nets: Vec<(String, f64, f64, f64)>,
}

/// A folder with a control image and networks.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (width, height) = CONTROL_SIZE;
        let image = Rgb8Image::new(width, height, control_pixels(width, height)).unwrap();
        std::fs::write(folder.path().join("control.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A network for the model `kind`, which is written where it is not there yet.
    fn net(&self, kind: &str, number: u32, is_small: bool) -> PathBuf {
        let path = self.path(&format!("{kind}-{number}-{is_small}"));
        if !path.exists() {
            TinyControl { number, is_small }.write(kind, &path);
        }
        path
    }

    /// A network of another form: a T2I-Adapter, a Union network, or a ControlNet of means.
    fn other(&self, kind: &str, form: &str, number: u32) -> PathBuf {
        let path = self.path(&format!("{kind}-{form}-{number}"));
        if path.exists() {
            return path;
        }
        match form {
            "union" => TinyUnion.write(kind, &path),
            "lllite" => TinyLllite { number }.write(&path),
            "pool" => {
                TinyControl::full(0).write(kind, &path);
                let mut config = TinyControl::full(0).config(kind);
                config["global_pool_conditions"] = true.into();
                std::fs::write(path.join("config.json"), config.to_string()).unwrap();
            }
            form => {
                let known = ["full", "gray", "light", "full_xl"].into_iter().find(|known| *known == form);
                TinyAdapter::new(known.unwrap(), number).write(&path);
            }
        }
        path
    }

    /// A network with the control image.
    fn control(&self, net: &Path) -> ControlUse {
        ControlUse { image: Some(self.path("control.png")), ..ControlUse::new(net) }
    }
}

#[test]
fn latents_are_diffusers() {
    let (files, fixture) = (Files::new(), Fixture::open("control.safetensors"));
    for kind in ["sd1", "sd2v", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("control", format!("{kind} f32")));
        for case in Case::<Controls>::read("control.json", kind, 3) {
            let Controls { task, strength, guess, nets } = &case.more;
            let control = |(number, (form, weight, start, end)): (usize, &(String, f64, f64, f64))| ControlUse {
                weight: *weight,
                start: *start,
                end: *end,
                guess: *guess,
                ..files.control(&files.net(kind, number as u32, form == "small"))
            };
            let controls = nets.iter().enumerate().map(control).collect();
            let request = Request { controls, ..case.request((64, 64)) };
            let request = if task == "hires" { hires(*strength, request) } else { request };
            let job = job_with(&engine, &request, init_of_task(task, *strength));
            let images = run(&mut engine, &job);
            parity.check(&case.name, &latents(&images), &fixture.tensor(&case.key()), BOUND);
        }
    }
}

/// The request with a second pass by diffusers' rules.
fn hires(strength: f64, request: Request) -> Request {
    Request { hires_scale: Some(1.5), hires_strength: Some(strength), rule: Some(Rule::Diffusers), ..request }
}

/// What a case of `adapters.json` has besides.
#[derive(Deserialize)]
struct Adapters {
    size: (usize, usize),
    end: f64,
    guess: bool,
    /// Form, weight, and the number of an image's type.
    nets: Vec<(String, f64, Option<usize>)>,
}

impl Case<Adapters> {
    fn request_with(&self, files: &Files) -> Request {
        let Adapters { size, end, guess, nets } = &self.more;
        let control = |(number, (form, weight, kind)): (usize, &(String, f64, Option<usize>))| ControlUse {
            weight: *weight,
            end: *end,
            guess: *guess,
            kind: kind.map(|number| ControlType::find(ControlType::IDS[number]).unwrap()),
            // Images of different types are for one Union network.
            ..files.control(&files.other(&self.kind, form, if form == "union" { 0 } else { number as u32 }))
        };
        Request { controls: nets.iter().enumerate().map(control).collect(), ..self.request(*size) }
    }
}

/// T2I-Adapters of every form, Union networks with one and two images, and a ControlNet of means.
#[test]
fn latents_with_adapters_are_diffusers() {
    let (files, fixture) = (Files::new(), Fixture::open("adapters.safetensors"));
    for kind in ["sd1", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("adapters", format!("{kind} f32")));
        for case in Case::<Adapters>::read("adapters.json", kind, 5) {
            let found = latents(&images(&mut engine, &case.request_with(&files)));
            parity.check(&case.name, &found, &fixture.tensor(&case.key()), BOUND);
        }
    }
}

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

/// What a control says that its network does not have is refused before weights are read, and nothing has changed.
#[test]
fn uses_that_do_not_fit_are_refused() {
    let files = Files::new();
    let mut engine = tiny("sdxl", &cpu());
    let (union, adapter) = (files.other("sdxl", "union", 0), files.other("sdxl", "full_xl", 0));
    let good = Request {
        controls: vec![ControlUse { kind: Some(ControlType::Canny), ..files.control(&union) }],
        ..request("a pear", (64, 64), 2, 7)
    };
    let expected = bits(&images(&mut engine, &good));
    for (control, says) in [
        (files.control(&union), "a type too, one of openpose, depth"),
        (ControlUse { guess: true, ..files.control(&adapter) }, "no guess mode"),
        (ControlUse { kind: Some(ControlType::Depth), ..files.control(&adapter) }, "no type"),
    ] {
        let bad = Request { controls: vec![control], ..good.clone() };
        let job = bad.resolve(engine.model()).unwrap();
        let error = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
        assert!(error.contains("`controls`") && error.contains(says), "{error}");
    }
    let small = Request { controls: vec![files.control(&adapter)], ..request("a pear", (72, 64), 2, 7) };
    let job = small.resolve(engine.model()).unwrap();
    let error = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
    assert!(error.contains("16 h, 16 w"), "{error}");
    assert!(bits(&images(&mut engine, &good)) == expected);
}

/// A preprocessor's map is the map that it makes of the fitted image; without an image it is that of the input.
#[test]
fn preprocessors_make_the_control_image() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let (width, height) = (64, 64);
    let image = Rgb8Image::new(width, height, control_pixels(width, height)).unwrap();
    std::fs::write(files.path("square.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
    let map = Preprocessor::find("canny").unwrap().run(&image, None).unwrap();
    std::fs::write(files.path("map.png"), encode(&map, StillFormat::Png).unwrap()).unwrap();
    let net = files.net("sd1", 0, false);
    let with = |init: Option<&str>, image: Option<&str>, preprocess: Option<&str>| Request {
        init: init.map(|name| files.path(name)),
        strength: init.map(|_| 0.7),
        controls: vec![ControlUse {
            image: image.map(|name| files.path(name)),
            preprocess: preprocess.map(String::from),
            ..ControlUse::new(&net)
        }],
        ..request("a pear", (64, 64), 3, 7)
    };
    let mut run = |request: Request| bits(&images(&mut engine, &request));
    assert!(run(with(None, Some("square.png"), Some("canny"))) == run(with(None, Some("map.png"), None)));
    let of_input = run(with(Some("square.png"), None, Some("canny")));
    assert!(of_input == run(with(Some("square.png"), Some("map.png"), None)));
    assert!(of_input != run(with(Some("square.png"), None, None)));
}

/// The protocol of ControlNets for inpainting (`make_inpaint_condition` of diffusers): -1 in the hole, which is the input's
/// mask, or what is transparent in a control image.
#[test]
fn holes_are_those_of_the_mask() {
    let files = Files::new();
    let engine = tiny("sd1", &cpu());
    let image = Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap();
    let mask: Vec<u8> = (0..64 * 64).map(|i| if i % 64 < 20 { 255 } else { 0 }).collect();
    let mask = Gray8Image::new(64, 64, mask).unwrap();
    std::fs::write(files.path("square.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
    std::fs::write(files.path("mask.png"), encode(&mask.to_rgb(), StillFormat::Png).unwrap()).unwrap();
    let holey = image.with_alpha(&mask.invert()).unwrap();
    std::fs::write(files.path("holey.png"), encode(&holey, StillFormat::Png).unwrap()).unwrap();
    let control = ControlUse { preprocess: Some("inpaint".into()), ..ControlUse::new(files.net("sd1", 0, false)) };
    let of_mask = Request {
        init: Some(files.path("square.png")),
        mask: Some(files.path("mask.png")),
        controls: vec![control.clone()],
        ..request("a pear", (64, 64), 3, 7)
    };
    let of_alpha = Request {
        controls: vec![ControlUse { image: Some(files.path("holey.png")), ..control.clone() }],
        ..request("a pear", (64, 64), 3, 7)
    };
    let planes = |request: &Request| request.resolve(engine.model()).unwrap().controls[0].planes().unwrap();
    let (one, other) = (planes(&of_mask), planes(&of_alpha));
    assert_eq!(one, other);
    assert_eq!(one[0], -1.0);
    assert_eq!(one[30], f32::from(image.data()[90]) / 255.0);
    let opaque = ControlUse { image: Some(files.path("square.png")), ..control };
    let error = Request { controls: vec![opaque], ..of_alpha }.resolve(engine.model()).unwrap_err().to_string();
    assert!(error.contains("transparent"), "{error}");
}

/// A control LoRA gives the image of the ControlNet that it stands for.
#[test]
fn a_control_lora_is_the_controlnet_that_it_stands_for() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let own = TinyControl::full(0).tensors("sd1");
    let model = engine.model().files().unet().unwrap();
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

/// A request with two networks, one of which acts on the conditional rows of a part of the evaluations.
fn two_nets(files: &Files) -> Request {
    let first = ControlUse { weight: 0.7, ..files.control(&files.net("sd1", 0, false)) };
    let second = ControlUse { guess: true, end: 0.5, ..files.control(&files.net("sd1", 1, false)) };
    Request {
        controls: vec![first, second],
        batch_size: Some(3),
        sampler: Some(SamplerKind::EulerA.into()),
        ..request("a pear", (64, 64), 4, 7)
    }
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

/// The input image takes the place of a control image that is not named.
#[test]
fn the_input_image_is_the_control_image() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let net = files.net("sd1", 0, false);
    let with = |control: ControlUse| Request {
        init: Some(files.path("control.png")),
        strength: Some(0.8),
        controls: vec![control],
        ..request("a pear", (64, 64), 4, 7)
    };
    let named = with(files.control(&net)).resolve(engine.model()).unwrap();
    let left_out = with(ControlUse::new(&net)).resolve(engine.model()).unwrap();
    assert_eq!(bits(&run(&mut engine, &named)), bits(&run(&mut engine, &left_out)));
    let message = Request { controls: vec![ControlUse::new(&net)], ..request("a pear", (64, 64), 4, 7) }
        .resolve(engine.model())
        .unwrap_err()
        .to_string();
    assert!(message.contains("`controls`") && message.contains("`image`"), "{message}");
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

/// A control image of a caller.
#[test]
fn pixels_of_a_caller_are_fitted_by_the_caller() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let job = request("a pear", (64, 64), 4, 7).resolve(engine.model()).unwrap();
    let net = ControlUse::new(files.net("sd1", 0, false));
    let of = |side: usize| Control::new(net.clone(), Rgb8Image::new(side, side, control_pixels(side, side)).unwrap());
    let with = |control| Job { controls: vec![control], ..job.clone() };
    assert!(bits(&run(&mut engine, &with(of(64)))) != bits(&run(&mut engine, &job)));
    let error = engine.txt2img(&with(of(32)), &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
    assert!(error.contains("32x32") && error.contains("64x64"), "{error}");
}

/// The ControlNet that comes with Kiln, against final latents that diffusers computed.
#[test]
#[ignore = "needs ../shared/models"]
fn shared_data_the_emoji_controlnet_gives_diffusers_latents() {
    let expected = kiln_testkit::shared_models("emoji-companions").join("expected");
    let models = kiln_testkit::repository().join("models");
    let mut engine = support::load(&models.join("emoji"), &cpu());
    let parity = Parity::new("control", "emoji f32");
    for (name, prompt, seed, weight) in
        [("house-moved", "house", 12, 1.0), ("octopus", "octopus", 11, 1.0), ("strawberry-half", "strawberry", 13, 0.5)]
    {
        let file = |end: &str| expected.join(format!("controlnet-{name}{end}"));
        let control = ControlUse {
            image: Some(file("-map.png")),
            weight,
            ..ControlUse::new(models.join("emoji-controlnet-edges"))
        };
        let request = Request {
            cfg_scale: Some(3.0),
            sampler: Some(SamplerKind::Ddim.into()),
            controls: vec![control],
            ..request(prompt, (256, 256), 20, seed)
        };
        let found = latents(&images(&mut engine, &request));
        let expected = Fixture::read(name, &file(".safetensors")).tensor("latents");
        parity.check(name, &found, &expected, BOUND);
    }
}
