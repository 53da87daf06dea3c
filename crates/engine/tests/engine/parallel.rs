//! Two devices that share a guided step: on the CPU twice, with the bits of one device.

use std::ops::ControlFlow;
use std::path::PathBuf;

use kiln_engine::{
    ControlType, ControlUse, DeviceList, Engine, Event, IpAdapterUse, LoraUse, ModeChoice, Request, RunningBatch,
    SamplerKind, Setup,
};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_testkit::{PromptForm, TinyAdapter, TinyControl, TinyIpAdapter, TinyLllite, TinyUnion, TinyVision};
use kiln_testkit::{control_pixels, fixtures};

use crate::support::{bits, cpu, cpu_in, images, request, run, tiny, try_images};

/// `setup` with its guided steps on the CPU twice.
fn shared(setup: &Setup) -> Setup {
    let list: DeviceList = "cpu,cpu".parse().unwrap();
    list.parallel_cfg(&Setup { threads: Some(3), ..setup.clone() }).unwrap()
}

/// The images of a request have the bits of one device.
#[track_caller]
fn assert_same(kind: &str, wanted: &Request) {
    let expected = bits(&images(&mut tiny(kind, &cpu()), wanted));
    let mut engine = tiny(kind, &shared(&cpu()));
    assert!(bits(&images(&mut engine, wanted)) == expected, "{kind}: {wanted:?}");
    assert!(bits(&images(&mut engine, wanted)) == expected, "{kind}: the second job: {wanted:?}");
    let is_alone = wanted.cfg_scale == Some(1.0) && wanted.pag_scale.is_none();
    assert_eq!(engine.shared_steps() == 0, is_alone, "{kind}: {wanted:?}");
}

fn guided(steps: usize) -> Request {
    Request { cfg_scale: Some(5.0), negative_prompt: Some("blurry".into()), ..request("a pear", (64, 64), steps, 7) }
}

/// A folder with a control image, networks for it, and adapters.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap();
        std::fs::write(folder.path().join("image.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
        TinyVision::write(&folder.path().join("image_encoder"));
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn control(&self, name: &str) -> ControlUse {
        ControlUse { image: Some(self.path("image.png")), ..ControlUse::new(self.path(name)) }
    }
}

#[test]
fn guided_steps_have_the_bits_of_one_device() {
    for kind in ["sd1", "sd2v", "sdxl"] {
        let plain = guided(3);
        assert_same(kind, &plain);
        assert_same(kind, &Request { batch_size: Some(3), sampler: Some(SamplerKind::EulerA.into()), ..plain });
    }
}

#[test]
fn combined_prompts_and_other_guidance_have_the_bits_of_one_device() {
    let and = Request { prompt: "a pear AND a cat:0.5 AND red:-0.3".into(), batch_size: Some(2), ..guided(3) };
    for wanted in [
        and.clone(),
        Request { pag_scale: Some(2.0), ..and },
        Request { pag_scale: Some(3.0), ..guided(3) },
        // Without guidance the perturbed rows are the other half.
        Request { pag_scale: Some(3.0), cfg_scale: Some(1.0), ..guided(3) },
        Request { guidance_rescale: Some(0.7), guidance_end: Some(0.6), ..guided(5) },
        Request { prompt: "a [pear:cat:0.5]".into(), cfg_schedule: Some(vec![8.0, 1.0, 3.0]), ..guided(4) },
        Request { freeu: Some("1.2,1.4,0.9,0.2".parse().unwrap()), ..guided(3) },
        Request { deep_shrink: Some(2.0), ..guided(3) },
        Request { cfg_scale: Some(1.0), negative_prompt: None, ..guided(2) },
    ] {
        assert_same("sd1", &wanted);
    }
}

#[test]
fn second_passes_have_the_bits_of_one_device() {
    assert_same("sd1", &Request { hires_scale: Some(1.5), ..guided(3) });
}

#[test]
fn control_networks_and_image_prompts_have_the_bits_of_one_device() {
    let files = Files::new();
    TinyControl::full(0).write("sd1", &files.path("net"));
    TinyAdapter::new("full", 0).write(&files.path("adapter"));
    TinyUnion.write("sdxl", &files.path("union"));
    TinyLllite { number: 0 }.write(&files.path("lllite"));
    let prompt = TinyIpAdapter { number: 0, form: PromptForm::Plus };
    prompt.write("sd1", &files.path("prompt.safetensors"));
    let image_prompt =
        IpAdapterUse { image: Some(files.path("image.png")), ..IpAdapterUse::new(files.path("prompt.safetensors")) };
    let guess = ControlUse { guess: true, end: 0.6, ..files.control("net") };
    let depth = ControlUse { kind: Some(ControlType::Depth), ..files.control("union") };
    let with = |controls| Request { controls, ..guided(3) };
    for (kind, wanted) in [
        ("sd1", with(vec![files.control("net"), files.control("adapter")])),
        ("sd1", Request { batch_size: Some(2), ..with(vec![guess]) }),
        ("sdxl", with(vec![depth])),
        ("sdxl", with(vec![files.control("lllite")])),
        ("sd1", Request { ip_adapters: vec![image_prompt], ..guided(3) }),
    ] {
        assert_same(kind, &wanted);
    }
}

/// Weights that change reach the second device.
#[test]
fn loras_and_modes_have_the_bits_of_one_device() {
    let lora: LoraUse = format!("{}:0.8", fixtures("lora/sd1/kohya.safetensors").display()).parse().unwrap();
    let (plain, with) = (guided(2), Request { loras: vec![lora], ..guided(2) });
    let mut one = tiny("sd1", &cpu());
    let expected = [&plain, &with].map(|wanted| bits(&images(&mut one, wanted)));
    assert!(expected[0] != expected[1]);
    for mode in [ModeChoice::Full, ModeChoice::Medvram] {
        let mut two = tiny("sd1", &shared(&cpu_in(mode)));
        for (wanted, expected) in [(&plain, &expected[0]), (&with, &expected[1]), (&plain, &expected[0])] {
            assert!(bits(&images(&mut two, wanted)) == *expected, "{mode:?}");
        }
    }
}

/// As a server runs them: groups that join and leave, with and without guidance.
#[test]
fn groups_of_a_running_batch_have_the_bits_of_one_device() {
    let wanted = [guided(4), Request { seed: Some(8), ..guided(3) }, Request { cfg_scale: Some(1.0), ..guided(3) }];
    let mut one = tiny("sd1", &cpu());
    let expected = wanted.each_ref().map(|wanted| bits(&images(&mut one, wanted)));
    let mut engine = tiny("sd1", &shared(&cpu()));
    let mut running = RunningBatch::new();
    let mut ids = Vec::new();
    let mut found = Vec::new();
    let mut go_on = |_: Event| ControlFlow::Continue(());
    for turn in 0..8 {
        if let Some(wanted) = wanted.get(turn) {
            let job = wanted.resolve(engine.model()).unwrap();
            ids.push((engine.join(&mut running, &job, 0, &mut go_on).unwrap(), job));
        }
        for id in engine.step(&mut running, &mut go_on).unwrap() {
            let job = &ids.iter().find(|(known, _)| *known == id).unwrap().1;
            found.push((id, bits(&engine.finish(&mut running, id, (job, 0), &mut go_on).unwrap())));
        }
    }
    for ((id, _), expected) in ids.iter().zip(&expected) {
        assert!(found.iter().any(|(known, bits)| known == id && bits == expected));
    }
}

#[test]
fn what_two_devices_cannot_share_is_refused_by_name() {
    let mut engine = tiny("sd1", &shared(&cpu()));
    for (wanted, option) in [
        (Request { cache: Some("deepcache:2".parse().unwrap()), ..guided(2) }, "`cache` is deepcache:2"),
        (Request { sag_scale: Some(0.5), ..guided(2) }, "`sag_scale` is 0.5"),
    ] {
        let error = try_images(&mut engine, &wanted).unwrap_err();
        assert!(error.is_usage(), "{error}");
        let message = error.to_string();
        assert!(message.contains(option) && message.contains("none with `parallel` cfg"), "{message}");
    }
    assert!(!images(&mut engine, &guided(1)).is_empty(), "other jobs go on");
    let mut streams = tiny("sd1", &shared(&cpu_in(ModeChoice::Lowvram)));
    let message = try_images(&mut streams, &guided(1)).unwrap_err().to_string();
    assert!(message.contains("`parallel` is cfg") && message.contains("mode lowvram"), "{message}");
    let job = guided(1).resolve(streams.model()).unwrap();
    let model = kiln_engine::ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let error =
        Engine::load_for(model, &shared(&cpu_in(ModeChoice::Lowvram)), &job, &mut |_| ControlFlow::Continue(()));
    assert!(error.is_err_and(|error| error.is_usage()), "before weights are read");
    assert!(!run(&mut engine, &job).is_empty());
}

#[test]
fn other_lists_of_devices_are_refused() {
    for (list, says) in [
        ("cpu", "as in cuda:0,cuda:1"),
        ("auto", "as in cuda:0,cuda:1"),
        ("cpu,cpu,cpu", "these are 3"),
        ("cuda:0,cpu", "a GPU and the CPU do not share a step"),
    ] {
        let error = list.parse::<DeviceList>().unwrap().parallel_cfg(&Setup::default()).unwrap_err();
        let message = error.to_string();
        assert!(error.is_usage() && message.contains(&format!("`device` is {list}")), "{message}");
        assert!(message.contains(says), "{message}");
    }
    let setup = "cuda:1,cuda:0".parse::<DeviceList>().unwrap().parallel_cfg(&cpu()).unwrap();
    let second = setup.second.map(|second| (second.device.to_string(), second.threads));
    assert_eq!((setup.device.to_string().as_str(), second), ("cuda:1", Some(("cuda:0".into(), None))));
    let both = shared(&cpu());
    assert_eq!((both.threads, both.second.and_then(|second| second.threads)), (Some(2), Some(1)));
}
