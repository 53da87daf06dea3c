//! cloneofsimo's files: `unet:17:up` is the upper factor of the layer with number 17.
//!
//! The numbers count the linear layers inside modules of some classes, in the order in which PyTorch traversed the
//! networks of diffusers and transformers at that time: the up path before the middle block, keys and values before
//! queries in the text encoder, the feed-forward layer between the two attentions or after them. The shapes determine
//! the order: the first one in which every factor fits its layer is used.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::factor::Factor;
use super::role::Role;
use super::targets::{FIRST_TEXT, Layer, Targets, UNET};
use crate::source::ParamSource;

/// The projections of a text encoder's attention, in the order of transformers' class.
const CLIP_ATTENTION: [&str; 4] = ["k_proj", "v_proj", "q_proj", "out_proj"];
/// The projections of the denoiser's attention, in the order of diffusers' class.
const ATTENTION: [&str; 4] = ["to_q", "to_k", "to_v", "to_out.0"];
/// The first product of a feed-forward layer.
const GEGLU: &str = "ff.net.0.proj";

/// A layer's factors.
pub(super) type Factors = HashMap<Role, Factor>;

/// The network, number and factor of a name, if it is a numbered one.
fn parse(key: &str) -> Option<(&'static str, usize, Role)> {
    let mut parts = key.split(':');
    let (network, number, factor) = (parts.next()?, parts.next()?, parts.next()?);
    let network = [UNET, FIRST_TEXT].into_iter().find(|which| *which == network)?;
    let role = match factor {
        "up" => Role::Up,
        "down" => Role::Down,
        _ => return None,
    };
    parts.next().is_none().then_some((network, number.parse().ok()?, role))
}

/// The numbered layers of a file, with the names that networks declare. Layers without one keep their number as the
/// name.
pub(super) fn groups(source: &Arc<dyn ParamSource>, keys: &[String], targets: &Targets) -> Vec<(String, Factors)> {
    let mut numbered: HashMap<&str, BTreeMap<usize, Factors>> = HashMap::new();
    for key in keys {
        if let (Some((network, number, role)), Some(factor)) = (parse(key), Factor::find(source, key)) {
            numbered.entry(network).or_default().entry(number).or_default().insert(role, factor);
        }
    }
    let mut groups = Vec::new();
    for network in [UNET, FIRST_TEXT] {
        let Some(layers) = numbered.remove(network) else { continue };
        let order = orders(targets, network).into_iter().find(|order| fits(order, &layers, network, targets));
        let order = order.unwrap_or_default();
        groups.extend(layers.into_iter().map(|(number, factors)| {
            let name = order.get(number).map(|path| format!("{network}.{path}"));
            (name.unwrap_or_else(|| format!("{network}:{number}")), factors)
        }));
    }
    groups
}

/// Whether a name is of this dialect.
pub(super) fn is_numbered(key: &str) -> bool {
    parse(key).is_some()
}

/// The possible orders in which the layers of a network were counted.
fn orders(targets: &Targets, network: &str) -> Vec<Vec<String>> {
    // The modules with attention, in the order of declaration.
    let modules = |ending: &str| -> Vec<String> {
        let paths = targets.paths(network);
        paths.iter().filter_map(|path| path.strip_suffix(ending)).map(String::from).collect()
    };
    if network != UNET {
        let attentions = modules(".k_proj");
        let layers = |module: &String| CLIP_ATTENTION.map(|name| format!("{module}.{name}"));
        return vec![attentions.iter().flat_map(layers).collect()];
    }
    let blocks = modules(".attn1.to_q");
    let part = |name: &str| blocks.iter().filter(|block| block.starts_with(name)).cloned().collect::<Vec<_>>();
    let (down, middle, up) = (part("down_blocks"), part("mid_block"), part("up_blocks"));
    let first = ATTENTION.map(|name| format!("attn1.{name}"));
    let second = ATTENTION.map(|name| format!("attn2.{name}"));
    let geglu = [GEGLU.to_string()];
    let inner = [
        [first.as_slice(), geglu.as_slice(), second.as_slice()].concat(),
        [first.as_slice(), second.as_slice(), geglu.as_slice()].concat(),
        [first.as_slice(), second.as_slice()].concat(),
    ];
    let outer = [[down.as_slice(), &up, &middle].concat(), [down.as_slice(), &middle, &up].concat()];
    let order = |(blocks, layers): (&Vec<String>, &Vec<String>)| -> Vec<String> {
        blocks.iter().flat_map(|block| layers.iter().map(move |layer| format!("{block}.{layer}"))).collect()
    };
    outer.iter().flat_map(|blocks| inner.iter().map(move |layers| order((blocks, layers)))).collect()
}

/// Whether the file has as many layers as the order, and every factor fits its layer.
fn fits(order: &[String], layers: &BTreeMap<usize, Factors>, network: &str, targets: &Targets) -> bool {
    let fits_one = |(number, factors): (&usize, &Factors)| {
        let Some(layer) = order.get(*number).and_then(|path| targets.layer(network, path)) else { return false };
        let Layer { weight, .. } = layer;
        let rows = factors.get(&Role::Up).is_none_or(|up| Some(&up.dims().0) == weight.first());
        let columns =
            factors.get(&Role::Down).is_none_or(|down| down.dims().1 == weight.iter().skip(1).product::<usize>());
        rows && columns
    };
    layers.len() == order.len() && layers.iter().all(fits_one)
}
