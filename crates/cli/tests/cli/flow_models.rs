//! A trained model of Stable Diffusion 3 in the commands: images from texts and images, memory modes, plans and conversions.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_testkit::repository;
use serde_json::{Value, json};

use crate::images::{latents_shape, read};
use crate::sandbox::{Run, Sandbox};

/// The folder of the model.
fn model() -> String {
    repository().join("models/emoji-sd3").display().to_string()
}

/// `command` with the model and a small size.
fn kiln(sandbox: &Sandbox, command: &[&str], args: &[&str]) -> Run {
    let model = model();
    let fixed = ["-m", &model, "--device", "cpu", "-W", "64", "-H", "64", "--steps", "3", "--seed", "7"];
    sandbox.kiln(&[command, &fixed[..], args].concat()).succeeds()
}

#[test]
fn texts_and_images_become_images() {
    let sandbox = Sandbox::new();
    let run = kiln(&sandbox, &["txt2img", "a red apple"], &["-o", "a.png", "--latents-out", "a.safetensors"]);
    assert!(run.stderr.contains("emoji-sd3: 64x64, 3 steps of euler, guidance 3, seed 7"), "{run}");
    assert_eq!(latents_shape(&sandbox.path("a.safetensors")), [1, 4, 8, 8]);
    let a = read(&sandbox.path("a.png"));
    assert_eq!(a.size, (64, 64));
    // Its settings make it again.
    sandbox.kiln(&["txt2img", "--like", "a.png", "-m", &model(), "--device", "cpu", "-o", "b.png"]).succeeds();
    assert!(read(&sandbox.path("b.png")).rgb == a.rgb);
    // A flow model runs `min(steps * strength, steps)` steps: the product is not rounded down first.
    let run = kiln(&sandbox, &["img2img", "a rocket"], &["-i", "a.png", "--strength", "0.5", "-o", "c.png"]);
    assert!(run.stderr.contains("step 2/2"), "{run}");
    // What the mask leaves out stays.
    let mask: Vec<u8> = (0..64 * 64).map(|i| if i % 64 < 32 { 255 } else { 0 }).collect();
    write_gray(&sandbox.path("mask.png"), &mask);
    kiln(&sandbox, &["img2img", "a rocket"], &["-i", "a.png", "--mask", "mask.png", "-o", "d.png"]);
    let d = read(&sandbox.path("d.png"));
    let half = |rgb: &[u8], right: bool| -> Vec<u8> {
        let from = if right { 40 * 3 } else { 0 };
        rgb.chunks(64 * 3).flat_map(|row| &row[from..from + 24 * 3]).copied().collect()
    };
    assert!(half(&d.rgb, true) == half(&a.rgb, true) && half(&d.rgb, false) != half(&a.rgb, false));
    let run = kiln(&sandbox, &["txt2img", "a red apple"], &["--hires-scale", "2", "-o", "e.png"]);
    assert!(run.stderr.contains("then 128x128 by latent, 3 steps of euler"), "{run}");
    assert_eq!(read(&sandbox.path("e.png")).size, (128, 128));
}

#[test]
fn memory_modes_and_batches_do_not_change_images() {
    let sandbox = Sandbox::new();
    kiln(&sandbox, &["txt2img", "a red apple"], &["-b", "2", "-o", "alone-{seed}.png"]);
    for mode in ["--medvram", "--lowvram", "--highvram"] {
        let name = format!("{}-{{seed}}.png", &mode[2..]);
        kiln(&sandbox, &["txt2img", "a red apple"], &[mode, "--batch-size", "2", "-o", &name]);
        for seed in [7, 8] {
            let [found, expected] =
                [&mode[2..], "alone"].map(|name| read(&sandbox.path(&format!("{name}-{seed}.png"))));
            assert!(found.rgb == expected.rgb, "{mode}, seed {seed}");
        }
    }
}

#[test]
fn samplers_and_options_of_flow_models_run() {
    let sandbox = Sandbox::new();
    for (i, args) in [
        &["--sampler", "heun"][..],
        &["--sampler", "dpmpp_2m"],
        &["--sampler", "unipc"],
        &["--sampler", "euler_a"],
        &["--scheduler", "karras"],
        &["--scheduler", "beta"],
        &["--shift", "5"],
        &["--max-length", "77"],
        &["--slg-scale", "2.8", "--slg-layers", "1,2", "--slg-end", "0.9"],
        &["--cfg-zero-star"],
        &["--clip-skip", "1"],
        &["--chunk-cut", "truncate"],
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{i}.png");
        let run = kiln(&sandbox, &["txt2img", "a (red:1.2) apple"], &[args, &["-o", &name]].concat());
        assert!(!run.stderr.contains("warning"), "{run}");
        let found = read(&sandbox.path(&name));
        sandbox.kiln(&["txt2img", "--like", &name, "-m", &model(), "--device", "cpu", "-o", "b.png", "--overwrite"]);
        assert!(
            read(&sandbox.path("b.png")).rgb == found.rgb,
            "{args:?} is not in the settings: {:?}",
            found.parameters
        );
    }
    for (args, expected) in [
        (&["--sampler", "ddim"][..], "sampler ddim is not defined for flow models; the samplers that work are: euler"),
        (&["--width", "72"], "--width is 72"),
        (&["--pag-scale", "3"], "it works with U-Nets, and emoji-sd3 has a transformer"),
        (&["--prediction", "v"], "--prediction"),
    ] {
        let model = model();
        let run = sandbox.kiln(&[&["txt2img", "a pear", "-m", &model, "--device", "cpu"][..], args].concat());
        assert!(!run.status.success() && run.error().contains(expected), "{run}");
    }
}

#[test]
fn plans_and_reports_name_the_parts() {
    let sandbox = Sandbox::new();
    let plan = sandbox.kiln(&["plan", "-m", &model(), "--device", "cpu", "--json"]).succeeds();
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let stages: Vec<&Value> =
        plan["plans"][0]["stages"].as_array().unwrap().iter().map(|stage| &stage["stage"]).collect();
    assert_eq!(stages, ["encode", "denoise", "decode"]);
    let text = sandbox.kiln(&["plan", "-m", &model(), "--device", "cpu"]).succeeds();
    assert!(text.stdout.contains("of the denoiser resident") && !text.stdout.contains("U-Net"), "{text}");
    let run = sandbox.kiln(&["inspect", &model()]).succeeds();
    for part in ["Stable Diffusion 3", "text_encoder_3 1.6 M", "transformer 8.8 M", "20 steps of euler"] {
        assert!(run.stdout.contains(part), "{part}: {run}");
    }
}

#[test]
fn files_of_both_formats_hold_the_whole_model() {
    let sandbox = Sandbox::new();
    let image = |model: &str, name: &str| {
        let args = ["txt2img", "a red apple", "-m", model, "--device", "cpu", "-W", "64", "-H", "64", "--steps", "3"];
        sandbox.kiln(&[&args[..], &["--seed", "7", "-o", name]].concat()).succeeds();
        read(&sandbox.path(name)).rgb
    };
    let expected = image(&model(), "a.png");
    for file in ["one.safetensors", "one.gguf"] {
        sandbox.kiln(&["convert", &model(), file]).succeeds();
        assert!(image(file, &format!("{file}.png")) == expected, "{file}");
        let shown = sandbox.kiln(&["inspect", file]).succeeds();
        let parts = "parts: transformer, autoencoder, text encoder, second text encoder, third text encoder";
        assert!(shown.stdout.contains(parts), "{shown}");
        // Back to a folder: all tensors have their bits, and all configurations their values.
        let back = format!("{file}-back");
        sandbox.kiln(&["convert", file, &back]).succeeds();
        assert_same_folder(Path::new(&model()), &sandbox.path(&back), file.ends_with(".gguf"));
    }
    sandbox.kiln(&["convert", &model(), "q8.gguf", "--weight-type", "q8_0"]).succeeds();
    let size = |name: &str| sandbox.path(name).metadata().unwrap().len();
    assert!(size("q8.gguf") * 3 < size("one.gguf") * 2);
    let rounded = image("q8.gguf", "q8.png");
    let difference: u64 = rounded.iter().zip(&expected).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    assert!(difference < 4 * expected.len() as u64, "mean difference {}", difference as f64 / expected.len() as f64);
}

/// Expects the configurations and the tensors of `expected` in `found`. GGUF stores vectors in f32.
#[track_caller]
fn assert_same_folder(expected: &Path, found: &Path, vectors_in_f32: bool) {
    for entry in std::fs::read_dir(expected).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        for path in std::fs::read_dir(&entry).unwrap().map(|entry| entry.unwrap().path()) {
            let other = found.join(path.strip_prefix(expected).unwrap());
            let [ours, theirs] = [&path, &other].map(|path| std::fs::read(path).unwrap());
            if path.extension().is_some_and(|end| end == "json") {
                let [ours, theirs] = [ours, theirs].map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
                assert_eq!(ours, theirs, "{}", path.display());
            } else if path.extension().is_some_and(|end| end == "safetensors") {
                let [ours, theirs] = [ours, theirs].map(|bytes| tensors(&bytes));
                assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{}", path.display());
                for (name, ours) in &ours {
                    let same = theirs[name] == *ours || vectors_in_f32 && widened(ours) == theirs[name];
                    assert!(same, "{name} of {}", path.display());
                }
            } else {
                assert!(ours == theirs, "{}", path.display());
            }
        }
    }
}

/// A tensor's type, shape and bytes.
type Stored = (String, Value, Vec<u8>);

/// The tensors of a safetensors file.
fn tensors(bytes: &[u8]) -> BTreeMap<String, Stored> {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let data = &bytes[8 + length..];
    let tensor = |(name, entry): (String, Value)| {
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
        (name, (entry["dtype"].as_str().unwrap().to_string(), entry["shape"].clone(), data[from..to].to_vec()))
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(tensor).collect()
}

/// A tensor in f32.
fn widened((dtype, shape, bytes): &Stored) -> Stored {
    assert_eq!(dtype, "F16");
    let values = bytes.chunks_exact(2).map(|pair| half::f16::from_le_bytes([pair[0], pair[1]]));
    ("F32".into(), shape.clone(), values.flat_map(|value| value.to_f32().to_le_bytes()).collect())
}

/// Writes a square image of gray pixels.
fn write_gray(path: &Path, pixels: &[u8]) {
    let side = pixels.len().isqrt() as u32;
    let mut encoder = png::Encoder::new(std::fs::File::create(path).unwrap(), side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

#[test]
fn a_set_has_jobs_of_one_model() {
    let sandbox = Sandbox::new();
    let job = |prompt: &str, more: Value| {
        let mut job = json!({ "prompt": prompt, "width": 64, "height": 64, "steps": 3, "seed": 7 });
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job.to_string()
    };
    let jobs = [
        job("a red apple", json!({ "output": "apple.png" })),
        job("a rocket", json!({ "output": "rocket.png", "negative_prompt": "blue" })),
        job("a rocket", json!({ "output": "shifted.png", "shift": 2.0, "max_length": 77 })),
    ];
    std::fs::write(sandbox.path("jobs.jsonl"), jobs.join("\n")).unwrap();
    let batch = ["batch", "jobs.jsonl", "-m", &model(), "--device", "cpu", "-o", "set", "--batch-size", "2"];
    sandbox.kiln(&batch).succeeds();
    for (name, args) in [
        ("apple.png", &["a red apple"][..]),
        ("rocket.png", &["a rocket", "-n", "blue"]),
        ("shifted.png", &["a rocket", "--shift", "2", "--max-length", "77"]),
    ] {
        kiln(&sandbox, &["txt2img"], &[args, &["-o", name]].concat());
        assert!(read(&sandbox.path(name)).rgb == read(&sandbox.path(&format!("set/{name}"))).rgb, "{name}");
    }
}
