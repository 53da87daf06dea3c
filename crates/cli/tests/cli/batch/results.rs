//! The images that a set makes, and the reports of its run.

use kiln_testkit::fixtures;
use serde_json::Value;

use super::{batch, files, filled, index, job, made, names, write};
use crate::sandbox::Sandbox;

#[test]
fn a_set_equals_single_calls() {
    let sandbox = Sandbox::new();
    write(
        &sandbox,
        "jobs.csv",
        "prompt,negative,seed,width,height,steps,sampler,output\n\"an apple, red\",blurry,7,64,64,2,euler a,apple.png\na pear,,8,40,72,3,,fruit/pear.png\n",
    );
    let run = batch(&sandbox, &["jobs.csv"]).succeeds();
    assert_eq!(names(&sandbox), ["apple.png", "fruit/pear.png"], "{run}");
    let apple = ["an apple, red", "-n", "blurry", "-s", "7", "--steps", "2", "--sampler", "euler a", "-o", "a.png"];
    sandbox.txt2img(&apple).succeeds();
    sandbox.txt2img(&["a pear", "-s", "8", "-W", "40", "-H", "72", "--steps", "3", "-o", "b.png"]).succeeds();
    let read = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
    assert!(read("a.png") == read("out/apple.png") && read("b.png") == read("out/fruit/pear.png"));
    let index = index(&sandbox);
    assert_eq!(
        (&index[1]["file"], &index[1]["seed"], &index[1]["state"]),
        (&"fruit/pear.png".into(), &8.into(), &"made".into())
    );
    assert!(index[0]["seconds"]["denoise"].as_f64().unwrap() > 0.0);
}

/// A damaged LoRA file is detected when it is read, long after the jobs were checked.
#[test]
fn a_failed_job_is_recorded_and_the_others_continue() {
    let sandbox = Sandbox::new();
    write(&sandbox, "damaged.safetensors", "no weights");
    let jobs = [
        job("\"prompt\": \"a\", \"seed\": 1, \"lora\": \"damaged.safetensors\""),
        job("\"prompt\": \"b\", \"seed\": 2"),
        job("\"prompt\": \"c\", \"seed\": 3"),
    ];
    write(&sandbox, "jobs.jsonl", &jobs.concat());
    let run = batch(&sandbox, &["jobs.jsonl"]);
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert_eq!(names(&sandbox), ["00002-2.png", "00003-3.png"]);
    assert!(run.error().contains("1 of 3 images failed; out/journal.jsonl has the reasons"), "{run}");
    assert!(run.stderr.contains("image 1 (line 1) failed: damaged.safetensors"), "{run}");
    let states: Vec<_> = index(&sandbox).iter().map(|row| row["state"].as_str().unwrap().to_string()).collect();
    assert_eq!(states, ["failed", "made", "made"]);
    // Failed jobs are not tried again, unless that is requested, or the job has changed.
    let run = batch(&sandbox, &["jobs.jsonl"]);
    assert!(run.status.code() == Some(1) && made(&run) == 0 && !run.stderr.contains("image 1"), "{run}");
    let run = batch(&sandbox, &["jobs.jsonl", "--retry"]);
    assert!(run.status.code() == Some(1) && made(&run) == 0 && run.stderr.contains("image 1"), "{run}");
    let fixed = [&job("\"prompt\": \"a\", \"seed\": 1"), &jobs[1], &jobs[2]];
    write(&sandbox, "jobs.jsonl", &fixed.map(String::as_str).concat());
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert_eq!(made(&run), 1, "{run}");
    assert_eq!(names(&sandbox), ["00001-1.png", "00002-2.png", "00003-3.png"]);
}

/// The bits of an image do not depend on the other images of its batch, whatever their prompts are.
#[test]
fn batches_do_not_change_images() {
    let sandbox = Sandbox::new();
    let long = "word ".repeat(100);
    let texts = ["a cat", "a dog", "a cat AND a dog:0.5", "[a cat:a dog:0.5]", "a (cat:1.4)", &long, "", "{a|b|c} cat"];
    let with = |sampler: &str, seed: usize, prompt: &str| {
        let cfg = if seed.is_multiple_of(5) { 1 } else { 5 };
        job(&format!("\"prompt\": \"{prompt}\", \"seed\": {seed}, \"sampler\": \"{sampler}\", \"cfg\": {cfg}"))
    };
    let samplers = ["euler", "dpmpp_2m_sde"].into_iter().enumerate();
    let jobs: Vec<String> = samplers
        .flat_map(|(i, sampler)| texts.iter().enumerate().map(move |(k, text)| with(sampler, 10 * i + k, text)))
        .collect();
    let varied = job(
        "\"prompt\": \"a cat\", \"sampler\": \"euler\", \"cfg\": 5, \"seed\": 3, \"rng\": \"cuda\", \"subseed\": 4, \"subseed_strength\": 0.4, \"batch_count\": 2",
    );
    write(&sandbox, "jobs.jsonl", &(jobs.concat() + &varied));
    let mut all = Vec::new();
    for size in ["1", "3", "8", "auto"] {
        let run = batch(&sandbox, &["jobs.jsonl", "--batch-size", size, "-v"]).succeeds();
        assert_eq!(made(&run), 18, "{run}");
        all.push(files(&sandbox.path("out")));
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    assert_eq!(all[0].len(), 18);
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn axes_are_combined_and_shown_on_a_sheet() {
    let sandbox = Sandbox::new();
    let args = [
        "--set",
        "prompt=a cat",
        "--set",
        "width=64",
        "--set",
        "height=64",
        "--grid",
        "seed=1..2",
        "--grid",
        "steps=1,2,3",
    ];
    let run = batch(&sandbox, &args).succeeds();
    assert_eq!(made(&run), 6, "{run}");
    let seeds_and_steps = |row: &Value| (row["seed"].as_u64().unwrap(), row["request"]["steps"].as_u64().unwrap());
    let found: Vec<_> = index(&sandbox).iter().map(seeds_and_steps).collect();
    assert_eq!(found, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]);
    let sheet = std::fs::File::open(sandbox.path("out/contact-sheet.png")).unwrap();
    let mut reader = png::Decoder::new(std::io::BufReader::new(sheet)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert!((3 * 64..6 * 64).contains(&info.width), "{} wide", info.width);
    assert!((2 * 64..3 * 64).contains(&info.height), "{} high", info.height);
    // An image is at the crossing of its row and column, and letters are black.
    assert!(pixels.contains(&0) && pixels[..3] == [255, 255, 255]);
    // The sheet of a complete set is written without generating anything.
    write(&sandbox, "jobs.txt", "a pear\n\n# nothing\nan apple\n");
    let args = ["jobs.txt", "--set", "steps=1", "--set", "width=64", "--set", "height=64", "-o", "other"];
    let args: Vec<&str> = args.into_iter().chain(["--contact-sheet", "sheet.png"]).collect();
    let model = fixtures("models/sd1").display().to_string();
    let args = [&["batch", "-m", &model], &args[..]].concat();
    sandbox.kiln(&args).succeeds();
    std::fs::remove_file(sandbox.path("sheet.png")).unwrap();
    assert_eq!(made(&sandbox.kiln(&args).succeeds()), 0);
    assert!(sandbox.path("sheet.png").is_file());
}

#[test]
fn all_shards_are_the_whole_set() {
    let sandbox = Sandbox::new();
    write(
        &sandbox,
        "jobs.jsonl",
        &(0..5).map(|i| job(&format!("\"prompt\": \"{i}\", \"seed\": {i}"))).collect::<String>(),
    );
    for (shard, expected) in [("2/3", 2), ("1/3", 2), ("3/3", 1), ("2/3", 0)] {
        let run = batch(&sandbox, &["jobs.jsonl", "--shard", shard]).succeeds();
        assert_eq!(made(&run), expected, "{run}");
    }
    let expected: Vec<String> = (0..5).map(|i| format!("{:05}-{i}.png", i + 1)).collect();
    assert_eq!(names(&sandbox), expected);
    // A set with other shards, or none, finds the existing images.
    std::fs::remove_file(sandbox.path("out").join(&expected[3])).unwrap();
    for (shard, expected) in [(&["--shard", "1/2"][..], 0), (&[], 1), (&["--shard", "2/2"], 0)] {
        let run = batch(&sandbox, &[&["jobs.jsonl"], shard].concat()).succeeds();
        assert_eq!(made(&run), expected, "{run}");
    }
    assert_eq!(names(&sandbox), expected);
    assert!(sandbox.path("out/journal-2-of-3.jsonl").is_file() && sandbox.path("out/index-3-of-3.jsonl").is_file());
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn json_output_and_jobs_from_a_pipe() {
    let sandbox = Sandbox::new();
    let args = ["-", "--log-format", "json", "--set", "steps=1", "--set", "width=64", "--set", "height=64"];
    let run = sandbox.shell_kiln("printf 'a cat\\na dog\\n' | \"$@\"", &filled(&args)).succeeds();
    assert_eq!(made(&run), 2, "{run}");
    let objects: Vec<Value> = run.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let made: Vec<&Value> = objects.iter().filter(|object| object["event"] == "made").collect();
    assert_eq!(made.len(), 2, "{run}");
    let progress = &made[1]["progress"];
    assert_eq!((&progress["done"], &progress["all"], &progress["seconds_left"]), (&2.into(), &2.into(), &0.0.into()));
    assert!(progress["images_per_second"].as_f64().unwrap() > 0.0 && progress["memory"].as_u64().unwrap() > 0);
    let done = objects.iter().find(|object| object["event"] == "done").unwrap();
    assert!(done["stages"]["denoise"].as_f64().unwrap() > 0.0 && done["made"] == 2, "{run}");
}
