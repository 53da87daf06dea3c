//! A family that is one module of `families` runs in every command.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use kiln_testkit::{fixtures, write_tensors};

use crate::images::read;
use crate::sandbox::{Run, Sandbox};

/// `command` with the model and a size that its patches divide.
fn kiln(sandbox: &Sandbox, command: &[&str], args: &[&str]) -> Run {
    let model = fixtures("models").join("tiny-dit").display().to_string();
    let fixed = ["-m", &model, "--device", "cpu", "-W", "64", "-H", "48", "--steps", "2", "--seed", "3"];
    sandbox.kiln(&[command, &fixed[..], args].concat())
}

#[test]
fn it_makes_images_in_all_memory_modes() {
    let sandbox = Sandbox::new();
    kiln(&sandbox, &["txt2img", "a fox"], &["-n", "night", "-o", "a.png"]).succeeds();
    let a = read(&sandbox.path("a.png"));
    assert_eq!(a.size, (64, 48));
    for mode in ["--medvram", "--lowvram"] {
        let name = format!("{}.png", &mode[2..]);
        kiln(&sandbox, &["txt2img", "a fox"], &["-n", "night", mode, "-o", &name]).succeeds();
        assert!(read(&sandbox.path(&name)).rgb == a.rgb, "{mode}");
    }
    kiln(&sandbox, &["img2img", "a fox"], &["-i", "a.png", "-o", "b.png"]).succeeds();
    assert!(read(&sandbox.path("b.png")).rgb != a.rgb);
    // The file has the folder's configurations as notes, and no tokenizer to keep.
    let model = fixtures("models").join("tiny-dit").display().to_string();
    sandbox.kiln(&["convert", &model, "tiny.safetensors"]).succeeds();
    let args = ["-W", "64", "-H", "48", "--steps", "2", "--seed", "3", "-n", "night", "-o", "c.png"];
    sandbox.kiln(&[&["txt2img", "a fox", "-m", "tiny.safetensors", "--device", "cpu"], &args[..]].concat()).succeeds();
    assert!(read(&sandbox.path("c.png")).rgb == a.rgb);
}

#[test]
fn its_options_are_those_of_its_networks() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (&["-W", "40"][..], "--width is 40"),
        (&["--freeu", "1.5,1.6,0.9,0.2"], "it works with U-Nets"),
        (&["--clip-skip", "2"], "--clip-skip"),
        (&["--sampler", "ddim"], "not defined for flow models"),
    ] {
        let run = kiln(&sandbox, &["txt2img", "a fox"], args);
        assert!(!run.status.success() && run.error().contains(expected), "{run}");
    }
}

#[test]
fn it_takes_loras() {
    let sandbox = Sandbox::new();
    let ones = |rows: usize, columns: usize| Tensor::full(0.3f32, (rows, columns), &Device::Cpu).unwrap();
    let module = "transformer.single_transformer_blocks.0.proj_mlp";
    let tensors = BTreeMap::from([
        (format!("{module}.lora_A.weight"), ones(2, 32)),
        (format!("{module}.lora_B.weight"), ones(128, 2).to_dtype(DType::F32).unwrap()),
    ]);
    write_tensors(&tensors, &sandbox.path("lora.safetensors"));
    kiln(&sandbox, &["txt2img", "a fox"], &["-o", "a.png"]).succeeds();
    let run = kiln(&sandbox, &["txt2img", "a fox"], &["--lora", "lora.safetensors", "-o", "b.png"]).succeeds();
    assert!(!run.stderr.contains("warning"), "{run}");
    assert!(read(&sandbox.path("a.png")).rgb != read(&sandbox.path("b.png")).rgb);
}

#[test]
fn it_is_planned_and_inspected() {
    let sandbox = Sandbox::new();
    let model = fixtures("models").join("tiny-dit").display().to_string();
    let run = sandbox.kiln(&["plan", "-m", &model, "-W", "64", "-H", "48"]).succeeds();
    assert!(run.stdout.contains("lowvram"), "{run}");
    let run = sandbox.kiln(&["inspect", &model]).succeeds();
    assert!(run.stdout.contains("byte_encoder") && run.stdout.contains("transformer"), "{run}");
}
