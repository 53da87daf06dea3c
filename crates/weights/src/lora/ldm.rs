//! CompVis' names of a U-Net's layers, which files for SDXL often use.
//!
//! The table is from [`crate::ldm`]. Here the network's dimensions are read from the names that it declares.

use std::collections::HashSet;

use crate::ldm::{UnetLevel, UnetShape};

/// CompVis' names of a U-Net's layers `paths`: `(path, name)` for those that have one.
pub fn names<'a>(paths: &[&'a str]) -> Vec<(&'a str, String)> {
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
    let names = shape.names();
    let name = |path: &&'a str| Some((*path, names.place(&format!("{path}.weight"))?.name));
    let stripped = |(path, name): (&'a str, String)| Some((path, name.strip_suffix(".weight")?.to_string()));
    paths.iter().filter_map(name).filter_map(stripped).collect()
}
