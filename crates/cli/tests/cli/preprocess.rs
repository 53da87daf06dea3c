//! `kiln preprocess`: maps of images, and what is refused.

use kiln_media::{DecodeOptions, DecodedImage, Preprocessor, open};
use kiln_testkit::fixtures;

use crate::sandbox::Sandbox;

fn input(name: &str) -> String {
    fixtures(&format!("inpaint/{name}.png")).display().to_string()
}

fn read(path: &std::path::Path) -> DecodedImage {
    open(path, &DecodeOptions::default()).unwrap()
}

#[test]
fn maps_are_those_of_the_library() {
    let sandbox = Sandbox::new();
    let image = read(&fixtures("inpaint/image.png"));
    for (args, preprocessor, side) in [
        (&["canny", "--low", "30", "--high", "60"][..], Preprocessor::Canny { low: 30.0, high: 60.0 }, None),
        (&["canny", "--resolution", "64"], Preprocessor::Canny { low: 100.0, high: 200.0 }, Some(64)),
        (&["lineart"], Preprocessor::Lineart, None),
        (&["scribble", "--threshold", "4"], Preprocessor::Scribble { threshold: 4.0 }, None),
        (&["blur", "--sigma", "2.5"], Preprocessor::Blur { sigma: 2.5 }, None),
        (&["tile", "--factor", "3"], Preprocessor::Tile { factor: 3.0 }, None),
        (&["threshold", "--threshold", "90"], Preprocessor::Threshold { level: 90 }, None),
        (&["invert"], Preprocessor::Invert, None),
        (&["color"], Preprocessor::ColorGrid, None),
    ] {
        let more = [&args[1..], &["-o", "map.png", "--overwrite"]].concat();
        sandbox.kiln(&[&["preprocess", args[0], &input("image")], &more[..]].concat()).succeeds();
        let expected = preprocessor.run(image.rgb(), side).unwrap();
        assert!(read(&sandbox.path("map.png")).rgb() == &expected, "{args:?}");
    }
}

#[test]
fn a_mask_makes_an_image_transparent() {
    let sandbox = Sandbox::new();
    sandbox.kiln(&["preprocess", "inpaint", &input("image"), "--mask", &input("mask"), "-o", "hole.png"]).succeeds();
    let (found, mask) = (read(&sandbox.path("hole.png")), read(&fixtures("inpaint/mask.png")).to_mask());
    assert_eq!(found.rgb(), read(&fixtures("inpaint/image.png")).rgb());
    let expected: Vec<u8> = mask.data().iter().map(|&v| if v > 127 { 0 } else { 255 }).collect();
    assert_eq!(found.alpha().unwrap().data(), expected);
    // It is a mask itself: the transparent part is not regenerated, as its alpha says.
    assert!(found.is_transparent());
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn streams_are_read_and_written() {
    let sandbox = Sandbox::new();
    sandbox.kiln(&["preprocess", "invert", &input("image"), "-o", "a.png"]).succeeds();
    let script = format!("\"$@\" < '{}' | cat > b.png", input("image"));
    sandbox.shell_kiln(&script, &["preprocess", "invert", "-", "-o", "/dev/stdout"]).succeeds();
    let script = format!("\"$@\" < '{}'", input("image"));
    sandbox.shell_kiln(&script, &["preprocess", "invert", "/dev/stdin", "-o", "c.png"]).succeeds();
    let [a, b, c] = ["a", "b", "c"].map(|name| std::fs::read(sandbox.path(&format!("{name}.png"))).unwrap());
    assert!(a == b && a == c);
}

#[test]
fn what_a_preprocessor_does_not_have_is_refused() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("text.png"), "no image").unwrap();
    let image = input("image");
    for (args, message) in [
        (&["depth", &image][..], "[possible values: canny, lineart"),
        (&["invert", &image, "--low", "3"], "--low is 3, expected nothing with invert"),
        (&["blur", &image, "--threshold", "3"], "--threshold is 3, expected nothing with blur"),
        (&["canny", &image, "--mask", &image], "expected nothing with canny"),
        (&["blur", &image, "--sigma", "0"], "the sigma of a blur is 0"),
        (&["tile", &image, "--factor", "0.5"], "the factor of a tile is 0.5"),
        (&["threshold", &image, "--threshold", "256"], "--threshold is 256, expected a number from 0 to 255"),
        (&["lineart", &image, "--resolution", "0"], "no pixels"),
        (&["lineart", &image, "--resolution", "999999999"], "has more than"),
        (&["inpaint", &image], "--mask is nothing, expected a mask with inpaint"),
        (&["canny", "nowhere.png"], "nowhere.png"),
        (&["canny", "text.png"], "text.png: begins with the bytes"),
    ] {
        let run = sandbox.kiln(&[&["preprocess"], args, &["-o", "map.png"]].concat());
        assert!(!run.status.success() && run.stderr.contains(message), "{args:?}: {run}");
        assert!(!sandbox.path("map.png").exists(), "{args:?}");
    }
}
