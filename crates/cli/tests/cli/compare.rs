//! Tests of `kiln compare`: its table and JSON, the exit status of a missed bound, and refused arguments.

use std::io::Write;

use kiln_media::{DecodeOptions, encode_png, open};
use kiln_testkit::{fixtures, write_inception};
use serde_json::Value;

use crate::sandbox::Sandbox;

/// Writes an image of one gray level with the settings of AUTOMATIC1111.
fn image(sandbox: &Sandbox, name: &str, level: u8, prompt: &str) {
    let path = sandbox.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = format!("{prompt}\nSteps: 4, Sampler: Euler, Seed: 1, Size: 32x16");
    let png = encode_png((32, 16), &[level; 32 * 16 * 3], &[("parameters", &text)]).unwrap();
    std::fs::write(path, png).unwrap();
}

fn folders() -> Sandbox {
    let sandbox = Sandbox::new();
    for (name, level) in [("a/same.png", 9), ("b/same.png", 9), ("a/other.png", 9), ("b/other.png", 19)] {
        image(&sandbox, name, level, name.split(['/', '.']).nth(1).unwrap());
    }
    sandbox
}

#[test]
fn values_are_a_table_or_json() {
    let sandbox = folders();
    let run = sandbox.kiln(&["compare", "a", "b", "--sheet", "sheet.png"]).succeeds();
    let expected = "\
image       PSNR     SSIM
other.png  28.13  0.77704
same.png     inf  1.00000
least      28.13  0.77704
mean       64.07  0.88852
median       inf  0.88852
most         inf  1.00000
";
    assert_eq!(run.stdout, expected);
    assert!(run.stderr.is_empty(), "{run}");
    let sheet = open(&sandbox.path("sheet.png"), &DecodeOptions::default()).unwrap();
    assert!(sheet.rgb().pixels().any(|pixel| *pixel == [80; 3]), "eight times the difference");
    let run = sandbox.kiln(&["compare", "a", "b", "--json", "--pair", "settings"]).succeeds();
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&json["passed"], &json["pairs"][1]["psnr"]), (&true.into(), &"inf".into()));
    assert_eq!((&json["pairs"][0]["name"], &json["pairs"][0]["height"]), (&"other.png".into(), &16.into()));
    assert!((json["summary"]["psnr"]["least"].as_f64().unwrap() - 28.13).abs() < 0.01);
    let run = sandbox.kiln(&["compare", "a/same.png", "b/same.png", "--min-psnr", "inf"]).succeeds();
    assert_eq!(run.stdout, "image     PSNR     SSIM\nsame.png   inf  1.00000\n");
}

/// Values are printed on the standard output even if a bound is missed, and the reasons on the standard error.
#[test]
fn a_failure_has_the_status_1() {
    let sandbox = folders();
    let fails = |args: &[&str], expected: &[&str]| {
        let run = sandbox.kiln(&[&["compare"], args].concat());
        assert_eq!(run.status.code(), Some(1), "{args:?}: {run}");
        assert!(expected.iter().all(|text| run.error().contains(text)), "{args:?}: {run}");
        run
    };
    let run = fails(&["a", "b", "--min-psnr", "30"], &["error: other.png: PSNR is 28.13, expected at least 30"]);
    assert!(run.stdout.contains("other.png  28.13  0.77704  failed"), "{run}");
    let run = fails(&["a", "b", "--min-ssim", "0.9", "--json"], &["SSIM is 0.77704, expected at least 0.9"]);
    assert_eq!(serde_json::from_str::<Value>(&run.stdout).unwrap()["passed"], false);
    std::fs::write(sandbox.path("b/same.png"), "no image").unwrap();
    image(&sandbox, "a/alone.png", 1, "alone");
    let run = fails(&["a", "b"], &["same.png: ", "begins with the bytes", "alone.png: b has no image of this name"]);
    assert!(run.stdout.contains("other.png  28.13"), "{run}");
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    fails(&["empty", "empty"], &["empty: has no images", "there is no pair of images"]);
    fails(&["a/alone.png", "b/other.png", "--clip", "none"], &["none/config.json: not found; looked for --clip"]);
    fails(&["a/alone.png", "b/other.png", "--lpips", "none"], &["none: not found; looked for --lpips"]);
    let model = fixtures("models/sd1/vae/diffusion_pytorch_model.safetensors").display().to_string();
    fails(&["a/alone.png", "b/other.png", "--lpips", &model], &["expected the state dict of lpips.LPIPS"]);
    fails(&["a/alone.png", "none.png"], &["none.png: not found; looked for an image, or a folder of images"]);
}

#[test]
fn impossible_options_have_the_status_2() {
    let sandbox = folders();
    for (args, expected) in [
        (&["a", "b/same.png"][..], "a is a folder and b/same.png is not, expected two images or two folders"),
        (&["a", "b", "--min-psnr", "nan"], "--min-psnr is NaN, expected a number of dB from 0 on, or inf"),
        (&["a", "b", "--min-ssim", "95"], "--min-ssim is 95, expected a number from -1 to 1"),
        (&["a", "b", "--max-lpips", "0.1"], "--max-lpips is 0.1, expected --lpips too"),
        (
            &["a", "b", "--sheet", "a/sheet.png"],
            "--sheet is 'a/sheet.png', expected another place: this one is compared",
        ),
        (&["a", "b", "--sheet", "sheet.jpg"], "--sheet is 'sheet.jpg', expected a name that ends in .png"),
        (&["a", "b", "--pair", "size"], "expected name or settings"),
        (&["a"], "B"),
    ] {
        sandbox.kiln(&[&["compare"], args].concat()).fails(2, &[expected]);
    }
}

/// Writes statistics of 2048 features as `numpy.savez` does: means of 0 and a diagonal of 1.
fn statistics(path: &std::path::Path) {
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, shape, count) in [("mu", "(2048,)", 2048), ("sigma", "(2048, 2048)", 2048 * 2048)] {
        archive.start_file(format!("{name}.npy"), options).unwrap();
        let header = format!("{:117}\n", format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"));
        archive.write_all(&[b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes()].concat()).unwrap();
        let is_one = |i: usize| name == "sigma" && i.is_multiple_of(2049);
        let values = (0..count).flat_map(|i| f32::from(u8::from(is_one(i))).to_le_bytes());
        archive.write_all(&values.collect::<Vec<u8>>()).unwrap();
    }
    archive.finish().unwrap();
}

/// FID takes folders as sets: names need no pairs, and the other set may be a file with statistics.
#[test]
fn sets_have_a_distance() {
    let sandbox = Sandbox::new();
    for (i, level) in [0, 90, 200].into_iter().enumerate() {
        image(&sandbox, &format!("a/{i}.png"), level, "gray");
        image(&sandbox, &format!("b/other-{i}.png"), level / 2, "gray");
    }
    write_inception(&sandbox.path("network.safetensors"));
    statistics(&sandbox.path("val.npz"));
    let fid = |rest: &[&str]| sandbox.kiln(&[&["compare", "--fid", "network.safetensors"], rest].concat());
    let run = fid(&["a", "b", "--json"]).succeeds();
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    let value = json["fid"]["value"].as_f64().unwrap();
    assert!(value > 0.01, "{value}");
    assert_eq!((&json["fid"]["images_a"], &json["pairs"]), (&3.into(), &serde_json::json!([])));
    assert_eq!(fid(&["a", "b"]).succeeds().stdout, format!("FID  {value:.5}  3 images to 3 images\n"));
    let run = fid(&["a", "a"]).succeeds();
    assert_eq!(run.stdout, "FID  0.00000  3 images to 3 images\n");
    let run = fid(&["a", "b", "--max-fid", "0.001"]);
    assert!(
        run.status.code() == Some(1) && run.error().starts_with(&format!("error: FID is {value:.5}, expected at")),
        "{run}"
    );
    let run = fid(&["a", "val.npz", "--json"]).succeeds();
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    // 2048 of the diagonal, at least.
    assert!(json["fid"]["value"].as_f64().unwrap() > 2000.0 && json["fid"]["images_b"].is_null(), "{run}");
    let run = fid(&["a", "val.npz", "--clip", &fixtures("compare/clip").display().to_string()]).succeeds();
    assert!(run.stdout.starts_with("image   CLIP A\n") && run.stdout.contains("3 images to statistics"), "{run}");
    std::fs::write(sandbox.path("b/short.png"), "no image").unwrap();
    let run = fid(&["a", "b"]);
    assert!(run.status.code() == Some(1) && run.error().contains("b: 1 of 4 images cannot be read"), "{run}");
    assert_eq!(run.stdout, "FID  -  3 images to 4 images  failed\n");
    for (args, expected) in [
        (
            &["a", "val.npz", "--pair", "name"][..],
            "statistics have no pairs for --pair, --lpips, --sheet, --min-psnr and",
        ),
        (&["a/0.png", "a/1.png"], "--fid is 'network.safetensors', expected two folders of images as A and B"),
    ] {
        fid(args).fails(2, &[expected]);
    }
    sandbox.kiln(&["compare", "a", "b", "--max-fid", "24"]).fails(2, &["--max-fid is 24, expected --fid too"]);
    sandbox.kiln(&["compare", "a", "b", "--fid", "none"]).fails(1, &["none: not found; looked for --fid"]);
    std::fs::write(sandbox.path("val.npz"), "no archive").unwrap();
    fid(&["a", "val.npz"]).fails(1, &["val.npz: is no .npz archive, expected `mu` and `sigma` by numpy.savez"]);
}

/// Control characters of names are no lines and no colors of the table.
#[cfg(unix)]
#[test]
fn odd_names_are_harmless() {
    use std::os::unix::ffi::OsStrExt;

    let sandbox = Sandbox::new();
    ["a", "b"].iter().for_each(|name| std::fs::create_dir(sandbox.path(name)).unwrap());
    let png = encode_png((16, 16), &[7; 16 * 16 * 3], &[]).unwrap();
    for name in [&b"\x1b[31m red\nline.png"[..], b"\xff\xfe.png", b"-o.png", "\u{202e}ü.png".as_bytes()] {
        let name = std::ffi::OsStr::from_bytes(name);
        ["a", "b"].iter().for_each(|folder| std::fs::write(sandbox.path(folder).join(name), &png).unwrap());
    }
    let run = sandbox.kiln(&["compare", "a", "b", "--sheet", "sheet.png"]).succeeds();
    assert_eq!(run.stdout.lines().count(), 1 + 4 + 4, "{run}");
    assert!(!run.stdout.contains(['\u{1b}', '\u{202e}']), "{run}");
    let json = sandbox.kiln(&["compare", "a", "b", "--json"]).succeeds();
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["pairs"].as_array().unwrap().len(), 4);
}
