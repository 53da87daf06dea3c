//! Jobs, files and folders that are refused, and what they leave as it is.

use kiln_testkit::fixtures;

use super::{batch, files, filled, index, job, made, start, write};
use crate::images;
use crate::sandbox::{Lines, Sandbox};

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
        let expected = ["jobs.txt has 2 errors", "\njobs.txt:1: ", "\njobs.txt:2: ", expected];
        batch(&sandbox, &["jobs.txt", "--set", field]).refused(&expected);
    }
    assert!(!sandbox.path("out").exists(), "nothing is created");
    // Conflicting names.
    std::fs::create_dir(sandbox.path("out")).unwrap();
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
    std::fs::create_dir(sandbox.path("out")).unwrap();
    write(&sandbox, "out/b.png", "somebody's");
    batch(&sandbox, &["jobs.jsonl"]).fails(2, &["out/b.png exists already", "--overwrite"]);
    batch(&sandbox, &["jobs.jsonl", "--overwrite"]).succeeds();
    images::read(&sandbox.path("out/b.png"));
    batch(&sandbox, &["nowhere.jsonl"]).fails(1, &["nowhere.jsonl: No such file"]);
}

/// Errors of all kinds, in the order of lines, whatever stage finds them. `--check` reports what a run would.
#[test]
fn all_errors_of_a_file_are_reported_at_once_and_nothing_is_written() {
    let sandbox = Sandbox::new();
    let lines = [
        job("\"prompt\": \"a\", \"seed\": 1"),
        job("\"prompt\": \"b\", \"eta\": -1, \"cfg\": -1, \"lora\": \"no.safetensors\""),
        job("\"prompt\": \"b\", \"stepz\": 3, \"sampler\": \"eulr\""),
        job("\"prompt\": \"c\", \"init\": \"no.png\", \"model\": \"nowhere\""),
        "{\"prompt\"\n".into(),
        job("\"seed\": 4"),
        job("\"prompt\": \"d\", \"output\": \"d.png\""),
        job("\"prompt\": \"e\", \"output\": \"d.png\""),
        job("\"prompt\": \"f\", \"control\": \"net=no.safetensors,image=no.png\""),
    ];
    write(&sandbox, "jobs.jsonl", &lines.concat());
    let expected = [
        (2, "`eta` is -1"),
        (2, "`cfg_scale` is -1"),
        (2, "no.safetensors: not found"),
        (3, "sampler: "),
        (3, "unknown field `stepz`, did you mean steps"),
        (4, "nowhere: not found"),
        (4, "no.png: not found"),
        (5, "is not a JSON object"),
        (6, "the job has no prompt"),
        (8, "`output` is 'd.png' in line 8, and in line 7"),
        (9, "no.safetensors: not found"),
        (9, "no.png: not found"),
    ];
    let run = batch(&sandbox, &["jobs.jsonl"]).refused(&["jobs.jsonl has 12 errors, nothing was made"]);
    let check = batch(&sandbox, &["jobs.jsonl", "--check"]).fails(2, &["jobs.jsonl has 12 errors"]);
    for run in [&run, &check] {
        let found: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("jobs.jsonl:")).collect();
        let lines: Vec<String> = found.iter().map(|line| line.split(':').nth(1).unwrap().to_string()).collect();
        assert_eq!(lines, expected.map(|(line, _)| line.to_string()), "{run}");
        for (line, problem) in expected {
            let begin = format!("jobs.jsonl:{line}: ");
            assert!(found.iter().any(|text| text.starts_with(&begin) && text.contains(problem)), "{problem}: {run}");
        }
        assert!(run.stderr.contains("`kiln batch --fields` lists the fields of a job"), "{run}");
        assert!(run.stderr.len() < 4000, "no list of all fields: {run}");
    }
    assert_eq!(sandbox.names(), ["jobs.jsonl"]);
    // With `--log-format json` each is an object; a file without errors has the exit status 0.
    let json = batch(&sandbox, &["jobs.jsonl", "--check", "--log-format", "json"]);
    assert_eq!(json.status.code(), Some(2), "{json}");
    let problems = json.stderr.lines().filter(|line| line.contains("\"event\":\"problem\""));
    assert_eq!(problems.count(), 12, "{json}");
    write(&sandbox, "jobs.jsonl", &[&*lines[0], &*lines[6]].concat());
    let run = batch(&sandbox, &["jobs.jsonl", "--check"]).succeeds();
    assert!(run.stderr.contains("2 images: no errors, 2 to generate"), "{run}");
    assert_eq!(sandbox.names(), ["jobs.jsonl"]);
    // Of very many errors the first are shown.
    write(&sandbox, "jobs.jsonl", &job("\"prompt\": \"a\", \"stepz\": 1").repeat(50));
    let run = batch(&sandbox, &["jobs.jsonl"]).refused(&["jobs.jsonl has 50 errors", "\nand 30 more"]);
    assert_eq!(run.stderr.matches("unknown field").count(), 20, "{run}");
    assert_eq!(batch(&sandbox, &["jobs.jsonl", "--check"]).stderr.matches("unknown field").count(), 50);
}

/// A job with several wrong values has an error for each, also of those that only its model refuses. A check needs no folder.
#[test]
fn all_wrong_values_of_a_job_are_reported() {
    let sandbox = Sandbox::new();
    let lines = [
        "{\"prompt\": \"a\", \"width\": 65, \"height\": 67, \"steps\": 0, \"clip_skip\": 9}\n",
        "{\"prompt\": \"a\", \"steps\": \"x\", \"cfg\": -1, \"sampler\": \"eulr\"}\n",
    ];
    write(&sandbox, "jobs.jsonl", &lines.concat());
    let model = fixtures("models/sd1").display().to_string();
    let run = sandbox.kiln(&["batch", "-m", &model, "--device", "cpu", "jobs.jsonl", "--check"]);
    let run = run.fails(2, &["jobs.jsonl has 7 errors"]);
    for problem in [
        ":1: `width` is 65",
        ":1: `height` is 67",
        ":1: `steps` is 0",
        ":1: `clip_skip` is 9",
        ":2: steps: \"x\" is not a whole number",
        ":2: `cfg_scale` is -1",
        ":2: sampler: unknown sampler \"eulr\", did you mean euler or euler_a?\n",
    ] {
        assert!(run.stderr.contains(problem), "{problem}: {run}");
    }
    assert_eq!(sandbox.names(), ["jobs.jsonl"]);
    write(&sandbox, "jobs.jsonl", &job("\"prompt\": \"a\""));
    let run = sandbox.kiln(&["batch", "-m", &model, "--device", "cpu", "jobs.jsonl", "--check"]).succeeds();
    assert!(run.stderr.contains("1 image: no errors, 1 to generate"), "{run}");
    sandbox.kiln(&["batch", "-m", &model, "jobs.jsonl"]).refused(&["--output <DIR>"]);
}

/// What exists is known, and stays as it is.
#[test]
fn a_check_knows_the_images_of_a_set() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.jsonl", &job("\"prompt\": \"a\", \"seed\": 1"));
    batch(&sandbox, &["jobs.jsonl"]).succeeds();
    let all = || files(&sandbox.path("out"));
    let (before, journal) = (all(), std::fs::read(sandbox.path("out/journal.jsonl")).unwrap());
    let two = [job("\"prompt\": \"a\", \"seed\": 1"), job("\"prompt\": \"b\", \"seed\": 2, \"model\": \"hf:no/such\"")];
    write(&sandbox, "jobs.jsonl", &two.concat());
    let run = batch(&sandbox, &["jobs.jsonl", "--check"]).succeeds();
    assert!(run.stderr.contains("2 images: no errors, 1 to generate"), "{run}");
    let unchecked = "warning: jobs.jsonl:2: hf:no/such is not downloaded; 1 image could not be checked against it";
    assert!(run.stderr.contains(unchecked), "{run}");
    assert!(all() == before && std::fs::read(sandbox.path("out/journal.jsonl")).unwrap() == journal);
}

/// Small allocations fail there, which would end the process without a message.
#[cfg(target_os = "linux")]
#[test]
fn an_address_space_without_room_for_an_image_is_an_error() {
    let sandbox = Sandbox::new();
    write(&sandbox, "jobs.txt", "a\n");
    for limit in (120..192).map(|mib| mib << 10) {
        let run = sandbox.shell_kiln(&format!("ulimit -v {limit}; exec \"$@\""), &filled(&["jobs.txt"]));
        run.fails(1, &["the address space of this process is limited to", "(ulimit -v)", "--vram-budget"]);
    }
    assert_eq!(sandbox.names(), ["jobs.txt"]);
}

#[test]
fn the_fields_of_a_job_are_listed_on_request() {
    let sandbox = Sandbox::new();
    let run = sandbox.kiln(&["batch", "--fields"]).succeeds();
    for field in ["cfg_scale, cfg", "negative_prompt", "output", "model", "width"] {
        assert!(run.stdout.lines().any(|line| line.starts_with(field)), "{field}: {run}");
    }
    sandbox.kiln(&["batch", "--fields", "jobs.jsonl"]).refused(&["--fields"]);
    assert!(sandbox.names().is_empty());
}

/// A FIFO may never have a writer; a pipe that the shell opened has one.
#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn jobs_are_regular_files_or_pipes_of_the_shell() {
    let sandbox = Sandbox::new();
    std::process::Command::new("mkfifo").arg(sandbox.path("fifo.jsonl")).output().unwrap();
    for (name, kind) in [("fifo.jsonl", "a FIFO"), ("/dev/zero", "a device")] {
        batch(&sandbox, &[name]).fails(1, &[&format!("{name}: is {kind}, expected a regular file")]);
    }
    let script = "printf 'a cat\\n' | \"$@\" 3<&0 --check --format text";
    let run = sandbox.shell_kiln(script, &filled(&["/dev/fd/3"])).succeeds();
    assert!(run.stderr.contains("1 image: no errors"), "{run}");
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

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
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
