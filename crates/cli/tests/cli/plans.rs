//! `kiln plan`: memory plans.

use serde_json::Value;

use crate::sandbox::Sandbox;

/// The plan as JSON.
fn plan(args: &[&str]) -> Value {
    let run = Sandbox::new().kiln(&[&["plan", "--json"], args].concat()).succeeds();
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

#[test]
fn every_mode_has_a_row() {
    let run = Sandbox::new().kiln(&["plan", "sd15-512", "--device", "cuda", "--vram-budget", "3G"]).succeeds();
    for row in ["full ", "medvram ", "lowvram, 1.20 GiB of the denoiser resident", "lowvram "] {
        assert!(run.stdout.lines().any(|line| line.starts_with(row) && line.ends_with("fits")), "{row:?}: {run}");
    }
    assert!(run.stdout.contains("one image of 512x512, f16 on a GPU") && run.stderr.is_empty(), "{run}");
    assert!(run.stdout.contains("of 3.00 GiB: full, 2."), "{run}");
}

/// On a CPU nothing goes to a device, and the rows are planned within the budget as the choice is.
#[test]
fn rows_for_a_cpu_are_within_the_budget() {
    let args = ["plan", "sd15-512", "--vram-budget", "200M", "--device", "cpu", "--dtype", "bf16"];
    let run = Sandbox::new().kiln(&args).succeeds();
    assert!(run.stdout.contains("read per step") && !run.stdout.contains("H2D"), "{run}");
    let row = |begin: &str| run.stdout.lines().find(|line| line.starts_with(begin)).unwrap();
    assert!(row("lowvram ").ends_with("fits") && row("lowvram, 1.20 GiB").ends_with("too large"), "{run}");
    assert!(row("of 200.0 MiB: ").starts_with("of 200.0 MiB: lowvram, "), "{run}");
}

#[test]
fn json_has_the_same_for_programs() {
    let plan = plan(&["sdxl-1024", "--device", "cuda", "--dtype", "f16", "--vram-budget", "4G"]);
    let peaks: Vec<u64> = plan["plans"].as_array().unwrap().iter().map(|plan| plan["peak"].as_u64().unwrap()).collect();
    assert!(peaks.is_sorted_by(|a, b| a >= b) && peaks.len() == 6, "{peaks:?}");
    let chosen = &plan["chosen"];
    assert!(chosen["peak"].as_u64().unwrap() <= 4 << 30 && chosen["mode"]["lowvram"]["resident"].as_u64() > Some(0));
    for stage in chosen["stages"].as_array().unwrap() {
        assert!(stage["activations"].as_u64() > Some(0), "{stage}");
    }
}

/// The tests' machines have no GPU: the link is said, or assumed.
#[test]
fn a_link_can_be_described() {
    let gpu = ["sd15-512", "--device", "cuda:63", "--dtype", "f16", "--vram-budget", "1G"];
    let of = |link: &[&str]| plan(&[&gpu[..], link].concat());
    let seconds = |plan: &Value| plan["chosen"]["copy_seconds_per_step"].as_f64().unwrap();
    let (assumed, slow) = (of(&[]), of(&["--link", "5.5"]));
    assert_eq!((&assumed["link"]["source"], &slow["link"]["source"]), (&"assumed".into(), &"given".into()));
    let ratio = seconds(&slow) / seconds(&assumed);
    assert!((9.0..11.0).contains(&ratio), "a tenth of the rate: {ratio}");
    let run = Sandbox::new().kiln(&[&["plan"], &gpu[..], &["--link", "12"]].concat()).succeeds();
    assert!(run.stdout.contains("link to the GPU: 12.0 GB/s from pinned memory"), "{run}");
    assert!(run.stdout.contains("(as given)"), "{run}");
    assert!(plan(&["--device", "cpu"])["link"].is_null());
    let sandbox = Sandbox::new();
    for rate in ["fast", "0", "-3", "12GB", "nan"] {
        sandbox.kiln(&["plan", "--link", rate]).fails(2, &["expected GB/s"]);
    }
    sandbox.kiln(&["plan", "--link", "3", "--measure-link"]).fails(2, &["cannot be used with"]);
}

#[test]
fn a_larger_budget_allows_larger_batches() {
    let batch = |budget| {
        plan(&["sd15-512", "--device", "cuda", "--batch-size", "auto", "--vram-budget", budget])["batch_size"].as_u64()
    };
    assert!(batch("1G") < batch("16G"));
}

/// The flags of what changes within the network are those of `kiln txt2img`, with their ranges and what they exclude.
#[test]
fn what_changes_the_network_is_planned() {
    let peak = |more: &[&str]| {
        let of_mode = plan(&[&["emoji", "--device", "cpu", "--dtype", "f32", "-t", "2"], more].concat());
        of_mode["plans"][0]["stages"].as_array().unwrap()[1]["activations"].as_u64().unwrap()
    };
    let plain = peak(&[]);
    let perturbed = peak(&["--pag-scale", "3"]);
    assert!(perturbed as f64 > 1.3 * plain as f64, "three rows instead of two: {perturbed} of {plain}");
    assert!(peak(&["--cache", "deepcache:3"]) > plain);
    let of_transformer = |more: &[&str]| {
        let model = format!("{}/../../models/emoji-sd3", env!("CARGO_MANIFEST_DIR"));
        let of_mode = plan(&[&["--model", &model, "--device", "cpu", "--dtype", "f32", "-t", "2"], more].concat());
        of_mode["plans"][0]["stages"].as_array().unwrap()[1]["activations"].as_u64().unwrap()
    };
    assert!(of_transformer(&["--block-cache", "0.1"]) > of_transformer(&[]));
    assert!(peak(&["--freeu", "1.5,1.6,0.9,0.2"]) >= plain);
    assert!(peak(&["--sag-scale", "0.75"]) >= plain);
    let sandbox = Sandbox::new();
    let refused = |args: &[&str], says: &[&str]| {
        sandbox.kiln(&[&["plan", "emoji"], args].concat()).refused(says);
    };
    refused(&["--pag-layers", "mid"], &["--pag-layers is mid, expected --pag-scale too"]);
    refused(&["--cache", "deepcache:3:99"], &["--cache is deepcache:3:99, expected a branch less than"]);
    refused(&["--block-cache", "0.1"], &["--block-cache is 0.1, expected none: it works with transformers"]);
    refused(&["--sag-scale", "1", "--cache", "deepcache"], &["--sag-scale is 1.0, expected 0 with --cache"]);
    refused(&["--pag-scale", "-1"], &["--pag-scale is -1.0, expected a number from 0 to 1000"]);
}

#[test]
fn an_impossible_budget_is_an_error_with_numbers() {
    let run = Sandbox::new().kiln(&["plan", "sdxl-1024", "--device", "cuda", "--vram-budget", "100M"]);
    assert_eq!(run.status.code(), Some(2), "{run}");
    assert!(run.stdout.contains("too large"), "the table is there all the same: {run}");
    for part in ["1 of 1024x1024 needs", "activations", "32.9 MiB of the budget of 100.0 MiB can be used"] {
        assert!(run.error().contains(part), "{part}: {run}");
    }
}

#[test]
fn invalid_sizes_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.kiln(&["plan", "--vram-budget", "lots"]).fails(2, &["such as 6G"]);
    sandbox.kiln(&["plan", "--batch-size", "many"]).fails(2, &["expected auto or a whole number"]);
    sandbox.kiln(&["plan", "-W", "100"]).refused(&["--width is 100", "the nearest is 104"]);
    sandbox.kiln(&["plan", "--batch-size", "0"]).refused(&["--batch-size is 0"]);
}

#[test]
fn a_budget_applies_to_the_requested_size() {
    let sandbox = Sandbox::new();
    let small = ["-W", "64", "-H", "64", "--device", "cpu", "--dtype", "f32", "-t", "2"];
    // The model's own 256x256 needs more than this.
    let budget = ["--vram-budget", "14M"];
    sandbox.kiln(&[&["plan"], &small[..], &budget[..]].concat()).succeeds();
    sandbox.kiln(&[&["txt2img", "x", "--steps", "1"], &small[..], &budget[..]].concat()).succeeds();
    let large = ["txt2img", "x", "-W", "1024", "-H", "1024", "--steps", "1", "--device", "cpu", "--vram-budget", "14M"];
    sandbox.kiln(&large).fails(2, &["1 of 1024x1024 needs", "of the budget of 14.0 MiB can be used"]);
}

#[test]
fn the_number_of_threads_is_limited() {
    let run = Sandbox::new().txt2img(&["x", "-t", "1024"]).succeeds();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(run.stderr.contains("1024 threads are too many"), cpus < 256, "{run}");
}

#[test]
fn a_measurement_that_cannot_fit_is_refused() {
    let run = Sandbox::new().kiln(&["bench", "emoji", "--device", "cpu", "--size", "16384x16384", "--batch", "64"]);
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert!(run.error().contains("emoji: the stage step with 64 of 16384x16384 needs"), "{run}");
}
