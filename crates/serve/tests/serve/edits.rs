//! Edits of images by ComfyUI's graphs and OpenAI's API: reference images of FLUX.1 Kontext and FLUX.2.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Filter, Region, Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::shared_data;
use serde_json::{Value, json};

use crate::comfy_graphs::{graph_with, node, refused};
use crate::comfy_images::{job, made, own, upload};
use crate::support::{Served, options, pixels};

/// The nodes of a reference image `name` between the text and the sampler.
fn reference(name: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("10", node("LoadImage", json!({ "image": name }))),
        ("11", node("VAEEncode", json!({ "pixels": ["10", 0], "vae": ["4", 2] }))),
        ("12", node("ReferenceLatent", json!({ "conditioning": ["6", 0], "latent": ["11", 0] }))),
        ("3.positive", json!(["12", 0])),
        ("3.cfg", json!(1.0)),
    ]
}

fn served(model: &str) -> Served {
    let served =
        Served::start(ServeOptions { models: vec![shared_data(&format!("families/models/{model}"))], ..options() });
    for name in ["photo_112x80.png", "photo_64x64.png"] {
        let file = std::fs::read(shared_data(&format!("families/images/{name}"))).unwrap();
        assert_eq!(upload(&served, "/upload/image", name, &file, &[]).status, 200);
    }
    served
}

/// Removes what these models have no use for: a negative prompt, and the rule for chunks of CLIP's tokens.
fn drop_rules(job: &mut Value) {
    for name in ["negative_prompt", "chunk_cut"] {
        job.as_object_mut().unwrap().remove(name);
    }
}

/// An image of the shared data in Base64.
fn encoded(name: &str) -> String {
    STANDARD.encode(std::fs::read(shared_data(&format!("families/images/{name}"))).unwrap())
}

/// The nodes of two prompts of Qwen-Image-Edit, which see these images.
fn edit_texts(positive: &[(&str, &str)], negative: &[(&str, &str)]) -> Vec<(&'static str, Value)> {
    let text = |images: &[(&str, &str)]| {
        let mut inputs = json!({ "prompt": "make it night", "clip": ["4", 1], "vae": ["4", 2] });
        images.iter().for_each(|(input, node)| inputs[*input] = json!([node, 0]));
        node("TextEncodeQwenImageEditPlus", inputs)
    };
    vec![
        ("10", node("LoadImage", json!({ "image": "a.png" }))),
        ("11", node("LoadImage", json!({ "image": "a.png" }))),
        ("12", text(positive)),
        ("13", text(negative)),
        ("3.positive", json!(["12", 0])),
        ("3.negative", json!(["13", 0])),
    ]
}

#[test]
fn prompts_that_see_images_see_the_same_ones() {
    let served = Served::start(options());
    let image = Rgb8Image::filled(64, 64, [1, 2, 3]).unwrap();
    upload(&served, "/upload/image", "a.png", &encode(&image, StillFormat::Png).unwrap(), &[]);
    let both = [("image1", "10"), ("image3", "11")];
    // This model takes no references.
    let errors = refused(&served, &graph_with(&edit_texts(&both, &both)));
    assert!(errors["12"].to_string().contains("references"), "{errors:?}");
    for other in [&both[..1], &[("image1", "11"), ("image3", "10")], &[]] {
        let errors = refused(&served, &graph_with(&edit_texts(&both, other)));
        assert!(errors["12"].to_string().contains("see other images"), "{errors:?}");
    }
    let mut graph = edit_texts(&both, &both);
    graph.push(("12.vae", Value::Null));
    let errors = refused(&served, &graph_with(&graph));
    assert!(errors["12"].to_string().contains("vae"), "{errors:?}");
    // Without images the nodes are texts.
    let words = "make it night";
    let text = json!({ "prompt": words, "negative_prompt": words, "width": 64, "height": 64 });
    assert!(made(&served, &graph_with(&edit_texts(&[], &[]))) == job(&served, &own(&text)));
}

#[test]
fn a_model_without_reference_images_names_the_node() {
    let served = Served::start(options());
    let image = Rgb8Image::filled(64, 64, [1, 2, 3]).unwrap();
    upload(&served, "/upload/image", "a.png", &encode(&image, StillFormat::Png).unwrap(), &[]);
    let errors = refused(&served, &graph_with(&reference("a.png")));
    assert_eq!(errors["12"]["class_type"], "ReferenceLatent");
    assert!(errors["12"].to_string().contains("references"), "{errors:?}");
    // A sampler that guides has the same references for both prompts.
    let mut guided = reference("a.png");
    guided.push(("3.cfg", json!(4.0)));
    let errors = refused(&served, &graph_with(&guided));
    assert!(errors["12"].to_string().contains("not of the other"), "{errors:?}");
    // Latents of another node than an encoder are no reference.
    let mut empty = reference("a.png");
    empty.push(("12.latent", json!(["5", 0])));
    assert_eq!(refused(&served, &graph_with(&empty))["5"]["class_type"], "EmptyLatentImage");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_references_of_a_graph_are_those_of_a_request() {
    let served = served("flux_dev");
    let graph = |more: &[(&'static str, Value)]| {
        let mut all = reference("photo_112x80.png");
        all.extend([
            ("4.ckpt_name", json!("flux_dev")),
            ("5", node("EmptySD3LatentImage", json!({ "width": 96, "height": 64, "batch_size": 1 }))),
            ("3.scheduler", json!("simple")),
            ("13", node("FluxGuidance", json!({ "conditioning": ["12", 0], "guidance": 2.5 }))),
            ("7", node("ConditioningZeroOut", json!({ "conditioning": ["6", 0] }))),
            ("3.positive", json!(["13", 0])),
        ]);
        all.extend(more.iter().cloned());
        graph_with(&all)
    };
    let expected = |references: Value| {
        let mut expected = own(&json!({
            "scheduler": "simple", "cfg_scale": 1.0, "guidance": 2.5, "max_length": 256, "width": 96, "height": 64,
            "references": references, "reference_size": "own",
        }));
        drop_rules(&mut expected);
        job(&served, &expected)
    };
    let first = encoded("photo_112x80.png");
    let one = made(&served, &graph(&[]));
    assert_eq!(one, expected(json!([first])));
    assert_ne!(one, expected(json!([encoded("photo_64x64.png")])));

    // Two images, the one next to the text first.
    let two = [
        ("14", node("LoadImage", json!({ "image": "photo_64x64.png" }))),
        ("15", node("VAEEncode", json!({ "pixels": ["14", 0], "vae": ["4", 2] }))),
        ("16", node("ReferenceLatent", json!({ "conditioning": ["12", 0], "latent": ["15", 0] }))),
        ("13.conditioning", json!(["16", 0])),
    ];
    assert_eq!(made(&served, &graph(&two)), expected(json!([first, encoded("photo_64x64.png")])));

    // Scaled to a number of pixels, 121x87, of which the middle is cut out.
    let scale = json!({ "image": ["10", 0], "upscale_method": "lanczos", "megapixels": 0.01, "resolution_steps": 1 });
    let scaled = [("17", node("ImageScaleToTotalPixels", scale)), ("11.pixels", json!(["17", 0]))];
    let photo = STANDARD.decode(&first).unwrap();
    let photo = Rgb8Image::new(112, 80, pixels(&photo)).unwrap().resize(121, 87, Filter::Lanczos3).unwrap();
    let photo = photo.crop(Region { left: 4, top: 3, right: 116, bottom: 83 }).unwrap();
    let photo = STANDARD.encode(encode(&photo, StillFormat::Png).unwrap());
    assert_eq!(made(&served, &graph(&scaled)), expected(json!([photo])));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_noise_levels_of_flux2_are_the_model_s_own() {
    let served = served("flux2_klein");
    let graph = |more: &[(&'static str, Value)]| {
        let mut all = reference("photo_112x80.png");
        let sampler = json!({
            "noise": ["20", 0], "guider": ["21", 0], "sampler": ["22", 0], "sigmas": ["23", 0], "latent_image": ["5", 0],
        });
        all.extend([
            ("4.ckpt_name", json!("flux2_klein")),
            ("5", node("EmptyFlux2LatentImage", json!({ "width": 96, "height": 64, "batch_size": 1 }))),
            ("20", node("RandomNoise", json!({ "noise_seed": 7 }))),
            ("21", node("BasicGuider", json!({ "model": ["4", 0], "conditioning": ["12", 0] }))),
            ("22", node("KSamplerSelect", json!({ "sampler_name": "euler" }))),
            ("23", node("Flux2Scheduler", json!({ "steps": 4, "width": 96, "height": 64 }))),
            ("3", node("SamplerCustomAdvanced", sampler)),
        ]);
        all.retain(|(place, _)| !place.starts_with("3."));
        all.extend(more.iter().cloned());
        graph_with(&all)
    };
    let mut expected = own(&json!({
        "scheduler": "default", "cfg_scale": 1.0, "width": 96, "height": 64, "reference_size": "own",
        "references": [encoded("photo_112x80.png")],
    }));
    drop_rules(&mut expected);
    assert_eq!(made(&served, &graph(&[])), job(&served, &expected));
    let errors = refused(&served, &graph(&[("23.width", json!(128))]));
    assert!(errors["23"].to_string().contains("expected 96x64"), "{errors:?}");
}

/// OpenAI's edits with the same models: several images are references, one too if the model was made to edit.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_edits_of_openai_s_api_take_references() {
    let url = |name: &str| json!({ "image_url": format!("data:image/png;base64,{}", encoded(name)) });
    let (first, second) = ("photo_112x80.png", "photo_64x64.png");
    for model in ["flux2_klein", "flux_dev", "zimage"] {
        let served = served(model);
        let made = |images: &[&str], more: Value| {
            let mut body = json!({ "prompt": "a fox", "size": "96x64", "steps": 2, "seed": 3 });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body["images"] = images.iter().map(|name| url(name)).collect();
            let answer = served.post("/v1/images/edits", body.to_string().as_bytes());
            let (status, body) = (answer.status, answer.json());
            match status {
                200 => Ok(pixels(&STANDARD.decode(body["data"][0]["b64_json"].as_str().unwrap()).unwrap())),
                _ => Err(body["error"]["message"].as_str().unwrap().to_string()),
            }
        };
        let own = |more: Value| {
            let mut request = json!({ "prompt": "a fox", "width": 96, "height": 64, "steps": 2, "seed": 3 });
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            job(&served, &request)
        };
        let begun = own(json!({ "init": encoded(first) }));
        if model == "zimage" {
            assert_eq!(made(&[first], json!({})).unwrap(), begun);
            assert!(made(&[first, second], json!({})).unwrap_err().contains("takes no reference images"));
            continue;
        }
        let one = if model == "flux_dev" { begun.clone() } else { own(json!({ "references": [encoded(first)] })) };
        assert_eq!(made(&[first], json!({})).unwrap(), one, "{model}");
        let two = own(json!({ "references": [encoded(first), encoded(second)] }));
        assert_eq!(made(&[first, second], json!({})).unwrap(), two, "{model}");
        let strength = json!({ "strength": 0.6 });
        assert_eq!(
            made(&[first], strength).unwrap(),
            own(json!({ "init": encoded(first), "strength": 0.6 })),
            "{model}"
        );
    }
}
