//! The layers that a LoRA file may change, with all the names that files use for them.
//!
//! The names are generated from the declared parameters of the networks rather than parsed. The name
//! `lora_unet_down_blocks_0_attentions_0_proj_in` alone does not show whether a `_` is a dot or part of a name.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use kiln_ops::Packing;

use super::role::{self, Role, UnusedReason};
use crate::ldm::{Piece, Place};
use crate::param_spec::ParamSpec;
use crate::segment::Segment;

/// The names of layers in the code of a network's authors: `(declared name, place there)` for those of `paths` that have one.
/// The layers of a fused matrix have the same name, each with its rows.
pub type OriginalNames = for<'a> fn(paths: &[&'a str]) -> Vec<(&'a str, Place)>;

/// The part of a network in its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkKind {
    /// Predicts noise or velocity.
    Denoiser,
    /// Encodes text.
    TextEncoder,
}

/// A network that LoRA files change, and how they name its layers. Networks with equal ids are equal.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// The id, which is also the prefix of names with dots in diffusers' files.
    pub id: &'static str,
    /// Its part in the model.
    pub kind: NetworkKind,
    /// Prefixes of names with underscores.
    pub underscored: &'static [&'static str],
    /// A beginning of declared names that some files omit.
    pub omitted: Option<&'static str>,
    /// The names of its authors' code.
    pub original: Option<OriginalNames>,
}

impl PartialEq for Network {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Network {}

impl Hash for Network {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl Network {
    /// Whether it is the denoiser.
    pub fn is_denoiser(self) -> bool {
        self.kind == NetworkKind::Denoiser
    }
}

/// A layer: a weight, and its bias if it has one.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) network: Network,
    /// The declared name, without `.weight`.
    pub(super) path: String,
    /// The weight's declared shape.
    pub(super) weight: Vec<usize>,
    /// The bias' declared shape.
    pub(super) bias: Option<Vec<usize>>,
    /// Whether the weight is the matrix of a linear layer.
    pub(super) linear: bool,
}

/// The id of the U-Net, of which some dialects number the layers.
pub(crate) const UNET: &str = "unet";
/// The id of the first text encoder, which embeddings of one encoder are for.
pub(crate) const FIRST_TEXT: &str = "text_encoder";
/// The id of the second text encoder of Stable Diffusion XL.
pub(crate) const SECOND_TEXT: &str = "text_encoder_2";

/// Beginnings of names of further text encoders, by which a network that the model lacks is known.
const FURTHER_TEXTS: [&str; 5] = ["lora_te2_", "oft_te2_", "lora_te3_", "text_encoder_2.", "text_encoder_3."];

/// The layers of a model's networks.
pub struct Targets {
    layers: Vec<Layer>,
    /// The layers of each name, with the piece that each has of a change of that name: several for a fused matrix.
    by_name: HashMap<String, Vec<(usize, Piece)>>,
}

impl Targets {
    /// The layers that the segments of the networks declare.
    pub fn new(networks: &[(Network, &[Segment])]) -> Self {
        let mut targets = Self { layers: Vec::new(), by_name: HashMap::new() };
        for &(network, segments) in networks {
            let params = || segments.iter().flat_map(Segment::params);
            let biases: HashMap<&str, &[usize]> =
                params().filter_map(|param| Some((param.key.strip_suffix(".bias")?, param.shape.as_slice()))).collect();
            let weights: Vec<(&str, &ParamSpec)> =
                params().filter_map(|param| Some((param.key.strip_suffix(".weight")?, param))).collect();
            let paths: Vec<&str> = weights.iter().map(|(path, _)| *path).collect();
            let mut original: HashMap<&str, Vec<Place>> = HashMap::new();
            for (path, place) in network.original.map(|names| names(&paths)).unwrap_or_default() {
                original.entry(path).or_default().push(place);
            }
            for (path, ParamSpec { shape, packing, .. }) in weights {
                let bias = biases.get(path).map(|shape| shape.to_vec());
                let linear = *packing == Packing::Linear;
                let layer = Layer { network, path: path.to_string(), weight: shape.clone(), bias, linear };
                targets.add(layer, original.get(path).map(Vec::as_slice).unwrap_or_default());
            }
        }
        targets
    }

    /// The layer that the tensor `name` of a LoRA file belongs to: its network and declared name, without `.weight`. Of a
    /// fused matrix it is the first layer.
    ///
    /// # Errors
    /// The reason why there is no such layer.
    pub fn resolve_name(&self, name: &str) -> Result<(Network, String), UnusedReason> {
        let (name, role) = role::parse(name).ok_or(UnusedReason::Name)?;
        let (layer, _) = self.find(&name).next().ok_or_else(|| self.missing(&name))?;
        if role == Role::Unknown { Err(UnusedReason::Form) } else { Ok((layer.network, layer.path.clone())) }
    }

    /// The reason why there is no layer with this name.
    pub(super) fn missing(&self, name: &str) -> UnusedReason {
        let Some(beginning) = FURTHER_TEXTS.iter().find(|beginning| name.starts_with(**beginning)) else {
            return UnusedReason::Layer;
        };
        let has = |network: Network| {
            network.underscored.contains(beginning) || beginning.strip_suffix('.') == Some(network.id)
        };
        if self.layers.iter().any(|layer| has(layer.network)) { UnusedReason::Layer } else { UnusedReason::Network }
    }

    fn add(&mut self, layer: Layer, original: &[Place]) {
        let index = self.layers.len();
        for (name, piece) in names(&layer, original) {
            let there = self.by_name.entry(name).or_default();
            // The layers of a fused matrix share its name. Any other name that two layers could have belongs to the first.
            let shares = |&(other, piece): &(usize, Piece)| {
                piece.is_rows() && self.layers.get(other).is_some_and(|other| other.network == layer.network)
            };
            if there.is_empty() || piece.is_rows() && there.iter().all(shares) {
                there.push((index, piece));
            }
        }
        self.layers.push(layer);
    }

    /// The layers with the name `name` in files, each with the piece that it has of a change of that name.
    pub(super) fn find(&self, name: &str) -> impl Iterator<Item = (&Layer, Piece)> {
        let name = name.strip_prefix("base_model.model.").unwrap_or(name); // PEFT's wrapper
        let found = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        found.iter().filter_map(|&(index, piece)| Some((self.layers.get(index)?, piece)))
    }

    /// Whether there is a layer with the declared name `path` in `network`.
    pub(super) fn layer(&self, network: &str, path: &str) -> Option<&Layer> {
        self.find(&format!("{network}.{path}")).map(|(layer, _)| layer).next()
    }

    /// The declared names of a network's layers, in the order of declaration.
    pub(super) fn paths(&self, network: &str) -> Vec<&str> {
        self.layers.iter().filter(|layer| layer.network.id == network).map(|layer| layer.path.as_str()).collect()
    }
}

/// All names that files use for a layer, each with the piece that the layer has of a change of that name.
fn names(layer: &Layer, original: &[Place]) -> Vec<(String, Piece)> {
    let Layer { network, path, .. } = layer;
    let short = network.omitted.and_then(|omitted| path.strip_prefix(omitted));
    let mut dotted: Vec<String> = [Some(path.as_str()), short].into_iter().flatten().map(String::from).collect();
    let mut names: Vec<(String, Piece)> = Vec::new();
    // The authors' convolutions are matrices in LoRA files too.
    let original: Vec<(&str, Piece)> = original
        .iter()
        .map(|place| (place.name.as_str(), if place.piece == Piece::Pointwise { Piece::Whole } else { place.piece }))
        .collect();
    for prefix in network.underscored {
        let paths = dotted.iter().map(|path| (path.as_str(), Piece::Whole)).chain(original.iter().copied());
        names.extend(paths.map(|(path, piece)| (format!("{prefix}{}", path.replace('.', "_")), piece)));
    }
    // diffusers' first files name the projections of attention after attention processors.
    for (ours, theirs) in [
        (".to_q", ".to_q_lora"),
        (".to_k", ".to_k_lora"),
        (".to_v", ".to_v_lora"),
        (".to_out.0", ".to_out_lora"),
        (".to_out.0", ".to_out"),
        (".q_proj", ".to_q_lora"),
        (".k_proj", ".to_k_lora"),
        (".v_proj", ".to_v_lora"),
        (".out_proj", ".to_out_lora"),
    ] {
        let old = |path: &String| Some(format!("{}{theirs}", path.strip_suffix(ours)?));
        let old: Vec<String> = dotted.iter().filter_map(old).collect();
        dotted.extend(old);
    }
    for path in dotted {
        names.push((format!("{}.{path}", network.id), Piece::Whole));
        names.push((path, Piece::Whole));
    }
    for (path, piece) in original {
        names.push((format!("diffusion_model.{path}"), piece));
        names.push((path.to_string(), piece));
    }
    names
}
