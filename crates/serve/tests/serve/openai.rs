//! OpenAI's routes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Rgba8Image, StillFormat, encode};
use kiln_serve::{ServeOptions, Server};
use kiln_testkit::fixtures;
use serde_json::{Value, json};

use crate::support::{Answer, Served, alone, options, pixels};

fn file(image: &Value) -> Vec<u8> {
    STANDARD.decode(image["b64_json"].as_str().unwrap()).unwrap()
}

#[test]
fn images_are_those_of_a_single_run() {
    let served = Served::start(options());
    let body = json!({
        "prompt": "a pear", "n": 2, "size": "64x64", "seed": 5, "num_inference_steps": 4, "quality": "high", "user": "ann",
    });
    let answer = served.post("/v1/images/generations", body.to_string().as_bytes()).json();
    let job = json!({ "prompt": "a pear", "width": 64, "height": 64, "steps": 4, "seed": 5, "batch_count": 2 });
    let expected = alone(&[job]).remove(0);
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    for (image, expected) in data.iter().zip(expected) {
        assert_eq!(pixels(&file(image)), expected.rgb);
    }
    assert_eq!(served.get("/v1/jobs").json()["jobs"], json!([]), "an answered job is forgotten");
    let by_address = json!({ "prompt": "a pear", "size": "64x64", "steps": 2, "response_format": "url" });
    let answer = served.post("/v1/images/generations", by_address.to_string().as_bytes()).json();
    let address = answer["data"][0]["url"].as_str().unwrap();
    assert!(address.starts_with(&served.address), "{address}");
    assert_eq!(served.get(&address[served.address.len()..]).status, 200);
}

#[test]
fn events_have_previews_and_images() {
    let served = Served::start(options());
    let body = json!({
        "prompt": "a pear", "size": "64x64", "steps": 60, "stream": true, "partial_images": 2, "output_format": "jpeg",
    });
    let text = served.post("/v1/images/generations", body.to_string().as_bytes()).text();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let (last, partials) = events.split_last().unwrap();
    assert_eq!(last["type"], "image_generation.completed");
    assert_eq!((last["size"].as_str(), last["output_format"].as_str()), (Some("64x64"), Some("jpeg")));
    assert_eq!(pixels(&file(last)).len(), 64 * 64 * 3);
    assert!(partials.len() <= 2);
    for (i, partial) in partials.iter().enumerate() {
        assert_eq!(
            (&partial["type"], &partial["partial_image_index"]),
            (&json!("image_generation.partial_image"), &json!(i))
        );
        assert_eq!(pixels(&file(partial)).len(), 64 * 64 * 3);
    }
}

fn multipart(served: &Served, path: &str, fields: &[(&str, &str)], files: &[(&str, &[u8])]) -> Answer {
    let mut body = Vec::new();
    let mut part = |head: String, content: &[u8]| {
        body.extend(format!("--boundary\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes());
        body.extend(content);
        body.extend(b"\r\n");
    };
    fields.iter().for_each(|(name, text)| part(format!("name=\"{name}\""), text.as_bytes()));
    for (name, bytes) in files {
        part(format!("name=\"{name}\"; filename=\"image.png\"\r\nContent-Type: image/png"), bytes);
    }
    body.extend(b"--boundary--\r\n");
    let request = served.agent.post(format!("{}{path}", served.address));
    request.header("content-type", "multipart/form-data; boundary=boundary").send(&body[..]).unwrap().into()
}

#[test]
fn the_transparent_part_is_edited() {
    let served = Served::start(options());
    let mut data = [200, 40, 40, 255].repeat(64 * 64);
    let image = encode(&Rgba8Image::new(64, 64, data.clone()).unwrap(), StillFormat::Png).unwrap();
    data[..64 * 32 * 4].chunks_mut(4).for_each(|pixel| pixel[3] = 0);
    let mask = encode(&Rgba8Image::new(64, 64, data).unwrap(), StillFormat::Png).unwrap();
    let fields = [("prompt", "a pear"), ("steps", "4"), ("seed", "1")];
    // A mask of its own, and the transparency of the image itself.
    for files in [vec![("image", &image[..]), ("mask", &mask)], vec![("image[]", &mask[..])]] {
        let answer = multipart(&served, "/v1/images/edits", &fields, &files).json();
        let pixels = pixels(&file(&answer["data"][0]));
        assert!(pixels[64 * 40 * 3..].chunks(3).all(|pixel| pixel == [200, 40, 40]), "what is opaque stays");
        assert!(pixels[..64 * 24 * 3].chunks(3).any(|pixel| pixel != [200, 40, 40]));
    }
    let by_data_url = json!({
        "prompt": "a pear", "steps": 2, "images": [{ "image_url": format!("data:image/png;base64,{}", STANDARD.encode(&image)) }],
    });
    assert_eq!(served.post("/v1/images/edits", by_data_url.to_string().as_bytes()).status, 200);
    let varied = multipart(&served, "/v1/images/variations", &[("n", "2"), ("steps", "2")], &[("image", &image)]);
    assert_eq!(varied.json()["data"].as_array().unwrap().len(), 2);
    multipart(&served, "/v1/images/edits", &fields, &[]).refused(400, "invalid_request");
    multipart(&served, "/v1/images/edits", &fields, &[("image", b"no image")]).refused(422, "unprocessable");
}

#[test]
fn errors_have_the_form_of_openai() {
    let served = Served::start(options());
    let answer = served.post("/v1/images/generations", br#"{"prompt": "a", "size": "big"}"#);
    assert_eq!(answer.response.headers()["x-should-retry"], "false");
    let error = answer.json()["error"].clone();
    assert_eq!((&error["param"], &error["code"]), (&json!("size"), &json!("invalid_request")));
    served.post("/v1/images/generations", br#"{"prompt": "a", "model": "nope"}"#).refused(404, "not_found");
    served.post("/v1/images/generations", b"{").refused(400, "invalid_request");
}

#[test]
fn models_have_other_names() {
    let alias = ("my-model".to_string(), "sd2v".to_string());
    let models = vec![fixtures("models/sd1"), fixtures("models/sd2v")];
    let served = Served::start(ServeOptions { models, model_aliases: vec![alias], ..options() });
    let made = |model: Value| {
        let body = json!({ "prompt": "a pear", "size": "64x64", "steps": 2, "seed": 1, "model": model });
        let answer = served.post("/v1/images/generations", body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{model}");
        pixels(&file(&answer.json()["data"][0]))
    };
    let (first, second) = (made(Value::Null), made(json!("sd2v")));
    for name in ["gpt-image-1", "gpt-image-1-mini", "dall-e-3", "dall-e-2", "chatgpt-image-latest"] {
        assert!(made(json!(name)) == first, "{name}");
    }
    assert!(made(json!("my-model")) == second);
    let listed = served.get("/v1/models").json();
    let ids: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["sd1", "sd2v", "my-model"]);
    assert_eq!(served.get("/v1/models/my-model").json()["id"], "my-model");
    let job = served.submit(&json!({ "prompt": "a", "steps": 1, "width": 64, "height": 64, "model": "my-model" }));
    assert_eq!(served.finished(&job)["model"], "sd2v");
    let wrong = |name: &str, model: &str| {
        let model_aliases = vec![(name.to_string(), model.to_string())];
        Server::start(ServeOptions { model_aliases, ..options() }).err().unwrap().to_string()
    };
    assert!(wrong("a", "nope").contains("`model_alias` is a=nope"), "{}", wrong("a", "nope"));
    assert!(wrong("sd1", "sd1").contains("another name"), "{}", wrong("sd1", "sd1"));
}
