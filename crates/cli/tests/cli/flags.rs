//! Every flag of `kiln txt2img` with invalid values.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use kiln_testkit::fixtures;

use crate::sandbox::Sandbox;

/// A value, and a required part of the error message.
type Bad = (&'static str, &'static str);

const WHOLE: &str = "expected a whole number";
const AUTO_OR_WHOLE: &str = "expected auto or a whole number";
const REQUIRED: &str = "a value is required";
const SIDES: &[Bad] = &[
    ("100", "a multiple of 8 from 8 to 16384; the nearest is 104"),
    ("99", "the nearest is 96"),
    ("7", "the nearest is 8"),
    ("0", "the nearest is 8"),
    ("16392", "the nearest is 16384"),
    ("1000000000000", "the nearest is 16384"),
    ("99999999999999999999999", WHOLE),
    ("-8", WHOLE),
    ("64.0", WHOLE),
    ("64px", WHOLE),
    (" 64", WHOLE),
    ("٦٤", WHOLE),
    ("wide", WHOLE),
    ("", WHOLE),
];
const PICTURES: &[Bad] = &[
    ("0", "a number from 1 to 100000"),
    ("100001", "a number from 1 to 100000"),
    ("18446744073709551615", "a number from 1 to 100000"),
    ("18446744073709551616", WHOLE),
    ("-1", WHOLE),
    ("two", WHOLE),
    ("", WHOLE),
];
const NUMBER: &str = "expected a number";
const PART: &[Bad] = &[
    ("-0.1", "a number from 0 to 1"),
    ("1.1", "a number from 0 to 1"),
    ("nan", "a number from 0 to 1"),
    ("half", NUMBER),
    ("", NUMBER),
];
const SCORE: &[Bad] = &[("-1", "a number from 0 to 10"), ("11", "a number from 0 to 10"), ("x", NUMBER), ("", NUMBER)];
const DEVICES: &str = "expected auto, cpu, cuda or cuda:N";
const EMPHASES: &str = "expected original, no-norm, ignore, comfy, compel or none";
const FORMATS: &str = "expected text or json";
const PREDICTIONS: &str = "expected epsilon or v";
const DTYPES: &str = "expected auto, f32, bf16 or f16";
const WEIGHTS: &str = "expected auto, f32, f16, bf16, f8, q4_0, ";

const SWITCH: &[Bad] = &[("yes", "expected on or off"), ("ON", "expected on or off"), ("2", "expected on or off")];

/// Values that fail with exit status 2. A new flag needs rows here, or a reason in [`EXEMPT`].
const BAD: &[(&str, &[Bad])] = &[
    ("--width", SIDES),
    ("--height", SIDES),
    (
        "--steps",
        &[
            ("0", "a number from 1 to 1000"),
            ("1001", "a number from 1 to 1000"),
            ("99999999999999999999", WHOLE),
            ("-20", WHOLE),
            ("2.5", WHOLE),
            ("many", WHOLE),
            ("", WHOLE),
        ],
    ),
    (
        "--cfg-scale",
        &[
            ("-0.5", "a number from 0 to 1000"),
            ("1000.5", "a number from 0 to 1000"),
            ("1e300", "--cfg-scale is 1e300, expected a number from 0 to 1000"),
            ("nan", "a number from 0 to 1000"),
            ("inf", "a number from 0 to 1000"),
            ("7,5", "expected a number"),
            ("strong", "expected a number"),
            ("", "expected a number"),
        ],
    ),
    (
        "--seed",
        &[
            ("18446744073709551616", "a number from 0 to 18446744073709551615, or -1 for a random seed"),
            ("1.5", "a number from 0 to"),
            ("0x2a", "a number from 0 to"),
            ("random", "or -1 for a random seed"),
            ("", "a number from 0 to"),
        ],
    ),
    (
        "--sampler",
        &[
            ("euler b", "did you mean euler, "),
            ("DPM++ 9M", "did you mean dpmpp_2m, "),
            ("eulre", "did you mean euler, "),
            ("euler karas", "The samplers are: "),
            ("", "The samplers are: "),
        ],
    ),
    (
        "--scheduler",
        &[
            ("karas", "did you mean karras, "),
            ("linear", "The schedules are: default, karras, "),
            ("", "The schedules are: default, karras, "),
        ],
    ),
    (
        "--sigmas",
        &[
            ("1,2", "noise levels that fall, as in 14.6,6.5"),
            ("0", "noise levels that fall"),
            ("10,nan,1", "noise levels that fall"),
            ("1e308,1e307", "--sigmas is 1e308,1e307, expected noise levels that fall"),
            ("1e30,1e20,1e-30,0", "0, from 1e5 at most to 1e-5 at least"),
            ("10;1", "noise levels that fall"),
            ("", "noise levels that fall"),
        ],
    ),
    // The model's own sampler is PNDM, which supports none of them.
    ("--eta", &[("0.5", "none with pndm: it is for ddim, "), ("some", NUMBER), ("", NUMBER)]),
    ("--s-churn", &[("5", "none with pndm: it is for euler, heun, dpm2"), ("some", NUMBER), ("", NUMBER)]),
    ("--s-tmin", &[("1", "none with pndm"), ("some", NUMBER), ("", NUMBER)]),
    ("--s-tmax", &[("1", "none with pndm"), ("some", NUMBER), ("", NUMBER)]),
    ("--s-noise", &[("1", "none with pndm"), ("some", NUMBER), ("", NUMBER)]),
    ("--rho", &[("7", "none but with the sigma schedules karras and polyexponential"), ("some", NUMBER), ("", NUMBER)]),
    ("--convention", &[("forge", "expected diffusers or a1111 or comfyui"), ("", "expected diffusers or a1111")]),
    (
        "--sigma-range",
        &[
            ("table", "none but with the sigma schedules karras, exponential, polyexponential, beta_sigmas"),
            ("all", "expected table or spacing"),
            ("", "expected table or spacing"),
        ],
    ),
    ("--sigma-min", &[("0.1", "none but with the sigma schedules karras, "), ("some", NUMBER), ("", NUMBER)]),
    ("--sigma-max", &[("9", "none but with the sigma schedules karras, "), ("some", NUMBER), ("", NUMBER)]),
    (
        "--discard-penultimate-sigma",
        &[("true", "none without a sigma schedule"), ("maybe", "true, false"), ("", "true, false")],
    ),
    (
        "--initial-noise",
        &[("variance", "none with pndm: it is for euler, "), ("all", "expected sigma or variance"), ("", "sigma or")],
    ),
    (
        "--unipc-variant",
        &[("bh1", "none with pndm: it is for unipc"), ("bh3", "expected bh1 or bh2"), ("", "bh1 or bh2")],
    ),
    (
        "--cfg-schedule",
        &[("", "expected"), ("7,x", "expected"), ("7,-1", "numbers from 0 to 1000"), ("1001", "0 to 1000")],
    ),
    ("--apg-eta", &[("11", "a number from -10 to 10"), ("nan", "from -10 to 10"), ("some", NUMBER), ("", NUMBER)]),
    ("--apg-threshold", &[("-1", "a number from 0 to 10000"), ("5", "--apg-eta too"), ("some", NUMBER), ("", NUMBER)]),
    ("--apg-momentum", &[("2", "a number from -1 to 1"), ("-0.5", "--apg-eta too"), ("some", NUMBER), ("", NUMBER)]),
    ("--pag-scale", &[("-1", "a number from 0 to 1000"), ("nan", "from 0 to 1000"), ("strong", NUMBER), ("", NUMBER)]),
    ("--pag-adaptive-scale", &[("-1", "from 0 to 1000"), ("0.1", "--pag-scale too"), ("some", NUMBER), ("", NUMBER)]),
    (
        "--pag-layers",
        &[("mid", "--pag-scale too"), ("middle", "is no layer"), ("up_blocks.x", "no layer"), ("", "no layer")],
    ),
    ("--freeu", &[("1,2,3", "four numbers"), ("1,2,3,x", "four numbers"), ("1,2,3,-1", "four"), ("", "four numbers")]),
    ("--freeu-version", &[("v1", "--freeu too"), ("v3", "expected one of diffusers, v1, v2"), ("", "expected one of")]),
    (
        "--cache",
        &[
            ("deepcache:1", "2 to 1000"),
            ("x", "expected deepcache"),
            ("deepcache:3:99", "a branch less"),
            ("", "expected"),
        ],
    ),
    ("--deep-shrink", &[("0.5", "a number from 1 to 8"), ("9", "from 1 to 8"), ("some", NUMBER), ("", NUMBER)]),
    ("--deep-shrink-block", &[("33", "from 0 to 32"), ("3", "--deep-shrink too"), ("-1", WHOLE), ("", WHOLE)]),
    ("--deep-shrink-start", &[("2", "from 0 to 1"), ("0.1", "--deep-shrink too"), ("x", NUMBER), ("", NUMBER)]),
    ("--deep-shrink-end", &[("2", "a number from 0 to 1"), ("0.5", "--deep-shrink too"), ("x", NUMBER), ("", NUMBER)]),
    ("--sag-scale", &[("-1", "a number from 0 to 100"), ("nan", "from 0 to 100"), ("strong", NUMBER), ("", NUMBER)]),
    ("--sag-sigma", &[("0", "a number from 0.1 to 10"), ("1", "--sag-scale too"), ("some", NUMBER), ("", NUMBER)]),
    ("--sag-threshold", &[("-1", "from 0 to 100"), ("1", "--sag-scale too"), ("some", NUMBER), ("", NUMBER)]),
    ("--guidance-rescale", PART),
    ("--guidance-start", PART),
    ("--guidance-end", PART),
    ("--dynamic-thresholding", PART),
    ("--mimic-scale", &[("5", "--dynamic-thresholding too"), ("some", NUMBER), ("", NUMBER)]),
    (
        "--ensd",
        &[
            ("1.5", "a whole number"),
            ("9223372036854775808", "a whole number"),
            ("x", "a whole number"),
            ("", "a whole number"),
        ],
    ),
    ("--subseed", &[("1.5", "a number from 0 to"), ("random", "or -1 for a random seed"), ("", "a number from 0 to")]),
    ("--subseed-strength", PART),
    (
        "--seed-resize-from",
        &[
            ("512", "as in 512x768"),
            ("100x64", "the nearest is 104"),
            ("64x0", "the nearest is 8"),
            ("", "as in 512x768"),
        ],
    ),
    ("--rule", &[("x", "expected one of diffusers"), ("", "expected one of diffusers")]),
    ("--refiner", &[("", REQUIRED)]),
    ("--refiner-switch", &[("1.1", "a number from 0 to 1"), ("half", NUMBER), ("", NUMBER)]),
    ("--refiner-switch-by", &[("x", "expected one of steps"), ("", "expected one of steps")]),
    ("--aesthetic-score", SCORE),
    ("--negative-aesthetic-score", SCORE),
    (
        "--hires-scale",
        &[("0.5", "a number from 1 to 16"), ("17", "a number from 1 to 16"), ("x", NUMBER), ("", NUMBER)],
    ),
    ("--hires-size", &[("512", "as in 512x768"), ("100x64", "the nearest is 104"), ("", "as in 512x768")]),
    ("--hires-upscaler", &[("", REQUIRED)]),
    ("--hires-steps", &[("0", "a number from 1 to"), ("-1", WHOLE), ("x", WHOLE), ("", WHOLE)]),
    ("--hires-strength", PART),
    (
        "--hires-cfg-scale",
        &[("-1", "a number from 0 to 1000"), ("1001", "from 0 to 1000"), ("x", NUMBER), ("", NUMBER)],
    ),
    ("--hires-sampler", &[("eulr", "did you mean euler, "), ("", "unknown sampler")]),
    ("--hires-scheduler", &[("karas", "did you mean karras, "), ("", "unknown")]),
    ("--upscaler-dir", &[("", REQUIRED)]),
    ("--rng", &[("gpu", "expected cpu"), ("CPU", "expected cpu"), ("", "expected cpu")]),
    ("--batch-count", PICTURES),
    (
        "--batch-size",
        &[
            ("0", "a number from 1 to 100000"),
            ("100001", "a number from 1 to 100000"),
            ("18446744073709551616", AUTO_OR_WHOLE),
            ("-1", AUTO_OR_WHOLE),
            ("all", AUTO_OR_WHOLE),
            ("", AUTO_OR_WHOLE),
        ],
    ),
    (
        "--output",
        &[
            ("", "a file name"),
            ("nowhere/..", "a file name"),
            ("apple.jpg", "a name that ends in .png"),
            ("apple", "a name that ends in .png"),
            ("{sed}.png", "only the placeholders {index} and {seed}"),
            ("{index.png", "only the placeholders {index} and {seed}"),
            ("}{.png", "only the placeholders {index} and {seed}"),
            ("{{seed}}.png", "only the placeholders {index} and {seed}"),
        ],
    ),
    (
        "--latents-out",
        &[
            ("", REQUIRED),
            (".", "found a folder"),
            ("apple.png", "a name that ends in .safetensors"),
            ("latents", "a name that ends in .safetensors"),
        ],
    ),
    (
        "--trace",
        &[
            ("", REQUIRED),
            (".", "found a folder"),
            ("apple.png", "a name that ends in .json"),
            ("trace", "a name that ends in .json"),
        ],
    ),
    ("--emphasis", &[("Original", EMPHASES), ("nonorm", EMPHASES), ("1.1", EMPHASES), ("", EMPHASES)]),
    (
        "--clip-skip",
        &[
            ("0", "a number from 1 to"),
            ("99", "--clip-skip is 99, expected a number from 1 to"),
            ("-1", WHOLE),
            ("1.5", WHOLE),
            ("last", WHOLE),
            ("", WHOLE),
        ],
    ),
    (
        "--chunk-cut",
        &[("Comma", "expected comma or word"), ("8", "expected comma or word"), ("", "expected comma or word")],
    ),
    ("--pad-conds", &[("yes", "expected on or off"), ("1", "expected on or off"), ("", "expected on or off")]),
    ("--comma-backtrack", &[("76", "a number from 0 to 75"), ("-1", WHOLE), ("near", WHOLE), ("", WHOLE)]),
    ("--wildcards-dir", &[("", REQUIRED)]),
    (
        "--prompt-cache",
        &[("10001", "a number from 0 to 10000"), ("-1", WHOLE), ("0.5", WHOLE), ("all", WHOLE), ("", WHOLE)],
    ),
    ("--preview-every", &[("0", "at least 1"), ("2", "--preview <FILE"), ("", "at least 1")]),
    (
        "--preview",
        &[("", "a name that ends in .png"), (".", "found a folder"), ("apple.jpg", "a name that ends in .png")],
    ),
    (
        "--memory-trace",
        &[
            ("", REQUIRED),
            (".", "found a folder"),
            ("apple.png", "a name that ends in .jsonl"),
            ("trace", "a name that ends in .jsonl"),
        ],
    ),
    ("--like", &[("", REQUIRED)]),
    ("--model", &[("", REQUIRED)]),
    ("--taesd", &[("", REQUIRED)]),
    ("--control", &[("8", "is none of its fields"), ("net=a,image=b,weight=x", "expected")]),
    ("--ip-adapter", &[("8", "is none of its fields"), ("model=a,image=b,weight=x", "expected")]),
    ("--lora", &[("", "expected a file"), (":0.8", "expected a file, as in FILE:0.8")]),
    ("--lora-dir", &[("", REQUIRED)]),
    ("--embeddings-dir", &[("", REQUIRED)]),
    ("--config", &[("", REQUIRED)]),
    ("--unet", &[("", REQUIRED)]),
    ("--vae", &[("", REQUIRED)]),
    ("--text-encoder", &[("", REQUIRED)]),
    ("--prediction", &[("velocity", PREDICTIONS), ("V", PREDICTIONS), ("", PREDICTIONS)]),
    (
        "--device",
        &[
            ("gpu", DEVICES),
            ("CPU", DEVICES),
            ("cuda:", DEVICES),
            ("cuda:one", DEVICES),
            ("cuda:-1", DEVICES),
            ("cuda:99999999999999999999", DEVICES),
            ("", DEVICES),
        ],
    ),
    (
        "--vram-budget",
        &[
            ("-1G", "such as 6G, 512M or 64K"),
            ("0", "such as 6G"),
            ("6X", "such as 6G"),
            ("lots", "such as 6G"),
            ("1e9", "such as 6G"),
            ("", "such as 6G"),
        ],
    ),
    ("--vae-tile-size", &[("-64", WHOLE), ("64.5", WHOLE), ("64x64", WHOLE), ("", WHOLE)]),
    ("--cuda-malloc", SWITCH),
    ("--cuda-stream", SWITCH),
    ("--pin-shared-memory", SWITCH),
    ("--log-format", &[("yaml", FORMATS), ("JSON", FORMATS), ("", FORMATS)]),
    (
        "--weight-type",
        &[("int8", WEIGHTS), ("Q8_0", WEIGHTS), ("q7_0", WEIGHTS), ("q4_k_m", WEIGHTS), ("8", WEIGHTS), ("", WEIGHTS)],
    ),
    ("--dtype", &[("f8", DTYPES), ("float16", DTYPES), ("F32", DTYPES), ("", DTYPES)]),
    (
        "--threads",
        &[
            ("0", "a number from 1 to 1024"),
            ("1025", "a number from 1 to 1024"),
            ("99999999", "a number from 1 to 1024"),
            ("99999999999999999999", WHOLE),
            ("-1", WHOLE),
            ("1.5", WHOLE),
            ("all", WHOLE),
            ("", WHOLE),
        ],
    ),
];

/// Flags without invalid values.
const EXEMPT: &[(&str, &str)] = &[
    ("--prompt", "any text is a prompt"),
    ("--negative-prompt", "any text is a prompt"),
    ("--hires-prompt", "any text is a prompt"),
    ("--hires-negative-prompt", "any text is a prompt"),
    ("--overwrite", "a switch"),
    ("--keep-comments", "a switch"),
    ("--offline", "a switch"),
    ("--medvram", "a switch"),
    ("--lowvram", "a switch"),
    ("--highvram", "a switch"),
    ("--vae-slicing", "a switch"),
    ("--vae-tiling", "a switch"),
    ("--verbose", "a switch, given any number of times"),
    ("--help", "a switch that ends the program"),
];

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
        ("--model", "nowhere", &["nowhere: not found; looked for a model folder at nowhere, "]),
        ("--model", "no/where", &["no/where: not found; looked for a model folder at no/where"]),
        ("--model", ".", &["model_index.json: not found"]),
        ("--model", &file, &["model_index.json: is not a valid safetensors file"]),
        ("--taesd", "nowhere.safetensors", &["nowhere.safetensors: not found; looked for ", "--taesd"]),
        ("--unet", "nowhere.gguf", &["nowhere.gguf: not found; looked for --unet"]),
        ("--vae", "nowhere.pt", &["nowhere.pt: not found; looked for --vae"]),
        ("--text-encoder", "nowhere", &["nowhere: not found; looked for --text-encoder"]),
        ("--taesd", &file, &["model_index.json: is not a valid safetensors file"]),
        ("--lora", "nowhere.safetensors:0.5", &["nowhere.safetensors: not found; looked for --lora"]),
        ("--lora", &file, &["model_index.json: is not a valid safetensors file"]),
        ("--lora-dir", "nowhere", &["nowhere: not found; looked for --lora-dir"]),
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
        !["--verbose", "--help", "--text-encoder", "--lora", "--control", "--ip-adapter"].contains(&&*flag.long)
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
            "--sigma-range" => "table",
            "--initial-noise" => "sigma",
            "--unipc-variant" => "bh1",
            "--discard-penultimate-sigma" => "true",
            "--rng" | "--device" => "cpu",
            "--dtype" | "--weight-type" => "f32",
            "--log-format" => "text",
            "--seed-resize-from" | "--hires-size" => "64x64",
            "--prediction" => "v",
            "--pag-layers" => "mid",
            "--freeu" => "1,1,1,1",
            "--freeu-version" => "v1",
            "--cache" => "deepcache",
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
        ("--negative", "'--negative-prompt'"),
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
    let value = OsStr::from_bytes(b"\xff.png");
    for flag in flags().into_iter().filter(|flag| flag.value == Value::Required) {
        let args = [OsString::from("txt2img"), "-p=x".into(), flag.long.clone().into(), value.into()];
        let args = if flag.long == "--prompt" { [&args[..1], &args[2..]].concat() } else { args.to_vec() };
        let run = sandbox.kiln(&args);
        assert!(matches!(run.status.code(), Some(1 | 2)), "{run}");
        assert!(run.stdout.is_empty() && run.stderr.starts_with("error: "), "{run}");
    }
    assert!(sandbox.names().is_empty());
}
