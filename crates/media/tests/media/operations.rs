//! Resizing, blur, fill and regions against Pillow 13, OpenCV 4.11, diffusers 0.42.1 and the formulas of AUTOMATIC1111's web
//! UI 1.10, as `fixtures/pixels.py` computed them. `--nocapture` prints what was measured.

use std::collections::BTreeMap;

use kiln_media::{Filter, Image8, Region, ResizeMode, Rgba8Image, fill_masked};

use crate::support::{Deviation, Pixels, fixtures, size};

fn filter(name: &str) -> Filter {
    match name {
        "nearest" => Filter::Nearest,
        "box" => Filter::Box,
        "bilinear" => Filter::Bilinear,
        "bicubic" => Filter::Bicubic,
        "lanczos" => Filter::Lanczos3,
        _ => panic!("{name}"),
    }
}

/// The colors multiplied by alpha. A color is truncated when it is divided by alpha, so this rounds up.
fn seen(image: &Rgba8Image) -> Rgba8Image {
    let by = |v: u8, a: u8| (u32::from(v) * u32::from(a)).div_ceil(255) as u8;
    let data = image.pixels().flat_map(|&[r, g, b, a]| [by(r, a), by(g, a), by(b, a), a]).collect();
    Image8::new(image.width(), image.height(), data).unwrap()
}

#[test]
fn resized_pixels_are_pillows() {
    let pixels = Pixels::read();
    let mut measured: BTreeMap<String, Deviation> = BTreeMap::new();
    for case in pixels.cases("resize/") {
        let [_, name, kind, from, to] = &case[..] else { panic!("{case:?}") };
        let (source, expected, (width, height)) = (format!("input/{kind}/{from}"), case.join("/"), size(to));
        let deviation = measured.entry(format!("{name} {kind}")).or_default();
        match kind.as_str() {
            "l" => {
                let found = pixels.gray(&source).resize(width, height, filter(name)).unwrap();
                deviation.add(&found, &pixels.gray(&expected), &expected);
            }
            "rgb" => {
                let found = pixels.rgb(&source).resize(width, height, filter(name)).unwrap();
                deviation.add(&found, &pixels.rgb(&expected), &expected);
            }
            _ => {
                let image: Rgba8Image = pixels.image(&source);
                let found = image.resize_with_alpha(width, height, filter(name)).unwrap();
                // Colors count as far as they are seen: one level of a pixel with alpha 9 is 28 levels of its color.
                deviation.add(&seen(&found), &seen(&pixels.image(&expected)), &expected);
            }
        }
    }
    assert_eq!(measured.len(), 15);
    measured.iter().for_each(|(what, deviation)| deviation.report(what));
    for (what, deviation) in &measured {
        assert!(deviation.most == 0, "{what}: {deviation:?}");
    }
}

#[test]
fn resize_modes_are_those_of_the_web_ui_and_diffusers() {
    let pixels = Pixels::read();
    let cases = pixels.cases("mode/");
    assert_eq!(cases.len(), 4 * 5 * 3);
    let mut measured = Deviation::default();
    for case in cases {
        let [_, mode, from, to] = &case[..] else { panic!("{case:?}") };
        let mode = match mode.as_str() {
            "stretch" => ResizeMode::Stretch,
            "crop" => ResizeMode::Crop,
            _ => ResizeMode::Fill,
        };
        let (width, height) = size(to);
        let image = pixels.rgb(&format!("input/mode/{from}"));
        let found = image.resize_to(mode, width, height, Filter::Lanczos3).unwrap();
        measured.add(&found, &pixels.rgb(&case.join("/")), &case.join("/"));
    }
    measured.report("resize modes");
    assert!(measured.most == 0, "{measured:?}");
}

#[test]
fn blurred_pixels_are_pillows_and_opencvs() {
    let pixels = Pixels::read();
    let (mut pillow, mut opencv) = (Deviation::default(), Deviation::default());
    fn blur<const C: usize>(pixels: &Pixels, case: &[String], measured: &mut Deviation) {
        let (x, y) = (case[2].parse().unwrap(), case[3].parse().unwrap());
        let image: Image8<C> = pixels.image(&format!("input/blur/{}", case[1]));
        let name = case.join("/");
        measured.add(&image.pillow_gaussian_blur(x, y).unwrap(), &pixels.image(&name), &name);
    }
    for case in pixels.cases("pillow/") {
        if pixels.channels(&case.join("/")) == 3 {
            blur::<3>(&pixels, &case, &mut pillow);
        } else {
            blur::<1>(&pixels, &case, &mut pillow);
        }
    }
    for case in pixels.cases("opencv/") {
        let mask = pixels.gray(&format!("input/blur/{}", case[1]));
        let found = mask.opencv_gaussian_blur(case[2].parse().unwrap(), case[3].parse().unwrap()).unwrap();
        opencv.add(&found, &pixels.gray(&case.join("/")), &case.join("/"));
    }
    pillow.report("Pillow's blur");
    opencv.report("OpenCV's blur");
    assert_eq!((pillow.most, opencv.most), (0, 0));
}

#[test]
fn masked_content_is_filled_pasted_and_flattened_as_pillow_does() {
    let pixels = Pixels::read();
    let image = pixels.rgb("input/fill");
    assert_eq!(image.to_gray(), pixels.gray("fill/gray"));
    for kind in ["hard", "soft"] {
        let mask = pixels.gray(&format!("fill/{kind}/mask"));
        assert_eq!(fill_masked(&image, &mask).unwrap(), pixels.rgb(&format!("fill/{kind}/out")), "{kind}");
        let inverted = Image8::new(48, 40, image.data().iter().map(|v| 255 - v).collect()).unwrap();
        let mut pasted = image.clone();
        pasted.paste_through(&inverted, &mask).unwrap();
        assert_eq!(pasted, pixels.rgb(&format!("fill/{kind}/pasted")), "{kind}");
    }
    let image: Rgba8Image = pixels.image("flatten/in");
    assert_eq!(image.flatten([255; 3]), pixels.rgb("flatten/out"));
}

#[test]
fn pasting_through_a_hard_mask_keeps_the_bits_outside() {
    let pixels = Pixels::read();
    let (image, mask) = (pixels.rgb("input/fill"), pixels.gray("fill/hard/mask"));
    let mut result = image.clone();
    result.paste_through(&Image8::filled(48, 40, [1, 2, 3]).unwrap(), &mask).unwrap();
    for ((found, was), [mask]) in result.pixels().zip(image.pixels()).zip(mask.pixels()) {
        assert_eq!(found, if *mask == 255 { &[1, 2, 3] } else { was });
    }
    assert!(result.paste_through(&Image8::filled(48, 41, [0; 3]).unwrap(), &mask).is_err());
    assert!(fill_masked(&image, &Image8::filled(40, 48, [0]).unwrap()).is_err());
}

#[test]
fn regions_around_a_mask_are_those_of_the_web_ui_and_diffusers() {
    let text = std::fs::read_to_string(fixtures().join("regions.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(rows.len(), 400);
    for row in rows {
        let numbers = |key: &str| -> Vec<usize> { serde_json::from_value(row[key].clone()).unwrap() };
        let region = |key: &str| {
            let [left, top, right, bottom] = numbers(key)[..] else { panic!("{row}") };
            Region { left, top, right, bottom }
        };
        let (size, target, mask) = (numbers("size"), numbers("target"), region("mask"));
        let mut image = Image8::filled(size[0], size[1], [0]).unwrap();
        for (x, y) in [(mask.left, mask.top), (mask.right - 1, mask.bottom - 1), (mask.right - 1, mask.top)] {
            image.paste(&Image8::filled(1, 1, [1]).unwrap(), x as i64, y as i64);
        }
        let found = image.bounding_box().unwrap();
        assert_eq!(found, mask, "{row}");
        let padded = found.padded(row["padding"].as_u64().unwrap() as usize, size[0], size[1]);
        assert_eq!(padded, region("padded"), "{row}");
        assert_eq!(padded.expanded((target[0], target[1]), (size[0], size[1])), region("expanded"), "{row}");
    }
    assert_eq!(Image8::filled(7, 5, [0]).unwrap().bounding_box(), None);
}

#[test]
#[ignore = "a measurement"]
fn measure_resizing() {
    let image = kiln_media::Rgb8Image::filled(4000, 3000, [9, 99, 199]).unwrap();
    let time = |what: &str, run: &dyn Fn()| {
        let start = std::time::Instant::now();
        run();
        println!("{what}: {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    };
    time("4000x3000 to 1024x768, Lanczos", &|| drop(image.resize(1024, 768, Filter::Lanczos3).unwrap()));
    let small = image.resize(1024, 1024, Filter::Nearest).unwrap();
    time("1024x1024 to 4096x4096, Lanczos", &|| drop(small.resize(4096, 4096, Filter::Lanczos3).unwrap()));
    let mask = small.to_gray();
    time("fill of 1024x1024", &|| drop(fill_masked(&small, &mask).unwrap()));
}
