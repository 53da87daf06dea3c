//! `--refiner`: a second model for the last steps, in every command that makes images.

use kiln_testkit::fixtures;
use serde_json::Value;

use crate::sandbox::{Run, Sandbox};

fn model(name: &str) -> String {
    fixtures(&format!("models/{name}")).display().to_string()
}

/// `kiln txt2img` with a tiny model and four steps.
fn txt2img(sandbox: &Sandbox, kind: &str, args: &[&str]) -> Run {
    let model = model(kind);
    let fixed = ["txt2img", "a pear", "-m", &model, "-W", "64", "-H", "64", "--steps", "4", "--seed", "7"];
    sandbox.kiln(&[&fixed[..], args].concat())
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn a_refiner_takes_over_and_its_settings_make_the_image_again() {
    let sandbox = Sandbox::new();
    txt2img(&sandbox, "sd1", &["-o", "plain.png"]).succeeds();
    let refiner = model("sd1");
    let with = ["--refiner", &refiner, "--refiner-switch", "0.5", "--rule", "a1111"];
    txt2img(&sandbox, "sd1", &[&with[..], &["-o", "a.png", "--latents-out", "a.safetensors"]].concat()).succeeds();
    txt2img(&sandbox, "sd1", &["-o", "b.png", "--latents-out", "b.safetensors"]).succeeds();
    // The same model is no other image.
    let read = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
    assert!(read("a.safetensors") == read("b.safetensors"));
    let shown = sandbox.kiln(&["inspect", "a.png"]).succeeds();
    assert!(shown.stdout.contains("refiner: sd1\nrefiner switch: 0.5"), "{shown}");
    // The stored name is looked for where models are.
    let script = format!("KILN_MODELS='{}' \"$@\"", fixtures("models").display());
    let again = ["txt2img", "--like", "a.png", "-m", &model("sd1"), "-o", "again.png"];
    sandbox.shell_kiln(&script, &again).succeeds();
    assert!(read("a.png") == read("again.png"));
}

#[test]
fn what_does_not_fit_is_refused_before_weights_are_read() {
    let sandbox = Sandbox::new();
    let [sd1, sd2v, sdxl] = ["sd1", "sd2v", "sdxl"].map(model);
    let refused = |args: &[&str], expected: &[&str]| txt2img(&sandbox, "sd1", args).refused(expected);
    refused(&["--refiner", &sdxl], &["--refiner is sdxl, a model of Stable Diffusion XL", "as sd1 is"]);
    refused(&["--refiner", &sd2v], &["--refiner is a model that predicts velocity", "predicts noise"]);
    for switch in ["0", "1"] {
        let expected = ["--refiner-switch is ", "more than 0 and less than 1"];
        refused(&["--refiner", &sd1, "--refiner-switch", switch], &expected);
    }
    refused(&["--refiner-switch", "0.5"], &["--refiner too"]);
    refused(&["--refiner", &sd1, "--rule", "comfy"], &["--rule is comfy", "--refiner, or a1111"]);
    txt2img(&sandbox, "sd1", &["--refiner-switch", "1.5"]).fails(2, &["--refiner-switch is 1.5"]);
    txt2img(&sandbox, "sd1", &["--refiner", "nowhere"])
        .fails(1, &["nowhere: not found; looked for --refiner, a model folder or file at nowhere"]);
    assert!(sandbox.names().iter().all(|name| !name.ends_with(".png")));
}

#[test]
fn sets_with_refiners_are_resumed() {
    let sandbox = Sandbox::new();
    let jobs = |refiner: &str| {
        format!(
            "{{\"prompt\": \"a {{pear|fig}}\", \"width\": 64, \"height\": 64, \"steps\": 4, \"seed\": 5{refiner}}}\n"
        )
    };
    let refiner = format!(
        ", \"batch_count\": 3, \"refiner\": \"{}\", \"refiner_switch\": 0.5, \"rule\": \"a1111\"",
        model("sd1")
    );
    std::fs::write(sandbox.path("jobs.jsonl"), [jobs(&refiner), jobs("")].concat()).unwrap();
    let run = |folder: &str, more: &[&str]| {
        let model = model("sd1");
        let fixed = ["batch", "jobs.jsonl", "-m", &model, "--device", "cpu", "-o", folder];
        sandbox.kiln(&[&fixed[..], more].concat()).succeeds()
    };
    let pngs = |folder: &str| {
        let entries = std::fs::read_dir(sandbox.path(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "png")).collect();
        all.sort();
        all.into_iter()
            .map(|path| (path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap()))
            .collect::<Vec<_>>()
    };
    run("whole", &["--batch-size", "2"]);
    let whole = pngs("whole");
    assert_eq!(whole.len(), 4);
    // One by one, in the smallest mode, and once more for a file that is lost.
    run("small", &["--lowvram"]);
    assert!(pngs("small") == whole);
    std::fs::remove_file(sandbox.path("small").join(&whole[1].0)).unwrap();
    assert_eq!(run("small", &["--medvram"]).stdout.lines().count(), 1);
    assert!(pngs("small") == whole);
}

#[test]
fn plans_have_the_stage_of_a_refiner() {
    let sdxl = model("sdxl");
    let plan = |args: &[&str]| -> Value {
        let run =
            Sandbox::new().kiln(&[&["plan", "--json", "-m", &sdxl, "-W", "64", "-H", "64"], args].concat()).succeeds();
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
    };
    let (without, with) = (plan(&[]), plan(&["--refiner", &sdxl]));
    let peak = |plan: &Value, mode: usize| plan["plans"][mode]["peak"].as_u64().unwrap();
    let stages = with["plans"][0]["stages"].as_array().unwrap().iter().map(|stage| stage["stage"].clone());
    assert_eq!(stages.collect::<Vec<_>>(), ["encode", "denoise", "refine", "decode"]);
    assert_eq!((with["refiner"].as_str(), without["refiner"].as_str()), (Some("sdxl"), None));
    // Resident, both U-Nets are there; in medvram one at a time.
    let weights = |plan: &Value, mode: usize, stage: usize| plan["plans"][mode]["stages"][stage]["weights"].as_u64();
    assert!(peak(&with, 0) > peak(&without, 0));
    assert_eq!(weights(&with, 1, 1), weights(&without, 1, 1));
    assert_eq!(weights(&with, 1, 2), weights(&without, 1, 1));
    let shown = Sandbox::new().kiln(&["plan", "-m", &sdxl, "--refiner", &sdxl]).succeeds();
    assert!(shown.stdout.starts_with("sdxl with the refiner sdxl: "), "{shown}");
}
