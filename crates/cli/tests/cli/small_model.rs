//! The small model that is a part of the program: an installed program draws in an empty folder.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use kiln_testkit::repository;

use crate::sandbox::Sandbox;

const UNET: &str = "unet/diffusion_pytorch_model.safetensors";

/// The arguments of a small image.
fn draw<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args =
        ["txt2img", "a red apple", "-W", "64", "-H", "64", "--steps", "1", "-s", "1", "--device", "cpu", "-o", name];
    [&args, more].concat()
}

/// The folder of the copy in a cache.
fn copy_in(cache: &Path) -> PathBuf {
    let entries = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    let mut places = entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("emoji-"));
    let place = places.next().unwrap();
    assert!(places.next().is_none());
    place.join("emoji")
}

#[test]
fn an_installed_program_draws_without_a_model() {
    let sandbox = Sandbox::new();
    let cache = sandbox.path("cache");
    let variables = [("KILN_CACHE", cache.as_os_str())];
    let start = |args: &[&str]| sandbox.start_installed(&variables, args);
    // Two processes write the copy at the same time.
    let both = [draw("a.png", &[]), draw("b.png", &["-m", "emoji"])].map(|args| start(&args));
    let [first, second] = both.map(|run| run.finish().succeeds());
    let line = first.stderr.lines().next().unwrap();
    assert!(
        line.starts_with("no --model was given: using emoji, the small model") && line.contains("kiln pull"),
        "{first}"
    );
    assert!(!second.stderr.contains("no --model"), "{second}");
    let copy = copy_in(&cache);
    let original = repository().join("models/emoji");
    assert!(fs::read(copy.join(UNET)).unwrap() == fs::read(original.join(UNET)).unwrap());
    let expected = sandbox.kiln(&draw("c.png", &["-m", original.to_str().unwrap()])).succeeds();
    let image = |name: &str| fs::read(sandbox.path(name)).unwrap();
    // The settings in the image too.
    assert!(image("a.png") == image("b.png") && image("a.png") == image("c.png"), "{expected}");

    // A complete copy is not written again, and a damaged one is.
    let changed = |name: &str| copy.join(name).metadata().unwrap().modified().unwrap();
    let (vae, index) = ("vae/diffusion_pytorch_model.safetensors", changed("model_index.json"));
    let mut bytes = fs::read(copy.join(UNET)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(copy.join(UNET), bytes).unwrap();
    fs::write(copy.join(vae), "half").unwrap();
    let run = start(&draw("d.png", &["-q"])).finish().succeeds();
    assert!(run.stderr.is_empty() && image("a.png") == image("d.png"), "{run}");
    assert_eq!(changed("model_index.json"), index);
    assert!(fs::read(copy.join(UNET)).unwrap() == fs::read(original.join(UNET)).unwrap());
}

#[test]
fn a_cache_that_cannot_be_written_is_a_warning() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("file"), "").unwrap();
    fs::create_dir(sandbox.path("tmp")).unwrap();
    let (cache, temporary) = (sandbox.path("file"), sandbox.path("tmp"));
    let variables: [(&str, &OsStr); 2] = [("KILN_CACHE", cache.as_os_str()), ("TMPDIR", temporary.as_os_str())];
    let run = sandbox.start_installed(&variables, &draw("a.png", &["--log-format", "json"])).finish().succeeds();
    assert!(
        run.stderr.contains("the small model is in a temporary folder") && run.stderr.contains("KILN_CACHE"),
        "{run}"
    );
    assert!(run.stderr.lines().all(|line| line.starts_with('{')) && !run.stderr.contains("no --model"), "{run}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "the temporary copy is still there");
}
