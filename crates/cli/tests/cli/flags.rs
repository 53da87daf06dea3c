//! Every flag of `kiln txt2img` with invalid values.

use std::collections::BTreeSet;
use std::ffi::OsString;

use kiln_testkit::fixtures;

use crate::flag_values::{BAD, EXEMPT, REQUIRED};
use crate::sandbox::Sandbox;

/// A flag as `kiln txt2img --help` has it.
struct Flag {
    short: Option<String>,
    long: String,
    value: Value,
}

/// Whether a flag takes a value.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    None,
    /// The value needs an equals sign.
    Optional,
    Required,
}

/// The real list of flags.
fn flags() -> Vec<Flag> {
    let help = Sandbox::new().kiln(&["txt2img", "--help"]).succeeds().stdout;
    let flag = |line: &str| {
        let names = line.trim_start().split("  ").next()?; // two spaces end the names
        let (short, long) = match names.split_once(", ") {
            Some((short, long)) => (Some(short.to_string()), long),
            None => (None, names),
        };
        let (long, value) = match (long.split_once("[="), long.split_once(' ')) {
            (Some((long, _)), _) => (long, Value::Optional),
            (_, Some((long, _))) => (long, Value::Required),
            _ => (long, Value::None),
        };
        let long = long.trim_end_matches('.').to_string(); // `--verbose...` may be repeated
        long.starts_with("--").then_some(Flag { short, long, value })
    };
    // Lines that go on are indented further.
    let is_flag = |line: &&str| line.trim_start().starts_with('-') && line.find('-') <= Some(6);
    let flags: Vec<Flag> = help.lines().filter(is_flag).filter_map(flag).collect();
    assert!(flags.len() >= 20, "{help}");
    flags
}

#[test]
fn the_table_has_every_flag() {
    let real: BTreeSet<String> = flags().into_iter().map(|flag| flag.long).collect();
    let rows = BAD.iter().map(|(flag, _)| flag).chain(EXEMPT.iter().map(|(flag, _)| flag));
    let here: BTreeSet<String> = rows.map(|flag| flag.to_string()).collect();
    assert_eq!(here, real, "left: the tables here, right: kiln txt2img --help");
}

#[test]
fn bad_values_are_refused_before_anything_is_done() {
    let sandbox = Sandbox::new();
    let flags = flags();
    for (flag, values) in BAD {
        let apart = flags.iter().any(|known| known.long == *flag && known.value == Value::Required);
        for (value, expected) in *values {
            let joined = format!("{flag}={value}");
            let forms = [&["an apple", &*joined][..], &["an apple", flag, value]];
            for args in &forms[..if apart { 2 } else { 1 }] {
                let run = sandbox.txt2img(args).refused(&[expected]);
                let named = run.error().contains(flag) || run.error().contains(&format!("'{value}'"));
                assert!(named, "neither flag nor value is named: {run}");
            }
        }
    }
    assert!(sandbox.names().is_empty());
}

#[test]
fn incompatible_values_are_refused() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (&["--sampler", "ddim", "--eta", "1.5"][..], &["--eta is 1.5, expected a number from 0 to 1"][..]),
        (&["--sampler", "euler", "--eta", "0.5"], &["--eta is 0.5, expected none with euler"]),
        (&["--guidance-start", "0.8", "--guidance-end", "0.5"], &["--guidance-start is 0.8", "at most --guidance-end"]),
        (&["--sigmas", "10,1", "--steps", "5"], &["--steps is 5, expected none, or 2"]),
        (&["--sigmas", "10,1", "--scheduler", "karras"], &["cannot be used with"]),
        (&["--scheduler", "karras", "--sigma-min", "5", "--sigma-max", "4"], &["less than --sigma-max, which is 4"]),
        (&["--scheduler", "karras", "--sigma-min", "50"], &["--sigma-min is 50", "14.61"]),
        (&["--scheduler", "karras", "--rho", "1e308"], &["--rho is 1e308, expected a number from 0.01 to 100"]),
        (&["--sampler", "ddim", "--convention", "a1111", "--steps", "1"], &["1 sampling steps", "between 2 and 1000"]),
        (&["--batch-count", "1000", "--batch-size", "1000"], &["--batch-count times --batch-size is 1000000"]),
        (&["--batch-count", "100000", "--batch-size", "100000"], &["--batch-count times --batch-size"]),
        (&["--sampler", "unipc", "--steps", "1000"], &["1000 sampling steps"]),
    ] {
        sandbox.txt2img(&[&["an apple"], args].concat()).refused(expected);
    }
    assert!(sandbox.names().is_empty());
}

/// Exit status 1: the value could be valid at another time or on another machine.
#[test]
fn missing_files_are_named() {
    let sandbox = Sandbox::new();
    let file = fixtures("models/sd1/model_index.json").display().to_string();
    for (flag, value, expected) in [
        ("--like", "nowhere.png", &["nowhere.png: not found; looked for --like, an image with settings"][..]),
        ("--like", &file, &["model_index.json: is not a PNG, JPEG, WebP or AVIF file"]),
        ("--model", "nowhere", &["nowhere: not found; looked for a model folder or file at nowhere, "]),
        (
            "--model",
            "no/where",
            &["no/where: not found; looked for a model folder or file at no/where; ", "give hf:no/where"],
        ),
        ("--model", ".", &["model_index.json: not found"]),
        ("--model", &file, &["model_index.json: is not a valid safetensors file"]),
        ("--taesd", "nowhere.safetensors", &["nowhere.safetensors: not found; looked for ", "--taesd"]),
        ("--preview-taesd", "nowhere.safetensors", &["nowhere.safetensors: not found; looked for --preview-taesd"]),
        ("--scales", "nowhere.safetensors", &["nowhere.safetensors: not found; looked for --scales"]),
        ("--unet", "nowhere.gguf", &["nowhere.gguf: not found; looked for --unet"]),
        ("--vae", "nowhere.pt", &["nowhere.pt: not found; looked for --vae"]),
        ("--text-encoder", "nowhere", &["nowhere: not found; looked for --text-encoder"]),
        ("--taesd", &file, &["model_index.json: is not a valid safetensors file"]),
        ("--lora", "nowhere.safetensors:0.5", &["nowhere.safetensors: not found; looked for --lora"]),
        ("--lora", &file, &["model_index.json: is not a valid safetensors file"]),
        ("--lora-dir", "nowhere", &["nowhere: not found; looked for --lora-dir"]),
        ("--weight-cache", "nowhere", &["nowhere: not found; looked for --weight-cache"]),
        ("--embeddings-dir", "nowhere", &["nowhere: not found; looked for --embeddings-dir"]),
        ("--upscaler-dir", "nowhere", &["nowhere: not found; looked for --upscaler-dir, a folder with upscalers"]),
        ("--wildcards-dir", "nowhere", &["nowhere: not found; looked for --wildcards-dir, a folder with lists"]),
        ("--output", "nowhere/apple.png", &["nowhere: not found", "a folder for the images; create it first"]),
        ("--output", "{seed}/apple.png", &["{seed}: not found"]),
        ("--output", "/proc/apple.png", &["cannot write /proc/apple.png"]),
        (
            "--latents-out",
            "nowhere/l.safetensors",
            &["nowhere: not found", "a folder for the latents; create it first"],
        ),
        ("--latents-out", "/proc/l.safetensors", &["cannot write /proc/l.safetensors"]),
        ("--device", "cuda:99", &["--device cuda:99: "]),
    ] {
        let run = sandbox.txt2img(&["an apple", flag, value]).fails(1, expected);
        assert!(!run.stderr.contains("step 1/1"), "{run}");
    }
    assert!(sandbox.names().is_empty());
}

#[test]
fn a_name_that_is_too_long_is_refused_before_the_model_is_loaded() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(300);
    for (flag, value) in [("--output", format!("{long}.png")), ("--latents-out", format!("{long}.safetensors"))] {
        let run = sandbox.txt2img(&["an apple", flag, &value]).fails(1, &["cannot write ", &value, "too long"]);
        assert!(run.stderr.starts_with("error: "), "{run}");
    }
    assert!(sandbox.names().is_empty());
}

#[test]
fn a_flag_without_its_value_is_refused() {
    let sandbox = Sandbox::new();
    for Flag { short, long, value } in flags() {
        for name in [Some(long.clone()), short].into_iter().flatten() {
            if value == Value::Required {
                sandbox.txt2img(&["an apple", &name]).refused(&[&long, REQUIRED]);
            }
        }
        if value == Value::None {
            sandbox.txt2img(&["an apple", &format!("{long}=yes")]).refused(&["'yes'", &long]);
        }
    }
    assert!(sandbox.names().is_empty());
}

#[test]
fn a_flag_that_is_given_twice_is_refused() {
    let sandbox = Sandbox::new();
    for flag in flags().iter().filter(|flag| {
        !["--verbose", "--quiet", "--help", "--text-encoder", "--lora", "--control", "--ip-adapter", "--reference"]
            .contains(&&*flag.long)
    }) {
        let value = match &*flag.long {
            "--sampler" | "--hires-sampler" => "euler",
            "--rule" => "a1111",
            "--refiner-switch-by" => "steps",
            "--emphasis" => "original",
            "--chunk-cut" => "word",
            "--pad-conds" => "off",
            "--scheduler" | "--hires-scheduler" => "default",
            "--convention" => "diffusers",
            "--reference-size" => "own",
            "--sigma-range" => "table",
            "--initial-noise" => "sigma",
            "--unipc-variant" => "bh1",
            "--discard-penultimate-sigma" => "true",
            "--rng" | "--device" => "cpu",
            "--dtype" | "--weight-type" => "f32",
            "--log-format" => "text",
            "--png-level" => "fast",
            "--compute" => "int8",
            "--parallel" => "cfg",
            "--seed-resize-from" | "--hires-size" => "64x64",
            "--original-size" | "--target-size" | "--negative-original-size" | "--negative-target-size" => "64x64",
            "--crop" | "--negative-crop" => "8,8",
            "--prediction" => "v",
            "--pag-layers" => "mid",
            "--freeu" => "1,1,1,1",
            "--freeu-version" => "v1",
            "--cache" => "deepcache",
            "--noise-part" => "1/4",
            "--regions" => "whole",
            "--preview-method" => "none",
            _ => "8", // a number, a text or a file's name
        };
        let once = if flag.value == Value::Required { format!("{}={value}", flag.long) } else { flag.long.clone() };
        sandbox.txt2img(&[&once, &once]).refused(&[&flag.long, "multiple times"]);
    }
    assert!(sandbox.names().is_empty());
}

#[test]
fn unknown_flags_suggest_the_nearest() {
    let sandbox = Sandbox::new();
    for (flag, nearest) in [
        ("--step", "'--steps'"),
        ("--negative-promt", "'--negative-prompt'"),
        ("--modle", "'--model'"),
        ("--cfg_scale", "'--cfg-scale'"),
        ("--batchsize", "'--batch-size'"),
        ("--thread", "'--threads'"),
    ] {
        sandbox.txt2img(&["an apple", flag, "1"]).refused(&[&format!("'{flag}'"), nearest]);
    }
    sandbox.txt2img(&["an apple", "-X", "64"]).refused(&["'-X'"]);
    sandbox.txt2img(&["an apple", "-w", "64"]).refused(&["'-w'"]);
    assert!(sandbox.names().is_empty());
}

/// Paths may be any bytes; texts and numbers may not. No case may panic.
#[test]
fn values_that_are_no_utf8_are_refused() {
    let sandbox = Sandbox::new();
    #[cfg(unix)]
    let value = std::os::unix::ffi::OsStringExt::from_vec(b"\xff.png".to_vec());
    #[cfg(windows)]
    let value = std::os::windows::ffi::OsStringExt::from_wide(&[0xd800, 0x2e, 0x70, 0x6e, 0x67]); // half of a pair
    let value: OsString = value;
    for flag in flags().into_iter().filter(|flag| flag.value == Value::Required) {
        let args = [OsString::from("txt2img"), "-p=x".into(), flag.long.clone().into(), value.clone()];
        let args = if flag.long == "--prompt" { [&args[..1], &args[2..]].concat() } else { args.to_vec() };
        let run = sandbox.kiln(&args);
        assert!(matches!(run.status.code(), Some(1 | 2)), "{run}");
        assert!(run.stdout.is_empty() && run.stderr.starts_with("error: "), "{run}");
    }
    assert!(sandbox.names().is_empty());
}
