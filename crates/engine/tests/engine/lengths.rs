//! Prompts of unequal length compared with diffusers' U-Net, of which each row ran with its own text length.

use candle_core::Tensor;
use kiln_engine::{Engine, Request, SamplerKind};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::support::{cpu, images, latents, tiny};

/// In standard deviations, f32 on both sides. A long prompt with other padding differs by more than 1e-2, see below.
const BOUND: f64 = 1e-3;

#[derive(Deserialize)]
struct Case {
    kind: String,
    name: String,
    seed: u64,
    steps: usize,
    cfg_scale: f64,
    width: usize,
    height: usize,
    negative_prompt: String,
    parts: Vec<(String, f64)>,
    pad: bool,
}

impl Case {
    fn request(&self) -> Request {
        let parts: Vec<String> = self.parts.iter().map(|(text, weight)| format!("{text} :{weight}")).collect();
        Request {
            prompt: parts.join(" AND "),
            negative_prompt: Some(self.negative_prompt.clone()),
            width: Some(self.width),
            height: Some(self.height),
            steps: Some(self.steps),
            cfg_scale: Some(self.cfg_scale),
            seed: Some(self.seed),
            sampler: Some(SamplerKind::Ddim.into()),
            comma_backtrack: Some(0), // the reference splits at full chunks
            pad_conds: Some(self.pad),
            ..Request::default()
        }
    }
}

fn latents_of(engine: &mut Engine, request: &Request) -> Tensor {
    latents(&images(engine, request))
}

#[test]
fn every_prompt_keeps_its_own_length() {
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(fixtures("lengths.json")).unwrap()).unwrap();
    let fixture = Fixture::open("lengths.safetensors");
    assert_eq!(cases.len(), 14);
    for kind in ["sd1", "sdxl"] {
        let mut engine = tiny(kind, &cpu());
        let parity = Parity::new("lengths", kind.to_string());
        for case in cases.iter().filter(|case| case.kind == kind) {
            let found = latents_of(&mut engine, &case.request());
            parity.check(&case.name, &found, &fixture.tensor(&format!("{kind}.{}", case.name)), BOUND);
        }
    }
}

/// The largest difference in standard deviations of `b`.
fn distance(a: &Tensor, b: &Tensor) -> f32 {
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (a, b) = (values(a), values(b));
    let mean = b.iter().sum::<f32>() / b.len() as f32;
    let deviation = (b.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / b.len() as f32).sqrt();
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / deviation
}

/// The prompts of a schedule, one of which is also the negative prompt with another length, and images of one batch.
#[test]
fn schedules_and_batches_keep_their_lengths() {
    let long = "a red apple, ".repeat(30);
    let mut engine = tiny("sd1", &cpu());
    let request = |prompt: &str, negative: &str, pad: bool| Request {
        prompt: prompt.into(),
        negative_prompt: Some(negative.into()),
        width: Some(64),
        height: Some(64),
        steps: Some(3),
        seed: Some(3),
        sampler: Some(SamplerKind::Ddim.into()),
        pad_conds: Some(pad),
        ..Request::default()
    };
    // A prompt of a schedule has the length of the longest one, like a single prompt with that length.
    let scheduled = latents_of(&mut engine, &request(&format!("[a cat:{long}:2]"), "a cat", false));
    let alone = latents_of(&mut engine, &request("a cat", "a cat", false));
    assert!(distance(&scheduled, &alone) > 1e-3);
    // Equal lengths give the same result with both settings, bit for bit.
    let both = [true, false].map(|pad| latents_of(&mut engine, &request("a cat", "a dog", pad)));
    assert_eq!(distance(&both[0], &both[1]), 0.0);
    // Padding changes the image.
    let both = [true, false].map(|pad| latents_of(&mut engine, &request(&long, "a dog", pad)));
    assert!(distance(&both[0], &both[1]) > 1e-2);
    // Images of a batch have the same lengths as alone.
    let choices = Request { batch_size: Some(4), ..request(&format!("{{a cat|{long}}}"), "a dog", false) };
    let together = latents_of(&mut engine, &choices);
    for i in 0..4 {
        let one = Request { seed: Some(3 + i as u64), batch_size: None, ..choices.clone() };
        let alone = latents_of(&mut engine, &one);
        assert!(distance(&together.narrow(0, i, 1).unwrap(), &alone) < 1e-3, "{i}");
    }
}
