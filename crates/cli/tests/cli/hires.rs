//! `kiln txt2img --hires-scale`: two passes, and what is refused.

use kiln_testkit::fixtures;

use crate::sandbox::{Run, Sandbox};

/// `kiln txt2img` with a tiny model and three steps.
fn txt2img(sandbox: &Sandbox, args: &[&str]) -> Run {
    let model = fixtures("models/sd1").display().to_string();
    let fixed = ["txt2img", "a pear", "-m", &model, "-W", "32", "-H", "32", "--steps", "3", "--seed", "7"];
    sandbox.kiln(&[&fixed[..], args].concat())
}

fn size(png: &[u8]) -> (u32, u32) {
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    (side(16), side(20))
}

#[test]
fn an_image_is_made_in_two_passes() {
    let sandbox = Sandbox::new();
    let read = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
    let run = txt2img(&sandbox, &["--hires-scale", "2", "--hires-strength", "0.6", "-o", "a.png"]).succeeds();
    assert!(run.stderr.contains("then 64x64 by latent, 3 steps of "), "{run}");
    assert_eq!(size(&read("a.png")), (64, 64));
    // Its settings make it again, by Kiln's JSON.
    let model = fixtures("models/sd1").display().to_string();
    let again = sandbox.kiln(&["txt2img", "--like", "a.png", "-m", &model, "-o", "b.png"]).succeeds();
    assert!(!again.stderr.contains("warning") && read("a.png") == read("b.png"), "{again}");
    // Another size takes the place of the scale.
    let like = ["txt2img", "--like", "a.png", "-m", &model, "--hires-size", "48x64", "-o", "c.png"];
    sandbox.kiln(&like).succeeds();
    assert_eq!(size(&read("c.png")), (48, 64));
    // A folder of upscalers, by flag and by variable.
    let upscalers = fixtures("upscale").display().to_string();
    let network =
        ["--hires-size", "64x64", "--hires-upscaler", "compact_x2", "--upscaler-dir", &upscalers, "-o", "d.png"];
    let run = txt2img(&sandbox, &network).succeeds();
    assert!(run.stderr.contains("compact_x2.pth"), "{run}");
    assert_eq!(size(&read("d.png")), (64, 64));
    let shown = sandbox.kiln(&["inspect", "d.png"]).succeeds();
    assert!(shown.stdout.contains("compact_x2"), "{shown}");
}

#[test]
fn impossible_second_passes_are_refused() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (
            &["--hires-scale", "2", "--hires-size", "64x64"][..],
            "--hires-size is 64x64, expected none, or no --hires-scale",
        ),
        (&["--hires-steps", "4"], "--hires-steps is 4, expected --hires-scale or --hires-size too"),
        (&["--hires-scale", "99"], "a number from 1 to 16"),
        (&["--hires-size", "0x64"], "--hires-size is 0, expected"),
        (&["--hires-scale", "2", "--hires-strength", "0"], "--hires-strength is 0.0, expected more than 0"),
        (&["--hires-scale", "2", "--hires-sampler", "eulr"], "did you mean euler"),
    ] {
        let run = txt2img(&sandbox, args).refused(&[expected]);
        assert!(!run.stderr.contains("loading"), "{run}");
    }
    let run = txt2img(&sandbox, &["--hires-scale", "2", "--hires-upscaler", "no.pth"]);
    let run = run.fails(1, &["no.pth: not found; looked for an upscaler's file", "for latents latent, "]);
    assert!(!run.stderr.contains("loading"), "{run}");
}

#[test]
fn sets_have_second_passes() {
    let sandbox = Sandbox::new();
    let model = fixtures("models/sd1").display().to_string();
    let jobs: Vec<String> = (7..10)
        .map(|seed| {
            format!(
                "{{\"prompt\": \"a pear\", \"seed\": {seed}, \"width\": 32, \"height\": 32, \"steps\": 3, \"hires_size\": [64, 48], \
                 \"output\": \"{seed}.png\"}}"
            )
        })
        .collect();
    std::fs::write(sandbox.path("jobs.jsonl"), jobs.join("\n")).unwrap();
    let batch = ["batch", "jobs.jsonl", "-m", &model, "-o", "set", "--batch-size", "3"];
    sandbox.kiln(&batch).succeeds();
    for seed in 7..10 {
        let (name, seed) = (format!("{seed}.png"), seed.to_string());
        let one = ["--hires-size", "64x48", "--seed", &seed, "-o", &name, "--overwrite"];
        let fixed = ["txt2img", "a pear", "-m", &model, "-W", "32", "-H", "32", "--steps", "3"];
        sandbox.kiln(&[&fixed[..], &one].concat()).succeeds();
        let [of_set, alone] = [format!("set/{name}"), name].map(|name| std::fs::read(sandbox.path(&name)).unwrap());
        assert!(of_set == alone, "seed {seed}");
    }
    // Nothing is made a second time.
    let run = sandbox.kiln(&batch).succeeds();
    assert!(run.stderr.contains("0 generated, 3 skipped"), "{run}");
}

#[test]
fn plans_show_the_second_pass() {
    let sandbox = Sandbox::new();
    let plan = |args: &[&str]| sandbox.kiln(&[&["plan", "sd15-512", "--device", "cpu"][..], args].concat()).succeeds();
    let text = plan(&["--hires-scale", "2"]);
    assert!(text.stdout.contains("one image of 512x512, then 1024x1024"), "{text}");
    assert!(text.stdout.contains("(second pass)"), "{text}");
    let json = plan(&["--hires-scale", "2", "--hires-upscaler", "lanczos", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let stages = value["plans"][0]["stages"].as_array().unwrap();
    let names: Vec<&str> = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert_eq!(names, ["encode", "denoise", "decode", "upscale", "encode", "encode-image", "denoise", "decode"]);
    assert_eq!((&stages[0]["pass"], &stages[7]["pass"]), (&serde_json::Value::Null, &"second".into()));
}
