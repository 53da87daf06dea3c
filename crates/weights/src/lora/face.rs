//! The LoRA in an IP-Adapter's file (FaceID): `ip_adapter.5.to_q_lora.down.weight` is a factor of attention layer 5.
//!
//! The numbers count the attention layers of the U-Net, self-attention before cross-attention, in the order of diffusers'
//! `attn_processors`: the way down, the way up, the middle.

use super::targets::{Targets, UNET};

/// Prefixes of the names of an IP-Adapter's tensors.
const PREFIXES: [&str; 2] = ["ip_adapter.", "image_proj."];

/// The attention layers of a U-Net by their numbers.
pub(super) struct AttentionLayers(Vec<String>);

impl AttentionLayers {
    /// The adapters of `targets`.
    pub(super) fn new(targets: &Targets) -> Self {
        let paths = targets.paths(UNET);
        let blocks: Vec<&str> = paths.iter().filter_map(|path| path.strip_suffix(".attn1.to_q")).collect();
        let of = |part: &str| blocks.iter().filter(|block| block.starts_with(part)).copied().collect::<Vec<_>>();
        let ordered = [of("down_blocks"), of("up_blocks"), of("mid_block")].concat();
        Self(ordered.into_iter().flat_map(|block| [format!("{block}.attn1"), format!("{block}.attn2")]).collect())
    }

    /// The name that diffusers gives a factor; `None` for other tensors.
    pub(super) fn renamed(&self, key: &str) -> Option<String> {
        let (number, rest) = key.strip_prefix(PREFIXES[0])?.split_once('.')?;
        let layer = self.0.get(number.parse::<usize>().ok()?)?;
        rest.contains("_lora.").then(|| format!("{layer}.{rest}"))
    }
}

/// Whether a tensor is one of an IP-Adapter, which no LoRA has.
pub(super) fn is_of_adapter(key: &str) -> bool {
    PREFIXES.iter().any(|prefix| key.starts_with(prefix)) && !key.contains("_lora.")
}
