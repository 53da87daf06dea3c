//! What is made of files by AUTOMATIC1111's rule, against a transcription of its formulas
//! (`tests/reference/{webui,rules}.py`).

use std::path::{Path, PathBuf};

use kiln_media::{DecodeOptions, Image8, Rgb8Image, StillFormat, encode, open};
use kiln_testkit::{Fixture, fixtures};
use serde::Deserialize;

use super::*;
use crate::init::Init;
use crate::options::Request;

const WIDTH: usize = 56;
const HEIGHT: usize = 48;

/// A case of `prepared` in `inpaint/rules.json`.
#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    mask_blur: Option<f64>,
    #[serde(default)]
    invert: bool,
    #[serde(default)]
    alpha: Option<String>,
    #[serde(default)]
    part: bool,
    #[serde(default)]
    resize_mode: usize,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    only_masked: bool,
    #[serde(default)]
    padding: Option<usize>,
    #[serde(default = "yes")]
    rounded: bool,
}

fn yes() -> bool {
    true
}

/// A case of `composites`.
#[derive(Debug, Deserialize)]
struct Composite {
    name: String,
    padding: Option<usize>,
}

#[derive(Deserialize)]
struct Cases {
    prepared: Vec<Case>,
    composites: Vec<Composite>,
}

fn cases() -> Cases {
    serde_json::from_str(&std::fs::read_to_string(fixtures("inpaint/rules.json")).unwrap()).unwrap()
}

fn written<const C: usize>(folder: &Path, name: &str, image: &Image8<C>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, encode(image, StillFormat::Png).unwrap()).unwrap();
    path
}

impl Case {
    /// The request, with its files in `folder`.
    fn request(&self, folder: &Path) -> Request {
        let read = |name: &str| open(&fixtures(&format!("inpaint/{name}.png")), &DecodeOptions::default()).unwrap();
        let (image, mut mask) = (read("image").rgb().clone(), read("mask").to_mask());
        if self.part {
            mask = mask.crop(kiln_media::Region { left: 8, top: 4, right: 72, bottom: 68 }).unwrap();
        }
        let colored = image.with_alpha(&mask);
        let alpha = self.alpha.as_deref();
        let init = match alpha {
            Some("init") => written(folder, "image.png", colored.as_ref().unwrap()),
            _ => written(folder, "image.png", &image),
        };
        let mask = match alpha {
            Some("mask") => written(folder, "mask.png", colored.as_ref().unwrap()),
            _ => written(folder, "mask.png", &mask),
        };
        Request {
            width: Some(WIDTH),
            height: Some(HEIGHT),
            rule: Some(Rule::Automatic1111),
            init: Some(init),
            mask: Some(mask),
            mask_invert: self.invert,
            mask_blur: self.mask_blur,
            mask_content: self.content.as_ref().map(|_| MaskContent::Fill),
            resize_mode: [None, Some(ResizeChoice::Crop), Some(ResizeChoice::Fill)][self.resize_mode],
            inpaint_area: self.only_masked.then_some(InpaintArea::Masked),
            inpaint_padding: self.padding,
            soft_inpainting: !self.rounded,
            ..Request::default()
        }
    }
}

/// Fails unless every 127th byte is at most one level from the expected ones, and few differ.
fn check(name: &str, found: &[u8], expected: &[u8]) {
    let found: Vec<u8> = found.iter().copied().step_by(127).collect();
    assert_eq!(found.len(), expected.len(), "{name}");
    let apart = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).filter(|&by| by > 0);
    let (count, most) = (apart.clone().count(), apart.max());
    println!("{name}: {count} of {} bytes differ, by at most {most:?}", found.len());
    assert!(most <= Some(1) && count * 25 <= found.len(), "{name}: {count} of {} differ, {most:?}", found.len());
}

/// The bytes of values from -1 to 1, `(1, 3, h, w)`, pixel by pixel.
fn bytes(planes: &candle_core::Tensor) -> Vec<u8> {
    let pixels = planes.squeeze(0).and_then(|planes| planes.permute((1, 2, 0))).unwrap();
    let values: Vec<f32> = pixels.flatten_all().and_then(|flat| flat.to_vec1()).unwrap();
    values.into_iter().map(|v| ((v + 1.0) * 127.5).round_ties_even() as u8).collect()
}

#[test]
fn files_are_prepared_as_automatic1111_does() {
    let results = Fixture::open("inpaint/rules.safetensors");
    let expected = |key: &str| -> Vec<u8> { results.tensor(key).flatten_all().unwrap().to_vec1().unwrap() };
    let cases = cases().prepared;
    assert_eq!(cases.len(), 15);
    for case in cases {
        let folder = tempfile::tempdir().unwrap();
        let Prepared { init, input, .. } = case.request(folder.path()).prepare_input(8).unwrap().unwrap();
        let Init::Masked { image, mask, .. } = init else { panic!("{case:?}") };
        let name = |what: &str| format!("{}.{what}", case.name);
        let pixels = bytes(image.pixels());
        check(&name("image"), &pixels, &expected(&name("image")));
        // The masked image of a network with nine channels: a quarter of the masked part.
        let masked = (image.pixels() - (image.pixels().broadcast_mul(mask.pixels()).unwrap() * 0.75).unwrap()).unwrap();
        check(&name("masked"), &bytes(&masked), &expected(&name("masked")));
        let small = (HEIGHT / 8, WIDTH / 8);
        let kept = mask.of_latents((1, small.0, small.1), 8).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let network = mask.of_network(small, 8).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (what, found) in [("latent_mask", kept), ("network_mask", network)] {
            // A level is 1/255 where masks are not rounded.
            let bound = if case.rounded { 0.0 } else { 1.0 / 254.0 };
            let apart = found.iter().zip(results.values(&name(what))).map(|(a, b)| (a - b / 255.0).abs());
            assert!(apart.fold(0.0, f32::max) <= bound, "{}", name(what));
        }
        let inverted = pixels.iter().map(|v| 255 - v).collect();
        let result = Rgb8Image::new(WIDTH, HEIGHT, inverted).unwrap();
        let pasted = input.paste_back.unwrap().apply(result).unwrap();
        check(&name("overlay"), pasted.data(), &expected(&name("overlay")));
    }
}

#[test]
fn soft_masks_are_resized_and_blurred_as_automatic1111_does() {
    let results = Fixture::open("inpaint/rules.safetensors");
    for Composite { name, padding } in cases().composites {
        let folder = tempfile::tempdir().unwrap();
        let case = serde_json::json!({
            "name": name, "padding": padding, "only_masked": padding.is_some(), "mask_blur": 6, "rounded": false,
        });
        let case: Case = serde_json::from_value(case).unwrap();
        let input = case.request(folder.path()).prepare_input(8).unwrap().unwrap().input;
        let bytes = |key: &str| -> Vec<u8> { results.tensor(key).flatten_all().unwrap().to_vec1().unwrap() };
        let seen = kiln_media::Gray8Image::new(WIDTH / 8, HEIGHT / 8, bytes(&format!("{name}.seen"))).unwrap();
        let mask = input.paste_back.unwrap().mask_of(&seen, (WIDTH, HEIGHT)).unwrap();
        check(&name, mask.data(), &bytes(&format!("{name}.mask")));
    }
}

#[test]
fn sizes_follow_from_the_header() {
    let image = |path: std::path::PathBuf| Request { init: Some(path), ..Request::default() };
    let (path, found) = (fixtures("inpaint/image.png"), |request: Request| request.input_size(8));
    let read = open(&path, &DecodeOptions::default()).unwrap();
    let size = found(image(path.clone())).unwrap().unwrap();
    assert_eq!(size.extended, (read.width(), read.height()));
    assert_eq!(size.results, kiln_media::size_in_multiples(read.width(), read.height(), 8));
    let extend = Some("top=16,left=8".parse().unwrap());
    let size = found(Request { extend, width: Some(64), ..image(path) }).unwrap().unwrap();
    assert_eq!((size.extended, size.results.0), ((read.width() + 8, read.height() + 16), 64));
    assert_eq!(found(Request::default()).unwrap(), None);

    // A header alone: 7999 pixels a side, and the first row of a frame of one pixel.
    let folder = tempfile::tempdir().unwrap();
    let write = |width: u16, height: u16| {
        let sides = [width.to_le_bytes(), height.to_le_bytes()].concat();
        let frame = b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
        let path = folder.path().join(format!("{width}x{height}.gif"));
        std::fs::write(&path, [&b"GIF89a"[..], &sides, frame].concat()).unwrap();
        path
    };
    let size = found(image(write(7999, 7999))).unwrap().unwrap();
    assert_eq!((size.extended, size.results), ((7999, 7999), (7992, 7992)));
    let refused = image(write(60_000, 1)).prepare_input(8).unwrap_err().to_string();
    assert_eq!(refused, "`width` is 60000, expected a multiple of 8 from 8 to 16384; the nearest is 16384");
}
