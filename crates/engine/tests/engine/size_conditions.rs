//! SDXL's sizes against diffusers' pipelines (`tests/reference/size_conditions.py`).

use kiln_engine::{Request, SamplerKind};
use kiln_request::Crop;
use kiln_testkit::{Fixture, Parity, fixtures};
use serde_json::{Map, Value};

use crate::support::refiner::refiner;
use crate::support::{bits, cpu, images, latents, load, request, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// The request of a case; diffusers has heights before widths.
fn of_case(case: &Map<String, Value>, alone: bool) -> Request {
    let pair = |name: &str| {
        let pair: Option<[usize; 2]> = case.get(name).map(|pair| serde_json::from_value(pair.clone()).unwrap());
        pair.map(|[y, x]| (x, y))
    };
    let crop = |name: &str| pair(name).map(|(left, top)| Crop { left, top });
    Request {
        negative_prompt: case.get("negative_prompt").map(|text| text.as_str().unwrap().into()),
        cfg_scale: Some(5.0),
        sampler: Some(SamplerKind::Euler.into()),
        original_size: pair("original_size"),
        crop: crop("crops_coords_top_left"),
        target_size: pair("target_size"),
        negative_original_size: pair("negative_original_size"),
        negative_crop: crop("negative_crops_coords_top_left"),
        negative_target_size: pair("negative_target_size"),
        init: alone.then(|| fixtures("inpaint/image.png")),
        strength: alone.then_some(0.6),
        ..request("a red apple", (64, if alone { 64 } else { 48 }), 6, 42)
    }
}

#[test]
fn latents_with_sizes_are_diffusers() {
    let folder = tempfile::tempdir().unwrap();
    let refiner = refiner(folder.path());
    let text = std::fs::read_to_string(fixtures("size_conditions/cases.json")).unwrap();
    let cases: Vec<Map<String, Value>> = serde_json::from_str(&text).unwrap();
    let results = Fixture::open("size_conditions/cases.safetensors");
    let parity = Parity::new("size conditions", "sdxl f32".to_string());
    assert_eq!(cases.len(), 8);
    let (mut base, mut alone) = (tiny("sdxl", &cpu()), load(&refiner, &cpu()));
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let is_alone = case.contains_key("alone");
        let request = of_case(case, is_alone);
        let refined = case.contains_key("refiner");
        let request =
            Request { refiner: refined.then(|| refiner.clone()), refiner_switch: refined.then_some(0.5), ..request };
        let made = images(if is_alone { &mut alone } else { &mut base }, &request);
        parity.check(name, &latents(&made), &results.tensor(name), BOUND);
    }
    let target = Request { target_size: Some((8, 8)), ..of_case(&cases[7], true) };
    let message = target.resolve(alone.model()).unwrap_err().to_string();
    assert!(
        message.contains("`target_size` is 8x8, expected none: refiner, a refiner, takes `aesthetic_score`"),
        "{message}"
    );
}

/// Groups with other sizes share calls of the denoiser, and images keep their bits. Settings in images have the sizes.
#[test]
fn sizes_belong_to_an_image_and_are_in_its_settings() {
    let mut engine = tiny("sdxl", &cpu());
    let plain = request("a red apple", (32, 32), 2, 7);
    let crop = Some("0,64".parse().unwrap());
    let asked = Request { original_size: Some((100, 200)), negative_crop: crop, batch_size: Some(2), ..plain.clone() };
    let two = images(&mut engine, &asked);
    let second = images(&mut engine, &Request { seed: Some(8), batch_size: None, ..asked.clone() });
    assert_eq!(bits(&two[1..]), bits(&second));
    assert_ne!(bits(&two[..1]), bits(&images(&mut engine, &plain)));
    assert!(
        two[0].parameters.contains("SDXL original size: 100x200, SDXL negative crop: \"0,64\""),
        "{}",
        two[0].parameters
    );
    let settings: kiln_engine::OwnSettings = serde_json::from_str(&two[0].settings).unwrap();
    assert_eq!((settings.request.original_size, settings.request.negative_crop), (asked.original_size, crop));
    assert_eq!(images(&mut engine, &settings.request)[0].rgb, two[0].rgb);
}
