//! The first minutes with `kiln`: help, an installed program without a model, flags of other programs, messages for people and for
//! programs, and what a file is.

use std::fs;
use std::process::Command;

use kiln_testkit::{fixtures, repository};
use serde_json::{Value, json};

use crate::sandbox::{Run, Sandbox};

#[test]
fn the_short_help_is_a_screen_and_the_long_help_is_everything() {
    let sandbox = Sandbox::new();
    for command in ["txt2img", "img2img", "batch", "serve"] {
        let [short, long] = ["-h", "--help"].map(|flag| sandbox.kiln(&[command, flag]).succeeds().stdout);
        let lines = short.lines().count();
        assert!(lines <= 62, "kiln {command} -h has {lines} lines:\n{short}");
        assert!(long.lines().count() > 3 * lines, "kiln {command} --help has everything");
        assert_eq!(short.matches(&format!("\n  kiln {command} ")).count(), 3, "three examples: {short}");
        let place = |text: &str| short.find(text).unwrap_or_else(|| panic!("no {text:?} in {short}"));
        assert!(place("--model") < place("--device") && place("--device") < place("--help"), "{short}");
    }
    let help = sandbox.kiln(&["txt2img", "--help"]).succeeds().stdout;
    let place = |title: &str| help.find(&format!("\n{title}")).unwrap_or_else(|| panic!("no {title:?} in {help}"));
    let titles =
        ["Prompt and model", "Size, seed", "Sampler", "Hires fix", "LoRAs", "Output", "Device", "Memory", "Tracing"];
    assert!(titles.map(place).is_sorted() && !help.contains("\nOptions:"), "{help}");
}

#[test]
fn a_name_of_the_hub_without_its_prefix_is_suggested_with_it() {
    let sandbox = Sandbox::new();
    for args in [&["txt2img", "x", "-m", "stabilityai/sd-turbo"][..], &["inspect", "stabilityai/sd-turbo"]] {
        sandbox.kiln(args).fails(1, &["stabilityai/sd-turbo: not found", "give hf:stabilityai/sd-turbo"]);
    }
    sandbox.kiln(&["inspect", "missing.txt"]).fails(1, &["missing.txt: not found; looked for a file or folder at"]);
}

#[test]
fn flags_of_other_programs_have_advice() {
    let sandbox = Sandbox::new();
    for (flag, advice) in [
        ("--sampling-method", "--sampler NAME"),
        ("--xformers", "not needed"),
        ("--novram", "--lowvram"),
        ("--ckpt-dir", "KILN_MODELS"),
        ("--high-noise-diffusion-model", "--unet"),
        ("--num_inference_steps", "--steps"),
    ] {
        let run = sandbox.kiln(&["txt2img", "x", flag, "1"]).refused(&[flag, advice]);
        assert!(!run.stderr.contains("similar argument"), "{run}");
    }
    let run = sandbox.kiln(&["txt2img", "x", "--photorealism", "1"]).refused(&["--photorealism"]);
    assert!(!run.stderr.contains("similar argument"), "a flag that is far away is no suggestion: {run}");
}

#[test]
fn samplers_and_schedules_are_listed() {
    let sandbox = Sandbox::new();
    let text = sandbox.kiln(&["samplers"]).succeeds().stdout;
    assert!(text.contains("dpmpp_2m ") && text.contains("DPM++ 2M") && text.contains("\nkarras "), "{text}");
    let json: Value = serde_json::from_str(&sandbox.kiln(&["samplers", "--json"]).succeeds().stdout).unwrap();
    assert_eq!((&json["samplers"][0]["flow"], &json["samplers"][1]["flow"]), (&json!(false), &json!(true)));
    assert!(json["samplers"].as_array().unwrap().len() > 20 && json["schedules"].as_array().unwrap().len() > 10);
}

#[test]
fn the_output_stream_has_paths_alone() {
    let sandbox = Sandbox::new();
    let run = sandbox.txt2img(&["an apple", "-s", "41", "-b", "2", "-o", "{seed}.png"]).succeeds();
    assert_eq!(run.stdout, "41.png\n42.png\n".replace("4", "./4"), "{run}");
    assert!(run.stderr.contains("seeds 41 to 42"), "{run}");
}

#[test]
fn quiet_leaves_warnings_and_very_quiet_leaves_errors() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("words")).unwrap();
    let args = ["a __missing__", "--wildcards-dir", "words", "-o", "{index}.png"];
    let run = |flag: &[&str]| sandbox.txt2img(&[&args, flag].concat()).succeeds();
    let loud = run(&[]);
    assert!(loud.stderr.contains("step 1/1") && loud.stderr.contains("warning: __missing__ stays text"), "{loud}");
    let quiet = run(&["-q"]);
    assert!(quiet.stderr.starts_with("warning: __missing__") && quiet.stderr.lines().count() == 1, "{quiet}");
    assert_eq!(quiet.stdout.lines().count(), 1, "{quiet}");
    assert_eq!(run(&["-qq"]).stderr, "");
    sandbox.txt2img(&["x", "-qq", "-o", "nowhere/x.png"]).fails(1, &["nowhere: not found"]);
    sandbox.txt2img(&["x", "-q", "-v"]).refused(&["cannot be used with"]);
}

#[test]
fn json_has_an_event_for_every_step_image_and_error() {
    let sandbox = Sandbox::new();
    let args = ["an apple", "--steps", "3", "--sampler", "euler", "-s", "7", "-o", "x.png", "--log-format", "json"];
    let run = sandbox.txt2img(&args).succeeds();
    let events: Vec<Value> = run.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["event"].is_string()), "{run}");
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let steps: Vec<u64> = of("step").iter().map(|event| event["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3], "{run}");
    assert!(
        of("step")
            .iter()
            .all(|event| event["steps"] == 3 && event["seconds"].as_f64() >= event["step_seconds"].as_f64()),
        "{run}"
    );
    let times: Vec<f64> = of("step").iter().map(|event| event["seconds"].as_f64().unwrap()).collect();
    assert!(times[0] > 0.0 && times.is_sorted(), "the clock starts with the stage: {run}");
    assert!(of("step")[0]["eta_seconds"].is_null() && of("step")[2]["eta_seconds"] == json!(0.0), "{run}");
    let [image] = of("made")[..] else { panic!("{run}") };
    assert_eq!((image["file"].as_str(), image["seed"].as_u64()), (Some(run.stdout.trim_end()), Some(7)));
    assert_eq!((of("job")[0]["steps"].as_u64(), of("done")[0]["made"].as_u64()), (Some(3), Some(1)));
    let run = sandbox.txt2img(&["x", "-o", "nowhere/x.png", "--log-format", "json"]);
    let error: Value = serde_json::from_str(run.stderr.lines().last().unwrap()).unwrap();
    assert!(error["event"] == "error" && error["message"].as_str().unwrap().starts_with("nowhere: not found"), "{run}");
}

#[test]
fn a_model_folder_is_summed_up_in_six_lines() {
    let sandbox = Sandbox::new();
    let model = repository().join("models/emoji").display().to_string();
    let text = sandbox.kiln(&["inspect", &model]).succeeds().stdout;
    assert_eq!(text.lines().count(), 6, "{text}");
    for part in ["emoji: Stable Diffusion 1 or 2, 256x256", "stored as: F", "files: ", "steps of ddim", "license: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let verbose = sandbox.kiln(&["inspect", &model, "-v"]).succeeds().stdout;
    assert!(verbose.starts_with(&text) && verbose.contains("\nsegment ") && verbose.lines().count() > 50, "{verbose}");
}

#[test]
fn folders_of_adapters_and_of_models_are_known() {
    let sandbox = Sandbox::new();
    let inspect = |name: &str| {
        sandbox.kiln(&["inspect", &repository().join("models").join(name).display().to_string()]).succeeds().stdout
    };
    assert!(inspect("emoji-controlnet-edges").contains(": a ControlNet\n"));
    assert!(inspect("emoji-lcm-lora").contains("a LoRA or a similar adapter\nbase model: "));
    let list = inspect("");
    assert!(
        list.lines().any(|line| line.starts_with("emoji/ ") && line.ends_with("Stable Diffusion 1 or 2")),
        "{list}"
    );
    let models = repository().join("models").display().to_string();
    sandbox.txt2img(&["x", "-m", &models]).fails(1, &["is a folder of files or models, expected one model", "emoji"]);
    let control = repository().join("models/emoji-controlnet-edges").display().to_string();
    sandbox.txt2img(&["x", "-m", &control]).fails(1, &["is a ControlNet, expected a model", "give it as --control"]);
}

/// A safetensors file with tensors of one element and these notes.
fn tensors(sandbox: &Sandbox, name: &str, names: &[&str], notes: &[(&str, &str)]) -> String {
    let mut header = serde_json::Map::new();
    if !notes.is_empty() {
        header
            .insert("__metadata__".into(), notes.iter().map(|(key, value)| (key.to_string(), json!(value))).collect());
    }
    for (i, name) in names.iter().enumerate() {
        header.insert(name.to_string(), json!({ "dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4] }));
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + 4 * names.len(), 0);
    let path = sandbox.path(name);
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn models_of_other_families_are_named() {
    let sandbox = Sandbox::new();
    let sentence = "not supported yet; Kiln runs Stable Diffusion 1, 2, XL and 3";
    let wan = ["head.modulation", "blocks.0.self_attn.q.weight"];
    let wan = tensors(&sandbox, "wan2.1.safetensors", &wan, &[]);
    let run = sandbox.kiln(&["inspect", &wan]).succeeds();
    assert!(run.stdout.contains(&format!("a Wan transformer: {sentence}")), "{run}");
    sandbox.txt2img(&["x", "-m", &wan]).fails(1, &["wan2.1.safetensors: is a Wan transformer", sentence]);
    sandbox.txt2img(&["x", "--unet", &wan]).fails(1, &["is a Wan transformer", sentence]);
    let umt5 = ["encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"];
    let umt5 = tensors(&sandbox, "umt5.safetensors", &umt5, &[]);
    sandbox.txt2img(&["x", "--text-encoder", &umt5]).fails(1, &["is a UMT5 text encoder", sentence]);
    // An all-in-one file has text encoders and an autoencoder with known names, too.
    let whole = [
        "model.diffusion_model.head.modulation",
        "model.diffusion_model.blocks.0.self_attn.q.weight",
        "first_stage_model.decoder.conv_in.weight",
    ];
    let whole = tensors(&sandbox, "whole.safetensors", &whole, &[]);
    sandbox.txt2img(&["x", "-m", &whole]).fails(1, &["is a Wan transformer", sentence]);
    fs::create_dir(sandbox.path("wan")).unwrap();
    fs::write(sandbox.path("wan/model_index.json"), "{\"_class_name\": \"WanPipeline\"}").unwrap();
    sandbox.txt2img(&["x", "-m", "wan"]).fails(1, &["wan: is a Wan model", sentence]);
    sandbox.kiln(&["inspect", "wan"]).fails(1, &["is a Wan model", sentence]);
    fs::create_dir(sandbox.path("wan/transformer")).unwrap();
    fs::rename(&wan, sandbox.path("wan/transformer/a.safetensors")).unwrap();
    fs::write(sandbox.path("wan/transformer/config.json"), "{\"_class_name\": \"WanTransformer3DModel\"}").unwrap();
    let run = sandbox.kiln(&["inspect", "wan"]);
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert!(run.stdout.contains("a Wan transformer: not supported yet"), "{run}");
    let lora = tensors(&sandbox, "lora.safetensors", &["lora_unet_blocks_0_self_attn_q.lora_up.weight"], &[]);
    let run = sandbox.kiln(&["inspect", &lora]).succeeds();
    assert!(run.stdout.contains(&format!("base model: Wan: {sentence}")), "{run}");
    sandbox.txt2img(&["x", "--lora", &lora]).fails(1, &["is a LoRA for Wan", sentence]);
}

#[test]
fn a_lora_shows_its_base_model_and_trigger_words() {
    let sandbox = Sandbox::new();
    let notes = [
        ("ss_base_model_version", "sdxl_base_v1-0"),
        ("ss_tag_frequency", "{\"10_x\": {\"inkdraw\": 12, \"a fox\": 3}}"),
        ("modelspec.trigger_phrase", "inkdraw"),
    ];
    let names = ["lora_unet_mid_block.lora_up.weight", "lora_unet_mid_block.lora_down.weight"];
    let path = tensors(&sandbox, "ink.safetensors", &names, &notes);
    let run = sandbox.kiln(&["inspect", &path]).succeeds();
    for line in ["base model: sdxl_base_v1-0", "trigger words: inkdraw", "most frequent tags: inkdraw (12), a fox (3)"]
    {
        assert!(run.stdout.lines().any(|found| found == line), "{line}: {run}");
    }
    sandbox.txt2img(&["x", "-m", &path]).fails(1, &["is a LoRA or a similar adapter, expected a model", "--lora"]);
    let embedding = tensors(&sandbox, "word.safetensors", &["clip_g", "clip_l"], &[]);
    assert!(sandbox.kiln(&["inspect", &embedding]).succeeds().stdout.contains("an embedding (textual inversion)"));
}

#[test]
fn folders_of_other_classes_with_all_parts_open_as_models() {
    let sandbox = Sandbox::new();
    for class in ["StableDiffusionControlNetPipeline", "StableDiffusionImg2ImgPipeline"] {
        let model = crate::models::ModelCopy::of("sd1");
        let index = fs::read_to_string(fixtures("models/sd1/model_index.json")).unwrap();
        model.write("model_index.json", index.replace("StableDiffusionPipeline", class).as_bytes());
        sandbox.txt2img(&["x", "-m", model.path(), "-o", &format!("{class}.png")]).succeeds();
    }
}

#[test]
fn a_file_with_the_tokens_of_another_program_names_config() {
    let sandbox = Sandbox::new();
    let model = repository().join("models/emoji").display().to_string();
    sandbox.kiln(&["convert", &model, "emoji.safetensors"]).succeeds();
    // Without the notes of kiln convert the file is as other programs write it: tensors alone.
    let bytes = fs::read(sandbox.path("emoji.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    header.as_object_mut().unwrap().remove("__metadata__");
    let header = header.to_string();
    let plain = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[end..]].concat();
    fs::write(sandbox.path("plain.safetensors"), plain).unwrap();
    let expected = ["plain.safetensors: its text encoder knows 4610 tokens", "as --config"];
    sandbox.txt2img(&["x", "-m", "plain.safetensors"]).fails(1, &expected);
    sandbox.txt2img(&["x", "-m", "plain.safetensors", "--config", &model]).succeeds();
}

/// A LoRA of another model is named with it.
#[test]
fn a_lora_that_does_not_fit_names_its_model() {
    let sandbox = Sandbox::new();
    let write = |name: &str, key: &str, metadata: &str| {
        let header = format!(
            r#"{{"__metadata__":{{{metadata}}},"{key}.lora_down.weight":{{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}},"{key}.lora_up.weight":{{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}}}"#
        );
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
        fs::write(sandbox.path(name), bytes).unwrap();
    };
    write("flux.safetensors", "lora_unet_double_blocks_0_img_attn_qkv", "");
    sandbox.txt2img(&["x", "--lora", "flux.safetensors"]).fails(1, &["flux.safetensors", "for FLUX.1"]);
    let layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k";
    write("xl.safetensors", layer, r#""ss_base_model_version":"sdxl_base_v1-0""#);
    sandbox.txt2img(&["x", "--lora", "xl.safetensors"]).fails(1, &["xl.safetensors", "for sdxl_base_v1-0"]);
    fs::create_dir(sandbox.path("loras")).unwrap();
    for name in ["a", "b"] {
        fs::copy(sandbox.path("flux.safetensors"), sandbox.path(&format!("loras/{name}.safetensors"))).unwrap();
    }
    let list = sandbox.kiln(&["inspect", "."]).succeeds().stdout;
    for line in ["2 LoRAs for FLUX.1", "a LoRA for sdxl_base_v1-0"] {
        assert!(list.contains(line), "{line}: {list}");
    }
}

#[test]
fn bash_completes_values_and_names_of_models() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.path("mine/dreamshaper")).unwrap();
    let script = sandbox.kiln(&["completions", "bash"]).succeeds().stdout;
    fs::write(sandbox.path("kiln.bash"), script).unwrap();
    let complete = |words: &str, function: &str| {
        let line = format!(
            "source ./kiln.bash; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             {function} kiln \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &line]).current_dir(sandbox.path("")).env("KILN_MODELS", sandbox.path("mine"));
        String::from_utf8(bash.output().unwrap().stdout).unwrap()
    };
    assert_eq!(complete("kiln txt2img --sampler dpmpp_2m_s", "_kiln_with_models"), "dpmpp_2m_sde dpmpp_2m_sde_heun\n");
    assert_eq!(complete("kiln txt2img --scheduler karr", "_kiln_with_models"), "karras\n");
    assert_eq!(complete("kiln batch --dtype bf", "_kiln_with_models"), "bf16\n");
    assert_eq!(complete("kiln serve -m dream", "_kiln_with_models"), "dreamshaper\n");
}

#[test]
fn special_files_are_no_certificates() {
    let sandbox = Sandbox::new();
    let model = fixtures("models/sd1").display().to_string();
    Command::new("mkfifo").arg(sandbox.path("fifo")).status().unwrap();
    for path in ["fifo", "/dev/zero"] {
        let args = ["serve", "-m", &model, "--listen", "127.0.0.1:0", "--tls-cert", path, "--tls-key", path];
        sandbox.kiln(&args).fails(1, &[path, "expected a regular file"]);
    }
}
