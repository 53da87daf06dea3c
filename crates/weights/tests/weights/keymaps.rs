//! The names of single-file checkpoints compared with complete tables of four families from independent sources.

use std::collections::{BTreeMap, BTreeSet};

use kiln_testkit::shared_data;
use kiln_weights::ldm::{ClipDialect, Names, Piece, UnetLevel, UnetShape, VaeShape};
use serde::Deserialize;

#[derive(Deserialize)]
struct KeyMap {
    #[serde(rename = "ldm_diffusers_keymap")]
    names: BTreeMap<String, String>,
    #[serde(rename = "ldm_diffusers_shape_map")]
    shapes: BTreeMap<String, [Vec<usize>; 2]>,
    /// Fused tensors with their parts.
    #[serde(rename = "ldm_diffusers_operator_map")]
    fused: BTreeMap<String, Fused>,
    /// Pieces with the tensor that they are cut from, and the rows.
    #[serde(rename = "diffusers_ldm_operator_map")]
    pieces: BTreeMap<String, Cut>,
}

#[derive(Deserialize)]
struct Fused {
    cat: [String; 3],
}

#[derive(Deserialize)]
struct Cut {
    slice: (String, String),
}

fn unet(channels: &[usize], depths: &[usize], middle: usize) -> UnetShape {
    let level = |layers: usize| {
        move |(&channels, &depth): (&usize, &usize)| UnetLevel { channels, depths: vec![depth; layers] }
    };
    UnetShape {
        in_channels: 4,
        out_channels: 4,
        down: channels.iter().zip(depths).map(level(2)).collect(),
        middle: Some(middle),
        up: channels.iter().zip(depths).rev().map(level(3)).collect(),
        context_dim: 768,
        linear_projection: false,
        added_dim: None,
        guidance_dim: None,
    }
}

/// Checks every name of `table` in both directions. `parts`: prefixes of stored and of declared names, and the names.
fn check(table: &str, parts: &[(&str, &str, Names)]) {
    let path = shared_data(&format!("keymaps/stable_diffusion_{table}.json"));
    let map: KeyMap = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = BTreeSet::new();
    let mut one = |stored: &str, declared: &str, piece: Piece| {
        let (stored_prefix, declared_prefix, names) =
            parts.iter().find(|(prefix, _, _)| stored.starts_with(prefix)).unwrap_or_else(|| panic!("{stored}"));
        let name = stored.strip_prefix(stored_prefix).unwrap();
        let key = declared.strip_prefix(declared_prefix).unwrap_or_else(|| panic!("{declared}"));
        let place = names.place(key).unwrap_or_else(|| panic!("{key} has no place"));
        assert_eq!((place.name.as_str(), place.piece), (name, piece), "{key}");
        assert!(names.declared(name).contains(&(key.to_string(), piece)), "{name}: {:?}", names.declared(name));
        seen.insert(declared.to_string());
    };
    for (stored, declared) in &map.names {
        let pointwise = map.shapes.get(stored).is_some_and(|[a, b]| a.len() == 4 && b.len() == 2);
        one(stored, declared, if pointwise { Piece::Pointwise } else { Piece::Whole });
    }
    for (stored, fused) in &map.fused {
        for (i, declared) in fused.cat.iter().enumerate() {
            one(stored, declared, Piece::third(i));
            let Cut { slice: (from, rows) } = &map.pieces[declared];
            assert_eq!(from, stored);
            assert_eq!(i == 0, rows.starts_with("0:"), "{rows}");
        }
    }
    assert_eq!(seen.len(), map.names.len() + map.pieces.len());
    damaged(map.names.keys().chain(map.names.values()), parts);
    println!("{table}: {} names", seen.len());
}

/// Damaged names: if a table maps one to a declared tensor, the mapping back must agree.
fn damaged<'a>(names: impl Iterator<Item = &'a String>, parts: &[(&str, &str, Names)]) {
    for (i, name) in names.enumerate() {
        let cut = i * 7 % name.len();
        let (head, tail) = name.split_at(cut);
        for damaged in [head.to_string(), tail.to_string(), format!("{tail}.{head}"), name.replacen(".0.", ".17.", 1)] {
            for (_, _, names) in parts {
                let _ = names.place(&damaged);
                for (key, piece) in names.declared(&damaged) {
                    assert_eq!(names.place(&key).map(|place| place.piece), Some(piece), "{damaged} is {key}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_every_name_of_stable_diffusion_1_maps_both_ways() {
    let parts = [
        ("model.diffusion_model.", "unet_", unet(&[320, 640, 1280, 1280], &[1, 1, 1, 0], 1).names()),
        ("first_stage_model.", "vae_", VaeShape::ldm_names(4)),
        ("cond_stage_model.transformer.", "te_", ClipDialect::Transformers.names()),
    ];
    check("sd1", &parts);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_every_name_of_stable_diffusion_2_maps_both_ways() {
    let parts = [
        ("model.diffusion_model.", "unet_", unet(&[320, 640, 1280, 1280], &[1, 1, 1, 0], 1).names()),
        ("first_stage_model.", "vae_", VaeShape::ldm_names(4)),
        ("cond_stage_model.model.", "te_", ClipDialect::OpenClip.names()),
    ];
    check("sd2", &parts);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_every_name_of_stable_diffusion_xl_maps_both_ways() {
    let parts = [
        ("model.diffusion_model.", "unet_", unet(&[320, 640, 1280], &[0, 2, 10], 10).names()),
        ("first_stage_model.", "vae_", VaeShape::ldm_names(4)),
        ("conditioner.embedders.0.transformer.", "te0_", ClipDialect::Transformers.names()),
        ("conditioner.embedders.1.model.", "te1_", ClipDialect::OpenClip.names()),
    ];
    check("sdxl", &parts);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_every_name_of_the_refiner_maps_both_ways() {
    let parts = [
        ("model.diffusion_model.", "unet_", unet(&[384, 768, 1536, 1536], &[0, 4, 4, 0], 4).names()),
        ("first_stage_model.", "vae_", VaeShape::ldm_names(4)),
        ("conditioner.embedders.0.model.", "te1_", ClipDialect::OpenClip.names()),
    ];
    check("refiner", &parts);
}
