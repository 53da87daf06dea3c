//! Edits by a tiny Qwen-Image-Edit: OpenAI's API and ComfyUI's graphs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_serve::ServeOptions;
use kiln_testkit::fixtures;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::comfy_graphs::{graph_with, node};
use crate::comfy_images::{job, made, upload};
use crate::qwen_edit::{second, write_model};
use crate::support::{Served, options, pixels};

/// A server with the model, which has the images `first.png` and `second.png`.
fn served() -> (Served, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edit");
    std::fs::create_dir(&path).unwrap();
    write_model(&path, "QwenImageEditPlusPipeline", false);
    let served = Served::start(ServeOptions { models: vec![path], ..options() });
    for (name, file) in [("first.png", first()), ("second.png", std::fs::read(second()).unwrap())] {
        assert_eq!(upload(&served, "/upload/image", name, &file, &[]).status, 200);
    }
    (served, folder)
}

fn first() -> Vec<u8> {
    std::fs::read(fixtures("inpaint/image.png")).unwrap()
}

/// The images of these numbers in Base64.
fn encoded(numbers: &[usize]) -> Vec<String> {
    let files = [first(), std::fs::read(second()).unwrap()];
    numbers.iter().map(|number| STANDARD.encode(&files[*number])).collect()
}

/// One image and several ones are references of the model, in their order.
#[test]
fn edits_of_openai_s_api_are_made_by_references() {
    let (served, _folder) = served();
    let edited = |numbers: &[usize]| {
        let images: Vec<Value> = encoded(numbers)
            .iter()
            .map(|image| json!({ "image_url": format!("data:image/png;base64,{image}") }))
            .collect();
        let body = json!({ "prompt": "make it night", "size": "64x64", "steps": 2, "seed": 3, "images": images });
        let answer = served.post("/v1/images/edits", body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{numbers:?}");
        let answer = answer.json();
        pixels(&STANDARD.decode(answer["data"][0]["b64_json"].as_str().unwrap()).unwrap())
    };
    let own = |numbers: &[usize]| {
        let request = json!({
            "prompt": "make it night", "width": 64, "height": 64, "steps": 2, "seed": 3, "references": encoded(numbers),
        });
        job(&served, &request)
    };
    let results = [&[0][..], &[1], &[0, 1], &[1, 0]].map(|numbers| {
        let found = edited(numbers);
        assert_eq!(found, own(numbers), "{numbers:?}");
        found
    });
    for (i, one) in results.iter().enumerate() {
        assert!(results[..i].iter().all(|other| other != one), "case {i}");
    }
}

/// A graph whose texts see images is the request with these references.
#[test]
fn graphs_whose_texts_see_images_are_made_by_references() {
    let (served, _folder) = served();
    let text = |prompt: &str| {
        let inputs = json!({
            "prompt": prompt, "clip": ["4", 1], "vae": ["4", 2], "image1": ["10", 0], "image2": ["11", 0],
        });
        node("TextEncodeQwenImageEditPlus", inputs)
    };
    let graph = graph_with(&[
        ("4.ckpt_name", json!("edit")),
        ("5", node("EmptySD3LatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 }))),
        ("10", node("LoadImage", json!({ "image": "first.png" }))),
        ("11", node("LoadImage", json!({ "image": "second.png" }))),
        ("12", text("make it night")),
        ("13", text("blurry")),
        ("3.positive", json!(["12", 0])),
        ("3.negative", json!(["13", 0])),
        ("3.scheduler", json!("simple")),
    ]);
    let request = |numbers: &[usize]| {
        json!({
            "prompt": "make it night", "negative_prompt": "blurry", "seed": 7, "steps": 4, "cfg_scale": 5.5, "sampler": "euler",
            "scheduler": "simple", "convention": "comfyui", "emphasis": "comfy", "pad_conds": false, "width": 64, "height": 64,
            "references": encoded(numbers),
        })
    };
    let found = made(&served, &graph);
    assert_eq!(found, job(&served, &request(&[0, 1])));
    assert_ne!(found, job(&served, &request(&[1, 0])));
}
