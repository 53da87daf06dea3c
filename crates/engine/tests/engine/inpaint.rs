//! Input images from files: results against diffusers' inpainting pipelines, rules, and what is refused.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use kiln_engine::{Engine, GeneratedImage, InpaintArea, Job, ModelFolder, Request, Rule, SamplerKind, Stage, Workload};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::support::cases::Case;
use crate::support::channels::copy_model;
use crate::support::{bits, cpu, latents, load, request, tiny, try_images};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// What a case of `inpaint/cases.json` has besides.
#[derive(Deserialize)]
struct Masked {
    strength: f64,
    channels: usize,
    area: Option<usize>,
}

fn input(name: &str) -> PathBuf {
    fixtures(&format!("inpaint/{name}.png"))
}

/// A request for 64x64 pixels that begins with the fixtures' image and mask.
fn masked(steps: usize) -> Request {
    let request = request("a red apple", (64, 64), steps, 42);
    Request { init: Some(input("image")), mask: Some(input("mask")), ..request }
}

/// A copy of a tiny model whose U-Net has nine channels, as `tests/reference/inpaint.py` makes them.
pub(crate) fn widened(kind: &str, folder: &Path) -> Engine {
    copy_model(kind, folder);
    let config = folder.join("unet/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"in_channels\": 4", "\"in_channels\": 9")).unwrap();
    let weights = folder.join("unet/diffusion_pytorch_model.safetensors");
    let mut tensors: HashMap<String, Tensor> = candle_core::safetensors::load(&weights, &Device::Cpu).unwrap();
    let conv = tensors.remove("conv_in.weight").unwrap();
    let more = |c: usize| (conv.narrow(1, c % 4, 1).unwrap() * 0.5).unwrap();
    let wide = Tensor::cat(&[vec![conv.clone()], (4..9).map(more).collect()].concat(), 1).unwrap();
    tensors.insert("conv_in.weight".into(), wide);
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    load(folder, &cpu())
}

fn generate(engine: &mut Engine, request: &Request) -> Vec<GeneratedImage> {
    try_images(engine, request).unwrap()
}

/// The pixels of a fixture's image.
fn rgb(name: &str) -> kiln_media::Rgb8Image {
    kiln_media::open(&input(name), &Default::default()).unwrap().rgb().clone()
}

#[test]
fn results_are_diffusers() {
    let results = Fixture::open("inpaint/results.safetensors");
    for (kind, channels) in [("sd1", 4), ("sd1", 9), ("sd2v", 4), ("sd2v", 9), ("sdxl", 4), ("sdxl", 9)] {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = if channels == 4 { tiny(kind, &cpu()) } else { widened(kind, folder.path()) };
        let parity = Parity::new("inpaint", format!("{kind} f32"));
        let cases = Case::<Masked>::read("inpaint/cases.json", kind, 2).into_iter();
        let cases: Vec<_> = cases.filter(|case| case.more.channels == channels).collect();
        assert!(!cases.is_empty());
        for case in cases {
            let Masked { strength, area, .. } = case.more;
            let request = Request {
                init: Some(input("image")),
                mask: Some(input("mask")),
                strength: Some(strength),
                inpaint_area: area.map(|_| InpaintArea::Masked),
                inpaint_padding: area,
                ..case.request((64, 64))
            };
            let images = generate(&mut engine, &request);
            let name = case.key();
            if area.is_none() {
                parity.check(&case.name, &latents(&images), &results.tensor(&name), BOUND);
                continue;
            }
            // The whole input with the result in its place: bytes, where rounding may differ by one level.
            let expected: Vec<u8> = results.tensor(&name).flatten_all().unwrap().to_vec1().unwrap();
            let image = &images[0];
            assert_eq!((image.width, image.height, image.rgb.len()), (96, 80, expected.len()));
            let apart = image.rgb.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
            let differing = apart.clone().filter(|&by| by > 0).count();
            assert!(apart.max() <= Some(1) && differing * 500 < expected.len(), "{name}: {differing} bytes differ");
        }
    }
}

/// Pixels outside of the mask are the input's bytes, whatever the area.
#[test]
fn pixels_outside_of_the_mask_are_the_inputs() {
    let mut engine = tiny("sd1", &cpu());
    let (image, mask) = (rgb("image"), rgb("mask"));
    let outside = |result: &GeneratedImage, image: &[u8], mask: &[u8]| {
        assert_eq!(result.rgb.len(), image.len());
        let kept = mask.iter().zip(image.iter().zip(&result.rgb)).filter(|(mask, _)| **mask == 0);
        assert!(kept.clone().count() > 1000 && kept.clone().all(|(_, (a, b))| a == b));
        let inside = mask.iter().zip(image.iter().zip(&result.rgb)).filter(|(mask, _)| **mask == 255);
        inside.filter(|(_, (a, b))| a != b).count()
    };
    for rule in [Rule::Diffusers, Rule::Automatic1111] {
        let area = Request {
            inpaint_area: Some(InpaintArea::Masked),
            rule: Some(rule),
            mask_blur: Some(0.0),
            sampler: Some(SamplerKind::Euler.into()),
            ..masked(4)
        };
        assert!(outside(&generate(&mut engine, &area)[0], image.data(), mask.data()) > 100);
        let whole = Request { width: None, height: None, inpaint_area: None, ..area };
        let images = generate(&mut engine, &whole);
        assert_eq!((images[0].width, images[0].height), (96, 80));
        assert!(outside(&images[0], image.data(), mask.data()) > 100);
        let plain = Request { paste_back: Some(false), ..whole };
        let plain = &generate(&mut engine, &plain)[0];
        assert!(plain.rgb.iter().zip(image.data()).filter(|(a, b)| a == b).count() < 4000);
    }
}

#[test]
fn an_inpainting_model_needs_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = widened("sd1", folder.path());
    let plain = request("a red apple", (64, 64), 4, 42);
    let without = generate(&mut engine, &plain);
    // The same as an image of which nothing is kept, from noise alone.
    let white = folder.path().join("white.png");
    std::fs::write(&white, kiln_media::encode_png((8, 8), &[255; 192], &[]).unwrap()).unwrap();
    let all = Request { mask: Some(white), strength: Some(1.0), ..masked(4) };
    assert_eq!(bits(&without), bits(&generate(&mut engine, &all)));
    let job = plain.resolve(engine.model()).unwrap();
    assert!(Workload::of(&job).stages().contains(&Stage::EncodeImage));
}

#[test]
fn rules_have_their_own_steps() {
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let mut engine = tiny("sd1", &cpu());
    let mut calls = |rule: Rule, steps: usize, strength: f64| {
        let request = Request {
            mask: None,
            rule: Some(rule),
            strength: Some(strength),
            sampler: Some(SamplerKind::Euler.into()),
            ..masked(steps)
        };
        let job: Job = request.resolve(&model).unwrap();
        let mut total = 0;
        let watch = &mut |event| {
            if let kiln_engine::Event::Step { total: all, .. } = event {
                total = all;
            }
            Ok(std::ops::ControlFlow::Continue(()))
        };
        engine.txt2img(&job, watch).unwrap();
        total
    };
    // `setup_img2img_steps` of AUTOMATIC1111: int(min(s, 0.999) n) + 1. `set_steps` of ComfyUI: n.
    for (steps, strength, expected) in [(20, 0.75, [15, 16, 20]), (10, 1.0, [10, 10, 10]), (4, 0.3, [1, 2, 4])] {
        let found = [Rule::Diffusers, Rule::Automatic1111, Rule::Comfy].map(|rule| calls(rule, steps, strength));
        assert_eq!(found, expected, "{steps} steps, strength {strength}");
    }
}

/// What AUTOMATIC1111's rule keeps are the input's latents, whatever the strength and the sampler; the rest differs.
#[test]
fn a_mask_keeps_latents_by_the_other_rule() {
    let mut engine = tiny("sd1", &cpu());
    let mut run = |strength: f64, sampler: SamplerKind| {
        let (strength, sampler, rule) = (Some(strength), Some(sampler.into()), Some(Rule::Automatic1111));
        latents(&generate(&mut engine, &Request { strength, sampler, rule, ..masked(4) }))
    };
    let values = |part: Tensor| part.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let first = run(0.4, SamplerKind::Euler);
    for (strength, sampler) in [(0.9, SamplerKind::EulerA), (0.7, SamplerKind::Heun), (0.7, SamplerKind::Dpmpp2m)] {
        let other = run(strength, sampler);
        let columns = |latents: &Tensor, from| values(latents.narrow(3, from, 1).unwrap());
        assert_eq!(columns(&first, 0), columns(&other, 0), "{sampler}");
        assert_ne!(columns(&first, 5), columns(&other, 5), "{sampler}");
        assert!(values(other).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn requests_come_back_from_their_images() {
    let mut engine = tiny("sd1", &cpu());
    let request = Request {
        strength: Some(0.5),
        inpaint_area: Some(InpaintArea::Masked),
        inpaint_padding: Some(7),
        mask_invert: true,
        mask_blur: Some(2.0),
        ..masked(4)
    };
    let image = &generate(&mut engine, &request)[0];
    for key in [
        "Denoising strength: 0.5",
        "Inpaint area: Only masked",
        "Masked area padding: 7",
        "Mask blur: 2",
        "Mask mode: Inpaint not masked",
        // Pillow's `hashlib.md5(Image.open(..).tobytes())`.
        "Init image hash: 3de5c59a1ee6320af1f921c75d866cc9",
    ] {
        assert!(image.parameters.contains(key), "{}", image.parameters);
    }
    let settings: kiln_engine::OwnSettings = serde_json::from_str(&image.settings).unwrap();
    let hash = kiln_files::sha256(&std::fs::read(input("image")).unwrap());
    assert_eq!(settings.inputs[0].option, "init");
    assert_eq!((&*settings.inputs[0].file.name, &settings.inputs[0].file.sha256), ("image.png", &Some(hash)));
    let mut again = settings.request;
    assert_eq!((&again.init, &again.mask), (&Some("image.png".into()), &Some("mask.png".into())));
    (again.init, again.mask) = (request.init.clone(), request.mask.clone());
    assert_eq!(generate(&mut engine, &again)[0].rgb, image.rgb);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let plain = Request { init: None, mask: None, ..masked(4) };
    let image = Request { mask: None, ..masked(4) };
    let black = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(black.path(), kiln_media::encode_png((8, 8), &[0; 192], &[]).unwrap()).unwrap();
    let a1111 = Some(Rule::Automatic1111);
    for (request, expected) in [
        (Request { strength: Some(0.5), ..plain.clone() }, "`strength` is 0.5, expected `init` too"),
        (Request { mask: Some(input("mask")), ..plain }, "expected `init` too"),
        (Request { mask_blur: Some(4.0), ..image.clone() }, "`mask_blur` is 4.0, expected `mask` or `extend` too"),
        (Request { strength: Some(0.0), ..image.clone() }, "`strength` is 0.0, expected more than 0"),
        (Request { strength: Some(0.2), ..image.clone() }, "raise the strength"),
        (Request { strength: Some(1.5), ..image.clone() }, "`strength` is 1.5, expected a number from 0 to 1"),
        (Request { init: Some("nowhere.png".into()), ..image.clone() }, "nowhere.png: not found; looked for `init`"),
        (
            Request { init: Some(fixtures("models/sd1/model_index.json")), ..image.clone() },
            "model_index.json: begins with the bytes",
        ),
        (Request { init: Some(fixtures("models")), ..image.clone() }, "is a folder"),
        (
            Request { rule: Some(Rule::Comfy), inpaint_area: Some(InpaintArea::Masked), ..masked(4) },
            "`inpaint_area` is masked, expected whole with `rule` comfy",
        ),
        (
            Request { rule: a1111, sampler: Some(SamplerKind::Ddim.into()), ..image.clone() },
            "expected diffusers with the sampler ddim",
        ),
        (
            Request { rule: a1111, init_noise: Some(kiln_engine::InitLatents::Sample), ..image.clone() },
            "`init_noise` is sample, expected mean",
        ),
        (
            Request { mask: Some(black.path().into()), inpaint_area: Some(InpaintArea::Masked), ..masked(4) },
            "at least one pixel that is not black",
        ),
        (Request { width: Some(60), ..image }, "`width` is 60"),
    ] {
        let message = request.resolve(&model).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}, not {expected}");
    }
}

/// The border of an extended image is regenerated, the image itself stays.
#[test]
fn images_are_extended() {
    let mut engine = tiny("sd1", &cpu());
    let request = Request {
        width: None,
        height: None,
        extend: Some("left=16,bottom=8".parse().unwrap()),
        strength: Some(1.0),
        ..masked(4)
    };
    let request = Request { mask: None, ..request };
    let (result, image) = (&generate(&mut engine, &request)[0], rgb("image"));
    assert_eq!((result.width, result.height), (112, 88));
    for y in 0..80 {
        let row = &result.rgb[(y * 112 + 16) * 3..(y * 112 + 112) * 3];
        assert_eq!(row, image.row(y), "row {y}");
    }
}
