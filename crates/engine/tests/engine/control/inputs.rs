//! Control images: made by preprocessors, taken from the input, given by a caller; and uses that are refused.

use std::ops::ControlFlow;

use kiln_engine::{Control, ControlType, ControlUse, Job, Request};
use kiln_media::{Gray8Image, Preprocessor, Rgb8Image, StillFormat, encode};
use kiln_testkit::control_pixels;

use super::Files;

use crate::support::{bits, cpu, images, request, run, tiny};

/// A preprocessor's map is the map that it makes of the fitted image; without an image it is that of the input.
#[test]
fn preprocessors_make_the_control_image() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let (width, height) = (64, 64);
    let image = Rgb8Image::new(width, height, control_pixels(width, height)).unwrap();
    std::fs::write(files.path("square.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
    let map = Preprocessor::find("canny").unwrap().run(&image, None).unwrap();
    std::fs::write(files.path("map.png"), encode(&map, StillFormat::Png).unwrap()).unwrap();
    let net = files.net("sd1", 0, false);
    let with = |init: Option<&str>, image: Option<&str>, preprocess: Option<&str>| Request {
        init: init.map(|name| files.path(name)),
        strength: init.map(|_| 0.7),
        controls: vec![ControlUse {
            image: image.map(|name| files.path(name)),
            preprocess: preprocess.map(String::from),
            ..ControlUse::new(&net)
        }],
        ..request("a pear", (64, 64), 3, 7)
    };
    let mut run = |request: Request| bits(&images(&mut engine, &request));
    assert!(run(with(None, Some("square.png"), Some("canny"))) == run(with(None, Some("map.png"), None)));
    let of_input = run(with(Some("square.png"), None, Some("canny")));
    assert!(of_input == run(with(Some("square.png"), Some("map.png"), None)));
    assert!(of_input != run(with(Some("square.png"), None, None)));
}

/// The protocol of ControlNets for inpainting (`make_inpaint_condition` of diffusers): -1 in the hole, which is the input's
/// mask, or what is transparent in a control image.
#[test]
fn holes_are_those_of_the_mask() {
    let files = Files::new();
    let engine = tiny("sd1", &cpu());
    let image = Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap();
    let mask: Vec<u8> = (0..64 * 64).map(|i| if i % 64 < 20 { 255 } else { 0 }).collect();
    let mask = Gray8Image::new(64, 64, mask).unwrap();
    std::fs::write(files.path("square.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
    std::fs::write(files.path("mask.png"), encode(&mask.to_rgb(), StillFormat::Png).unwrap()).unwrap();
    let holey = image.with_alpha(&mask.invert()).unwrap();
    std::fs::write(files.path("holey.png"), encode(&holey, StillFormat::Png).unwrap()).unwrap();
    let control = ControlUse { preprocess: Some("inpaint".into()), ..ControlUse::new(files.net("sd1", 0, false)) };
    let of_mask = Request {
        init: Some(files.path("square.png")),
        mask: Some(files.path("mask.png")),
        controls: vec![control.clone()],
        ..request("a pear", (64, 64), 3, 7)
    };
    let of_alpha = Request {
        controls: vec![ControlUse { image: Some(files.path("holey.png")), ..control.clone() }],
        ..request("a pear", (64, 64), 3, 7)
    };
    let planes = |request: &Request| request.resolve(engine.model()).unwrap().controls[0].planes().unwrap();
    let (one, other) = (planes(&of_mask), planes(&of_alpha));
    assert_eq!(one, other);
    assert_eq!(one[0], -1.0);
    assert_eq!(one[30], f32::from(image.data()[90]) / 255.0);
    let opaque = ControlUse { image: Some(files.path("square.png")), ..control };
    let error = Request { controls: vec![opaque], ..of_alpha }.resolve(engine.model()).unwrap_err().to_string();
    assert!(error.contains("transparent"), "{error}");
}

/// The input image takes the place of a control image that is not named.
#[test]
fn the_input_image_is_the_control_image() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let net = files.net("sd1", 0, false);
    let with = |control: ControlUse| Request {
        init: Some(files.path("control.png")),
        strength: Some(0.8),
        controls: vec![control],
        ..request("a pear", (64, 64), 4, 7)
    };
    let named = with(files.control(&net)).resolve(engine.model()).unwrap();
    let left_out = with(ControlUse::new(&net)).resolve(engine.model()).unwrap();
    assert_eq!(bits(&run(&mut engine, &named)), bits(&run(&mut engine, &left_out)));
    let message = Request { controls: vec![ControlUse::new(&net)], ..request("a pear", (64, 64), 4, 7) }
        .resolve(engine.model())
        .unwrap_err()
        .to_string();
    assert!(message.contains("`controls`") && message.contains("`image`"), "{message}");
}

/// A control image of a caller.
#[test]
fn pixels_of_a_caller_are_fitted_by_the_caller() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let job = request("a pear", (64, 64), 4, 7).resolve(engine.model()).unwrap();
    let net = ControlUse::new(files.net("sd1", 0, false));
    let of = |side: usize| Control::new(net.clone(), Rgb8Image::new(side, side, control_pixels(side, side)).unwrap());
    let with = |control| Job { controls: vec![control], ..job.clone() };
    assert!(bits(&run(&mut engine, &with(of(64)))) != bits(&run(&mut engine, &job)));
    let error = engine.txt2img(&with(of(32)), &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
    assert!(error.contains("32x32") && error.contains("64x64"), "{error}");
}

/// What a control says that its network does not have is refused before weights are read, and nothing has changed.
#[test]
fn uses_that_do_not_fit_are_refused() {
    let files = Files::new();
    let mut engine = tiny("sdxl", &cpu());
    let (union, adapter) = (files.other("sdxl", "union", 0), files.other("sdxl", "full_xl", 0));
    let good = Request {
        controls: vec![ControlUse { kind: Some(ControlType::Canny), ..files.control(&union) }],
        ..request("a pear", (64, 64), 2, 7)
    };
    let expected = bits(&images(&mut engine, &good));
    for (control, says) in [
        (files.control(&union), "a type too, one of openpose, depth"),
        (ControlUse { guess: true, ..files.control(&adapter) }, "no guess mode"),
        (ControlUse { kind: Some(ControlType::Depth), ..files.control(&adapter) }, "no type"),
    ] {
        let bad = Request { controls: vec![control], ..good.clone() };
        let job = bad.resolve(engine.model()).unwrap();
        let error = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
        assert!(error.contains("`controls`") && error.contains(says), "{error}");
    }
    let small = Request { controls: vec![files.control(&adapter)], ..request("a pear", (72, 64), 2, 7) };
    let job = small.resolve(engine.model()).unwrap();
    let error = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
    assert!(error.contains("16 h, 16 w"), "{error}");
    assert!(bits(&images(&mut engine, &good)) == expected);
}
