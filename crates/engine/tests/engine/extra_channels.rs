//! Transformers that take channels besides the latents: a masked image and its mask, or a control image.

use std::path::{Path, PathBuf};

use candle_core::Tensor;
use kiln_engine::{ModeChoice, Request, SamplerKind};
use kiln_testkit::{Fixture, Parity, fixtures};

use crate::support::cases::images_as_alone;
use crate::support::channels::{CONTROL, FILL, LATENTS, widened};
use crate::support::{bits, cpu, cpu_in, images, latents, load, request, try_images};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-4;

fn input(name: &str) -> PathBuf {
    fixtures(&format!("inpaint/{name}.png"))
}

/// A request for 64x64 pixels in three steps.
fn plain() -> Request {
    Request { negative_prompt: None, ..request("a red apple", (64, 64), 3, 42) }
}

fn message(folder: &Path, request: &Request) -> String {
    try_images(&mut load(folder, &cpu()), request).map(drop).unwrap_err().to_string()
}

/// Checks that a request has equal bits in every memory mode and alone, and that `others` have other bits.
fn check(folder: &Path, request: &Request, others: &[Request]) {
    let two = Request { batch_size: Some(2), ..request.clone() };
    let expected = images_as_alone(&mut load(folder, &cpu()), &two);
    for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
        assert!(bits(&images(&mut load(folder, &cpu_in(mode)), &two)) == bits(&expected), "{mode:?}");
    }
    let mut engine = load(folder, &cpu());
    let mut run = |request: &Request| bits(&images(&mut engine, request));
    let own = run(request);
    for (i, other) in others.iter().enumerate() {
        assert!(run(other) != own, "case {i}");
    }
    assert!(run(request) == own);
}

#[test]
fn latents_are_those_of_diffusers() {
    let results = Fixture::open("extra_channels.safetensors");
    let parity = Parity::new("extra_channels", "tiny-dit f32");
    let levels =
        Request { sigmas: Some(vec![1.0, 0.75, 0.5, 0.25, 0.0]), steps: None, cfg_scale: Some(1.0), ..plain() };
    let base = Request { sampler: Some(SamplerKind::Euler.into()), ..levels };
    let fill = Request { init: Some(input("image")), mask: Some(input("mask")), ..base.clone() };
    let control = Request { references: vec![input("mask")], ..base };
    let part = Request { init: Some(input("image")), strength: Some(0.5), ..control.clone() };
    let masked = Request { mask: Some(input("mask")), strength: Some(0.75), ..part.clone() };
    for (name, columns, request) in [
        ("fill", FILL, Request { strength: Some(1.0), ..fill.clone() }),
        ("fill_part", FILL, Request { strength: Some(0.5), ..fill }),
        ("control", CONTROL, control),
        ("control_part", CONTROL, part),
        ("control_masked", CONTROL, masked),
    ] {
        let folder = tempfile::tempdir().unwrap();
        widened(columns, folder.path());
        let found = images(&mut load(folder.path(), &cpu()), &request);
        parity.check(name, &latents(&found), &results.tensor(name), BOUND);
    }
}

#[test]
fn a_mask_and_a_masked_image_are_filled_in() {
    let folder = tempfile::tempdir().unwrap();
    widened(FILL, folder.path());
    let fill = Request { init: Some(input("image")), mask: Some(input("mask")), ..plain() };
    let part = Request { strength: Some(1.0), ..fill.clone() };
    let guided = Request { negative_prompt: Some("night".into()), cfg_scale: Some(3.0), ..fill.clone() };
    let extended = Request { mask: None, extend: "left=16".parse().ok(), width: None, height: None, ..fill.clone() };
    assert!(extended.extend.is_some());
    let inverted = Request { mask_invert: true, ..fill.clone() };
    check(folder.path(), &fill, &[part.clone(), guided.clone(), extended, inverted]);
    check(folder.path(), &Request { mask_weight: Some(0.5), ..guided }, &[part]);
    // Nothing is put back between steps: the network sees the image.
    let mut engine = load(folder.path(), &cpu());
    let other = Request { prompt: "a blue sky".into(), ..fill.clone() };
    let [a, b] = [&fill, &other].map(|request| latents(&images(&mut engine, request)));
    let corner = |latents: &Tensor| latents.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0].to_bits();
    assert!(corner(&a) != corner(&b));
}

#[test]
fn a_model_that_fills_in_needs_a_mask() {
    let folder = tempfile::tempdir().unwrap();
    widened(FILL, folder.path());
    let found = message(folder.path(), &plain());
    assert!(found.starts_with("`init` is missing, expected an image with a `mask`"), "{found}");
    let found = message(folder.path(), &Request { init: Some(input("image")), ..plain() });
    assert!(found.starts_with("`mask` is missing, expected an image with a `mask`"), "{found}");
    let found = message(folder.path(), &Request { references: vec![input("image")], ..plain() });
    assert!(found.contains("`references` is 1, expected none: it works with models that take"), "{found}");
}

#[test]
fn a_control_image_is_seen_by_the_transformer() {
    let folder = tempfile::tempdir().unwrap();
    widened(CONTROL, folder.path());
    let control = Request { references: vec![input("image")], ..plain() };
    let other = Request { references: vec![input("mask")], ..control.clone() };
    let guided = Request { negative_prompt: Some("night".into()), cfg_scale: Some(3.0), ..control.clone() };
    let hires = Request { hires_scale: Some(1.5), hires_strength: Some(0.6), ..control.clone() };
    let from_image = Request { init: Some(input("image")), strength: Some(0.6), ..control.clone() };
    let masked = Request { mask: Some(input("mask")), ..from_image.clone() };
    check(folder.path(), &control, &[other, guided, from_image, masked.clone()]);
    check(folder.path(), &hires, &[control]);
    check(folder.path(), &masked, &[]);
}

#[test]
fn a_model_with_a_control_image_takes_one() {
    let folder = tempfile::tempdir().unwrap();
    widened(CONTROL, folder.path());
    for count in [0, 2] {
        let found = message(folder.path(), &Request { references: vec![input("image"); count], ..plain() });
        let expected = format!("`references` is {count}, expected one image: ");
        assert!(
            found.starts_with(&expected) && found.ends_with("takes a control image, such as edges or depth"),
            "{found}"
        );
    }
}

#[test]
fn channels_that_nothing_is_made_of_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for columns in [LATENTS + 4, FILL + 4] {
        widened(columns, folder.path());
        let found = kiln_engine::ModelFolder::open(folder.path()).map(drop).unwrap_err().to_string();
        let others = (columns - LATENTS) / 4;
        assert!(
            found.contains(&format!("takes 16 latent channels and {others} others, but the VAE has 16")),
            "{found}"
        );
    }
}
