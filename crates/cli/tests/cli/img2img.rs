//! `kiln img2img`: input images, masks, and what is refused.

use std::path::Path;

use kiln_testkit::fixtures;

use crate::sandbox::{Run, Sandbox};

fn input(name: &str) -> String {
    fixtures(&format!("inpaint/{name}.png")).display().to_string()
}

/// `kiln img2img` with a tiny model and four steps.
fn img2img(sandbox: &Sandbox, args: &[&str]) -> Run {
    let model = fixtures("models/sd1").display().to_string();
    let fixed = ["img2img", "a pear", "-m", &model, "--steps", "4", "--seed", "7"];
    sandbox.kiln(&[&fixed[..], args].concat())
}

/// Width and height of a PNG.
fn size(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).unwrap();
    let side = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (side(16), side(20))
}

/// The compressed pixels of a PNG, which differ where its pixels do.
fn pixels(png: &[u8]) -> Vec<u8> {
    let mut at = 8;
    let mut found = Vec::new();
    while let Some(head) = png.get(at..at + 8) {
        let len = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize;
        if &head[4..] == b"IDAT" {
            found.extend_from_slice(&png[at + 8..at + 8 + len]);
        }
        at += len + 12;
    }
    assert!(!found.is_empty());
    found
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn an_image_becomes_an_image_of_its_size() {
    let sandbox = Sandbox::new();
    let run = img2img(&sandbox, &["-i", &input("image"), "--strength", "0.5", "-o", "a.png"]).succeeds();
    assert_eq!(size(&sandbox.path("a.png")), (96, 80), "{run}");
    assert!(run.stderr.contains("96x80"), "{run}");
    // The same through the aliases, and from the standard input.
    img2img(&sandbox, &["--init-img", &input("image"), "--denoising-strength", "0.5", "-o", "b.png"]).succeeds();
    let model = fixtures("models/sd1").display().to_string();
    let script = format!("\"$@\" < '{}'", input("image"));
    let args = ["img2img", "a pear", "-m", &model, "--steps", "4", "--seed", "7", "-i", "-", "--strength", "0.5"];
    sandbox.shell_kiln(&script, &[&args[..], &["-o", "c.png"]].concat()).succeeds();
    let [a, b, c] = ["a", "b", "c"].map(|name| std::fs::read(sandbox.path(&format!("{name}.png"))).unwrap());
    assert!(a == b && pixels(&a) == pixels(&c)); // the standard input has no name
    // Its settings make it again.
    let again = sandbox.kiln(&["img2img", "--like", "a.png", "-m", &model, "-i", &input("image"), "-o", "d.png"]);
    assert!(!again.succeeds().stderr.contains("warning"));
    assert_eq!(a, std::fs::read(sandbox.path("d.png")).unwrap());
    let other = sandbox.kiln(&["img2img", "--like", "a.png", "-m", &model, "-i", "a.png", "-o", "e.png"]).succeeds();
    assert!(other.stderr.contains("its --init was image.png") && other.stderr.contains("another image"), "{other}");
}

/// The settings name the images without their folders, and by their bytes.
#[test]
fn stored_input_images_are_found_by_their_bytes() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("done")).unwrap();
    let masked = ["--mask", &input("mask"), "--strength", "0.5", "-o", "done/a.png"];
    img2img(&sandbox, &[&["-i", &input("image")][..], &masked].concat()).succeeds();
    let model = fixtures("models/sd1").display().to_string();
    let again = |name: &str| sandbox.kiln(&["img2img", "--like", "done/a.png", "-m", &model, "-o", name]);
    again("b.png").fails(1, &["image.png: not found; looked for it and an image with its SHA-256", "add --init"]);
    std::fs::copy(input("image"), sandbox.path("done/renamed.PNG")).unwrap();
    again("b.png").fails(1, &["mask.png: not found", "in the folder of done/a.png", "add --mask"]);
    std::fs::copy(input("mask"), sandbox.path("mask.png")).unwrap();
    let run = again("b.png").succeeds();
    assert!(!run.stderr.contains("warning"), "{run}");
    let read = |name: &str| pixels(&std::fs::read(sandbox.path(name)).unwrap());
    assert_eq!(read("done/a.png"), read("b.png"));
}

#[test]
fn a_mask_of_another_size_is_resized() {
    let sandbox = Sandbox::new();
    img2img(&sandbox, &["-i", &input("image"), "-W", "64", "-H", "64", "-o", "small.png"]).succeeds();
    let small = sandbox.path("small.png").display().to_string();
    let masked = ["--mask", &input("mask"), "--mask-blur", "2", "--inpaint-area", "masked", "-o", "masked.png"];
    img2img(&sandbox, &[&["-i", &small][..], &masked].concat()).succeeds();
    assert_eq!(size(&sandbox.path("masked.png")), (64, 64));
    img2img(&sandbox, &["-i", &small, "--extend", "top=16,right=8", "-o", "extended.png"]).succeeds();
    assert_eq!(size(&sandbox.path("extended.png")), (72, 80));
}

#[test]
fn several_images_are_several_jobs() {
    let sandbox = Sandbox::new();
    let both = ["-i", &input("image"), "-i", &input("mask")];
    img2img(&sandbox, &both).succeeds();
    assert_eq!(sandbox.names(), ["image-0001-7.png", "mask-0001-7.png"]);
    img2img(&sandbox, &[&both[..], &["-o", "x-{input}.png"]].concat()).succeeds();
    assert!(sandbox.path("x-image.png").exists() && sandbox.path("x-mask.png").exists());
    img2img(&sandbox, &[&both[..], &["-o", "x.png"]].concat()).refused(&["--output is x.png", "{input}"]);
}

#[test]
fn inputs_that_cannot_be_are_refused() {
    let sandbox = Sandbox::new();
    let image = input("image");
    for (status, args, told) in [
        (2, &[][..], &["--init <IMAGE>"][..]),
        (1, &["-i", "nowhere.png"], &["nowhere.png: not found; looked for --init, an image"]),
        (1, &["-i", &fixtures("models/sd1/model_index.json").display().to_string()], &["as no known image does"]),
        (1, &["-i", "."], &["is a folder"]),
        (1, &["-i", &image, "--mask", "nowhere.png"], &["nowhere.png: not found; looked for --mask"]),
        (2, &["-i", &image, "--strength", "0"], &["--strength is 0.0, expected more than 0"]),
        (2, &["-i", &image, "--strength", "1.5"], &["--strength is 1.5, expected a number from 0 to 1"]),
        (2, &["-i", &image, "--strength", "x"], &["expected a number"]),
        (2, &["-i", &image, "--strength", "0.2"], &["raise the strength"]),
        (2, &["-i", &image, "--mask-blur", "4"], &["--mask-blur is 4.0, expected --mask or --extend too"]),
        (2, &["-i", &image, "--extend", "up=8"], &["as in top=128,left=64"]),
        (2, &["-i", &image, "--rule", "forge"], &["expected one of diffusers, a1111, comfy"]),
        (2, &["-i", &image, "--resize-mode", "cover"], &["expected one of stretch, crop, fill"]),
        (2, &["-i", &image, "-W", "60"], &["--width is 60"]),
    ] {
        img2img(&sandbox, args).fails(status, told);
    }
    assert!(sandbox.names().is_empty());
    // Input options belong to this command.
    sandbox.txt2img(&["a pear", "--strength", "0.5"]).refused(&["'--strength'"]);
    std::fs::write(sandbox.path("there.png"), "mine").unwrap();
    img2img(&sandbox, &["-i", &image, "-o", "there.png"]).refused(&["there.png exists already"]);
    assert_eq!(std::fs::read(sandbox.path("there.png")).unwrap(), b"mine");
}

#[test]
fn a_batch_file_has_input_images() {
    let sandbox = Sandbox::new();
    let job = format!(
        "{{\"prompt\": \"a pear\", \"init\": \"{}\", \"mask\": \"{}\", \"strength\": 0.5, \"steps\": 4, \"seed\": 3}}\n",
        input("image"),
        input("mask")
    );
    std::fs::write(sandbox.path("jobs.jsonl"), job.clone() + &job.replace("0.5", "0.8")).unwrap();
    let model = fixtures("models/sd1").display().to_string();
    let run = sandbox.kiln(&["batch", "jobs.jsonl", "-m", &model, "-o", "out"]).succeeds();
    let images = std::fs::read_dir(sandbox.path("out")).unwrap().filter_map(Result::ok).map(|entry| entry.path());
    let images: Vec<_> = images.filter(|path| path.extension().is_some_and(|end| end == "png")).collect();
    assert_eq!(images.len(), 2, "{run}");
    assert!(images.iter().all(|path| size(path) == (96, 80)));
}

#[test]
fn a_plan_has_the_stage() {
    let sandbox = Sandbox::new();
    let model = fixtures("models/sd1").display().to_string();
    let plain = sandbox.kiln(&["plan", "-m", &model, "--json"]).succeeds().stdout;
    let with = sandbox.kiln(&["plan", "-m", &model, "--img2img", "--json"]).succeeds().stdout;
    assert!(!plain.contains("encode-image") && with.contains("encode-image"), "{with}");
}

/// A file of 35 bytes whose canvas has 64 million pixels: a run of hours and 14 GB.
#[test]
fn an_image_with_an_extreme_size_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let gif = |width: u16, height: u16| {
        let [width, height] = [width, height].map(u16::to_le_bytes);
        let head = [&b"GIF89a"[..], &width, &height, &[0x80, 0, 0, 0, 0, 0, 255, 255, 255]].concat();
        [&head[..], &[b',', 0, 0, 0, 0, 1, 0, 1, 0, 0, 2, 2, 0x44, 1, 0, b';']].concat()
    };
    std::fs::write(sandbox.path("b.gif"), gif(7999, 7999)).unwrap();
    let begin = std::time::Instant::now();
    for more in [&[][..], &["-W", "7992"]] {
        let run = img2img(&sandbox, &[&["-i", "b.gif", "-o", "a.png"], more].concat());
        run.refused(&["b.gif", "7992x7992", "4194304 pixels", "--width and --height"]);
    }
    assert!(begin.elapsed().as_secs() < 20, "no pixel is decoded");
    // An explicit size is planned as usual, whatever the file has.
    let run = img2img(&sandbox, &["-i", "b.gif", "-W", "7992", "-H", "7992", "--vram-budget", "64M"]);
    run.fails(2, &["7992x7992", "the budget of 64.0 MiB"]);
    std::fs::write(sandbox.path("c.gif"), gif(2048, 1024)).unwrap();
    img2img(&sandbox, &["-i", "c.gif", "-W", "64", "-H", "64", "--strength", "0.5", "-o", "a.png"]).succeeds();
    assert_eq!(sandbox.names(), ["a.png", "b.gif", "c.gif"]);
}
