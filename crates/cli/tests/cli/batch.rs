//! Image sets: `kiln batch` with job files, killed and restarted.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_testkit::fixtures;
use serde_json::Value;

use crate::images;
use crate::sandbox::{Lines, Run, Running, Sandbox};

/// The arguments with a tiny model and fields for a short run.
fn filled(args: &[&str]) -> Vec<String> {
    let model = fixtures("models/sd1").display().to_string();
    let filling = ["batch", "-m", &model, "--device", "cpu", "-o", "out"];
    filling.iter().chain(args).map(|arg| arg.to_string()).collect()
}

fn batch(sandbox: &Sandbox, args: &[&str]) -> Run {
    sandbox.kiln(&filled(args))
}

/// A job of one line.
fn job(fields: &str) -> String {
    format!("{{\"width\": 64, \"height\": 64, \"steps\": 2, {fields}}}\n")
}

fn write(sandbox: &Sandbox, name: &str, text: &str) {
    std::fs::write(sandbox.path(name), text).unwrap();
}

/// The files of a folder and of its subfolders, except the set's own.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            all.extend(files(&entry.path()).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else if !name.starts_with("journal") && !name.starts_with("index") {
            all.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    all
}

fn names(sandbox: &Sandbox) -> Vec<String> {
    files(&sandbox.path("out")).into_keys().collect()
}

fn index(sandbox: &Sandbox) -> Vec<Value> {
    let text = std::fs::read_to_string(sandbox.path("out/index.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The number of images that a run reports as generated.
fn made(run: &Run) -> usize {
    run.stdout.lines().count()
}

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

#[test]
fn impossible_jobs_are_refused_before_anything_is_generated() {
    let sandbox = Sandbox::new();
    let good = job("\"prompt\": \"a\", \"seed\": 1");
    for (fields, expected) in [
        ("\"prompt\": \"b\", \"lora\": \"nowhere.safetensors\"", "nowhere.safetensors: not found"),
        ("\"prompt\": \"a <lora:ink:1>\"", "--lora-dir"),
        ("\"prompt\": \"b\", \"model\": \"nowhere\"", "nowhere: not found"),
        ("\"prompt\": \"b\", \"clip_skip\": 99", "`clip_skip` is 99"),
        ("\"prompt\": \"b\", \"cfg\": -1", "`cfg_scale` is -1"),
        ("\"prompt\": null", "the job has no prompt"),
        ("\"prompt\": \"b\", \"seed\": 1, \"seed\": 2", "the key `seed` occurs twice"),
        ("\"prompt\": \"b\", \"output\": \"\\u0000.png\"", "is not a name below the output folder"),
    ] {
        write(&sandbox, "jobs.jsonl", &format!("{good}{}", job(fields)));
        batch(&sandbox, &["jobs.jsonl"]).refused(&["jobs.jsonl:2: ", expected]);
    }
    for (field, expected) in [("steps=0", "`steps` is 0"), ("width=65", "`width` is 65"), ("height=0", "`height` is 0")]
    {
        write(&sandbox, "jobs.txt", "a\nb\n");
        batch(&sandbox, &["jobs.txt", "--set", field]).refused(&["jobs.txt:1: ", expected, "; 2 images of this file"]);
    }
    assert!(names(&sandbox).is_empty());
    let journal = std::fs::read_to_string(sandbox.path("out/journal.jsonl")).unwrap();
    assert_eq!(journal.lines().count(), 1, "nothing is planned: {journal}");
    // Conflicting names.
    for (first, second, expected) in [
        ("a.png", "a.png/b.png", "a.png is an image, in line 1"),
        ("d/a.png", "d//a.png", "'d/a.png' in line 2, and in line 1"),
        ("b.png", "there.png/b.png", "out/there.png: is not a folder"),
        ("b.png", "fifo.png", "the name of a regular file"),
    ] {
        write(&sandbox, "out/there.png", "somebody's");
        std::process::Command::new("mkfifo").arg(sandbox.path("out/fifo.png")).output().unwrap();
        let jobs = [first, second].map(|name| job(&format!("\"prompt\": \"a\", \"output\": \"{name}\"")));
        write(&sandbox, "jobs.jsonl", &jobs.concat());
        let run = batch(&sandbox, &["jobs.jsonl", "--overwrite"]);
        assert!(!run.status.success() && run.error().contains(expected) && made(&run) == 0, "{run}");
    }
}

#[test]
fn wrong_files_are_refused_before_anything_is_done() {
    let sandbox = Sandbox::new();
    for (text, args, expected) in [
        ("{\"promt\": \"a\"}", &[][..], &["jobs.jsonl:1: unknown field `promt`"][..]),
        ("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"steps\": \"x\"}", &[], &["jobs.jsonl:2: steps: \"x\" is not"]),
        (
            "{\"prompt\": \"a\", \"output\": \"../a.png\"}",
            &[],
            &["jobs.jsonl:1: output: '../a.png' is not a name below"],
        ),
        ("{\"seed\": 1}", &[], &["jobs.jsonl:1: the job has no prompt"]),
        ("a\nb", &["--format", "csv"], &["jobs.jsonl:1: unknown field `a`"]),
        ("{\"prompt\": \"a\"}", &["--grid", "seed=1,2", "--grid", "seed=3"], &["two axes of seed"]),
    ] {
        write(&sandbox, "jobs.jsonl", text);
        batch(&sandbox, &[&["jobs.jsonl"], args].concat()).refused(expected);
        assert_eq!(sandbox.names(), ["jobs.jsonl"]);
    }
    let two =
        [job("\"prompt\": \"a\", \"output\": \"a.png\""), job("\"prompt\": \"b\", \"output\": \"a.png\"")].concat();
    write(&sandbox, "jobs.jsonl", &two);
    batch(&sandbox, &["jobs.jsonl"]).fails(2, &["'a.png' in line 2, and in line 1"]);
    write(&sandbox, "jobs.jsonl", &job("\"prompt\": \"a\", \"output\": \"b.png\""));
    write(&sandbox, "out/b.png", "somebody's");
    batch(&sandbox, &["jobs.jsonl"]).fails(2, &["out/b.png exists already", "--overwrite"]);
    batch(&sandbox, &["jobs.jsonl", "--overwrite"]).succeeds();
    images::read(&sandbox.path("out/b.png"));
    batch(&sandbox, &["nowhere.jsonl"]).fails(1, &["nowhere.jsonl: No such file"]);
}

/// Values of the flags that `kiln txt2img` does not have.
#[test]
fn bad_values_of_flags_are_refused() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.txt", "a\n");
    for (flag, values, expected) in [
        ("--format", &["json", "CSV", ""][..], "expected jsonl, csv or text"),
        ("--set", &["steps", "=3", "step=3", ""], "field"),
        ("--set", &["steps=few"], "steps: \"few\" is not a whole number"),
        ("--grid", &["seed", "seed=", "", "sed=1..3"], "field"),
        ("--grid", &["seed=3..1"], "seed=3..1"),
        ("--shard", &["0/2", "3/2", "2", "-1/2", "a/b", ""], "as in 2/8"),
        ("--batch-size", &["-1", "few", ""], "expected auto or a whole number"),
        ("--batch-size", &["0"], "--batch-size is 0, expected a number from 1 to"),
        ("--contact-sheet", &[""], "a value is required"),
        ("--contact-sheet", &["sheet.jpg"], "a name that ends in .png"),
        ("--thumbnail", &["23", "1025"], "a number from 24 to 1024"),
        ("--thumbnail", &["-1", "large", ""], "expected a whole number"),
        ("--output", &[""], "a value is required"),
    ] {
        for value in values {
            let output: &[&str] = if flag == "--output" { &[] } else { &["-o", "out"] };
            let joined = format!("{flag}={value}");
            let output = if flag == "--thumbnail" { &["-o", "out", "--contact-sheet=a.png"] } else { output };
            sandbox.kiln(&[&["batch", "jobs.txt", &joined], output].concat()).refused(&[expected]);
        }
    }
    sandbox.kiln(&["batch", "-o", "out"]).refused(&["JOBS"]);
    sandbox.kiln(&["batch", "jobs.txt"]).refused(&["--output"]);
    assert_eq!(sandbox.names(), ["jobs.txt"]);
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

/// Jobs with random seeds, so that a run that loses a seed fails the test.
fn sixteen(sandbox: &Sandbox) {
    let jobs =
        (0..16).map(|i| job(&format!("\"prompt\": \"image {i}\", \"sampler\": \"euler\"")).replace(": 2,", ": 30,"));
    write(sandbox, "jobs.jsonl", &jobs.collect::<String>());
}

fn start(sandbox: &Sandbox, args: &[&str]) -> Running {
    sandbox.start_kiln(&filled(args))
}

#[test]
fn a_set_killed_at_any_time_resumes() {
    let sandbox = Sandbox::new();
    sixteen(&sandbox);
    let mut seen = 0;
    // The run is killed after this number of generated images; the first time as soon as it has started.
    for (kill, images) in [0, 1, 2, 0, 1, 3, 1].into_iter().enumerate() {
        let running = start(&sandbox, &["jobs.jsonl", "--batch-size", ["1", "3"][kill % 2]]);
        running.wait_for((Lines::Output, ""), images);
        running.signal("KILL");
        running.finish();
        if !sandbox.path("out").is_dir() {
            continue;
        }
        let now: Vec<String> = names(&sandbox).into_iter().filter(|name| name.ends_with(".png")).collect();
        now.iter().for_each(|name| drop(images::read(&sandbox.path("out").join(name))));
        assert!(now.len() >= seen + images, "{images} images were generated after {seen}: {now:?}");
        seen = now.len();
    }
    println!("{seen} of 16 images existed after the kills");
    let before = files(&sandbox.path("out"));
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert_eq!(made(&run), 16 - seen, "exactly the missing ones: {run}");
    let after = files(&sandbox.path("out"));
    assert_eq!(after.len(), 16, "{:?}", after.keys());
    assert!(before.iter().filter(|(name, _)| name.ends_with(".png")).all(|(name, bytes)| after[name] == *bytes));
    // Each image equals the image of its request with the seed that was drawn once.
    for row in index(&sandbox) {
        let (file, seed) = (row["file"].as_str().unwrap(), row["seed"].as_u64().unwrap());
        let prompt = row["request"]["prompt"].as_str().unwrap();
        assert!(file.contains(&seed.to_string()));
        if row["number"].as_u64().unwrap() % 5 == 1 {
            let _ = std::fs::remove_file(sandbox.path("one.png"));
            let args = [prompt, "--seed", &seed.to_string(), "--steps", "30", "--sampler", "euler", "-o", "one.png"];
            sandbox.txt2img(&args).succeeds();
            assert!(std::fs::read(sandbox.path("one.png")).unwrap() == after[file], "{file}");
        }
    }
    // An image that is modified by others is kept; a deleted one is generated again with the same bytes.
    let (changed, _) = after.iter().last().unwrap();
    std::fs::write(sandbox.path("out").join(changed), "painted over").unwrap();
    assert_eq!(made(&batch(&sandbox, &["jobs.jsonl"]).succeeds()), 0);
    let (name, bytes) = after.iter().next().unwrap();
    std::fs::remove_file(sandbox.path("out").join(name)).unwrap();
    assert_eq!(made(&batch(&sandbox, &["jobs.jsonl"]).succeeds()), 1);
    assert!(std::fs::read(sandbox.path("out").join(name)).unwrap() == *bytes);
}

#[test]
fn an_interrupted_set_saves_finished_images() {
    let sandbox = Sandbox::new();
    let jobs = (0..400).map(|i| job(&format!("\"prompt\": \"image {i}\""))).collect::<String>();
    write(&sandbox, "jobs.jsonl", &jobs);
    let running = start(&sandbox, &["jobs.jsonl"]);
    running.wait_for((Lines::Output, ""), 3);
    running.signal("INT");
    let run = running.finish();
    let names = names(&sandbox);
    assert!(run.status.code() == Some(130) && run.error().contains("interrupted"), "{run}");
    assert!((3..400).contains(&names.len()), "{} images: {run}", names.len());
    assert!(names.iter().all(|name| name.ends_with(".png")) && names.len() == made(&run), "{names:?}: {run}");
    names.iter().for_each(|name| drop(images::read(&sandbox.path("out").join(name))));
    assert_eq!(index(&sandbox).iter().filter(|row| row["state"] == "made").count(), names.len());
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

/// A folder may be shared, or come from an archive, so its contents are untrusted.
#[test]
fn a_journal_cannot_name_files_outside_of_its_folder() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.jsonl", &job("\"prompt\": \"a\", \"seed\": 1"));
    batch(&sandbox, &["jobs.jsonl"]).succeeds();
    let key = index(&sandbox)[0]["key"].as_str().unwrap().to_string();
    std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    std::fs::create_dir(sandbox.path("out")).unwrap();
    write(&sandbox, "victim.png", "precious");
    let absolute = sandbox.path("new/evil.png").display().to_string();
    for (journal, file) in [
        ("out/journal.jsonl", "../victim.png"),
        ("out/journal-1-of-2.jsonl", "../victim.png"),
        ("out/journal-1-of-2.jsonl", &absolute),
    ] {
        let text = format!(
            "{{\"kiln\":\"batch journal\",\"version\":1}}\n\
             {{\"plan\":\"{key}\",\"number\":1,\"file\":\"{file}\",\"seed\":1}}\n\
             {{\"made\":\"{key}\",\"bytes\":3,\"seconds\":{{\"encode\":0,\"denoise\":0,\"decode\":0,\"save\":0}}}}\n"
        );
        write(&sandbox, journal, &text);
        batch(&sandbox, &["jobs.jsonl", "--overwrite"]).refused(&[journal, ":2: the file ", "is not a name below"]);
        assert_eq!(std::fs::read_to_string(sandbox.path(journal)).unwrap(), text);
        std::fs::remove_file(sandbox.path(journal)).unwrap();
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("victim.png")).unwrap(), "precious");
    assert!(!sandbox.path("new").exists());
}

#[test]
fn a_file_that_is_not_a_journal_is_unchanged() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.txt", "a\n");
    let args = ["jobs.txt", "--set", "steps=1", "--set", "width=64", "--set", "height=64"];
    std::fs::create_dir(sandbox.path("out")).unwrap();
    for text in ["my notes, no newline", "line 1\nline 2, no newline", "{\"a\": 1}\n"] {
        write(&sandbox, "out/journal.jsonl", text);
        batch(&sandbox, &args).refused(&["out/journal.jsonl:1: is not a journal of kiln batch"]);
        assert_eq!(std::fs::read_to_string(sandbox.path("out/journal.jsonl")).unwrap(), text);
    }
    std::fs::remove_file(sandbox.path("out/journal.jsonl")).unwrap();
    // A name that no shard of a set has is not a journal.
    write(&sandbox, "out/journal-notes.jsonl", "my notes");
    assert_eq!(made(&batch(&sandbox, &args).succeeds()), 1);
    assert_eq!(std::fs::read_to_string(sandbox.path("out/journal-notes.jsonl")).unwrap(), "my notes");
}

/// Journal lines are lost that describe existing images.
#[test]
fn a_journal_without_its_last_lines_resumes() {
    let sandbox = Sandbox::new();
    let jobs = (0..3).map(|i| job(&format!("\"prompt\": \"{i}\""))).collect::<String>();
    write(&sandbox, "jobs.jsonl", &jobs);
    batch(&sandbox, &["jobs.jsonl"]).succeeds();
    let before = files(&sandbox.path("out"));
    let journal = std::fs::read(sandbox.path("out/journal.jsonl")).unwrap();
    for lost in [10, 300] {
        std::fs::write(sandbox.path("out/journal.jsonl"), &journal[..journal.len() - lost]).unwrap();
        batch(&sandbox, &["jobs.jsonl"]).succeeds();
        assert!(files(&sandbox.path("out")) == before);
        assert!(index(&sandbox).iter().all(|row| row["state"] == "made"));
    }
    // A file that is not an image with these seeds belongs to others; that is reported before anything is generated.
    std::fs::write(sandbox.path("out/journal.jsonl"), &journal[..journal.len() - 300]).unwrap();
    for name in before.keys() {
        write(&sandbox, &format!("out/{name}"), "somebody's");
    }
    let run = batch(&sandbox, &["jobs.jsonl"]);
    assert!(run.status.code() == Some(2) && run.error().contains("exists already") && made(&run) == 0, "{run}");
}

/// A file size limit replaces a full disk: the journal fits, the images do not.
#[test]
fn a_full_disk_stops_a_set_without_failing_jobs() {
    let sandbox = Sandbox::new();
    let jobs = (0..6).map(|i| job(&format!("\"prompt\": \"{i}\", \"seed\": {i}"))).collect::<String>();
    write(&sandbox, "jobs.jsonl", &jobs.replacen(": 64", ": 16", 4)); // two that fit
    let run = sandbox.shell_kiln("ulimit -f 8; exec \"$@\"", &filled(&["jobs.jsonl", "--batch-size", "1"]));
    assert!(run.status.code() == Some(1) && run.error().contains("cannot write out/0000"), "{run}");
    let there = names(&sandbox);
    assert!(there.len() < 6 && there.iter().all(|name| name.ends_with(".png")), "{there:?}: {run}");
    let journal = std::fs::read_to_string(sandbox.path("out/journal.jsonl")).unwrap();
    assert!(!journal.contains("\"failed\""), "{journal}");
    assert!(index(&sandbox).iter().all(|row| row["state"] != "failed"));
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert_eq!(made(&run), 6 - there.len(), "exactly the missing ones: {run}");
    assert_eq!(names(&sandbox).len(), 6);
}

#[test]
fn a_folder_that_is_moved_away_ends_the_run() {
    let sandbox = Sandbox::new();
    let jobs = (0..400).map(|i| job(&format!("\"prompt\": \"{i}\""))).collect::<String>();
    write(&sandbox, "jobs.jsonl", &jobs);
    let script = "\"$@\" & run=$!; until ls out/*.png >ls 2>&1; do sleep 0.01; done; mv out away; wait $run";
    let run = sandbox.shell_kiln(script, &filled(&["jobs.jsonl"]));
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert!(run.error().contains("was moved or deleted during the run") && !sandbox.path("out").exists(), "{run}");
    let there = files(&sandbox.path("away")).into_keys().filter(|name| name.ends_with(".png")).count();
    assert!(there < 400 && made(&run) == there, "{there}: {run}");
    std::fs::rename(sandbox.path("away"), sandbox.path("out")).unwrap();
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert_eq!(made(&run), 400 - there, "{run}");
}

#[test]
fn subfolders_may_be_on_another_file_system() {
    let sandbox = Sandbox::new();
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    std::fs::create_dir(sandbox.path("out")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), sandbox.path("out/sub")).unwrap();
    let jobs = ["sub/a.png", "sub/deep/b.png", "c.png"];
    let jobs = jobs.map(|name| job(&format!("\"prompt\": \"a\", \"output\": \"{name}\"")));
    write(&sandbox, "jobs.jsonl", &jobs.concat());
    write(&sandbox, "out/sub/.kiln-0a1b2c.part", "left by a run that was killed");
    batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert_eq!(names(&sandbox), ["c.png", "sub/a.png", "sub/deep/b.png"]);
}

#[test]
fn a_contact_sheet_does_not_replace_an_image_of_its_set() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.jsonl", &job("\"prompt\": \"x\", \"seed\": 1, \"output\": \"a.png\""));
    for sheet in ["out/a.png", "./out/../out/a.png"] {
        let run = batch(&sandbox, &["jobs.jsonl", "--contact-sheet", sheet]);
        run.fails(2, &["--contact-sheet", "a.png is an image of the set"]);
    }
    batch(&sandbox, &["jobs.jsonl"]).succeeds();
    let before = files(&sandbox.path("out"));
    batch(&sandbox, &["jobs.jsonl", "--contact-sheet", "out/a.png"]).fails(2, &["is an image of the set"]);
    assert!(files(&sandbox.path("out")) == before);
    batch(&sandbox, &["jobs.jsonl", "--contact-sheet", "a.png"]).succeeds();
    assert!(sandbox.path("a.png").is_file() && files(&sandbox.path("out")) == before);
}

#[test]
fn a_set_and_its_shard_cannot_run_together() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.jsonl", &(0..400).map(|i| job(&format!("\"prompt\": \"{i}\""))).collect::<String>());
    let running = start(&sandbox, &["jobs.jsonl", "--shard", "1/2"]);
    running.wait_for((Lines::Output, ""), 1);
    for part in [&[][..], &["--shard", "3/4"], &["--shard", "1/3"], &["--shard", "1/2"]] {
        let run = batch(&sandbox, &[&["jobs.jsonl"], part].concat());
        assert!(run.status.code() == Some(1) && run.error().contains("another kiln batch is running"), "{run}");
    }
    // A shard without common images runs.
    batch(&sandbox, &["jobs.jsonl", "--shard", "400/400"]).succeeds();
    running.signal("INT");
    running.finish();
}
