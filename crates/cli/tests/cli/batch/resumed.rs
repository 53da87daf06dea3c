//! Sets that stop early: killed, interrupted, without room or without their folder; and how they go on.

use serde_json::Value;

use super::{batch, files, filled, index, job, made, names, sixteen, start, write};
use crate::images;
use crate::sandbox::{Lines, Sandbox};

#[test]
fn a_set_killed_at_any_time_resumes() {
    let sandbox = Sandbox::new();
    sixteen(&sandbox);
    let mut seen = 0;
    // The run is killed after this number of generated images; the first time as soon as it has started.
    for (kill, images) in [0, 1, 2, 0, 1, 3, 1].into_iter().enumerate() {
        let mut running = start(&sandbox, &["jobs.jsonl", "--batch-size", ["1", "3"][kill % 2]]);
        running.wait_for((Lines::Output, ""), images);
        running.kill();
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

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
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

/// The process was killed after the journal had the image, and before the image had its name.
#[test]
fn an_image_that_was_finished_and_not_renamed_is_not_made_twice() {
    let sandbox = Sandbox::new();
    let jobs = (0..3).map(|i| job(&format!("\"prompt\": \"{i}\", \"output\": \"d/{i}.png\""))).collect::<String>();
    write(&sandbox, "jobs.jsonl", &jobs);
    batch(&sandbox, &["jobs.jsonl"]).succeeds();
    let before = files(&sandbox.path("out"));
    let journal = std::fs::read_to_string(sandbox.path("out/journal.jsonl")).unwrap();
    let lines: Vec<Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let part_of = |name: &str| {
        let plan = lines.iter().find(|line| line["file"] == name).unwrap();
        let made = lines.iter().find(|line| line["made"] == plan["plan"]).unwrap();
        made["part"].as_str().unwrap().to_string()
    };
    let part = |i: usize| sandbox.path(&format!("out/d/{}", part_of(&format!("d/{i}.png"))));
    let image = |i: usize| sandbox.path(&format!("out/d/{i}.png"));
    std::fs::rename(image(0), part(0)).unwrap();
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert!(made(&run) == 0 && files(&sandbox.path("out")) == before, "{run}");
    // Other bytes are not taken for the image, and an image that is there stays.
    std::fs::write(part(1), &before["d/0.png"][..100]).unwrap();
    std::fs::remove_file(image(1)).unwrap();
    std::fs::copy(image(2), part(2)).unwrap();
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    assert!(made(&run) == 1 && files(&sandbox.path("out")) == before, "{run}");
}

/// A file size limit replaces a full disk: the journal fits, the images do not.
#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
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

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn a_folder_that_is_moved_away_ends_the_run() {
    let sandbox = Sandbox::new();
    let jobs = (0..400).map(|i| job(&format!("\"prompt\": \"{i}\""))).collect::<String>();
    write(&sandbox, "jobs.jsonl", &jobs);
    let script = "\"$@\" & run=$!; until ls out/*.png >ls 2>&1; do sleep 0.01; done; mv out away; wait $run";
    let run = sandbox.shell_kiln(script, &filled(&["jobs.jsonl"]));
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert!(run.error().contains("was moved or deleted during the run") && !sandbox.path("out").exists(), "{run}");
    let left = files(&sandbox.path("away"));
    let count = |suffix| left.keys().filter(|name| name.ends_with(suffix)).count();
    let (there, parts) = (count(".png"), count(".part"));
    assert!(there < 400 && made(&run) == there, "{there}: {run}");
    std::fs::rename(sandbox.path("away"), sandbox.path("out")).unwrap();
    let run = batch(&sandbox, &["jobs.jsonl"]).succeeds();
    // A part that was whole when the folder was moved gets its name and is not made again.
    assert!((400 - there - parts..=400 - there).contains(&made(&run)), "{there} and {parts}: {run}");
    assert_eq!(names(&sandbox).len(), 400);
}

#[cfg(unix)]
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
