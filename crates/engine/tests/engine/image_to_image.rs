//! Images that begin with images, against diffusers' pipelines, and what they keep of them.

use candle_core::{DType, Device, Tensor};
use kiln_engine::{
    Engine, Event, GeneratedImage, Init, InitImage, InitLatents, Job, Mask, ModeChoice, Request, SamplerKind, Stage,
};
use kiln_testkit::{Fixture, Parity};
use serde::Deserialize;

use crate::support::cases::{Case, init_image, init_mask, init_of_task, job_with};
use crate::support::{bits, cpu, cpu_in, latents, request, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// What a case of `image_to_image.json` has besides.
#[derive(Deserialize)]
struct Strength {
    strength: f64,
    masked: bool,
}

fn run(engine: &mut Engine, job: &Job) -> (Vec<GeneratedImage>, Vec<Stage>) {
    let (mut images, mut stages) = (Vec::new(), Vec::new());
    engine
        .txt2img(job, &mut |event| {
            match event {
                Event::Image(image) => images.push(*image),
                Event::Begin(stage) => stages.push(stage),
                _ => {}
            }
            Ok(std::ops::ControlFlow::Continue(()))
        })
        .unwrap();
    (images, stages)
}

#[test]
fn latents_are_diffusers() {
    let fixture = Fixture::open("image_to_image.safetensors");
    for kind in ["sd1", "sd2v", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("image_to_image", format!("{kind} f32")));
        for case in Case::<Strength>::read("image_to_image.json", kind, 11) {
            let Strength { strength, masked } = case.more;
            let init = init_of_task(if masked { "inpaint" } else { "img2img" }, strength);
            let job = job_with(&engine, &case.request((64, 64)), init);
            let (images, stages) = run(&mut engine, &job);
            assert!(stages.contains(&Stage::EncodeImage));
            parity.check(&case.name, &latents(&images), &fixture.tensor(&case.key()), BOUND);
        }
    }
}

#[test]
fn an_image_is_the_same_in_every_mode_and_batch() {
    let init = || Init::Masked { image: init_image(InitLatents::Sample), mask: init_mask(), strength: 0.6 };
    let three =
        Request { batch_size: Some(3), sampler: Some(SamplerKind::EulerA.into()), ..request("a pear", (64, 64), 4, 7) };
    let mut engine = tiny("sd1", &cpu());
    let all = job_with(&engine, &three, Some(init()));
    let expected = run(&mut engine, &all).0;
    for (i, image) in expected.iter().enumerate() {
        let one = Request { batch_size: None, seed: Some(7 + i as u64), ..three.clone() };
        let one = job_with(&engine, &one, Some(init()));
        let alone = run(&mut engine, &one).0;
        assert!(alone[0].rgb == image.rgb && bits(&alone) == bits(std::slice::from_ref(image)), "image {i}");
    }
    for mode in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
        let mut engine = tiny("sd1", &cpu_in(mode));
        let all = job_with(&engine, &three, Some(init()));
        assert!(bits(&run(&mut engine, &all).0) == bits(&expected), "{mode:?}");
        // The encoder is closed again by a job that has no image.
        let plain = three.resolve(engine.model()).unwrap();
        assert!(!run(&mut engine, &plain).1.contains(&Stage::EncodeImage));
    }
}

#[test]
fn a_mask_keeps_the_images_latents() {
    let mut engine = tiny("sd1", &cpu());
    let request = request("a pear", (64, 64), 4, 7);
    let half = |rows: std::ops::Range<usize>| {
        let values: Vec<f32> = (0..64 * 64).map(|i| f32::from(u8::from(rows.contains(&(i / 64))))).collect();
        Mask::new(&Tensor::from_vec(values, (1, 1, 64, 64), &Device::Cpu).unwrap()).unwrap()
    };
    let mut latents_with = |mask: Mask, strength: f64| {
        let init = Init::Masked { image: init_image(InitLatents::Mean), mask, strength };
        let job = job_with(&engine, &request, Some(init));
        latents(&run(&mut engine, &job).0)
    };
    let values = |latents: Tensor| latents.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    // Nothing is regenerated: the image's latents, whatever the strength.
    let kept = latents_with(half(0..0), 0.6);
    assert_eq!(values(kept.clone()), values(latents_with(half(0..0), 1.0)));
    // The upper half is regenerated: the lower half of the latents stays, bit for bit.
    let upper = latents_with(half(0..32), 0.6);
    let (lower, found) = (kept.narrow(2, 4, 4).unwrap(), upper.narrow(2, 4, 4).unwrap());
    assert_eq!(values(lower), values(found));
    assert_ne!(values(kept.narrow(2, 0, 4).unwrap()), values(upper.narrow(2, 0, 4).unwrap()));
}

#[test]
fn images_that_do_not_fit_a_job_are_refused() {
    let engine = tiny("sd1", &cpu());
    let refused = |size, strength| {
        let job = request("a pear", size, 4, 7).resolve(engine.model()).unwrap();
        job.with_init(Init::Image { image: init_image(InitLatents::Sample), strength }, engine.model()).unwrap_err()
    };
    let message = refused((64, 32), 0.5).to_string();
    assert!(message.contains("64x64") && message.contains("64x32"), "{message}");
    assert!(matches!(refused((64, 64), 0.0), kiln_request::Error::Value { .. }));
    // 0.2 of four steps is none.
    let message = refused((64, 64), 0.2).to_string();
    assert!(message.contains("raise the strength"), "{message}");
    let wrong = Tensor::zeros((1, 4, 64, 64), DType::F32, &Device::Cpu).unwrap();
    assert!(InitImage::new(&wrong, InitLatents::Mean).is_err());
}
