//! Qwen-Image-Edit against diffusers: images that the language model and the transformer see.

use std::path::Path;

use kiln_engine::{ModeChoice, ModelFolder, ReferenceSize, Request, SamplerKind};
use kiln_testkit::{Fixture, Parity, fixtures};

use crate::support::cases::images_as_alone;
use crate::support::qwen_edit::{second, write_model};
use crate::support::{bits, cpu, cpu_in, images, latents, load, try_images};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-4;
const ONE: &str = "QwenImageEditPipeline";
const SEVERAL: &str = "QwenImageEditPlusPipeline";

/// A request with the first image of the generator.
fn plain() -> Request {
    Request {
        prompt: "make it night".into(),
        negative_prompt: Some("blurry".into()),
        width: Some(64),
        height: Some(64),
        steps: Some(3),
        cfg_scale: Some(4.0),
        seed: Some(42),
        sampler: Some(SamplerKind::Euler.into()),
        references: vec![fixtures("inpaint/image.png")],
        ..Request::default()
    }
}

/// A request with `count` images in their own sizes.
fn own(count: usize) -> Request {
    let references = [fixtures("inpaint/image.png"), second()].into_iter().take(count).collect();
    Request { references, reference_size: Some(ReferenceSize::Own), ..plain() }
}

fn message(folder: &Path, request: &Request) -> String {
    try_images(&mut load(folder, &cpu()), request).map(drop).unwrap_err().to_string()
}

#[test]
fn latents_are_those_of_diffusers() {
    let expected = Fixture::open("qwen_edit/latents.safetensors");
    let parity = Parity::new("qwen_edit", "tiny f32");
    for (name, class, request) in [
        ("edit", ONE, plain()),
        ("plus", SEVERAL, own(1)),
        ("plus_two", SEVERAL, own(2)),
        ("plus_alone", SEVERAL, Request { cfg_scale: Some(1.0), ..own(2) }),
        ("zero_cond_t", SEVERAL, own(2)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), class, name == "zero_cond_t");
        let found = images(&mut load(folder.path(), &cpu()), &request);
        parity.check(name, &latents(&found), &expected.tensor(name), BOUND);
    }
}

#[test]
fn an_image_has_the_same_bits_in_every_mode_and_batch() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), SEVERAL, true);
    let two = Request { batch_size: Some(2), steps: Some(2), ..own(2) };
    let expected = images_as_alone(&mut load(folder.path(), &cpu()), &two);
    for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
        assert!(bits(&images(&mut load(folder.path(), &cpu_in(mode)), &two)) == bits(&expected), "{mode:?}");
    }
}

/// Texts that are known belong to their images.
#[test]
fn other_images_and_other_orders_give_other_results() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), SEVERAL, false);
    let mut engine = load(folder.path(), &cpu());
    let base = Request { steps: Some(2), ..own(2) };
    let reversed = Request { references: base.references.iter().rev().cloned().collect(), ..base.clone() };
    let none = Request { references: Vec::new(), reference_size: None, ..base.clone() };
    let mut run = |request: &Request| bits(&images(&mut engine, request));
    let all = [&base, &reversed, &Request { steps: Some(2), ..own(1) }, &none].map(&mut run);
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one), "case {i}");
    }
    assert!(run(&base) == all[0]);
}

#[test]
fn a_result_has_the_ratio_of_the_last_image() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), SEVERAL, false);
    let model = ModelFolder::open(folder.path()).unwrap();
    let size = |request: Request| {
        let job = request.resolve(&model).unwrap();
        (job.width, job.height)
    };
    let free = |request: Request| Request { width: None, height: None, ..request };
    assert_eq!(size(free(own(1))), (1120, 928));
    assert_eq!(size(free(own(2))), (1440, 736));
    assert_eq!(size(Request { width: Some(96), ..free(own(2)) }), (96, 736));
    assert_eq!(size(free(Request { references: Vec::new(), ..plain() })), (1024, 1024));
}

#[test]
fn the_first_model_takes_one_image_and_qwen_image_none() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), ONE, false);
    let found = message(folder.path(), &own(2));
    assert!(found.contains("`references` is 2, expected one image"), "{found}");
    write_model(folder.path(), "QwenImagePipeline", false);
    let found = message(folder.path(), &own(1));
    assert!(found.contains("`references`") && found.contains("Qwen-Image-Edit"), "{found}");
}
