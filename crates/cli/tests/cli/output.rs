//! The paths and contents of images and latents.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::images::{self, Text};
use crate::models::ModelCopy;
use crate::sandbox::Sandbox;

#[test]
fn the_default_name_has_the_next_free_index() {
    let sandbox = Sandbox::new();
    for expected in ["kiln-0001-7.png", "kiln-0002-7.png"] {
        let run = sandbox.txt2img(&["an apple", "-s", "7"]).succeeds();
        assert_eq!((run.images(), run.seeds()), (vec![Path::new(".").join(expected)], (7, 7)));
    }
    fs::write(sandbox.path("kiln-0041-3.png"), "").unwrap();
    fs::write(sandbox.path("kiln-99-of-3.png"), "").unwrap(); // not a file of this run
    sandbox.txt2img(&["an apple", "-s", "8", "-b", "2"]).succeeds();
    let expected = [
        "kiln-0001-7.png",
        "kiln-0002-7.png",
        "kiln-0041-3.png",
        "kiln-0042-8.png",
        "kiln-0043-9.png",
        "kiln-99-of-3.png",
    ];
    assert_eq!(sandbox.names(), expected);
}

#[test]
fn patterns_have_index_and_seed() {
    for (pattern, expected) in [
        ("{seed}.png", &["41.png", "42.png", "43.png"][..]),
        ("apple-{index}.png", &["apple-0001.png", "apple-0002.png", "apple-0003.png"]),
        ("{seed}_{index}_{seed}.png", &["41_0001_41.png", "42_0002_42.png", "43_0003_43.png"]),
        ("apple.png", &["apple-0001.png", "apple-0002.png", "apple-0003.png"]), // numbered without a request, because the names would be equal
        ("🍎 {seed}.PNG", &["🍎 41.PNG", "🍎 42.PNG", "🍎 43.PNG"]),
        ("./{seed}.png", &["41.png", "42.png", "43.png"]),
    ] {
        let sandbox = Sandbox::new();
        let run = sandbox.txt2img(&["an apple", "-s", "41", "-b", "3", "-o", pattern]).succeeds();
        assert_eq!(sandbox.names(), expected, "{pattern}");
        assert_eq!((run.images().len(), run.seeds()), (3, (41, 43)), "{pattern}");
        for path in run.images() {
            images::read(&sandbox.path(path.to_str().unwrap()));
        }
    }
}

#[test]
fn batches_of_any_shape_count_equally() {
    for (count, size) in [("4", "1"), ("2", "2"), ("1", "4")] {
        let sandbox = Sandbox::new();
        let files = ["an apple", "-s", "0", "-o", "{index}-{seed}.png"];
        sandbox.txt2img(&[&files[..], &["-b", count, "--batch-size", size]].concat()).succeeds();
        assert_eq!(sandbox.names(), ["0001-0.png", "0002-1.png", "0003-2.png", "0004-3.png"], "{count} x {size}");
    }
}

#[test]
fn seeds_wrap_after_the_largest() {
    let sandbox = Sandbox::new();
    sandbox.txt2img(&["an apple", "-s", "18446744073709551615", "-b", "2", "-o", "{seed}.png"]).succeeds();
    assert_eq!(sandbox.names(), ["0.png", "18446744073709551615.png"]);
}

#[test]
fn a_random_seed_is_printed() {
    let sandbox = Sandbox::new();
    let run = sandbox.txt2img(&["an apple", "-s", "-1", "-o", "apple.png"]).succeeds();
    let (seed, _) = run.seeds();
    let Text::Latin1(text) = images::read(&sandbox.path("apple.png")).parameters else { panic!("iTXt") };
    assert!(text.contains(&format!("Seed: {seed}, ")), "{text}");
    sandbox.txt2img(&["an apple", "-s", &seed.to_string(), "-o", "again.png"]).succeeds();
    assert!(fs::read(sandbox.path("apple.png")).unwrap() == fs::read(sandbox.path("again.png")).unwrap());
}

#[test]
fn a_folder_gets_the_default_names() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("apples.png")).unwrap();
    for folder in ["apples.png", "apples.png/", "./apples.png"] {
        sandbox.txt2img(&["an apple", "-s", "7", "-o", folder]).succeeds();
    }
    assert_eq!(sandbox.names(), ["apples.png"]);
    for i in 1..=3 {
        images::read(&sandbox.path(&format!("apples.png/kiln-000{i}-7.png")));
    }
}

/// The model's weights are missing: an error with another reason was reported before they were read.
#[test]
fn an_impossible_output_is_refused_before_the_model_is_loaded() {
    let sandbox = Sandbox::new();
    let model = ModelCopy::of("sd1");
    model.remove("unet/diffusion_pytorch_model.safetensors");
    let args = ["an apple", "-s", "7", "-m", model.path()];
    sandbox.txt2img(&args).fails(1, &["no weights found"]);

    fs::write(sandbox.path("taken.png"), "old").unwrap();
    fs::write(sandbox.path("7.png"), "old").unwrap();
    fs::create_dir(sandbox.path("{seed}.png")).unwrap();
    fs::create_dir(sandbox.path("8.png")).unwrap();
    let before = sandbox.names();
    let run = |more: &[&str]| sandbox.txt2img(&[&args, more].concat());
    run(&["-o", "taken.png"]).refused(&["taken.png exists already", "--overwrite"]);
    run(&["-o", "./{seed}.png"]).fails(1, &["no weights found"]); // a folder with that name, which is used
    fs::remove_dir(sandbox.path("{seed}.png")).unwrap();
    run(&["-o", "./{seed}.png"]).refused(&["7.png exists already", "--overwrite"]);
    run(&["-o", "{seed}.png", "-b", "3", "--overwrite"]).refused(&["--output", "8.png is a folder"]);
    run(&["-o", "no/where.png"]).fails(1, &["no: not found"]);
    run(&["-o", "taken.png/apple.png"]).fails(1, &["taken.png: is not a folder", "a folder for the images"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", sandbox.path("dangling.png")).unwrap();
        run(&["-o", "dangling.png"]).refused(&["dangling.png exists already", "--overwrite"]);
        fs::remove_file(sandbox.path("dangling.png")).unwrap();
    }
    run(&["--latents-out", "8.png"]).refused(&["--latents-out", "found a folder"]);
    run(&["--latents-out", "no/where.safetensors"]).fails(1, &["no: not found"]);
    assert_eq!(fs::read(sandbox.path("taken.png")).unwrap(), b"old");
    assert_eq!(sandbox.names(), before.into_iter().filter(|name| name != "{seed}.png").collect::<Vec<_>>());
}

/// Windows opens a device for such names in every folder, and an alternate stream of a file for a name with a colon. Other
/// systems have files of these names.
#[test]
fn names_that_windows_reserves_are_refused_there() {
    let sandbox = Sandbox::new();
    for name in ["con.png", "aux-{seed}.png", "what?.png", "COM1.x.png"] {
        let run = sandbox.txt2img(&["an apple", "-s", "7", "-o", name]);
        if cfg!(windows) && name != "aux-{seed}.png" {
            run.refused(&["--output", "Windows"]);
        } else {
            run.succeeds();
            assert!(sandbox.path(&name.replace("{seed}", "7")).is_file(), "{name}");
        }
    }
}

/// Spaces, letters of several alphabets, and more than the 260 characters that programs of Windows have without a manifest.
#[test]
fn folders_and_names_may_be_long_and_have_any_letters() {
    let sandbox = Sandbox::new();
    let mut folder = sandbox.path("Bilder für Zoë 狐");
    for _ in 0..6 {
        folder.push("ein langer Name mit vielen Zeichen für einen Ordner");
    }
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("Füchslein & Söhne.png");
    assert!(path.as_os_str().len() > 300, "{}", path.display());
    sandbox.txt2img(&["ein Äpfelchen", "-o", path.to_str().unwrap()]).succeeds();
    assert_eq!(images::read(&path).size, (64, 64));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn overwrite_replaces() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("apple.png"), "old").unwrap();
    sandbox.txt2img(&["an apple", "-o", "apple.png", "--overwrite"]).succeeds();
    assert_eq!(images::read(&sandbox.path("apple.png")).size, (64, 64));
    assert_eq!(sandbox.names(), ["apple.png"]);
}

#[test]
fn a_second_run_with_overwrite_replaces_the_files_of_the_first() {
    let sandbox = Sandbox::new();
    for seed in ["1", "2"] {
        sandbox.txt2img(&["an apple", "-s", seed, "-b", "2", "-o", "x-{index}.png", "--overwrite"]).succeeds();
        assert_eq!(sandbox.names(), ["x-0001.png", "x-0002.png"]);
    }
    sandbox.txt2img(&["an apple", "-o", "x-{index}.png"]).succeeds();
    assert_eq!(sandbox.names(), ["x-0001.png", "x-0002.png", "x-0003.png"]);
}

/// An image path that is a link is replaced; the target of the link is not.
#[cfg(unix)]
#[test]
fn overwrite_does_not_write_through_links() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("precious.txt"), "old").unwrap();
    std::os::unix::fs::symlink(sandbox.path("precious.txt"), sandbox.path("apple.png")).unwrap();
    sandbox.txt2img(&["an apple", "-o", "apple.png", "--overwrite"]).succeeds();
    images::read(&sandbox.path("apple.png"));
    assert_eq!(fs::read(sandbox.path("precious.txt")).unwrap(), b"old");
}

#[test]
fn images_have_the_requested_size() {
    for (width, height) in [(64, 64), (8, 8), (8, 128), (72, 40)] {
        let sandbox = Sandbox::new();
        let (w, h) = (width.to_string(), height.to_string());
        sandbox.txt2img(&["an apple", "-W", &w, "-H", &h, "-o", "apple.png"]).succeeds();
        assert_eq!(images::read(&sandbox.path("apple.png")).size, (width, height));
    }
}

#[test]
fn images_contain_their_settings() {
    let settings = "Steps: 1, Sampler: Euler a, Schedule type: Karras, CFG scale: 3.5, Seed: 7, Size: 64x64, \
                    Model: sd1, RNG: CPU, Version: Kiln ";
    let flags = ["-s", "7", "--cfg-scale", "3.5", "--sampler", "euler_a", "--scheduler", "karras", "-o", "x.png"];
    for (prompt, negative, latin1) in [
        ("a red apple", "", true),
        ("a red apple", "blurry, dark", true),
        ("ein Äpfelchen, 20 °C", "", true),
        ("赤いりんご", "", false),
        ("an 🍎", "dark", false),
        ("an apple", "ぼやけた", false),
        ("two\nlines, \"quoted\": \\ and\ttabs", "", true),
    ] {
        let sandbox = Sandbox::new();
        let negatives: &[&str] = if negative.is_empty() { &[] } else { &["-n", negative] };
        sandbox.txt2img(&[&[prompt], negatives, &flags].concat()).succeeds();
        let mut expected = prompt.to_string();
        if !negative.is_empty() {
            expected += &format!("\nNegative prompt: {negative}");
        }
        expected += &format!("\n{settings}{}", env!("CARGO_PKG_VERSION"));
        let expected = if latin1 { Text::Latin1(expected) } else { Text::Utf8(expected) };
        assert_eq!(images::read(&sandbox.path("x.png")).parameters, expected);
    }
}

#[test]
fn latents_are_written_and_replaced() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("latents.safetensors"), "old").unwrap();
    for (shape, args) in [([3, 4, 8, 8], ["-b", "3", "-W", "64"]), ([1, 4, 8, 16], ["-b", "1", "-W", "128"])] {
        let files = ["an apple", "-o", "{seed}.png", "--overwrite", "-s", "1", "--latents-out", "latents.safetensors"];
        sandbox.txt2img(&[&files, &args[..]].concat()).succeeds();
        assert_eq!(images::latents_shape(&sandbox.path("latents.safetensors")), shape);
    }
    assert_eq!(sandbox.names(), ["1.png", "2.png", "3.png", "latents.safetensors"]);
}

#[cfg(unix)]
#[test]
fn files_have_the_permissions_of_any_new_file() {
    let sandbox = Sandbox::new();
    let args = ["an apple", "-o", "apple.png", "--latents-out", "apple.safetensors"];
    sandbox.shell("umask 027; exec \"$@\"", &args).succeeds();
    for name in ["apple.png", "apple.safetensors"] {
        let mode = fs::metadata(sandbox.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{name}");
    }
}

#[test]
fn files_are_compressed_as_asked() {
    let sandbox = Sandbox::new();
    let [none, fast, best] = ["none", "fast", "best"].map(|level| {
        let name = format!("{level}.png");
        sandbox.txt2img(&["a cat", "-s", "1", "--png-level", level, "-o", &name]).succeeds();
        std::fs::metadata(sandbox.path(&name)).unwrap().len()
    });
    assert!(none > fast && none > best, "{none}, {fast}, {best}");
    let run = sandbox.txt2img(&["a cat", "--png-level", "9"]);
    assert!(run.status.code() == Some(2) && run.error().contains("expected none, fast, balanced, best"), "{run}");
}
