//! The trained model of Stable Diffusion 3 that comes with Kiln: what diffusers makes of it, and the same bits in every mode.

use std::path::Path;

use candle_core::Tensor;
use kiln_compare::psnr;
use kiln_engine::{ModeChoice, Request};
use kiln_prompt::{ChunkCut, Emphasis};
use kiln_testkit::{Fixture, Parity, repository, shared_models};
use serde_json::Value;

use crate::support::{bits, cpu, cpu_in, images, latents, load, pixels, request};

/// In standard deviations, f32 on both sides.
const BOUND: f64 = 1e-3;

/// A copy of the model without T5, as a pipeline with `text_encoder_3=None` saves it.
fn without_t5(model: &Path, folder: &Path) {
    for entry in std::fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        let to = folder.join(name);
        if name == "model_index.json" {
            let mut index: Value = serde_json::from_slice(&std::fs::read(&entry).unwrap()).unwrap();
            for part in ["text_encoder_3", "tokenizer_3"] {
                index[part] = serde_json::json!([null, null]);
            }
            std::fs::write(to, index.to_string()).unwrap();
        } else if entry.is_file() {
            std::fs::copy(&entry, to).unwrap();
        } else if !name.ends_with("_3") && name != "expected" {
            std::fs::create_dir(&to).unwrap();
            for file in std::fs::read_dir(&entry).unwrap().map(|file| file.unwrap().path()) {
                std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
            }
        }
    }
}

/// The request of a run of diffusers.
fn of_case(case: &Value) -> Request {
    let text = |key: &str| case[key].as_str().unwrap().to_string();
    let number = |key: &str| case[key].as_u64().unwrap() as usize;
    Request {
        negative_prompt: Some(text("negative_prompt")),
        cfg_scale: case["guidance_scale"].as_f64(),
        max_length: Some(number("max_sequence_length")),
        emphasis: Emphasis::None,
        chunk_cut: ChunkCut::Truncate,
        ..request(&text("prompt"), (number("width"), number("height")), number("steps"), number("seed") as u64)
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_images_of_a_trained_model() {
    let model = shared_models("emoji-sd3");
    let folder = tempfile::tempdir().unwrap();
    without_t5(&model, folder.path());
    for name in ["rocket", "waving-hand-77", "sunflower-no-t5"] {
        let file = |end: &str| model.join(format!("expected/{name}.{end}"));
        let case: Value = serde_json::from_slice(&std::fs::read(file("json")).unwrap()).unwrap();
        let fixture = Fixture::read(name, &file("safetensors"));
        let parity = Parity::new("trained", name);
        let has_t5 = case["text_encoder_3"] == true;
        let mut engine = load(if has_t5 { &model } else { folder.path() }, &cpu());
        let request = of_case(&case);
        // One step from the first level to 0 subtracts the velocity from the noise.
        for (row, text) in [&case["negative_prompt"], &case["prompt"]].into_iter().enumerate() {
            let prompt = text.as_str().unwrap().to_string();
            let one =
                Request { prompt, steps: Some(1), cfg_scale: Some(1.0), negative_prompt: None, ..request.clone() };
            let reached = latents(&images(&mut engine, &one));
            let velocity = (fixture.tensor("initial_noise") - reached).unwrap();
            let expected: Tensor = fixture.tensor("noise_pred0").narrow(0, row, 1).unwrap();
            parity.check(&format!("prediction {row}"), &velocity, &expected, BOUND);
        }
        let made = images(&mut engine, &request);
        parity.check("latents", &latents(&made), &fixture.tensor("latents"), BOUND);
        let bytes = std::fs::read(file("png")).unwrap();
        let decoded = kiln_media::decode(&bytes, name, &kiln_media::DecodeOptions::default()).unwrap();
        let difference = made[0].rgb.iter().zip(decoded.rgb().data()).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(difference <= Some(1), "{name}: {difference:?} levels");
    }
}

#[test]
fn modes_and_batches_do_not_change_a_flow_model() {
    let model = repository().join("models/emoji-sd3");
    let one = Request { negative_prompt: Some("blue".into()), ..request("a rocket", (64, 96), 3, 5) };
    let expected = images(&mut load(&model, &cpu()), &one);
    let skipped = Request { slg_scale: Some(2.0), slg_layers: "1,2".parse().ok(), slg_end: Some(0.9), ..one.clone() };
    let steered = images(&mut load(&model, &cpu()), &skipped);
    assert!(bits(&steered) != bits(&expected));
    for mode in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
        let mut engine = load(&model, &cpu_in(mode));
        let batch = images(&mut engine, &Request { batch_size: Some(2), seed: Some(4), ..one.clone() });
        assert!(bits(&batch[1..]) == bits(&expected), "{mode:?}");
        assert!(bits(&images(&mut engine, &skipped)) == bits(&steered), "{mode:?}");
    }
}

/// The model draws what it is asked for, also in few steps.
#[test]
fn the_model_draws_what_the_prompt_says() {
    let mut engine = load(&repository().join("models/emoji-sd3"), &cpu());
    let mut draw = |prompt: &str, seed| pixels(&mut engine, &request(prompt, (256, 256), 8, seed)).remove(0);
    let [apple, again, rocket] =
        [("a red apple", 1), ("a red apple", 2), ("a rocket", 1)].map(|(prompt, seed)| draw(prompt, seed));
    assert!(psnr(&apple, &again).unwrap() > psnr(&apple, &rocket).unwrap() + 5.0, "seeds differ more than prompts");
    let middle = (128 * 256 + 128) * 3;
    let [red, green, blue] = [0, 1, 2].map(|channel| apple[middle + channel]);
    assert!(red > 150 && green < 110 && blue < 110, "the middle of the apple is {red}, {green}, {blue}");
}
