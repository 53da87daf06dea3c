//! Single files on the command line: inspection, conversion, generation.

use kiln_testkit::fixtures;

use crate::sandbox::Sandbox;

fn fixture(name: &str) -> String {
    fixtures(name).display().to_string()
}

#[test]
fn inspect_shows_kind_format_and_components() {
    let sandbox = Sandbox::new();
    let run = sandbox.kiln(&["inspect", &fixture("single/sd1.ckpt")]).succeeds();
    for expected in
        ["Stable Diffusion of another shape, predicts noise (epsilon)", "PyTorch (pickle), ", "note epoch: 1"]
    {
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
    let run = sandbox.kiln(&["inspect", &fixture("single/blocks.gguf"), "--json"]).succeeds();
    assert!(run.stdout.contains("\"Q4_K\"") && run.stdout.contains("\"model\": null"), "{run}");
    sandbox.kiln(&["inspect", &fixture("single/system.ckpt")]).fails(1, &["`posix.system`", "refused"]);
}

#[test]
fn a_converted_file_generates_the_same_image() {
    let sandbox = Sandbox::new();
    let model = fixture("models/sd1");
    sandbox.kiln(&["convert", &model, "tiny.gguf"]).succeeds();
    sandbox.kiln(&["convert", &model, "tiny.gguf"]).refused(&["tiny.gguf exists already", "--overwrite"]);
    sandbox.kiln(&["convert", &model, "tiny.gguf", "--overwrite"]).succeeds();
    sandbox.kiln(&["convert", &model, "tiny.safetensors", "--weight-type", "q4_k"]).refused(&["--weight-type"]);
    sandbox.kiln(&["convert", "nowhere", "out.gguf"]).fails(1, &["nowhere: not found"]);
    let draw = |arguments: &[&str], output: &str| {
        let common = ["txt2img", "an apple", "-W", "64", "-H", "64", "--steps", "1", "--seed", "7", "-o", output];
        sandbox.kiln(&[&common, arguments].concat()).succeeds();
        std::fs::read(sandbox.path(output)).unwrap()
    };
    let from_folder = draw(&["-m", &model, "--latents-out", "a.safetensors"], "a.png");
    let from_file = draw(&["-m", "tiny.gguf", "--config", &model, "--latents-out", "b.safetensors"], "b.png");
    assert_ne!(from_folder, from_file, "the images name their models");
    let latents = ["a.safetensors", "b.safetensors"].map(|name| std::fs::read(sandbox.path(name)).unwrap());
    assert!(latents[0] == latents[1]);
}
