//! `kiln plan`: what it tells of memory.

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
    for row in ["full ", "medvram ", "lowvram, 1.20 GiB of the U-Net resident", "lowvram "] {
        assert!(run.stdout.lines().any(|line| line.starts_with(row) && line.ends_with("fits")), "{row:?}: {run}");
    }
    assert!(run.stdout.contains("one picture of 512x512, f16 on a card") && run.stderr.is_empty(), "{run}");
    assert!(run.stdout.contains("of 3.00 GiB: full, 2."), "{run}");
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

#[test]
fn a_larger_budget_allows_larger_batches() {
    let batch = |budget| {
        plan(&["sd15-512", "--device", "cuda", "--batch-size", "auto", "--vram-budget", budget])["batch_size"].as_u64()
    };
    assert!(batch("1G") < batch("16G"));
}

#[test]
fn what_fits_nowhere_is_refused_with_the_numbers() {
    let run = Sandbox::new().kiln(&["plan", "sdxl-1024", "--device", "cuda", "--vram-budget", "100M"]);
    assert_eq!(run.status.code(), Some(2), "{run}");
    assert!(run.stdout.contains("too large"), "the table is there all the same: {run}");
    for part in ["1 of 1024x1024 needs", "activations", "100.0 MiB are allowed"] {
        assert!(run.error().contains(part), "{part}: {run}");
    }
}

#[test]
fn sizes_that_are_none_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.kiln(&["plan", "--vram-budget", "lots"]).fails(2, &["such as 6G"]);
    sandbox.kiln(&["plan", "--batch-size", "many"]).fails(2, &["expected auto or a whole number"]);
    sandbox.kiln(&["plan", "-W", "100"]).refused(&["--width is 100", "the nearest is 104"]);
    sandbox.kiln(&["plan", "--batch-size", "0"]).refused(&["--batch-size is 0"]);
}
