//! Files of every format against what Pillow 13 reads in them. `--nocapture` prints what was measured.

use std::path::Path;

use kiln_media::{AlphaRule, DecodeOptions, Error, FileFormat, Filter, Gray8Image, Region, decode, header, open};

use crate::support::{Deviation, Pixels, fixtures};

fn path(name: &str) -> std::path::PathBuf {
    fixtures().join("files").join(name)
}

#[test]
fn files_have_the_pixels_that_pillow_reads() {
    let pixels = Pixels::read();
    let names: Vec<String> =
        pixels.cases("file/").into_iter().filter(|c| c[2] == "rgb").map(|c| c[1].clone()).collect();
    assert!(names.len() > 70, "{}", names.len());
    let mut wrong = Vec::new();
    for name in &names {
        let image = match open(&path(name), &DecodeOptions::default()) {
            Ok(image) => image,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let file = std::fs::read(path(name)).unwrap();
        let known = header(&file, name, &DecodeOptions::default()).unwrap();
        assert_eq!((known.width, known.height), (image.width(), image.height()), "{name}");
        let mut deviation = Deviation::default();
        deviation.add(image.rgb(), &pixels.rgb(&format!("file/{name}/rgb")), name);
        let (most, mean) = bound(name);
        if deviation.most > 0 {
            deviation.report(name);
        }
        if deviation.most > most || deviation.mean() > mean {
            wrong.push(format!("{name}: {deviation:?}"));
        }
        let alpha = format!("file/{name}/alpha");
        if pixels.has(&alpha) {
            assert_eq!(image.alpha(), Some(&pixels.gray(&alpha)), "{name}");
        } else {
            assert!(!image.is_transparent(), "{name}");
        }
        let gray = || image.rgb().to_gray();
        let mask = if image.is_transparent() { pixels.gray(&alpha) } else { gray() };
        assert_eq!(image.to_mask(), mask, "{name}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Levels that a file may be away from Pillow: at most, and on average. Decoders of JPEG differ in their inverse transforms
/// and in how they enlarge chroma planes. All others agree to the bit.
fn bound(name: &str) -> (u8, f64) {
    match name {
        "rgb422.jpg" | "rgb420.jpg" | "progressive.jpg" | "restart.jpg" => (4, 0.4),
        _ if name.ends_with(".jpg") || name == "jpeg.tif" => (2, 0.04),
        _ => (0, 0.0),
    }
}

#[test]
fn the_content_decides_about_the_format() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("photo.jpg");
    std::fs::copy(path("rgb8.png"), &wrong).unwrap();
    let image = open(&wrong, &DecodeOptions::default()).unwrap();
    assert_eq!(image.format(), kiln_media::FileFormat::Png);
}

#[test]
fn alpha_is_dropped_or_flattened_and_survives_resizing() {
    let open = || open(&path("rgba.tif"), &DecodeOptions::default()).unwrap();
    let image = open();
    assert_eq!(&open().into_rgb(AlphaRule::Drop), image.rgb());
    assert_eq!(open().into_rgb(AlphaRule::FlattenOnWhite), image.to_rgba().flatten([255; 3]));
    assert_ne!(&open().into_rgb(AlphaRule::FlattenOnWhite), image.rgb());
    let larger = image.resize(40, 30, Filter::Lanczos3).unwrap();
    let expected = image.to_rgba().resize_with_alpha(40, 30, Filter::Lanczos3).unwrap();
    assert_eq!(larger.to_rgba(), expected);
}

/// The screen has 26x17 pixels and the frame 20x11 of them, from (3, 4).
#[test]
fn what_a_gif_frame_leaves_empty_is_transparent() {
    let read = |name: &str| open(&path(name), &DecodeOptions::default()).unwrap();
    let (part, frame) = (read("part.gif"), Region { left: 3, top: 4, right: 23, bottom: 15 });
    let whole = read("first.gif").rgb().crop(Region { left: 0, top: 0, right: 20, bottom: 11 }).unwrap();
    assert_eq!(part.rgb().crop(frame).unwrap(), whole);
    let mut alpha = Gray8Image::filled(26, 17, [0]).unwrap();
    alpha.paste(&Gray8Image::filled(20, 11, [255]).unwrap(), 3, 4);
    assert_eq!(part.alpha(), Some(&alpha));
}

#[test]
fn kinds_that_are_not_decoded_are_named() {
    for name in ["palette.tif", "float.tif"] {
        let error = open(&path(name), &DecodeOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_file_is_read_if_it_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let options = DecodeOptions::default();
    let missing = open(&folder.path().join("none.png"), &options).unwrap_err();
    assert!(matches!(missing, Error::Read { .. }) && missing.to_string().contains("none.png"), "{missing}");
    let error = open(folder.path(), &options).unwrap_err().to_string();
    assert!(error.contains("is a folder"), "{error}");
    if cfg!(unix) {
        let error = open(Path::new("/dev/zero"), &options).unwrap_err().to_string();
        assert!(error.contains("/dev/zero: is a device"), "{error}");
    }
}

#[test]
fn limits_are_compared_with_the_header() {
    let data = std::fs::read(path("rgb8.png")).unwrap(); // 11x13
    let ok = DecodeOptions { max_pixels: 143, max_side: 13, max_memory: 1 << 20, max_file: data.len() as u64 };
    assert!(decode(&data, "x.png", &ok).is_ok());
    for (options, limit) in [
        (DecodeOptions { max_pixels: 142, ..ok }, "142 pixels"),
        (DecodeOptions { max_side: 12, ..ok }, "12 pixels a side"),
        (DecodeOptions { max_memory: 428, ..ok }, "428 bytes"),
        (DecodeOptions { max_file: ok.max_file - 1, ..ok }, "bytes"),
    ] {
        let error = decode(&data, "x.png", &options).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        assert!(error.to_string().contains("x.png") && error.to_string().contains(limit), "{error}");
    }
    let read = header(&data, "x.png", &ok).unwrap();
    assert_eq!((read.format, read.width, read.height, read.pixels()), (FileFormat::Png, 11, 13, 143));
    assert!(header(&data, "x.png", &DecodeOptions { max_side: 12, ..ok }).is_err());
    let error = open(&path("rgb8.png"), &DecodeOptions { max_file: 20, ..ok }).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let read = kiln_media::read_all(&data[..], "standard input", &DecodeOptions { max_file: 20, ..ok });
    assert!(matches!(read, Err(Error::TooLarge { .. })));
}
