//! The fields of OpenAI's images.

use serde_json::{Value, json};

use super::Does::{self, Answer, Bits, Nothing, Refused, Warns};
use super::{Outcome, Rig, check, decoded, none, other_image, report, sent, texts, with};

fn send(rig: &Rig, route: &str, body: &Value) -> Outcome {
    let (status, answer) = sent(rig, &format!("/v1/images/{route}"), body);
    if status != 200 {
        let message = answer["error"]["message"].as_str().unwrap().to_string();
        return Outcome { refused: Some(message), answer, ..Outcome::default() };
    }
    let images: Vec<Value> = answer["data"].as_array().unwrap().iter().map(|image| image["b64_json"].clone()).collect();
    let images = images.into_iter().filter(Value::is_string).collect();
    Outcome { images: decoded(&images), warnings: texts(&answer["warnings"]), refused: None, answer }
}

#[test]
fn every_field_of_openai_does_something_or_is_named() {
    let rig = Rig::start();
    let base = json!({ "prompt": "a pear", "size": "64x64", "steps": 2, "seed": 5 });
    let no_effect = "models here have no such setting";
    #[rustfmt::skip]
    let of_both: Vec<(&str, Value, Value, Does)> = vec![
        ("prompt", none(), json!("a fig"), Bits),
        ("prompt", none(), json!("a pear<hypernet:x:1>"), Warns("<hypernet:x:1>")),
        ("model", none(), json!("sd2v"), Bits),
        ("model", none(), json!("gpt-image-1"), Nothing("OpenAI's names are the first model, which the log says")),
        ("model", none(), json!("nope"), Refused("`model` is \"nope\"")),
        ("n", none(), json!(2), Answer(|_, found| found.images.len() == 2)),
        ("size", none(), json!("96x64"), Bits),
        ("quality", none(), json!("high"), Warns(no_effect)),
        ("quality", none(), json!("auto"), Nothing("it asks for nothing")),
        ("background", none(), json!("transparent"), Refused("background")),
        ("background", none(), json!("opaque"), Nothing("images are opaque")),
        ("output_format", none(), json!("jpeg"), Bits),
        ("output_compression", json!({ "output_format": "jpeg" }), json!(10), Bits),
        ("output_compression", none(), json!(10), Nothing("PNG has no loss, there too")),
        ("moderation", none(), json!("low"), Nothing("nothing is moderated")),
        ("response_format", none(), json!("url"), Answer(|_, found| found.answer["data"][0]["url"].is_string())),
        ("style", none(), json!("vivid"), Warns(no_effect)),
        ("partial_images", none(), json!(2), Nothing("previews are events of `stream`")),
        ("user", none(), json!("ann"), Nothing("the name of a client's user")),
        ("input_fidelity", none(), json!("high"), Warns(no_effect)),
        ("negative_prompt", none(), json!("a plum"), Bits),
        ("num_inference_steps", json!({ "steps": null }), json!(3), Bits),
        ("guidance_scale", none(), json!(3), Bits),
        ("strength", none(), json!(0.5), Refused("`init` too")),
        ("tea", none(), json!(1), Refused("tea")),
    ];
    let mut wrong = Vec::new();
    for (name, context, value, does) in of_both {
        let usual = with(&base, &context);
        let mut set = usual.clone();
        set[name] = value;
        let (usual, set) = (send(&rig, "generations", &usual), send(&rig, "generations", &set));
        wrong.extend(check(name, does, &usual, &set));
    }
    let image = |image: String| json!({ "image_url": format!("data:image/png;base64,{image}") });
    let edit = with(&base, &json!({ "images": [image(super::image())], "steps": 3 }));
    #[rustfmt::skip]
    let of_edits: Vec<(&str, Value, Does)> = vec![
        ("images", json!([image(other_image())]), Bits),
        ("images", json!([image(super::image()), image(other_image())]), Refused("several images")),
        ("images", json!([]), Refused("image")),
        ("mask", image(transparent()), Bits),
        ("strength", json!(0.4), Bits),
        ("input_fidelity", json!("high"), Warns(no_effect)),
    ];
    for (name, value, does) in of_edits {
        let mut set = edit.clone();
        set[name] = value;
        wrong.extend(check(name, does, &send(&rig, "edits", &edit), &send(&rig, "edits", &set)));
    }
    report(wrong);
}

/// A mask whose upper half is transparent.
fn transparent() -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use kiln_media::{Rgba8Image, StillFormat, encode};

    let mut data = [255, 255, 255, 255].repeat(96 * 64);
    data[..96 * 32 * 4].chunks_mut(4).for_each(|pixel| pixel[3] = 0);
    STANDARD.encode(encode(&Rgba8Image::new(96, 64, data).unwrap(), StillFormat::Png).unwrap())
}

#[test]
fn warnings_are_in_the_answer_and_its_events() {
    let rig = Rig::start();
    let body = json!({ "prompt": "a <hypernet:x:1>", "size": "64x64", "steps": 1, "stream": true });
    let events = rig.served.post("/v1/images/generations", body.to_string().as_bytes()).text();
    assert!(events.contains("\"warnings\":[\"<hypernet:x:1> is left out"), "{events}");
}
