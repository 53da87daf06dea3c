//! Malformed and hostile input images through `kiln img2img` and `kiln upscale`: clear errors before weights are read, and no file.

use std::path::{Path, PathBuf};

use kiln_testkit::fixtures;

use crate::sandbox::{Run, Sandbox};

/// The image files of the tests of `kiln-media`.
fn valid() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../media/tests/fixtures/files");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    assert!(paths.len() > 60);
    paths
}

/// A PNG file that says it has `side` by `side` pixels, with few bytes of them.
fn huge(side: u32) -> Vec<u8> {
    let header = [b"IHDR".as_slice(), &side.to_be_bytes(), &side.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let crc = !header.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    [b"\x89PNG\r\n\x1a\n".as_slice(), &13u32.to_be_bytes(), &header, &crc.to_be_bytes(), &[0; 40]].concat()
}

/// Files that are no images: every format cut off in its first bytes, and what says to be more than it is.
fn hostile(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |name: String, data: &[u8]| {
        std::fs::write(folder.join(&name), data).unwrap();
        names.push(name);
    };
    for path in valid() {
        let (name, data) = (path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
        add(format!("cut-{name}"), &data[..data.len().min(30)]);
    }
    for (name, data) in [
        ("empty.png", Vec::new()),
        ("text.png", b"This is a note and not an image.".to_vec()),
        ("page.jpg", b"<!DOCTYPE html><html></html>".to_vec()),
        ("archive.webp", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
        ("checkpoint.png", b"\x30\0\0\0\0\0\0\0{\"__metadata__\":{}}".to_vec()),
        ("heif.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic".to_vec()),
        ("huge.png", huge(0x7fff_ffff)),
        ("large.png", huge(60_000)),
        ("huge.gif", [b"GIF89a".as_slice(), &[255; 4], &[0x80, 0, 0], &[0; 20]].concat()),
        ("huge.bmp", [b"BM".as_slice(), &[0; 8], &54u32.to_le_bytes(), &40u32.to_le_bytes(), &[255; 90]].concat()),
        ("riff.webp", b"RIFF\xff\xff\xff\xffWEBPVP8X\xff\xff\xff\xff".to_vec()),
    ] {
        add(name.into(), &data);
    }
    names
}

/// A run that was refused for `name`, and wrote nothing.
fn check(run: &Run, name: &str, sandbox: &Sandbox) {
    assert!(matches!(run.status.code(), Some(1 | 2)), "{name}: {run}");
    let error = run.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(error.contains(name), "{name}: {run}");
    assert!(!run.stderr.contains("panicked"), "{name}: {run}");
    assert!(!sandbox.path("out.png").exists(), "{name}");
}

#[test]
fn files_that_are_no_images_are_refused_before_weights_are_read() {
    let sandbox = Sandbox::new();
    let names = hostile(&sandbox.path("."));
    assert!(names.len() >= 40, "{}", names.len());
    let model = fixtures("models/sd1").display().to_string();
    let image = fixtures("inpaint/image.png").display().to_string();
    for (i, name) in names.iter().enumerate() {
        let base = ["img2img", "a pear", "-m", &model, "--steps", "2", "-o", "out.png"];
        // As the image, and for every third as the mask.
        let inputs = if i % 3 == 0 { vec!["-i", &image, "--mask", name] } else { vec!["-i", name] };
        let run = sandbox.kiln(&[&base[..], &inputs].concat());
        check(&run, name, &sandbox);
        assert!(!run.stderr.contains("loading"), "{name}: {run}");
        check(&sandbox.kiln(&["upscale", name, "-o", "out.png", "--device", "cpu"]), name, &sandbox);
    }
    for name in ["folder", "/dev/null", "missing.png"] {
        std::fs::create_dir_all(sandbox.path("folder")).unwrap();
        let base = ["img2img", "a pear", "-m", &model, "--steps", "2", "-o", "out.png", "-i", name];
        check(&sandbox.kiln(&base), name, &sandbox);
    }
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn the_standard_input_is_read_by_both_names_and_jobs_have_relative_paths() {
    let sandbox = Sandbox::new();
    let model = fixtures("models/sd1").display().to_string();
    let image = fixtures("inpaint/image.png").display().to_string();
    let run = |input: &str, output: &str| {
        let script = format!("\"$@\" < '{image}'");
        let base = ["img2img", "a pear", "-m", &model, "--steps", "2", "--seed", "3", "-i", input, "-o", output];
        sandbox.shell_kiln(&script, &base).succeeds();
    };
    run("-", "a.png");
    run("/dev/stdin", "b.png");
    std::fs::create_dir_all(sandbox.path("in")).unwrap();
    std::fs::copy(&image, sandbox.path("in/apple.png")).unwrap();
    let job = |init: &str, seed: usize| {
        format!("{{\"prompt\": \"a pear\", \"init\": \"{init}\", \"steps\": 2, \"seed\": {seed}}}\n")
    };
    std::fs::write(sandbox.path("jobs.jsonl"), job("in/apple.png", 3) + &job("in/apple.png", 4)).unwrap();
    sandbox.kiln(&["batch", "jobs.jsonl", "-m", &model, "-o", "out"]).succeeds();
    let pixels =
        |path: &Path| kiln_media::open(path, &kiln_media::DecodeOptions::default()).unwrap().rgb().data().to_vec();
    let mut made: Vec<PathBuf> =
        std::fs::read_dir(sandbox.path("out")).unwrap().map(|entry| entry.unwrap().path()).collect();
    made.retain(|path| path.extension().is_some_and(|extension| extension == "png"));
    made.sort();
    assert_eq!(made.len(), 2);
    let expected = pixels(&sandbox.path("a.png"));
    assert_eq!(pixels(&sandbox.path("b.png")), expected);
    assert_eq!(pixels(&made[0]), expected);
    assert_ne!(pixels(&made[1]), expected);
    // A file that is gone fails its own line before anything runs.
    std::fs::write(sandbox.path("bad.jsonl"), job("in/apple.png", 3) + &job("in/none.png", 4)).unwrap();
    let run = sandbox.kiln(&["batch", "bad.jsonl", "-m", &model, "-o", "other"]);
    assert!(!run.status.success() && run.stderr.contains("bad.jsonl:2") && run.stderr.contains("in/none.png"), "{run}");
}
