//! Jobs, files and folders that are refused, and what they leave as it is.

use super::{batch, files, index, job, made, names, start, write};
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
