//! `kiln calibrate` and `--scales`: a file is written, taken and refused.

use kiln_testkit::fixtures;

use crate::sandbox::{Run, Sandbox};

/// Runs `kiln calibrate` with the tiny model, one step of a small size, and these arguments.
fn calibrate(sandbox: &Sandbox, more: &[&str]) -> Run {
    let model = fixtures("models/sd1").display().to_string();
    let set = ["--set", "steps=1", "--set", "width=64", "--set", "height=64"];
    sandbox.kiln(&[&["calibrate", &model, "--prompts", "prompts.txt", "--dtype", "f32"], &set[..], more].concat())
}

fn with_prompts() -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("prompts.txt"), "a red apple\n# a comment\n\na blue car\n").unwrap();
    sandbox
}

#[test]
fn scales_are_written_and_taken() {
    let sandbox = with_prompts();
    let run = calibrate(&sandbox, &["-o", "scales.safetensors", "--budget", "0"]).succeeds();
    assert_eq!(run.stdout, "scales.safetensors\n");
    assert!(run.stderr.contains("layers in 8 bits") && run.stderr.contains("0 keep their type"), "{run}");
    calibrate(&sandbox, &["-o", "scales.safetensors"]).fails(2, &["scales.safetensors exists already", "--overwrite"]);

    let args = ["an apple", "--compute", "int8", "--scales", "scales.safetensors", "-o", "a.png", "--seed", "1"];
    sandbox.txt2img(&args).succeeds();
    let shown = sandbox.kiln(&["inspect", "a.png", "--json"]).succeeds().stdout;
    assert!(shown.contains("\"component\": \"scales\"") && shown.contains("scales.safetensors"), "{shown}");
    // The file is found again by its hash.
    sandbox.txt2img(&["--like", "a.png", "-o", "b.png"]).succeeds();
    let [a, b] = ["a.png", "b.png"].map(|name| std::fs::read(sandbox.path(name)).unwrap());
    assert!(a == b, "the same image");
    let model = fixtures("models/sd1").display().to_string();
    sandbox.kiln(&["plan", "-m", &model, "--compute", "int8", "--scales", "scales.safetensors"]).succeeds();
}

#[test]
fn scales_that_do_not_fit_are_refused() {
    let sandbox = with_prompts();
    calibrate(&sandbox, &["-o", "scales.safetensors", "--budget", "0"]).succeeds();
    let scales = ["--scales", "scales.safetensors"];
    sandbox
        .txt2img(&[&["an apple"], &scales[..]].concat())
        .fails(2, &["--scales is scales.safetensors", "--compute int8"]);
    let other = fixtures("models/sd2v").display().to_string();
    let of_other = [&["an apple", "-m", &other, "--compute", "int8"], &scales[..]].concat();
    sandbox.txt2img(&of_other).fails(2, &["--scales is scales.safetensors", "made for a model with the hash"]);
    let mut bytes = std::fs::read(sandbox.path("scales.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(sandbox.path("scales.safetensors"), bytes).unwrap();
    let damaged = [&["an apple", "--compute", "int8"], &scales[..]].concat();
    sandbox.txt2img(&damaged).fails(2, &["scales.safetensors", "its checksum is wrong", "kiln calibrate"]);
    assert!(sandbox.names().iter().all(|name| !name.ends_with(".png")));
}

#[test]
fn what_cannot_be_measured_is_refused_before_the_model_is_loaded() {
    let sandbox = with_prompts();
    for (args, status, expected) in [
        (&["-o", "scales.txt"][..], 2, &["--output is 'scales.txt'", ".safetensors"][..]),
        (&["-o", "a.safetensors", "--compute", "int8"], 2, &["--compute is int8, expected native"]),
        (&["-o", "a.safetensors", "--device", "cuda:0"], 2, &["--device is cuda:0, expected cpu"]),
        (&["-o", "a.safetensors", "--budget", "101"], 2, &["--budget is 101", "from 0 to 100"]),
        (&["-o", "a.safetensors", "--tolerance", "-1"], 2, &["--tolerance is -1", "from 0 to 1000"]),
        (&["-o", "a.safetensors", "--budget", "much"], 2, &["--budget", "expected a number"]),
        (&["-o", "a.safetensors", "--set", "steps=0"], 2, &["--steps is 0"]),
        (&["-o", "a.safetensors", "--set", "step=1"], 2, &["step"]),
        (&["-o", "none/a.safetensors"], 1, &["none: not found"]),
        (&["-o", "a.safetensors", "--scales", "none"], 1, &["none: not found; looked for --scales"]),
    ] {
        let run = calibrate(&sandbox, args).fails(status, expected);
        assert!(!run.stderr.contains("loading"), "{run}");
    }
    sandbox.kiln(&["calibrate", "nowhere", "--prompts", "prompts.txt", "-o", "a.safetensors"]).fails(1, &["nowhere"]);
    assert_eq!(sandbox.names(), ["prompts.txt"]);
}
