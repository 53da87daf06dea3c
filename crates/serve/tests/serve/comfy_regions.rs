//! Graphs whose texts have areas and masks, or are blends.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Gray8Image, Rgb8Image, StillFormat, encode};
use serde_json::{Value, json};

use crate::comfy_graphs::{graph, graph_with, node, refused};
use crate::comfy_images::{job, made, own, upload};
use crate::support::{Served, options};

/// The default graph with `nodes` for a second text, of which `positive` combines it with the first one.
fn with_texts(nodes: &[(&'static str, Value)]) -> Value {
    let mut changes = vec![
        ("10", node("CLIPTextEncode", json!({ "text": "a fig", "clip": ["4", 1] }))),
        ("20", node("ConditioningCombine", json!({ "conditioning_1": ["6", 0], "conditioning_2": ["12", 0] }))),
        ("3.positive", json!(["20", 0])),
    ];
    changes.extend(nodes.iter().cloned());
    graph_with(&changes)
}

fn area(from: &str, [x, y, width, height]: [u64; 4], strength: f64) -> Value {
    let inputs =
        json!({ "conditioning": [from, 0], "x": x, "y": y, "width": width, "height": height, "strength": strength });
    node("ConditioningSetArea", inputs)
}

/// The fields of the default graph with two parts of a prompt.
fn parts(regions: Value) -> Value {
    own(&json!({ "prompt": "a (red:1.2) pear AND a fig", "width": 64, "height": 64, "regions": regions }))
}

#[test]
fn areas_are_regions() {
    let served = Served::start(options());
    let pixels = with_texts(&[("12", area("10", [32, 0, 64, 64], 0.5))]);
    let expected = job(&served, &parts(json!([{}, { "pixels": [32, 0, 64, 64], "strength": 0.5 }])));
    assert_eq!(made(&served, &pixels), expected);
    assert_ne!(expected, made(&served, &graph()));
    let share = json!({ "conditioning": ["10", 0], "x": 0.5, "y": 0.0, "width": 0.5, "height": 1.0, "strength": 0.5 });
    let share = with_texts(&[("12", node("ConditioningSetAreaPercentage", share))]);
    assert_eq!(made(&served, &share), expected);
    // Of two nodes the one next to the sampler counts, and the strength may have a node of its own.
    let twice = with_texts(&[
        ("11", area("10", [0, 0, 64, 64], 1.0)),
        ("13", area("11", [32, 0, 64, 64], 1.0)),
        ("12", node("ConditioningSetAreaStrength", json!({ "conditioning": ["13", 0], "strength": 0.5 }))),
    ]);
    assert_eq!(made(&served, &twice), expected);
}

#[test]
fn masks_are_regions() {
    let served = Served::start(options());
    let values: Vec<u8> = (0..48 * 32).map(|i| (i % 48 * 5) as u8).collect();
    let mask = encode(&Gray8Image::new(48, 32, values.clone()).unwrap(), StillFormat::Png).unwrap();
    let colors = values.iter().flat_map(|value| [7, *value, 9]).collect();
    let image = encode(&Rgb8Image::new(48, 32, colors).unwrap(), StillFormat::Png).unwrap();
    assert_eq!(upload(&served, "/upload/image", "m.png", &image, &[]).status, 200);
    let masked = |bounds: &str| {
        let inputs = json!({ "conditioning": ["10", 0], "mask": ["14", 0], "strength": 0.8, "set_cond_area": bounds });
        with_texts(&[
            ("14", node("LoadImageMask", json!({ "image": "m.png", "channel": "green" }))),
            ("12", node("ConditioningSetMask", inputs)),
        ])
    };
    let mask = STANDARD.encode(mask);
    let region = json!([{}, { "mask": mask, "strength": 0.8 }]);
    let expected = job(&served, &parts(region));
    assert_eq!(made(&served, &masked("default")), expected);
    let region = json!([{}, { "mask": mask, "strength": 0.8, "bounds": true }]);
    assert_eq!(made(&served, &masked("mask bounds")), job(&served, &parts(region)));
}

#[test]
fn averages_are_blends() {
    let served = Served::start(options());
    let average = |to: &str, from: &str, strength: f64| {
        let inputs =
            json!({ "conditioning_to": [to, 0], "conditioning_from": [from, 0], "conditioning_to_strength": strength });
        node("ConditioningAverage", inputs)
    };
    let text = |text: &str| node("CLIPTextEncode", json!({ "text": text, "clip": ["4", 1] }));
    let one = graph_with(&[("10", text("a fig")), ("11", average("6", "10", 0.75)), ("3.positive", json!(["11", 0]))]);
    let blended = |blend: Value| own(&json!({ "width": 64, "height": 64, "regions": [{ "blend": blend }] }));
    assert_eq!(made(&served, &one), job(&served, &blended(json!([{ "text": "a fig", "weight": 0.25 }]))));
    let two = graph_with(&[
        ("10", text("a fig")),
        ("11", average("6", "10", 0.75)),
        ("12", text("a plum")),
        ("13", average("11", "12", 0.5)),
        ("3.positive", json!(["13", 0])),
    ]);
    let expected = json!([{ "text": "a plum", "weight": 0.5 }, { "text": "a fig", "weight": 0.125 }]);
    assert_eq!(made(&served, &two), job(&served, &blended(expected)));
    let nested = graph_with(&[
        ("10", text("a fig")),
        ("11", average("6", "10", 0.75)),
        ("12", average("10", "11", 0.5)),
        ("3.positive", json!(["12", 0])),
    ]);
    assert!(refused(&served, &nested)["12"].to_string().contains("a blend of texts, expected one text"));
    let negative =
        graph_with(&[("10", text("a fig")), ("11", average("7", "10", 0.5)), ("3.negative", json!(["11", 0]))]);
    assert!(refused(&served, &negative)["7"].to_string().contains("a negative prompt with an area"));
}

#[test]
fn regions_that_cannot_be_are_refused_at_their_nodes() {
    let served = Served::start(options());
    let outside = with_texts(&[("12", area("10", [64, 0, 64, 64], 1.0))]);
    assert!(refused(&served, &outside)["12"].to_string().contains("begins outside of the image"));
    let alone = graph_with(&[("12", area("6", [32, 0, 64, 64], 1.0)), ("3.positive", json!(["12", 0]))]);
    assert!(refused(&served, &alone)["12"].to_string().contains("without a part at pixel 0, 0"));
    let unguided = with_texts(&[("12", area("10", [32, 0, 64, 64], 1.0)), ("3.cfg", json!(1.0))]);
    assert!(refused(&served, &unguided)["6"].to_string().contains("a cfg other than 1"));
    // A mask of the server's files is no mask.
    let path = parts(json!([{}, { "mask": "/etc/hostname" }]));
    assert!(served.post("/v1/jobs", path.to_string().as_bytes()).status >= 400);
}
