//! Folders whose images are paired by names and by settings.

use std::path::Path;

use kiln_compare::{CompareOptions, Comparison, ImageSettings, PairBy, Report};
use kiln_media::{Rgb8Image, StillFormat, encode, encode_png};
use tempfile::TempDir;

/// Writes a PNG, perhaps with AUTOMATIC1111's text.
fn image(path: &Path, value: u8, text: Option<&str>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let texts: Vec<(&str, &str)> = text.map(|text| ("parameters", text)).into_iter().collect();
    std::fs::write(path, encode_png((16, 16), &[value; 16 * 16 * 3], &texts).unwrap()).unwrap();
}

fn compared(folder: &TempDir, pair_by: PairBy) -> Report {
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let options = CompareOptions { a, b, pair_by: Some(pair_by), ..CompareOptions::default() };
    Comparison::plan(&options).unwrap().run(&mut |_| std::ops::ControlFlow::Continue(())).unwrap()
}

fn names(report: &Report) -> Vec<&str> {
    report.pairs.iter().map(|pair| pair.pair.name.as_str()).collect()
}

#[test]
fn names_come_before_names_without_endings() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in [
        "a/one.png",
        "b/one.png",
        "b/one.webp.png",
        "a/two.png",
        "a/odd \u{202e}\nname ü.png",
        "b/odd \u{202e}\nname ü.png",
    ] {
        image(&path(name), 7, None);
    }
    let gray = Rgb8Image::filled(16, 16, [7; 3]).unwrap();
    std::fs::write(path("b/two.jpg"), encode(&gray, StillFormat::Jpeg(90)).unwrap()).unwrap();
    std::fs::write(path("a/.hidden.png"), "").unwrap();
    std::fs::write(path("a/journal.jsonl"), "{}").unwrap();
    std::fs::create_dir(path("a/folder.png")).unwrap();
    let report = compared(&folder, PairBy::Name);
    assert_eq!(names(&report), ["odd \u{202e}\nname ü.png", "one.png", "two.png, two.jpg"]);
    assert!(report.pairs.iter().all(|pair| pair.problems.is_empty()), "{:?}", report.pairs);
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].contains("one.webp.png") && report.problems[0].contains("has no image of this name"));
}

#[test]
fn settings_pair_images_of_other_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = |prompt: &str, seed: u64| format!("{prompt}\nSteps: 4, Sampler: Euler, Seed: {seed}, Size: 16x16");
    for (name, prompt, seed) in [
        ("a/1.png", "a fox", 1),
        ("a/2.png", "a fox", 2),
        ("a/3.png", "a hen", 1),
        ("b/x.png", "a fox", 2),
        ("b/y.png", "a fox", 1),
        ("b/z.png", "a cow", 1),
        ("a/4.png", "twice", 5),
        ("b/4.png", "twice", 5),
        ("b/5.png", "twice", 5),
    ] {
        image(&path(name), 7, Some(&text(prompt, seed)));
    }
    image(&path("b/none.png"), 7, None);
    image(&path("b/part.png"), 7, Some("a fox\nSteps: 4, Sampler: Euler, Size: 16x16"));
    let settings = ImageSettings::read(&path("a/2.png")).unwrap();
    assert_eq!(settings, ImageSettings { prompt: "a fox".into(), seed: 2, size: [16, 16] });
    let report = compared(&folder, PairBy::Settings);
    assert_eq!(names(&report), ["1.png, y.png", "2.png, x.png"]);
    let problems = report.problems.join("\n");
    for expected in [
        "none.png: it has no settings",
        "part.png: its settings have no seed",
        "3.png: ",
        "z.png: ",
        "the same prompt, seed and size have ",
    ] {
        assert_eq!(problems.matches(expected).count(), 1, "{expected}: {problems}");
    }
    assert!(report.failure().is_some());
}

/// Two images are compared whatever their names are, and by settings only if they have the same.
#[test]
fn two_files_are_a_pair() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("x.png"), folder.path().join("y.png"));
    image(&a, 7, Some("a fox\nSteps: 4, Sampler: Euler, Seed: 1, Size: 16x16"));
    image(&b, 8, Some("a fox\nSteps: 4, Sampler: Euler, Seed: 2, Size: 16x16"));
    for (pair_by, pairs) in [(PairBy::Name, 1), (PairBy::Settings, 0)] {
        let pair_by = Some(pair_by);
        let options = CompareOptions { a: a.clone(), b: b.clone(), pair_by, ..CompareOptions::default() };
        assert_eq!(Comparison::plan(&options).unwrap().steps(), pairs);
    }
    let message = |a: &Path, b: &Path| {
        let options = CompareOptions { a: a.into(), b: b.into(), ..CompareOptions::default() };
        Comparison::plan(&options).err().unwrap().to_string()
    };
    assert!(message(folder.path(), &b).contains("expected two images or two folders"));
    assert!(message(&b, folder.path()).contains("expected two images or two folders"));
    assert!(message(&a, &folder.path().join("none")).contains("not found; looked for an image"));
}
