//! A family that is one module of `families` runs in every command.

use std::path::Path;

use kiln_testkit::fixtures;
use serde_json::json;

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
fn a_set_has_the_images_of_single_calls() {
    let sandbox = Sandbox::new();
    let set = "{\"prompt\": \"a fox\", \"negative_prompt\": \"night\", \"batch_size\": 2, \"width\": 64, \"height\": 48, \
               \"steps\": 2, \"seed\": 3, \"output\": \"{index}.png\"}\n";
    std::fs::write(sandbox.path("jobs.jsonl"), set).unwrap();
    let model = fixtures("models").join("tiny-dit").display().to_string();
    sandbox.kiln(&["batch", "jobs.jsonl", "-m", &model, "--device", "cpu", "-o", "out"]).succeeds();
    for (file, seed, single) in [("00001.png", "3", "a.png"), ("00002.png", "4", "b.png")] {
        let size = ["-W", "64", "-H", "48", "--steps", "2", "--seed", seed, "-n", "night", "-o", single];
        sandbox.kiln(&[&["txt2img", "a fox", "-m", &model, "--device", "cpu"], &size[..]].concat()).succeeds();
        let of_set = read(&sandbox.path(&format!("out/{file}")));
        assert!(of_set.rgb == read(&sandbox.path(single)).rgb, "{file}");
    }
}

#[test]
fn its_options_are_those_of_its_networks() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (&["--freeu", "1.5,1.6,0.9,0.2"][..], "it works with U-Nets"),
        (&["--clip-skip", "2"], "--clip-skip"),
        (&["--sampler", "ddim"], "not defined for flow models"),
    ] {
        let run = kiln(&sandbox, &["txt2img", "a fox"], args);
        assert!(!run.status.success() && run.error().contains(expected), "{run}");
    }
}

#[test]
fn its_sizes_are_multiples_of_its_patches() {
    let sandbox = Sandbox::new();
    let model = fixtures("models").join("tiny-dit").display().to_string();
    let run = sandbox.kiln(&["txt2img", "a fox", "-m", &model, "--device", "cpu", "-W", "40"]);
    assert!(run.error().contains("--width is 40"), "{run}");
}

#[test]
fn it_takes_loras() {
    let sandbox = Sandbox::new();
    let module = "transformer.single_transformer_blocks.0.proj_mlp";
    let shapes = [(format!("{module}.lora_A.weight"), [2, 32]), (format!("{module}.lora_B.weight"), [128, 2])];
    write_lora(&sandbox.path("lora.safetensors"), &shapes);
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

/// A safetensors file with matrices of these names and shapes, all of whose elements are 0.3.
fn write_lora(path: &Path, matrices: &[(String, [usize; 2])]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, [rows, columns]) in matrices {
        let begin = data.len();
        data.extend((0..rows * columns).flat_map(|_| 0.3f32.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, data.len()] });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], &header, &data].concat()).unwrap();
}
