//! Comparisons as a whole: values, bounds, and what fails.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_compare::{Bounds, CompareOptions, Comparison, Error, Metric, Report};
use kiln_media::{DecodeOptions, Rgb8Image, StillFormat, encode, open};
use kiln_testkit::fixtures;
use tempfile::TempDir;

use crate::images::{noisy, pattern};

/// Two folders of images.
struct Folders(TempDir);

impl Folders {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        ["a", "b"].iter().for_each(|name| std::fs::create_dir(folder.path().join(name)).unwrap());
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn add(&self, name: &str, image: &Rgb8Image) {
        std::fs::write(self.path(name), encode(image, StillFormat::Png).unwrap()).unwrap();
    }

    fn options(&self) -> CompareOptions {
        CompareOptions { a: self.path("a"), b: self.path("b"), ..CompareOptions::default() }
    }
}

fn run(options: &CompareOptions) -> Report {
    Comparison::plan(options).unwrap().run(&mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn equal_and_similar_images_pass() {
    let folders = Folders::new();
    let image = pattern(64, 48);
    for name in ["a/equal.png", "b/equal.png", "a/noisy.png"] {
        folders.add(name, &image);
    }
    folders.add("b/noisy.png", &noisy(&image, 1));
    let sheet = folders.path("sheet.png");
    let bounds = Bounds { min_psnr: Some(40.0), min_ssim: Some(0.99), ..Bounds::default() };
    let report = run(&CompareOptions { bounds, sheet: Some(sheet.clone()), ..folders.options() });
    assert!(report.failure().is_none(), "{:?}", report.failure());
    let json = report.to_json();
    assert_eq!(json["passed"], true);
    assert_eq!((&json["pairs"][0]["psnr"], &json["pairs"][0]["ssim"]), (&"inf".into(), &1.0.into()));
    assert_eq!((&json["pairs"][1]["name"], &json["pairs"][1]["width"]), (&"noisy.png".into(), &64.into()));
    let psnr = json["pairs"][1]["psnr"].as_f64().unwrap();
    assert!((49.0..51.0).contains(&psnr));
    assert_eq!(json["summary"]["psnr"]["least"], psnr);
    assert_eq!(json["summary"]["psnr"]["mean"], (psnr + 100.0) / 2.0);
    assert_eq!(json["summary"]["psnr"]["most"], "inf");
    assert!(json["pairs"][0].get("lpips").is_none());
    // The sheet has the images and eight times their difference, which is 8 at most here.
    let sheet = open(&sheet, &DecodeOptions::default()).unwrap();
    assert!(sheet.width() > 3 * 64 && sheet.height() > 2 * 48);
    let darkest = |rows: std::ops::Range<usize>, from: usize| {
        let rows = rows.flat_map(|y| sheet.rgb().row(y)[3 * from..3 * (from + 64)].iter());
        rows.fold((255u8, 0u8), |(low, high), &value| (low.min(value), high.max(value)))
    };
    let cell = 24 * kiln_media::LETTER;
    // Below the titles are rows of 96 pixels with two lines above each.
    let second_row = 36 + (96 + 42) + 30;
    assert_eq!(darkest(second_row..second_row + 48, 6 + 2 * (cell + 6)), (0, 8));
}

#[test]
fn a_missed_bound_fails() {
    let folders = Folders::new();
    folders.add("a/x.png", &pattern(64, 48));
    folders.add("b/x.png", &noisy(&pattern(64, 48), 40));
    let bounds = Bounds { min_psnr: Some(30.0), min_ssim: Some(0.9), ..Bounds::default() };
    let report = run(&CompareOptions { bounds, ..folders.options() });
    let Some(Error::Failed(problems)) = report.failure() else { panic!("it passes") };
    assert_eq!(
        problems,
        ["x.png: PSNR is 21.17, expected at least 30", "x.png: SSIM is 0.76910, expected at least 0.9"]
    );
    assert_eq!(report.to_json()["passed"], false);
    // Bounds that only equal images keep.
    let bounds = Bounds { min_psnr: Some(f64::INFINITY), ..Bounds::default() };
    assert!(run(&CompareOptions { bounds, ..folders.options() }).failure().is_some());
}

/// Everything that cannot be compared is a failure, and other pairs are compared nevertheless.
#[test]
fn what_cannot_be_compared_fails() {
    let folders = Folders::new();
    let image = pattern(64, 48);
    for name in ["a/good.png", "b/good.png", "a/alone.png", "a/size.png", "a/text.png", "a/short.png"] {
        folders.add(name, &image);
    }
    folders.add("b/size.png", &pattern(48, 64));
    std::fs::write(folders.path("b/text.png"), "no image").unwrap();
    let png = encode(&image, StillFormat::Png).unwrap();
    std::fs::write(folders.path("b/short.png"), &png[..png.len() / 2]).unwrap();
    ["a/tiny.png", "b/tiny.png"].iter().for_each(|name| folders.add(name, &pattern(8, 8)));
    // A header that claims more pixels than Kiln reads.
    let mut huge = png.clone();
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    ["a/huge.png", "b/huge.png"].iter().for_each(|name| std::fs::write(folders.path(name), &huge).unwrap());
    let report = run(&CompareOptions { sheet: Some(folders.path("sheet.png")), ..folders.options() });
    let problems = report.failure().unwrap().to_string();
    for expected in [
        "alone.png: ",
        "size.png: the images have different sizes: 64x48 and 48x64",
        "begins with the bytes",
        "short.png: the PNG image is damaged or truncated",
        "tiny.png: SSIM cannot be computed: SSIM needs at least 11 pixels a side, and the images have 8x8",
        "and the limit is 64000000 pixels",
    ] {
        assert!(problems.contains(expected), "{expected}: {problems}");
    }
    let good = report.pairs.iter().find(|pair| pair.pair.name == "good.png").unwrap();
    assert!(good.problems.is_empty() && good.values[&Metric::Psnr].is_infinite());
    assert!(folders.path("sheet.png").exists());
    let json = report.to_json();
    let tiny = json["pairs"].as_array().unwrap().iter().find(|pair| pair["name"] == "tiny.png").unwrap();
    assert_eq!((&tiny["psnr"], &tiny["ssim"]), (&"inf".into(), &serde_json::Value::Null));
}

#[test]
fn folders_without_images_fail() {
    let folders = Folders::new();
    let report = run(&folders.options());
    let message = report.failure().unwrap().to_string();
    assert!(message.contains("a: has no images") && message.contains("there is no pair of images"), "{message}");
    folders.add("a/x.png", &pattern(16, 16));
    folders.add("b/y.png", &pattern(16, 16));
    let message = run(&folders.options()).failure().unwrap().to_string();
    assert!(message.contains("x.png: ") && message.contains("y.png: "), "{message}");
    assert!(message.ends_with("there is no pair of images"));
}

/// Images with a text are scored, and those without fail.
#[test]
fn clip_scores_need_prompts() {
    let folders = Folders::new();
    let (a, b) = (folders.path("a/x.png"), folders.path("b/x.png"));
    let texts = [("parameters", "a red apple\nSteps: 4, Sampler: Euler, Seed: 1, Size: 32x32")];
    let png = |texts: &[(&str, &str)]| kiln_media::encode_png((32, 32), pattern(32, 32).data(), texts).unwrap();
    std::fs::write(&a, png(&texts)).unwrap();
    std::fs::write(&b, png(&[])).unwrap();
    let options = CompareOptions { clip: Some(fixtures("compare/clip")), ..folders.options() };
    let report = run(&options);
    assert!((report.pairs[0].values[&Metric::ClipA] - 30.830).abs() < 1e-2);
    assert!(!report.pairs[0].values.contains_key(&Metric::ClipB));
    let problem = report.pairs[0].problems.join("\n");
    assert!(problem.starts_with("CLIP B cannot be computed: ") && problem.contains("it has no settings"), "{problem}");
    std::fs::write(&b, png(&texts)).unwrap();
    let report = run(&options);
    assert!(report.failure().is_none());
    assert_eq!(report.pairs[0].values[&Metric::ClipA], report.pairs[0].values[&Metric::ClipB]);
}

/// A sheet never replaces an image that is compared.
#[test]
fn sheets_lie_elsewhere() {
    let folders = Folders::new();
    ["a/x.png", "b/x.png"].iter().for_each(|name| folders.add(name, &pattern(16, 16)));
    let message = |sheet: &str, options: CompareOptions| {
        let sheet = Some(folders.path(sheet));
        Comparison::plan(&CompareOptions { sheet, ..options }).err().unwrap().to_string()
    };
    for sheet in ["a/sheet.png", "b/x.png"] {
        assert!(message(sheet, folders.options()).contains("expected another place: this one is compared"));
    }
    let files =
        || CompareOptions { a: folders.path("a/x.png"), b: folders.path("b/x.png"), ..CompareOptions::default() };
    assert!(message("b/x.png", files()).contains("this one is compared"));
    assert!(message("sheet.jpg", files()).contains("a name that ends in .png"));
    assert!(Comparison::plan(&CompareOptions { sheet: Some(folders.path("a/sheet.png")), ..files() }).is_ok());
}

#[test]
fn transparent_images_are_put_on_white() {
    let folders = Folders::new();
    let image = |value: u8| Rgb8Image::filled(16, 16, [value; 3]).unwrap();
    let clear = image(0).with_alpha(&kiln_media::Gray8Image::filled(16, 16, [0]).unwrap()).unwrap();
    std::fs::write(folders.path("a/x.png"), encode(&clear, StillFormat::Png).unwrap()).unwrap();
    folders.add("b/x.png", &image(255));
    assert!(run(&folders.options()).pairs[0].values[&Metric::Psnr].is_infinite());
}

#[test]
fn a_run_can_be_stopped() {
    let folders = Folders::new();
    ["a/x.png", "b/x.png"].iter().for_each(|name| folders.add(name, &pattern(16, 16)));
    let comparison = Comparison::plan(&folders.options()).unwrap();
    assert!(comparison.steps() == 1 && Path::new(&folders.path("a")).is_dir());
    assert!(matches!(comparison.run(&mut |_| ControlFlow::Break(())), Err(Error::Interrupted)));
}
