//! The names that CompVis' code has for a U-Net's layers, as files for SDXL often have them.
//!
//! Its blocks are counted through where diffusers nests them: `input_blocks.4.1` is `down_blocks.1.attentions.0`. Which
//! number a block has follows from how many layers the levels before it have, which the declared names tell.

use std::collections::HashSet;

/// A residual block's layers: `(diffusers, CompVis)`.
const RESNET: [(&str, &str); 6] = [
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
];

/// The layers outside of blocks.
const SINGLE: [(&str, &str); 7] = [
    ("conv_in", "input_blocks.0.0"),
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
];

/// Beginnings of names: `(diffusers, CompVis)`, for the network with the layers `paths`.
fn beginnings(paths: &[&str]) -> Vec<(String, String)> {
    // Every part of every name: is there such a block?
    let parts: HashSet<&str> =
        paths.iter().flat_map(|path| path.match_indices('.').map(|(at, _)| &path[..at])).collect();
    let mut rows: Vec<(String, String)> = SINGLE.map(|(ours, theirs)| (ours.into(), theirs.into())).into();
    let resnet = |ours: String, theirs: String| RESNET.map(|(a, b)| (format!("{ours}.{a}"), format!("{theirs}.{b}")));
    let mut block = 1;
    for i in (0..).take_while(|i| parts.contains(format!("down_blocks.{i}").as_str())) {
        let level = format!("down_blocks.{i}");
        for j in (0..).take_while(|j| parts.contains(format!("{level}.resnets.{j}").as_str())) {
            rows.extend(resnet(format!("{level}.resnets.{j}"), format!("input_blocks.{block}.0")));
            rows.push((format!("{level}.attentions.{j}"), format!("input_blocks.{block}.1")));
            block += 1;
        }
        if parts.contains(format!("{level}.downsamplers").as_str()) {
            rows.push((format!("{level}.downsamplers.0.conv"), format!("input_blocks.{block}.0.op")));
            block += 1;
        }
    }
    rows.extend(resnet("mid_block.resnets.0".into(), "middle_block.0".into()));
    rows.push(("mid_block.attentions.0".into(), "middle_block.1".into()));
    rows.extend(resnet("mid_block.resnets.1".into(), "middle_block.2".into()));
    let mut block = 0;
    for i in (0..).take_while(|i| parts.contains(format!("up_blocks.{i}").as_str())) {
        let level = format!("up_blocks.{i}");
        for j in (0..).take_while(|j| parts.contains(format!("{level}.resnets.{j}").as_str())) {
            rows.extend(resnet(format!("{level}.resnets.{j}"), format!("output_blocks.{block}.0")));
            rows.push((format!("{level}.attentions.{j}"), format!("output_blocks.{block}.1")));
            block += 1;
        }
        if parts.contains(format!("{level}.upsamplers").as_str()) {
            let at = if parts.contains(format!("{level}.attentions").as_str()) { 2 } else { 1 };
            let theirs = format!("output_blocks.{}.{at}.conv", block.max(1) - 1);
            rows.push((format!("{level}.upsamplers.0.conv"), theirs));
        }
    }
    rows
}

/// CompVis' names of the layers `paths`, where they have some: `(path, name)`.
pub(super) fn names<'a>(paths: &[&'a str]) -> Vec<(&'a str, String)> {
    let rows = beginnings(paths);
    let name = |path: &&'a str| {
        let below = |(ours, theirs): &(String, String)| {
            let rest = path.strip_prefix(ours.as_str())?;
            (rest.is_empty() || rest.starts_with('.')).then(|| format!("{theirs}{rest}"))
        };
        Some((*path, rows.iter().find_map(below)?))
    };
    paths.iter().filter_map(name).collect()
}
