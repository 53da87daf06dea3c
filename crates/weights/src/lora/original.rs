//! The names of layers in the code of the networks' authors, which many files use.
//!
//! The tables are from [`crate::ldm`]. Here the network's dimensions are read from the names that it declares.

use std::collections::HashSet;

use crate::ldm::{
    Flux2Dialect, FluxDialect, Names, Piece, Place, Sd3Shape, UnetLevel, UnetShape, ZImageDialect, same_names,
};

/// CompVis' names of a U-Net's layers `paths`.
pub fn unet_names<'a>(paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    // The set of all prefixes of all names, to test whether a block exists.
    let blocks: HashSet<&str> =
        paths.iter().flat_map(|path| path.match_indices('.').map(|(at, _)| &path[..at])).collect();
    let levels = |way: &str| -> Vec<UnetLevel> {
        let level = |i: usize| {
            let has = |block: &str, j: &usize| blocks.contains(format!("{way}.{i}.{block}.{j}").as_str());
            // Only the existence of a transformer matters here, not its depth.
            let layers = (0..).take_while(|j| has("resnets", j));
            UnetLevel { channels: 0, depths: layers.map(|j| usize::from(has("attentions", &j))).collect() }
        };
        (0..).take_while(|i| blocks.contains(format!("{way}.{i}").as_str())).map(level).collect()
    };
    let shape = UnetShape {
        in_channels: 0,
        out_channels: 0,
        down: levels("down_blocks"),
        middle: None,
        up: levels("up_blocks"),
        context_dim: 0,
        linear_projection: false,
        added_dim: None,
        guidance_dim: None,
    };
    places(&shape.names(), paths)
}

/// The authors' names of the layers of Stable Diffusion 3's transformer.
pub fn sd3_names<'a>(paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    places(&Sd3Shape::authors_names(count(paths, "transformer_blocks")), paths)
}

/// The authors' names of the layers of FLUX.1's transformer, and those of XLabs' LoRAs, which name the attention of a block.
pub fn flux_names<'a>(paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    let [double, single] = ["transformer_blocks", "single_transformer_blocks"].map(|kind| count(paths, kind));
    let mut found = places(&FluxDialect::Authors.names(double, single), paths);
    let xlabs: Vec<(&str, Place)> =
        found.iter().filter_map(|(path, place)| Some((*path, xlabs(path, place)?))).collect();
    found.extend(xlabs);
    found
}

/// The authors' names of the layers of FLUX.2's transformer, and diffusers' with ComfyUI's prefix.
pub fn flux2_names<'a>(paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    let [double, single] = ["transformer_blocks", "single_transformer_blocks"].map(|kind| count(paths, kind));
    let mut found = places(&Flux2Dialect::Authors.names(double, single), paths);
    found.extend(places(&same_names(), paths));
    found
}

/// The names of the layers of Qwen-Image's transformer, which are diffusers', also with ComfyUI's prefix.
pub fn qwen_image_names<'a>(paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    places(&same_names(), paths)
}

/// The names of the layers of Z-Image's transformer: the authors', whose projections are fused, and diffusers', which ComfyUI's files
/// have with its prefix. Some files have a dot in the names of projections.
pub fn z_image_names<'a>(paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    let mut found = places(&ZImageDialect::Authors.names(), paths);
    found.extend(places(&same_names(), paths));
    let dotted = paths.iter().filter_map(|path| {
        let (block, name) = path.split_once(".attention.to_")?;
        Some((*path, Place { name: format!("{block}.attention.to.{name}"), piece: Piece::Whole }))
    });
    found.extend(dotted);
    found
}

/// The endings of XLabs' names in blocks with separate weights for image and text: `(authors', XLabs')`.
const XLABS: [(&str, &str); 4] = [
    (".img_attn.qkv", ".qkv_lora1"),
    (".txt_attn.qkv", ".qkv_lora2"),
    (".img_attn.proj", ".proj_lora1"),
    (".txt_attn.proj", ".proj_lora2"),
];

/// XLabs' name of a layer.
fn xlabs(path: &str, place: &Place) -> Option<Place> {
    let of_double = XLABS.iter().find_map(|(ours, theirs)| Some(format!("{}{theirs}", place.name.strip_suffix(ours)?)));
    if let Some(name) = of_double {
        return Some(Place { name, piece: place.piece });
    }
    // In the other blocks queries, keys and values have a matrix of their own.
    if let Some(block) = place.name.strip_suffix(".linear1") {
        let i = ["to_q", "to_k", "to_v"].iter().position(|name| path.ends_with(&format!(".attn.{name}")))?;
        return Some(Place { name: format!("{block}.qkv_lora"), piece: Piece::third(i) });
    }
    let block = place.name.strip_suffix(".linear2")?;
    Some(Place { name: format!("{block}.proj_lora"), piece: Piece::Whole })
}

/// The number of blocks of a kind.
fn count(paths: &[&str], kind: &str) -> usize {
    let blocks: HashSet<&str> =
        paths.iter().filter_map(|path| path.strip_prefix(kind)?.strip_prefix('.')?.split('.').next()).collect();
    (0usize..).take_while(|i| blocks.contains(i.to_string().as_str())).count()
}

/// The places of the weights of layers, without the last part of their names.
fn places<'a>(names: &Names, paths: &[&'a str]) -> Vec<(&'a str, Place)> {
    let place = |path: &&'a str| {
        let Place { name, piece } = names.place(&format!("{path}.weight"))?;
        let (name, _) = name.rsplit_once('.')?;
        Some((*path, Place { name: name.into(), piece }))
    };
    paths.iter().filter_map(place).collect()
}
