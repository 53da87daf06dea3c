//! Control networks of diffusion transformers in one file: their dimensions derived from the names and shapes of their tensors,
//! and the names of Stability AI's code.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

/// The maximum number of blocks. The rest of a file that claims more is not read.
const MAX_BLOCKS: usize = 128;
/// Channels of an attention head in all official networks of Stable Diffusion 3.
const SD3_HEAD_DIM: usize = 64;
/// Channels of the latents if a network does not show those of the denoiser.
const LATENT_CHANNELS: usize = 16;

/// A block of Stability AI's files (diffusers' `convert_sd3_controlnet_to_diffusers.py`).
const BLOCK: &[Part] = &[
    ("norm1.linear", "adaLN_modulation.1", Piece::Whole),
    ("attn.to_q", "attn.qkv", Piece::third(0)),
    ("attn.to_k", "attn.qkv", Piece::third(1)),
    ("attn.to_v", "attn.qkv", Piece::third(2)),
    ("attn.to_out.0", "attn.proj", Piece::Whole),
    ("ff.net.0.proj", "mlp.fc1", Piece::Whole),
    ("ff.net.2", "mlp.fc2", Piece::Whole),
];

/// The dimensions of a control network of Stable Diffusion 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sd3ControlShape {
    /// Whether it has the names of Stability AI's code, with one matrix for queries, keys and values.
    pub is_fused: bool,
    /// The number of blocks.
    pub blocks: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Channels of an attention head: those of the normalizations, else 64.
    pub head_dim: usize,
    /// Whether queries and keys are normalized.
    pub qk_norm: bool,
    /// The blocks with a second attention, of the image alone.
    pub dual_blocks: Vec<usize>,
    /// Channels of the latents.
    pub in_channels: usize,
    /// Channels that follow the control image's latents.
    pub extra_channels: usize,
    /// The side of a token's patch.
    pub patch: usize,
    /// Channels of the text's tokens; `None` if its blocks take no text.
    pub context_dim: Option<usize>,
    /// Channels of the pooled text.
    pub pooled_dim: usize,
    /// The side of the table of positions, in tokens; `None` if it takes the tokens of the denoiser.
    pub positions: Option<usize>,
}

impl Sd3ControlShape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such network.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let shape = |key: &str| source.info(key).map(|info| info.shape);
        shape("controlnet_blocks.0.weight")?;
        let [width, control, patch, _] = shape("pos_embed_input.proj.weight")?.try_into().ok()?;
        let in_block = |i: usize, key: &str| shape(&format!("transformer_blocks.{i}.{key}.weight"));
        let is_fused = in_block(0, "attn.qkv").is_some();
        let queries = if is_fused { "attn.qkv" } else { "attn.to_q" };
        let blocks = (0..MAX_BLOCKS).take_while(|&i| in_block(i, queries).is_some()).count();
        let norm = in_block(0, "attn.norm_q");
        let head_dim = match &norm {
            Some(shape) => shape.first().copied()?,
            None if width.is_multiple_of(SD3_HEAD_DIM) => SD3_HEAD_DIM,
            None => width,
        };
        let positions = match shape("pos_embed.pos_embed") {
            Some(table) => Some(table.iter().rev().nth(1).copied()?.isqrt()),
            None => None,
        };
        let own = shape("pos_embed.proj.weight").and_then(|shape| shape.get(1).copied());
        let in_channels = own.unwrap_or(LATENT_CHANNELS.min(control));
        let context_dim = match shape("context_embedder.weight") {
            Some(context) => Some(context.get(1).copied()?),
            None => None,
        };
        (head_dim > 0 && patch > 0 && blocks > 0).then_some(Self {
            is_fused,
            blocks,
            width,
            head_dim,
            qk_norm: norm.is_some(),
            dual_blocks: (0..blocks).filter(|&i| in_block(i, "attn2.to_q").is_some()).collect(),
            in_channels,
            extra_channels: control.checked_sub(in_channels)?,
            patch,
            context_dim,
            pooled_dim: shape("time_text_embed.text_embedder.linear_1.weight")?.get(1).copied()?,
            positions,
        })
    }

    /// The names of such a network.
    pub fn names(&self) -> Names {
        let mut names = same_names();
        if self.is_fused {
            for i in 0..self.blocks {
                let block = format!("transformer_blocks.{i}");
                names.add(block.clone(), block, BLOCK);
            }
        }
        names
    }
}

/// The dimensions of a control network of FLUX.1 with diffusers' names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxControlShape {
    /// The number of double blocks.
    pub double_blocks: usize,
    /// The number of single blocks.
    pub single_blocks: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Channels of an attention head.
    pub head_dim: usize,
    /// Channels of a token of the control image.
    pub in_channels: usize,
    /// Channels of the text's tokens.
    pub context_dim: usize,
    /// Channels of the pooled text.
    pub pooled_dim: usize,
    /// Whether it takes a guidance scale.
    pub guidance: bool,
    /// The types of control images; `None` for a network of one type.
    pub modes: Option<usize>,
}

impl FluxControlShape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such network.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let shape = |key: &str| source.info(key).map(|info| info.shape);
        let dim = |key: &str, axis: usize| shape(key)?.get(axis).copied();
        let [width, in_channels] = shape("controlnet_x_embedder.weight")?.try_into().ok()?;
        let count = |kind: &str| {
            (0..MAX_BLOCKS).take_while(|i| shape(&format!("{kind}.{i}.attn.to_q.weight")).is_some()).count()
        };
        let norm = |kind: &str| dim(&format!("{kind}.0.attn.norm_q.weight"), 0);
        let head_dim = norm("transformer_blocks").or_else(|| norm("single_transformer_blocks"))?;
        let text = "time_text_embed";
        (head_dim > 0).then_some(Self {
            double_blocks: count("transformer_blocks"),
            single_blocks: count("single_transformer_blocks"),
            width,
            head_dim,
            in_channels,
            context_dim: dim("context_embedder.weight", 1)?,
            pooled_dim: dim(&format!("{text}.text_embedder.linear_1.weight"), 1)?,
            guidance: shape(&format!("{text}.guidance_embedder.linear_1.weight")).is_some(),
            modes: dim("controlnet_mode_embedder.weight", 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::source::MapSource;

    fn file(tensors: &[(&str, &[usize])]) -> MapSource {
        let tensor = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        tensors.iter().map(|(name, shape)| (name.to_string(), tensor(shape))).collect()
    }

    #[test]
    fn stabilitys_names_are_those_of_diffusers_with_fused_matrices() {
        let file = file(&[
            ("controlnet_blocks.0.weight", &[128, 128]),
            ("pos_embed_input.proj.weight", &[128, 16, 2, 2]),
            ("time_text_embed.text_embedder.linear_1.weight", &[128, 80]),
            ("transformer_blocks.0.attn.qkv.weight", &[384, 128]),
            ("transformer_blocks.1.attn.qkv.weight", &[384, 128]),
        ]);
        let shape = Sd3ControlShape::read(&file).unwrap();
        assert_eq!((shape.blocks, shape.head_dim, shape.qk_norm, shape.extra_channels), (2, 64, false, 0));
        assert_eq!((shape.context_dim, shape.positions, shape.pooled_dim), (None, None, 80));
        let place = |key: &str| shape.names().place(key).unwrap();
        assert_eq!(place("transformer_blocks.1.attn.to_k.weight").name, "transformer_blocks.1.attn.qkv.weight");
        assert_eq!(place("transformer_blocks.0.ff.net.2.bias").name, "transformer_blocks.0.mlp.fc2.bias");
        assert_eq!(place("controlnet_blocks.0.weight").name, "controlnet_blocks.0.weight");
        assert_eq!(shape.names().info(&file, "transformer_blocks.0.attn.to_v.weight").unwrap().shape, [128, 128]);
    }

    #[test]
    fn networks_of_flux_have_their_own_numbers_of_blocks() {
        let file = file(&[
            ("controlnet_x_embedder.weight", &[64, 64]),
            ("controlnet_mode_embedder.weight", &[10, 64]),
            ("context_embedder.weight", &[64, 96]),
            ("time_text_embed.text_embedder.linear_1.weight", &[64, 32]),
            ("transformer_blocks.0.attn.norm_q.weight", &[32]),
            ("transformer_blocks.0.attn.to_q.weight", &[64, 64]),
        ]);
        let shape = FluxControlShape::read(&file).unwrap();
        assert_eq!((shape.double_blocks, shape.single_blocks, shape.head_dim), (1, 0, 32));
        assert_eq!((shape.modes, shape.guidance, shape.context_dim), (Some(10), false, 96));
    }
}
