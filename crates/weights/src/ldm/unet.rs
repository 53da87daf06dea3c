//! The U-Net of CompVis' code: its names, and its dimensions derived from the names and shapes of its tensors.
//!
//! Its blocks are numbered consecutively. `input_blocks.0` is the first convolution; then come the layers and the
//! downsampling of each level. `output_blocks` are the layers of the up path, where the last one of a level includes
//! its upsampling.

use super::{Names, Part, Piece};
use crate::source::{ParamInfo, ParamSource};

const RESNET: &[Part] = &[
    ("norm1", "in_layers.0", Piece::Whole),
    ("conv1", "in_layers.2", Piece::Whole),
    ("time_emb_proj", "emb_layers.1", Piece::Whole),
    ("norm2", "out_layers.0", Piece::Whole),
    ("conv2", "out_layers.3", Piece::Whole),
    ("conv_shortcut", "skip_connection", Piece::Whole),
];

/// The parts that every U-Net has once: `(declared, stored)`.
const SINGLE: [(&str, &str); 8] = [
    ("conv_in", "input_blocks.0.0"),
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("time_embedding.cond_proj", "time_embed.cond_proj"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
];

/// Convolutions between the first and the last of a control network's image embedding: a SiLU after each takes a number.
const HINT_BLOCKS: usize = 6;

/// The maximum number of blocks. The rest of a file that claims more is not read.
const MAX_COUNT: usize = 64;

/// One level: the layers at one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnetLevel {
    /// Channels of its maps.
    pub channels: usize,
    /// For each layer, the number of layers of its transformer; 0 means no transformer.
    pub depths: Vec<usize>,
}

impl UnetLevel {
    fn has_transformer(&self) -> bool {
        self.depths.iter().any(|&depth| depth > 0)
    }
}

/// The dimensions of a U-Net, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnetShape {
    /// Channels of the input: 4; 9 with an inpainting model's mask and masked image, 5 with a depth map, 8 with an image.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// The down path, with the largest maps first.
    pub down: Vec<UnetLevel>,
    /// The number of layers of the middle block's transformer. `Some(0)` is a residual block alone, `None` no middle
    /// block.
    pub middle: Option<usize>,
    /// The up path, with the smallest maps first.
    pub up: Vec<UnetLevel>,
    /// Channels of the text's tokens; 0 without cross attention.
    pub context_dim: usize,
    /// Whether the outer projections of the transformers are matrices rather than 1x1 convolutions.
    pub linear_projection: bool,
    /// The width of the additional embeddings that are added to the timestep embedding, in SDXL and related models.
    pub added_dim: Option<usize>,
    /// The width of the embedding of the guidance scale that is added to the timestep embedding, in distilled models
    /// (LCM).
    pub guidance_dim: Option<usize>,
}

impl UnetShape {
    /// Reads the dimensions from a source with CompVis' names without a prefix. `None` if there is no such U-Net.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let out_channels = source.info("out.2.weight").and_then(|info| info.shape.first().copied())?;
        Some(Self { out_channels, ..Self::read_encoder(source)? })
    }

    /// Reads the dimensions of the way down and the middle, as a control network has them alone; without a way up there
    /// is none in the result. `None` if there is no first convolution.
    pub fn read_encoder(source: &dyn ParamSource) -> Option<Self> {
        let shape = |name: &str| source.info(name).map(|ParamInfo { shape, .. }| shape);
        let dim = |name: &str, axis: usize| shape(name).and_then(|shape| shape.get(axis).copied());
        let depth = |block: &str| {
            let layer = |i: &usize| shape(&format!("{block}.1.transformer_blocks.{i}.attn2.to_k.weight")).is_some();
            (0..MAX_COUNT).take_while(layer).count()
        };
        let channels = |block: &str| dim(&format!("{block}.0.out_layers.3.weight"), 0);

        let mut down = vec![UnetLevel { channels: dim("input_blocks.0.0.weight", 0)?, depths: Vec::new() }];
        for i in 1..MAX_COUNT {
            let block = format!("input_blocks.{i}");
            if let (Some(channels), Some(level)) = (channels(&block), down.last_mut()) {
                level.channels = channels;
                level.depths.push(depth(&block));
            } else if shape(&format!("{block}.0.op.weight")).is_some() {
                down.push(UnetLevel { channels: 0, depths: Vec::new() });
            } else {
                break;
            }
        }
        let mut up = vec![UnetLevel { channels: 0, depths: Vec::new() }];
        for i in 0..MAX_COUNT {
            let block = format!("output_blocks.{i}");
            let (Some(channels), Some(level)) = (channels(&block), up.last_mut()) else { break };
            level.channels = channels;
            level.depths.push(depth(&block));
            if (1..3).any(|at| shape(&format!("{block}.{at}.conv.weight")).is_some()) {
                up.push(UnetLevel { channels: 0, depths: Vec::new() });
            }
        }
        let middle = channels("middle_block").map(|_| depth("middle_block"));
        let attention =
            source.keys().into_iter().filter(|key| key.ends_with(".transformer_blocks.0.attn2.to_k.weight"));
        let attention = attention.min(); // any of them, but always the same
        let context_dim = attention.as_ref().and_then(|key| dim(key, 1)).unwrap_or(0);
        let projection = attention.and_then(|key| {
            shape(&format!("{}.proj_in.weight", key.strip_suffix(".transformer_blocks.0.attn2.to_k.weight")?))
        });
        Some(Self {
            in_channels: dim("input_blocks.0.0.weight", 1)?,
            out_channels: dim("input_blocks.0.0.weight", 1)?,
            down,
            middle,
            up,
            context_dim,
            linear_projection: projection.is_some_and(|shape| shape.len() == 2),
            added_dim: dim("label_emb.0.0.weight", 1),
            guidance_dim: dim("time_embed.cond_proj.weight", 1),
        })
    }

    /// The names of such a U-Net.
    pub fn names(&self) -> Names {
        let mut names = Names::default();
        for (declared, stored) in SINGLE {
            names.add(declared, stored, &[]);
        }
        let mut block = 1;
        for (i, level) in self.down.iter().enumerate() {
            for j in 0..level.depths.len() {
                names.add(format!("down_blocks.{i}.resnets.{j}"), format!("input_blocks.{block}.0"), RESNET);
                names.add(format!("down_blocks.{i}.attentions.{j}"), format!("input_blocks.{block}.1"), &[]);
                block += 1;
            }
            if i + 1 < self.down.len() {
                names.add(format!("down_blocks.{i}.downsamplers.0.conv"), format!("input_blocks.{block}.0.op"), &[]);
                block += 1;
            }
        }
        names.add("mid_block.resnets.0", "middle_block.0", RESNET);
        names.add("mid_block.attentions.0", "middle_block.1", &[]);
        names.add("mid_block.resnets.1", "middle_block.2", RESNET);
        let mut block = 0;
        for (i, level) in self.up.iter().enumerate() {
            for j in 0..level.depths.len() {
                names.add(format!("up_blocks.{i}.resnets.{j}"), format!("output_blocks.{block}.0"), RESNET);
                names.add(format!("up_blocks.{i}.attentions.{j}"), format!("output_blocks.{block}.1"), &[]);
                block += 1;
            }
            if i + 1 < self.up.len() {
                let at = if level.has_transformer() { 2 } else { 1 };
                let stored = format!("output_blocks.{}.{at}.conv", block.max(1) - 1);
                names.add(format!("up_blocks.{i}.upsamplers.0.conv"), stored, &[]);
            }
        }
        names
    }

    /// The names of a control network with such an encoder: in the files of its authors and in `convert_controlnet_checkpoint`
    /// of diffusers.
    pub fn control_names(&self) -> Names {
        let mut names = self.names();
        let hint = "controlnet_cond_embedding";
        names.add(format!("{hint}.conv_in"), "input_hint_block.0", &[]);
        for i in 0..HINT_BLOCKS {
            names.add(format!("{hint}.blocks.{i}"), format!("input_hint_block.{}", 2 * i + 2), &[]);
        }
        names.add(format!("{hint}.conv_out"), format!("input_hint_block.{}", 2 * HINT_BLOCKS + 2), &[]);
        let layers: usize = self.down.iter().map(|level| level.depths.len()).sum();
        for i in 0..layers + self.down.len() {
            names.add(format!("controlnet_down_blocks.{i}"), format!("zero_convs.{i}.0"), &[]);
        }
        names.add("controlnet_mid_block", "middle_block_out.0", &[]);
        names
    }
}
