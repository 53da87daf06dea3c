//! Models of other families than Stable Diffusion's with U-Nets, against diffusers: control networks and reference images.

use std::path::PathBuf;

use kiln_engine::{ControlUse, Emphasis, ModeChoice, ReferenceSize, Request, SamplerKind};
use kiln_testkit::{Fixture, Parity, fixtures, shared_data};
use serde::Deserialize;

use crate::support::cases::images_as_alone;
use crate::support::{bits, cpu, cpu_in, images, latents, load, try_images};

/// Largest error of final latents in f32, in their standard deviations.
const LATENTS: f64 = 1e-4;
/// Largest error of pixels from 0 to 1, besides their rounding to bytes.
const PIXELS: f32 = 1e-3;

/// A case of `cases.json`, as far as the tests here need it.
#[derive(Deserialize)]
struct Case {
    name: String,
    model: String,
    prompt: String,
    negative: String,
    width: usize,
    height: usize,
    steps: usize,
    cfg: f64,
    seed: u64,
    guidance: Option<f64>,
    #[serde(default)]
    controls: Vec<Net>,
    #[serde(default)]
    reference: Vec<String>,
}

#[derive(Deserialize)]
struct Net {
    net: String,
    image: String,
    weight: f64,
    start: f64,
    end: f64,
}

fn data(name: &str) -> PathBuf {
    shared_data(&format!("families/{name}"))
}

impl Case {
    /// The cases whose names begin with one of `begins`.
    fn all(begins: &[&str]) -> Vec<Self> {
        let text = std::fs::read_to_string(data("cases.json")).unwrap();
        let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let is_wanted = |case: &serde_json::Value| {
            let name = case["name"].as_str().unwrap_or_default();
            begins.iter().any(|begin| name.starts_with(begin))
        };
        let found: Vec<Self> =
            all.into_iter().filter(is_wanted).map(|case| serde_json::from_value(case).unwrap()).collect();
        assert_eq!(found.len(), begins.len());
        found
    }

    fn request(&self) -> Request {
        let control = |net: &Net| ControlUse {
            image: Some(data(&net.image)),
            weight: net.weight,
            start: net.start,
            end: net.end,
            ..ControlUse::new(data(&net.net))
        };
        let references: Vec<PathBuf> = self.reference.iter().map(|name| data(name)).collect();
        Request {
            prompt: self.prompt.clone(),
            negative_prompt: Some(self.negative.clone()),
            width: Some(self.width),
            height: Some(self.height),
            steps: Some(self.steps),
            cfg_scale: Some(self.cfg),
            seed: Some(self.seed),
            sampler: Some(SamplerKind::Euler.into()),
            guidance: self.guidance,
            emphasis: Emphasis::None,
            controls: self.controls.iter().map(control).collect(),
            reference_size: (!references.is_empty()).then_some(ReferenceSize::Own),
            references,
            ..Request::default()
        }
    }
}

/// Checks latents and pixels of the cases whose names begin with `begins`.
fn check(begins: &[&str]) {
    for case in Case::all(begins) {
        let mut engine = load(&data(&format!("models/{}", case.model)), &cpu());
        let found = images(&mut engine, &case.request());
        let expected = Fixture::read(&case.name, &data(&format!("{}.safetensors", case.name)));
        Parity::new("families", format!("{} f32", case.model)).check(
            &case.name,
            &latents(&found),
            &expected.tensor("latents"),
            LATENTS,
        );
        let planes: Vec<f32> = expected.tensor("image").flatten_all().unwrap().to_vec1().unwrap();
        let pixels = case.width * case.height;
        for (i, &byte) in found[0].rgb.iter().enumerate() {
            let expected = planes[i % 3 * pixels + i / 3];
            let error = (f32::from(byte) / 255.0 - expected).abs() - 0.5 / 255.0;
            assert!(error < PIXELS, "{}: pixel {i} is off by {error}", case.name);
        }
    }
}

/// Checks that two images are the same in a batch and alone, and in these memory modes.
fn check_modes(model: &str, request: &Request, modes: &[ModeChoice]) {
    let two = Request { batch_size: Some(2), steps: Some(2), ..request.clone() };
    let expected = images_as_alone(&mut load(&data(&format!("models/{model}")), &cpu()), &two);
    for &mode in modes {
        let found = images(&mut load(&data(&format!("models/{model}")), &cpu_in(mode)), &two);
        assert!(bits(&found) == bits(&expected), "{model} {mode:?}");
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_control_networks_are_diffusers() {
    check(&["sd3-control-", "flux_dev-control-"]);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_reference_images_are_diffusers() {
    check(&["flux_dev-reference-"]);
}

/// Two networks of which one acts in the first half, with guidance and in both passes of hires fix.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_control_networks_are_the_same_in_every_mode_and_batch() {
    for case in Case::all(&["sd3-control-", "flux_dev-control-"]) {
        let steps = Some(2);
        let request = Request { cfg_scale: Some(3.0), negative_prompt: Some("night".into()), steps, ..case.request() };
        let first = ControlUse { end: 0.5, weight: 0.3, ..request.controls[0].clone() };
        let request = Request { controls: vec![first, request.controls[0].clone()], ..request };
        check_modes(&case.model, &request, &[ModeChoice::Medvram, ModeChoice::Lowvram]);
        let hires = Request { hires_scale: Some(1.5), hires_strength: Some(0.6), ..request.clone() };
        check_modes(&case.model, &hires, &[ModeChoice::Lowvram]);
        // Without the networks another image, and the same again with them.
        let mut engine = load(&data(&format!("models/{}", case.model)), &cpu());
        let mut run = |request: &Request| bits(&images(&mut engine, request));
        let with = run(&request);
        assert!(run(&Request { controls: Vec::new(), ..request.clone() }) != with && run(&request) == with);
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_reference_images_are_the_same_in_every_mode_and_batch() {
    for case in Case::all(&["flux_dev-reference-"]) {
        let request = case.request();
        let two = vec![data("images/photo_64x64.png"), request.references[0].clone()];
        let request = Request { references: two, steps: Some(2), cfg_scale: Some(3.0), ..request };
        let request = Request { negative_prompt: Some("a".into()), ..request };
        check_modes(&case.model, &request, &[ModeChoice::Medvram, ModeChoice::Lowvram]);
        let mut engine = load(&data(&format!("models/{}", case.model)), &cpu());
        let turned = Request { references: request.references.iter().rev().cloned().collect(), ..request.clone() };
        assert!(bits(&images(&mut engine, &turned)) != bits(&images(&mut engine, &request)));
        let made = images(&mut engine, &request); // with the latents that the engine has kept
        assert!(bits(&made) == bits(&images(&mut load(&data(&format!("models/{}", case.model)), &cpu()), &request)));
        let settings: serde_json::Value = serde_json::from_str(&made[0].settings).unwrap();
        assert_eq!(settings["request"]["references"][1], "photo_112x80.png");
        assert_eq!(settings["request"]["reference_size"], "own");
        assert_eq!(settings["inputs"][1]["option"], "references[1].image");
    }
}

/// Uses that a network does not have are refused by name.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_uses_that_do_not_fit_are_refused() {
    for case in Case::all(&["sd3-control-", "flux_dev-control-"]) {
        let mut engine = load(&data(&format!("models/{}", case.model)), &cpu());
        let request = case.request();
        let other = if case.model == "sd3" { "flux_dev" } else { "sd3" };
        let net = request.controls[0].clone();
        for (control, says) in [
            (ControlUse { guess: true, ..net.clone() }, "the mode balanced: "),
            (ControlUse { mode: kiln_engine::ControlMode::Control, ..net.clone() }, "the mode balanced: "),
            (ControlUse { kind: Some(kiln_engine::ControlType::Canny), ..net.clone() }, "no type: "),
            (ControlUse { net: data(&format!("controlnet/{other}")), ..net.clone() }, "ControlNet, but the model "),
        ] {
            let refused = try_images(&mut engine, &Request { controls: vec![control], ..request.clone() });
            let message = refused.map(drop).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
        if case.model == "sd3" {
            let references = vec![data("images/photo_64x64.png")];
            let refused = try_images(&mut engine, &Request { references, controls: Vec::new(), ..request });
            let message = refused.map(drop).unwrap_err().to_string();
            assert!(message.contains("`references` is 1, expected none: it works with models that take"), "{message}");
        }
    }
}

#[test]
fn u_nets_take_no_reference_images() {
    let mut engine = load(&fixtures("models/sd1"), &cpu());
    let request = Request { references: vec!["a.png".into()], ..Request::default() };
    let message = try_images(&mut engine, &request).map(drop).unwrap_err().to_string();
    assert!(message.contains("`references` is 1, expected none: it works with models that take"), "{message}");
    let request = Request { reference_size: Some(ReferenceSize::Own), ..Request::default() };
    let message = try_images(&mut engine, &request).map(drop).unwrap_err().to_string();
    assert!(message.starts_with("`reference_size` is own"), "{message}");
}
