//! Images that are generated again from their own settings.

use std::fs;

use kiln_testkit::{fixtures, shared_data};
use serde_json::Value;

use crate::images;
use crate::models::ModelCopy;
use crate::sandbox::{Run, Sandbox};

/// Runs `kiln txt2img --like` with only `args`.
fn like(sandbox: &Sandbox, image: &str, args: &[&str]) -> Run {
    sandbox.kiln(&[&["txt2img", "--like", image], args].concat())
}

fn bytes(sandbox: &Sandbox, name: &str) -> Vec<u8> {
    fs::read(sandbox.path(name)).unwrap()
}

/// The model's path: no folder of models contains its name.
fn model() -> String {
    fixtures("models/sd1").display().to_string()
}

#[test]
fn an_image_is_generated_again_byte_by_byte() {
    let sandbox = Sandbox::new();
    for (i, args) in [
        &["an apple", "-s", "7"][..],
        &["赤い (apple:1.3), [a:b:0.5]", "-n", "", "-s", "18446744073709551615", "--steps", "3", "--clip-skip", "2"],
        &["a [red|green] apple AND leaf :0.5", "--sampler", "Euler a", "--eta", "0.3333333333333333", "--steps", "3"],
        &["an apple", "--subseed-strength", "0.1", "--sampler", "heun", "--s-churn", "2", "--emphasis", "comfy"],
        &[
            "an apple",
            "--steps",
            "3",
            "--sigmas",
            "10,2,0.70000000000000001",
            "--sampler",
            "euler",
            "--rng",
            "cuda",
            "--ensd",
            "-3",
        ],
        &["a", "-W", "72", "-H", "40", "--seed-resize-from", "64x64", "--guidance-rescale", "0.7", "--dtype", "f32"],
        &["a", "--dynamic-thresholding", "0.99", "--guidance-end", "0.5", "--steps", "4", "--dtype", "bf16"],
        &["a", "--weight-type", "f8"],
    ]
    .into_iter()
    .enumerate()
    {
        let (first, again) = (format!("{i}.png"), format!("{i}-again.png"));
        sandbox.txt2img(&[args, &["-o", &first]].concat()).succeeds();
        let run = like(&sandbox, &first, &["-o", &again]).succeeds();
        assert!(bytes(&sandbox, &first) == bytes(&sandbox, &again), "{run}");
        assert!(!run.stderr.contains("warning"), "{run}");
    }
}

#[test]
fn every_image_of_a_batch_is_generated_again_alone() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("lists")).unwrap();
    fs::write(sandbox.path("lists/colour.txt"), "red\n{dark|light} green\nblue").unwrap();
    let args = ["a {big|small} __colour__ apple", "-n", "{a|b|c}", "--wildcards-dir", "lists", "-s", "3", "-b", "2"];
    let more = ["--batch-size", "2", "--sampler", "Euler a", "--steps", "2"];
    sandbox.txt2img(&[&args[..], &more, &["-o", "{index}.png"]].concat()).succeeds();
    // Variations have one prompt.
    sandbox
        .txt2img(&[&args[..], &more, &["-o", "varied-{index}.png", "--subseed-strength", "0.3"]].concat())
        .succeeds();
    fs::remove_dir_all(sandbox.path("lists")).unwrap();
    let mut prompts = Vec::new();
    for name in sandbox.names() {
        let again = format!("again-{name}");
        like(&sandbox, &name, &["-o", &again]).succeeds();
        let [first, again] = [&name, &again].map(|name| images::read(&sandbox.path(name)));
        assert!(first.rgb == again.rgb, "{name}");
        assert_eq!(first.settings, again.settings);
        let Value::String(prompt) = &first.settings["request"]["prompt"] else { panic!("{}", first.settings) };
        assert!(!prompt.contains('{') && !prompt.contains("__"), "{prompt}");
        prompts.push(prompt.clone());
    }
    prompts.sort();
    prompts.dedup();
    assert!(prompts.len() > 1, "{prompts:?}");
}

#[test]
fn flags_override_the_image() {
    let sandbox = Sandbox::new();
    let args = ["an apple", "-n", "dark", "-s", "7", "--sampler", "Euler a", "--eta", "0.5", "-o", "first.png"];
    sandbox.txt2img(&args).succeeds();
    like(&sandbox, "first.png", &["-p", "a pear", "-s", "8", "--sampler", "ddim", "-W", "72", "-o", "b.png"])
        .succeeds();
    let expected = ["a pear", "-n", "dark", "-s", "8", "--sampler", "ddim", "--eta", "0.5", "-W", "72", "-o", "c.png"];
    sandbox.txt2img(&expected).succeeds();
    assert!(bytes(&sandbox, "b.png") == bytes(&sandbox, "c.png"));
    let run = like(&sandbox, "first.png", &["-s", "-1", "-b", "2", "-o", "{seed}.png"]).succeeds();
    let (a, b) = run.seeds();
    assert!(a != 7 && b == a.wrapping_add(1), "{run}");
    let run = like(&sandbox, "first.png", &["--sampler", "euler", "--eta", "0.5"]);
    run.refused(&["--eta is 0.5, expected none with euler"]);
}

#[test]
fn models_and_components_are_found_by_hash() {
    let sandbox = Sandbox::new();
    let (copy, other) = (ModelCopy::of("sd1"), ModelCopy::of("sd1"));
    let vae = fixtures("models/sd1/vae/diffusion_pytorch_model.safetensors").display().to_string();
    let args = ["an apple", "-s", "7", "-m", copy.path(), "--vae", &vae];
    sandbox.txt2img(&[&args[..], &["-o", "first.png"]].concat()).succeeds();
    let settings = images::read(&sandbox.path("first.png")).settings;
    assert!(!settings.to_string().contains('/'), "folders are not stored: {settings}");
    like(&sandbox, "first.png", &["-o", "again.png"]).succeeds();
    assert!(bytes(&sandbox, "first.png") == bytes(&sandbox, "again.png"));
    // The same model at another path is accepted; another model is reported.
    let run = like(&sandbox, "first.png", &["-m", other.path(), "-o", "same.png"]).succeeds();
    assert!(!run.stderr.contains("warning") && bytes(&sandbox, "first.png") == bytes(&sandbox, "same.png"), "{run}");
    let [another, vae] = ["models/sd2v", "models/sd2v/vae"].map(|name| fixtures(name).display().to_string());
    let run = like(&sandbox, "first.png", &["-m", &another, "--vae", &vae, "-o", "x.png"]).succeeds();
    assert!(run.stderr.contains("warning: first.png: its model was sd1 (hash "), "{run}");
    // A changed file is not the same model.
    let unet = "unet/diffusion_pytorch_model.safetensors";
    let mut weights = fs::read(copy.file(unet)).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    copy.write(unet, weights);
    let elsewhere = Sandbox::new();
    fs::copy(sandbox.path("first.png"), elsewhere.path("first.png")).unwrap();
    let expected = ["sd1: not found; looked for the model that made first.png (hash ", "--model"];
    like(&elsewhere, "first.png", &[]).fails(1, &expected);
    let run = like(&elsewhere, "first.png", &["-m", copy.path(), "-o", "changed.png"]).succeeds();
    let expected = run.stderr.contains("was made with --vae") && run.stderr.contains("this is sd1 (hash ");
    assert!(expected, "{run}");
}

#[test]
fn a_lora_is_found_by_hash() {
    let sandbox = Sandbox::new();
    let loras = fixtures("lora/sd1");
    let mut files: Vec<_> = fs::read_dir(&loras).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    files.sort();
    let file = &files[0];
    let lora = format!("{}:0.5", file.display());
    sandbox.txt2img(&["an apple", "-s", "7", "--lora", &lora, "-o", "first.png"]).succeeds();
    let run = like(&sandbox, "first.png", &["-o", "again.png"]).succeeds();
    assert!(bytes(&sandbox, "first.png") == bytes(&sandbox, "again.png"), "{run}");
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let images::Text::Latin1(text) = images::read(&sandbox.path("first.png")).parameters else { panic!("iTXt") };
    assert!(
        text.contains(&format!("Lora hashes: \"{stem}: ")) && text.contains(&format!("<lora:{stem}:0.5>")),
        "{text}"
    );
    // A tag in the prompt is searched in the folder as usual.
    let tag = format!("an apple <lora:{stem}:0.5>");
    let folder = loras.display().to_string();
    sandbox.txt2img(&[&tag, "-s", "7", "--lora-dir", &folder, "-o", "tag.png"]).succeeds();
    like(&sandbox, "tag.png", &["--lora-dir", &folder, "-o", "tag-again.png"]).succeeds();
    assert!(bytes(&sandbox, "tag.png") == bytes(&sandbox, "tag-again.png"));
}

/// A model in one file has AUTOMATIC1111's hash in the text that AUTOMATIC1111 reads.
#[test]
fn single_files_have_their_hash_in_the_text() {
    let sandbox = Sandbox::new();
    sandbox.kiln(&["convert", &model(), "tiny.safetensors"]).succeeds();
    let file = ["-m", "tiny.safetensors", "--config", &model()];
    sandbox.txt2img(&[&["an apple", "-s", "7", "-o", "first.png"], &file[..]].concat()).succeeds();
    let image = images::read(&sandbox.path("first.png"));
    let images::Text::Latin1(text) = image.parameters else { panic!("iTXt") };
    let hash = image.settings["model"]["sha256"].as_str().unwrap();
    assert!(text.contains(&format!(", Model hash: {}, Model: tiny, ", &hash[..10])), "{text}");
    like(&sandbox, "first.png", &["--config", &model(), "-o", "again.png"]).succeeds();
    assert!(bytes(&sandbox, "first.png") == bytes(&sandbox, "again.png"));
}

/// A PNG with only a text.
pub fn png_with(sandbox: &Sandbox, name: &str, key: &str, text: &str) {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
    encoder.add_itxt_chunk(key.into(), text.into()).unwrap();
    encoder.write_header().unwrap().write_image_data(&[0]).unwrap();
    fs::write(sandbox.path(name), bytes).unwrap();
}

#[test]
fn settings_of_automatic1111_are_taken_and_what_is_not_is_named() {
    let sandbox = Sandbox::new();
    let text = "an apple\nNegative prompt: dark\nSteps: 2, Sampler: DPM++ 2M Karras, CFG scale: 6, Seed: 7, Size: 64x72, \
                Model hash: 0123456789, Model: other, Hires upscale: 2, Hires upscaler: Latent, Tiling: True";
    png_with(&sandbox, "theirs.png", "parameters", text);
    like(&sandbox, "theirs.png", &[])
        .fails(1, &["other: not found; looked for the model that made theirs.png", "0123456789"]);
    let run = like(&sandbox, "theirs.png", &["-m", &model(), "-o", "a.png"]).succeeds();
    for expected in [
        "then 128x144 by latent, 2 steps of dpmpp_2m",
        "warning: theirs.png: Tiling: True is left out",
        "warning: theirs.png: its model was other (hash 0123456789), this is sd1 (hash ",
    ] {
        assert!(run.stderr.contains(expected), "{expected}: {run}");
    }
    let flags = ["--sampler", "dpmpp_2m", "--scheduler", "karras", "--rng", "cuda", "--cfg-scale", "6", "--steps", "2"];
    let flags = [&flags[..], &["--convention", "a1111", "--pad-conds", "off", "--hires-scale", "2"]].concat();
    sandbox
        .txt2img(&[&["an apple", "-n", "dark", "-s", "7", "-H", "72", "-o", "b.png"], &flags[..]].concat())
        .succeeds();
    assert!(images::read(&sandbox.path("a.png")).rgb == images::read(&sandbox.path("b.png")).rgb);
}

/// The text of a simple ComfyUI graph.
const GRAPH: &str = r#"{"3": {"inputs": {"seed": 7, "steps": 2, "cfg": 6.0, "sampler_name": "euler", "scheduler": "normal",
    "denoise": 1.0, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}, "class_type":
    "KSampler"}, "4": {"inputs": {"ckpt_name": "other.safetensors"}, "class_type": "CheckpointLoaderSimple"}, "5": {"inputs":
    {"width": 64, "height": 72, "batch_size": 1}, "class_type": "EmptyLatentImage"}, "6": {"inputs": {"text":
    "an (apple:1.2) [red]", "clip": ["4", 1]}, "class_type": "CLIPTextEncode"}, "7": {"inputs": {"text": "", "clip": ["4",
    1]}, "class_type": "CLIPTextEncode"}, "8": {"inputs": {"samples": ["3", 0], "vae": ["4", 2]}, "class_type": "VAEDecode"},
    "9": {"inputs": {"images": ["8", 0]}, "class_type": "SaveImage"}}"#;

#[test]
fn a_simple_comfyui_graph_generates_the_image() {
    let sandbox = Sandbox::new();
    png_with(&sandbox, "comfy.png", "prompt", GRAPH);
    like(&sandbox, "comfy.png", &[]).fails(1, &["other: not found; looked for the model that made comfy.png"]);
    like(&sandbox, "comfy.png", &["-m", &model(), "-o", "a.png"]).succeeds();
    let flags = [
        "--sampler",
        "euler",
        "--scheduler",
        "normal",
        "--cfg-scale",
        "6",
        "--steps",
        "2",
        "--emphasis",
        "comfy",
        "--convention",
        "comfyui",
    ];
    let more = ["--pad-conds", "off", "--chunk-cut", "word", "-s", "7", "-W", "64", "-H", "72", "-o", "b.png"];
    sandbox.txt2img(&[&[r"an (apple:1.2) \[red\]", "-n", ""], &flags[..], &more].concat()).succeeds();
    assert!(images::read(&sandbox.path("a.png")).rgb == images::read(&sandbox.path("b.png")).rgb);
    // The settings of the result generate it again.
    like(&sandbox, "a.png", &["-o", "again.png"]).succeeds();
    assert!(bytes(&sandbox, "a.png") == bytes(&sandbox, "again.png"));
    let run = sandbox.kiln(&["inspect", "comfy.png"]).succeeds();
    assert!(run.stdout.contains("prompt of 3: an (apple:1.2) [red]\nsampler 3: sampler_name euler,"), "{run}");
    png_with(&sandbox, "img2img.png", "prompt", &GRAPH.replace("EmptyLatentImage", "VAEEncode"));
    like(&sandbox, "img2img.png", &["-m", &model()]).fails(1, &["node 5 (VAEEncode) is not supported"]);
}

#[test]
fn missing_samplers_are_errors() {
    let sandbox = Sandbox::new();
    let fields = "an apple\nSteps: 2, Sampler: DPM adaptive, Schedule type: Karras, CFG scale: 6, Seed: 7, Size: 64x64";
    png_with(&sandbox, "theirs.png", "parameters", fields);
    like(&sandbox, "theirs.png", &["-m", &model()])
        .refused(&["theirs.png, with Sampler: DPM adaptive", "--sampler too"]);
    like(&sandbox, "theirs.png", &["-m", &model(), "--sampler", "euler", "-o", "a.png"]).succeeds();
    png_with(&sandbox, "comfy.png", "prompt", &GRAPH.replace("\"euler\"", "\"dpm_adaptive\""));
    like(&sandbox, "comfy.png", &["-m", &model()]).refused(&["comfy.png, with sampler_name: dpm_adaptive"]);
    let json = r#"{"prompt": "(a:1.2), (b:1.3), (c:1.4)", "steps": 2}"#;
    png_with(&sandbox, "json.png", "parameters", json);
    like(&sandbox, "json.png", &["-m", &model()]).fails(1, &["those of an unknown program are not understood"]);
}

#[test]
fn comments_do_not_change_the_image() {
    let sandbox = Sandbox::new();
    sandbox.txt2img(&["an apple # and a pear", "-s", "7", "-o", "a.png"]).succeeds();
    sandbox.txt2img(&["an apple \n", "-s", "7", "-o", "b.png"]).succeeds();
    assert!(bytes(&sandbox, "a.png") == bytes(&sandbox, "b.png"));
    sandbox.txt2img(&["an apple # and a pear", "--keep-comments", "-s", "7", "-o", "c.png"]).succeeds();
    assert!(bytes(&sandbox, "a.png") != bytes(&sandbox, "c.png"));
    like(&sandbox, "c.png", &["-o", "again.png"]).succeeds();
    assert!(bytes(&sandbox, "c.png") == bytes(&sandbox, "again.png"));
    // A new prompt may have comments, regardless of the setting in the image.
    like(&sandbox, "c.png", &["-p", "an apple # and a pear", "-o", "d.png"]).succeeds();
    assert!(bytes(&sandbox, "a.png") == bytes(&sandbox, "d.png"));
}

/// Another sampler generates another image: it is only replaced at the user's request.
#[test]
fn a_sampler_that_kiln_does_not_have_is_refused() {
    let sandbox = Sandbox::new();
    let text = |sampler: &str| format!("an apple\nSteps: 1, {sampler}, CFG scale: 6, Seed: 7, Size: 64x64");
    png_with(&sandbox, "sampler.png", "parameters", &text("Sampler: Nobody's, Schedule type: Karras"));
    png_with(&sandbox, "schedule.png", "parameters", &text("Sampler: Euler, Schedule type: Bong Tangent"));
    like(&sandbox, "sampler.png", &["-m", &model()]).refused(&[
        "--like is sampler.png, with Sampler: Nobody's, expected",
        "--sampler too",
        "The samplers are",
    ]);
    like(&sandbox, "schedule.png", &["-m", &model()])
        .refused(&["--like is schedule.png, with Schedule type: Bong Tangent", "--scheduler too"]);
    like(&sandbox, "sampler.png", &["-m", &model(), "--sampler", "euler", "-o", "a.png"]).succeeds();
    like(&sandbox, "schedule.png", &["-m", &model(), "--scheduler", "karras", "-o", "b.png"]).succeeds();
}

/// A run with every option of noise levels is restored from the image, bit for bit.
#[test]
fn options_of_noise_levels_round_trip() {
    let sandbox = Sandbox::new();
    let flags = [
        "--sampler",
        "dpm2",
        "--scheduler",
        "Karras",
        "--convention",
        "comfyui",
        "--sigma-min",
        "0.05",
        "--sigma-max",
        "12",
        "--discard-penultimate-sigma",
        "false",
        "--initial-noise",
        "sigma",
        "--steps",
        "3",
    ];
    sandbox.txt2img(&[&["an apple", "-s", "7", "-o", "a.png"], &flags[..]].concat()).succeeds();
    like(&sandbox, "a.png", &["-m", &model(), "-o", "b.png"]).succeeds();
    assert!(bytes(&sandbox, "a.png") == bytes(&sandbox, "b.png"));
    let text = sandbox.kiln(&["inspect", "a.png"]).succeeds().stdout;
    for field in ["convention: comfyui", "sigma range: table", "sigma min: 0.05", "initial noise: sigma"] {
        assert!(text.contains(field), "{field}: {text}");
    }
}

#[test]
fn images_without_settings_are_refused() {
    let sandbox = Sandbox::new();
    png_with(&sandbox, "comfy.png", "prompt", "{\"3\": {\"class_type\": \"KSampler\", \"inputs\": {\"seed\": 5}}}");
    like(&sandbox, "comfy.png", &[])
        .fails(1, &["comfy.png: no settings", "those of ComfyUI cannot be met: no node saves an image"]);
    png_with(&sandbox, "plain.png", "Title", "a title");
    like(&sandbox, "plain.png", &[]).fails(1, &["plain.png: no settings to generate the image again: it has none"]);
    png_with(&sandbox, "damaged.png", "kiln", "{\"request\": 7}");
    like(&sandbox, "damaged.png", &[]).fails(1, &["damaged.png: no settings"]);
    fs::write(sandbox.path("empty.png"), "").unwrap();
    like(&sandbox, "empty.png", &[]).fails(1, &["empty.png: is empty"]);
    like(&sandbox, ".", &[]).fails(1, &["."]);
    png_with(&sandbox, "hostile.png", "kiln", "{\"request\": {\"width\": 8000000000, \"prompt\": \"a\"}}");
    like(&sandbox, "hostile.png", &["-m", &model()]).refused(&["--width is 8000000000"]);
    let many = "{\"request\": {\"wildcards_dir\": \"/nowhere\", \"batch_count\": 9000, \"steps\": 1, \"width\": 64, \"height\": 64}}";
    png_with(&sandbox, "many.png", "kiln", many);
    let run = like(&sandbox, "many.png", &["-m", &model(), "-o", "one.png"]).succeeds();
    assert_eq!(run.images().len(), 1, "{run}");
    let lora = "{\"request\": {\"loras\": [{\"lora\": {\"file\": \"/etc/passwd\"}, \"text\": 1, \"unet\": 1}]}}";
    png_with(&sandbox, "lora.png", "kiln", lora);
    like(&sandbox, "lora.png", &["-m", &model()]).fails(1, &["passwd: not found; looked for --lora"]);
}

#[test]
fn inspect_shows_the_settings_of_an_image() {
    let sandbox = Sandbox::new();
    sandbox.txt2img(&["an apple,\nred", "-n", "dark", "-s", "7", "-o", "a.png"]).succeeds();
    let run = sandbox.kiln(&["inspect", "a.png"]).succeeds();
    for expected in [
        "a.png: PNG, 64x64\n",
        "prompt: an apple,\n    red\n",
        "negative prompt: dark\n",
        "model: sd1 (hash ",
        "seed: 7\n",
    ] {
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
    let json: Value = serde_json::from_str(&sandbox.kiln(&["inspect", "a.png", "--json"]).succeeds().stdout).unwrap();
    assert_eq!((&json["what"], &json["kiln"]["request"]["seed"]), (&"image".into(), &7.into()));
    assert_eq!(json["parameters"]["prompt"], "an apple,\nred");
    png_with(&sandbox, "comfy.png", "prompt", "{\"3\": {\"class_type\": \"KSampler\", \"inputs\": {\"seed\": 5}}}");
    let run = sandbox.kiln(&["inspect", "comfy.png"]).succeeds();
    assert!(run.stdout.contains("settings of ComfyUI (prompt)\nKSampler 3: seed 5\n"), "{run}");
    png_with(&sandbox, "escape.png", "Title", "a\u{1b}[31m title");
    let run = sandbox.kiln(&["inspect", "escape.png"]).succeeds();
    assert!(run.stdout.contains("text Title (iTXt): a[31m title"), "{run}");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_files_of_other_programs_are_inspected() {
    let folder = shared_data("png_metadata");
    let sandbox = Sandbox::new();
    for (name, expected) in [
        ("automatic1111_stealth.png", "Model: realisticVisionV51_v51VAE"),
        ("automatic1111_cropped.png", "Sampler: "),
        ("automatic1111_cropped.jpg", "Sampler: "),
        ("text_after_idat.png", "settings (zTXt, parameters)\nprompt: photo of a duck\n"),
        ("empty_image.png", "no settings"),
        ("empty_image.jpg", "no settings"),
    ] {
        let run = sandbox.kiln(&["inspect", folder.join(name).to_str().unwrap()]).succeeds();
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
    sandbox.kiln(&["inspect", folder.join("empty_file.png").to_str().unwrap()]).fails(1, &["empty_file.png: is empty"]);
}
