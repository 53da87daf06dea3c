//! Graphs with image prompts, joined images and sizes of images.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Filter, Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::{PromptForm, TinyIpAdapter, TinyVision, control_pixels};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::comfy_graphs::{done, graph, graph_with, image, node, refused, taken};
use crate::comfy_images::{job, made, own, upload};
use crate::support::{Served, options, pixels};

fn sample(width: usize, height: usize) -> Rgb8Image {
    Rgb8Image::new(width, height, control_pixels(width, height)).unwrap()
}

fn png(image: &Rgb8Image) -> Vec<u8> {
    encode(image, StillFormat::Png).unwrap()
}

/// A server with two adapters and their encoder, which has the images `a.png` of 64x64 and `b.png` of 48x32.
fn with_adapters() -> (Served, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    TinyVision::write(&path("image_encoder"));
    TinyIpAdapter { number: 0, form: PromptForm::Plain }.write("sd1", &path("ip-adapter_sd15.safetensors"));
    TinyIpAdapter { number: 1, form: PromptForm::Plus }.write("sd1", &path("ip-adapter-plus_sd15.safetensors"));
    let served = Served::start(ServeOptions { ip_adapters_dir: Some(folder.path().into()), ..options() });
    send_images(&served);
    (served, folder)
}

fn send_images(served: &Served) {
    for (name, (width, height)) in [("a.png", (64, 64)), ("b.png", (48, 32))] {
        assert_eq!(upload(served, "/upload/image", name, &png(&sample(width, height)), &[]).status, 200);
    }
}

/// The default graph with an adapter that is named by its file.
fn prompted(more: &[(&str, Value)]) -> Value {
    let apply = json!({
        "model": ["4", 0], "ipadapter": ["11", 0], "image": ["10", 0], "weight": 0.8, "weight_type": "linear",
        "combine_embeds": "concat", "start_at": 0.0, "end_at": 1.0, "embeds_scaling": "V only", "clip_vision": ["12", 0],
    });
    let mut changes = vec![
        ("10", node("LoadImage", json!({ "image": "b.png" }))),
        ("11", node("IPAdapterModelLoader", json!({ "ipadapter_file": "ip-adapter_sd15.safetensors" }))),
        ("12", node("CLIPVisionLoader", json!({ "clip_name": "image_encoder" }))),
        ("13", node("IPAdapterAdvanced", apply)),
        ("14", node("LoadImageMask", json!({ "image": "a.png", "channel": "red" }))),
        ("3.model", json!(["13", 0])),
    ];
    changes.extend(more.iter().cloned());
    graph_with(&changes)
}

/// The default graph with an adapter of a preset.
fn preset(name: &str) -> Value {
    let apply = json!({
        "model": ["11", 0], "ipadapter": ["11", 1], "image": ["10", 0], "weight": 0.8, "start_at": 0.0, "end_at": 1.0,
        "weight_type": "standard",
    });
    let loader = node("IPAdapterUnifiedLoader", json!({ "model": ["4", 0], "preset": name }));
    prompted(&[("11", loader), ("13", node("IPAdapter", apply))])
}

/// The request that [`prompted`] means.
fn prompt_job(model: &str, more: &Value) -> Value {
    let mut adapter = json!({ "model": model, "image": STANDARD.encode(png(&sample(48, 32))), "weight": 0.8 });
    adapter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    own(&json!({ "width": 64, "height": 64, "ip_adapters": [adapter] }))
}

#[test]
fn image_prompts_are_those_of_a_request() {
    let (served, _folder) = with_adapters();
    let info = served.get("/object_info/IPAdapterModelLoader").json();
    let names = json!(["ip-adapter-plus_sd15.safetensors", "ip-adapter_sd15.safetensors"]);
    assert_eq!(info["IPAdapterModelLoader"]["input"]["required"]["ipadapter_file"][0], names);
    assert_eq!(served.get("/models/ipadapter").json(), names);
    let encoders = served.get("/models/clip_vision").json();
    assert!(encoders.as_array().unwrap().contains(&json!("image_encoder")), "{encoders}");

    let plain = made(&served, &prompted(&[]));
    assert_eq!(plain, job(&served, &prompt_job("ip-adapter_sd15", &json!({}))));
    assert!(plain != made(&served, &graph()));
    assert_eq!(plain, made(&served, &preset("STANDARD (medium strength)")));
    let plus = made(&served, &preset("PLUS (high strength)"));
    assert_eq!(plus, job(&served, &prompt_job("ip-adapter-plus_sd15", &json!({}))));
    let half = made(&served, &prompted(&[("13.end_at", json!(0.5))]));
    assert_eq!(half, job(&served, &prompt_job("ip-adapter_sd15", &json!({ "end": 0.5 }))));
    assert!(half != plain);
    // Two of them are added, and one without a weight adds nothing.
    let apply = |weight: f64| {
        node(
            "IPAdapterAdvanced",
            json!({
                "model": ["13", 0], "ipadapter": ["11", 0], "image": ["15", 0], "weight": weight, "weight_type": "linear",
                "combine_embeds": "add", "start_at": 0.0, "end_at": 1.0, "embeds_scaling": "V only", "clip_vision": ["12", 0],
            }),
        )
    };
    let load = ("15", node("LoadImage", json!({ "image": "a.png" })));
    let two = |weight| prompted(&[load.clone(), ("16", apply(weight)), ("3.model", json!(["16", 0]))]);
    let mut expected = prompt_job("ip-adapter_sd15", &json!({}));
    let second = json!({ "model": "ip-adapter_sd15", "image": STANDARD.encode(png(&sample(64, 64))), "weight": 0.5 });
    expected["ip_adapters"].as_array_mut().unwrap().push(second);
    assert_eq!(made(&served, &two(0.5)), job(&served, &expected));
    assert_eq!(made(&served, &two(0.0)), plain);
    // The image is not shown again.
    let shown = served.get("/v1/jobs").text();
    assert!(!shown.contains("prompt-0"), "{shown}");
}

#[test]
fn image_prompts_that_kiln_does_not_compute_are_refused_by_name() {
    let (served, _folder) = with_adapters();
    for (graph, id, words) in [
        (prompted(&[("13.embeds_scaling", json!("K+V"))]), "13", "expected \\\"V only\\\""),
        (prompted(&[("13.weight_type", json!("style transfer precise"))]), "13", "weight_type of node 13"),
        (prompted(&[("13.weight_type", json!("ease in"))]), "13", "another number of blocks"),
        (prompted(&[("13.attn_mask", json!(["14", 0]))]), "13", "attn_mask of node 13"),
        (prompted(&[("13.image_negative", json!(["10", 0]))]), "13", "image_negative of node 13"),
        (prompted(&[("11.ipadapter_file", json!("other.safetensors"))]), "11", "not in"),
        (prompted(&[("12.clip_name", json!("other"))]), "12", "not in"),
        (prompted(&[("13.end_at", json!(0.0))]), "13", "less than `end`"),
        (preset("VIT-G (medium strength)"), "13", "no file of it for Stable Diffusion 1"),
    ] {
        let errors = refused(&served, &graph);
        let found = errors.get(id).unwrap_or_else(|| panic!("{graph}: {errors:?}"));
        assert!(found.to_string().contains(words), "{words}: {found}");
        assert_eq!(found["class_type"], graph[id]["class_type"]);
    }
    let mut without = prompted(&[]);
    without["13"]["inputs"].as_object_mut().unwrap().remove("clip_vision");
    assert!(refused(&served, &without)["13"].to_string().contains("has no clip_vision"));
    for class in ["ConditioningConcat", "ConditioningSetTimestepRange"] {
        let errors = refused(&served, &graph_with(&[("6.class", json!(class))]));
        assert_eq!(
            (&errors["6"]["errors"][0]["type"], &errors["6"]["class_type"]),
            (&json!("missing_node_type"), &json!(class))
        );
    }
}

#[test]
fn joined_images_and_their_sizes_are_used() {
    let served = Served::start(options());
    send_images(&served);
    let stitch = json!({
        "image1": ["10", 0], "image2": ["11", 0], "direction": "down", "match_image_size": true, "spacing_width": 5,
        "spacing_color": "red",
    });
    let loaded = [
        ("10", node("LoadImage", json!({ "image": "a.png" }))),
        ("11", node("LoadImage", json!({ "image": "b.png" }))),
        ("12", node("ImageStitch", stitch)),
        ("13", node("GetImageSize", json!({ "image": ["12", 0] }))),
    ];
    // 64x64, six rows of red, and 48x32 in the width 64: int(64 / 1.5) rows.
    let mut joined = Rgb8Image::filled(64, 64 + 6 + 42, [255, 0, 0]).unwrap();
    joined.paste(&sample(64, 64), 0, 0);
    joined.paste(&sample(48, 32).resize(64, 42, Filter::Lanczos3).unwrap(), 0, 70);
    let begun = [("5", node("VAEEncode", json!({ "pixels": ["12", 0], "vae": ["4", 2] }))), ("3.denoise", json!(0.6))];
    let expected = own(&json!({ "init": STANDARD.encode(png(&joined)), "strength": 0.6, "rule": "comfy" }));
    assert_eq!(made(&served, &graph_with(&[&loaded[..], &begun].concat())), job(&served, &expected));
    // The sizes of empty latents, and of another image that depends on them.
    let scaled = json!({ "image": ["11", 0], "upscale_method": "lanczos", "width": ["13", 0], "height": 96, "crop": "disabled" });
    let sized = [
        ("14", node("ImageScale", scaled)),
        ("15", node("GetImageSize", json!({ "image": ["14", 0] }))),
        ("5", node("EmptyLatentImage", json!({ "width": ["15", 0], "height": ["15", 1], "batch_size": ["15", 2] }))),
    ];
    let expected = own(&json!({ "width": 64, "height": 96 }));
    assert_eq!(made(&served, &graph_with(&[&loaded[..], &sized].concat())), job(&served, &expected));
    // A result next to a loaded image.
    let after = json!({
        "image1": ["10", 0], "image2": ["8", 0], "direction": "left", "match_image_size": false, "spacing_width": 0,
        "spacing_color": "white",
    });
    let both =
        graph_with(&[&loaded[..1], &[("12", node("ImageStitch", after)), ("9.images", json!(["12", 0]))]].concat());
    let history = done(&served, &taken(&served, &both));
    let mut expected = Rgb8Image::filled(128, 64, [0; 3]).unwrap();
    expected.paste(&Rgb8Image::new(64, 64, made(&served, &graph())).unwrap(), 0, 0);
    expected.paste(&sample(64, 64), 64, 0);
    assert!(pixels(&image(&served, &history, "9")) == expected.data());
    // Two results, and the size of one, are not.
    let results = graph_with(&[
        (
            "12",
            node(
                "ImageStitch",
                json!({
                    "image1": ["8", 0], "image2": ["8", 0], "direction": "left", "match_image_size": false, "spacing_width": 0,
                    "spacing_color": "white",
                }),
            ),
        ),
        ("9.images", json!(["12", 0])),
    ]);
    assert!(refused(&served, &results)["8"].to_string().contains("VAEDecode"));
    let unknown = graph_with(&[
        ("20", node("VAEDecode", json!({ "samples": ["21", 0], "vae": ["4", 2] }))),
        ("21", node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 }))),
        ("22", node("GetImageSize", json!({ "image": ["20", 0] }))),
        ("5.width", json!(["22", 0])),
    ]);
    let errors = refused(&served, &unknown);
    assert!(
        errors["20"].to_string().contains("node 20 (VAEDecode)") && errors["5"].to_string().contains("GetImageSize")
    );
    // Joined images of joined images end.
    let mut deep = loaded.to_vec();
    let ids: Vec<String> = (100..140).map(|id| id.to_string()).collect();
    for (i, id) in ids.iter().enumerate() {
        let from = if i == 0 { "12" } else { ids[i - 1].as_str() };
        deep.push((id, node("ImageStitch", json!({
            "image1": [from, 0], "image2": [from, 0], "direction": "right", "match_image_size": true, "spacing_width": 0,
            "spacing_color": "white",
        }))));
    }
    deep.extend([
        ("5", node("VAEEncode", json!({ "pixels": ["139", 0], "vae": ["4", 2] }))),
        ("3.denoise", json!(0.6)),
    ]);
    let errors = refused(&served, &graph_with(&deep));
    assert!(errors.values().any(|error| error.to_string().contains("more than 16")), "{errors:?}");
}
