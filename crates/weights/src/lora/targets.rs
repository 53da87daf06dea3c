//! The layers that a LoRA file may change, with all the names that files use for them.
//!
//! The names are generated from the declared parameters of the networks rather than parsed. The name
//! `lora_unet_down_blocks_0_attentions_0_proj_in` alone does not show whether a `_` is a dot or part of a name.

use std::collections::HashMap;

use kiln_ops::Packing;

use super::ldm;
use super::role::{self, Role, UnusedReason};
use crate::param_spec::ParamSpec;
use crate::segment::Segment;

/// A network that LoRA files change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Network {
    /// The U-Net.
    Unet,
    /// The first text encoder.
    TextEncoder,
    /// SDXL's second text encoder.
    TextEncoder2,
}

impl Network {
    /// The prefix of names with dots, in diffusers' files.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Unet => "unet",
            Self::TextEncoder => "text_encoder",
            Self::TextEncoder2 => "text_encoder_2",
        }
    }

    /// The prefixes of names with underscores.
    fn underscored(self) -> &'static [&'static str] {
        match self {
            // kohya's scripts for LoRA and OFT, LyCORIS without a trainer
            Self::Unet => &["lora_unet_", "oft_unet_", "lycoris_"],
            Self::TextEncoder => &["lora_te_", "lora_te1_", "oft_te_", "oft_te1_", "lycoris_"],
            Self::TextEncoder2 => &["lora_te2_", "oft_te2_"],
        }
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

/// The layers of a model's networks.
pub struct Targets {
    layers: Vec<Layer>,
    by_name: HashMap<String, usize>,
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
            let ldm: HashMap<&str, String> = match network {
                Network::Unet => ldm::names(&paths).into_iter().collect(),
                Network::TextEncoder | Network::TextEncoder2 => HashMap::new(),
            };
            for (path, ParamSpec { shape, packing, .. }) in weights {
                let bias = biases.get(path).map(|shape| shape.to_vec());
                let linear = *packing == Packing::Linear;
                let layer = Layer { network, path: path.to_string(), weight: shape.clone(), bias, linear };
                targets.add(layer, ldm.get(path).map(String::as_str));
            }
        }
        targets
    }

    /// The layer that the tensor `name` of a LoRA file belongs to: its network and declared name, without `.weight`.
    ///
    /// # Errors
    /// The reason why there is no such layer.
    pub fn resolve_name(&self, name: &str) -> Result<(Network, String), UnusedReason> {
        let (name, role) = role::parse(name).ok_or(UnusedReason::Name)?;
        let layer = self.find(&name).ok_or_else(|| self.missing(&name))?;
        if role == Role::Unknown { Err(UnusedReason::Form) } else { Ok((layer.network, layer.path.clone())) }
    }

    /// The reason why there is no layer with this name.
    pub(super) fn missing(&self, name: &str) -> UnusedReason {
        let second = ["lora_te2_", "oft_te2_", "text_encoder_2."].iter().any(|beginning| name.starts_with(beginning));
        let has_second = self.layers.iter().any(|layer| layer.network == Network::TextEncoder2);
        if second && !has_second { UnusedReason::Network } else { UnusedReason::Layer }
    }

    fn add(&mut self, layer: Layer, ldm: Option<&str>) {
        let index = self.layers.len();
        for name in names(&layer, ldm) {
            self.by_name.entry(name).or_insert(index); // a name that two networks could have belongs to the first
        }
        self.layers.push(layer);
    }

    /// The layer with the name `name` in files.
    pub(super) fn find(&self, name: &str) -> Option<&Layer> {
        let name = name.strip_prefix("base_model.model.").unwrap_or(name); // PEFT's wrapper
        self.layers.get(*self.by_name.get(name)?)
    }

    /// Whether there is a layer with the declared name `path` in `network`.
    pub(super) fn layer(&self, network: Network, path: &str) -> Option<&Layer> {
        self.find(&format!("{}.{path}", network.prefix()))
    }

    /// The declared names of a network's layers, in the order of declaration.
    pub(super) fn paths(&self, network: Network) -> Vec<&str> {
        self.layers.iter().filter(|layer| layer.network == network).map(|layer| layer.path.as_str()).collect()
    }
}

/// All names that files use for a layer.
fn names(layer: &Layer, ldm: Option<&str>) -> Vec<String> {
    let Layer { network, path, .. } = layer;
    // transformers 5 has no `text_model.`.
    let short = path.strip_prefix("text_model.").filter(|_| *network != Network::Unet);
    let mut dotted: Vec<String> = [Some(path.as_str()), short].into_iter().flatten().map(String::from).collect();
    let mut names: Vec<String> = Vec::new();
    for prefix in network.underscored() {
        let paths = dotted.iter().map(String::as_str).chain(ldm);
        names.extend(paths.map(|path| format!("{prefix}{}", path.replace('.', "_"))));
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
        names.push(format!("{}.{path}", network.prefix()));
        names.push(path);
    }
    names.extend(ldm.map(|path| format!("diffusion_model.{path}")));
    names
}
