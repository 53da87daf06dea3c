//! diffusers' `config.json`, and its translation into [`UnetConfig`].

use kiln_nn::limits::{self, MAX_LAYERS, MAX_LEVELS};
use serde::Deserialize;
use serde_json::Value;

use crate::config::{AddedEmbedding, BlockConfig, SIZE_TIME_IDS, TransformerConfig, UnetConfig};
use crate::error::{Error, Result};

/// A value for all blocks, or one for each.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged)]
enum PerBlock<T> {
    Each(Vec<T>), // first, because a list of lists is not a list for all blocks
    One(T),
}

impl<T: Clone> PerBlock<T> {
    fn each(&self, key: &'static str, blocks: usize) -> Result<Vec<T>> {
        match self {
            Self::One(value) => Ok(vec![value.clone(); blocks]),
            Self::Each(values) if values.len() == blocks => Ok(values.clone()),
            Self::Each(values) => Err(Error::Config {
                key,
                found: format!("a list of {}", values.len()),
                expected: format!("a number or a list of {blocks}, one for each of block_out_channels"),
            }),
        }
    }
}

/// The keys that Kiln reads, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawConfig {
    in_channels: usize,
    out_channels: usize,
    flip_sin_to_cos: bool,
    freq_shift: f64,
    block_out_channels: Vec<usize>,
    down_block_types: Vec<String>,
    mid_block_type: Option<String>,
    up_block_types: Vec<String>,
    layers_per_block: PerBlock<usize>,
    downsample_padding: usize,
    norm_num_groups: usize,
    norm_eps: f64,
    cross_attention_dim: PerBlock<usize>,
    transformer_layers_per_block: PerBlock<PerBlock<usize>>,
    reverse_transformer_layers_per_block: Option<PerBlock<PerBlock<usize>>>,
    attention_head_dim: PerBlock<usize>,
    num_attention_heads: Option<PerBlock<usize>>,
    use_linear_projection: bool,
    conv_in_kernel: usize,
    conv_out_kernel: usize,
    addition_embed_type: Option<String>,
    addition_time_embed_dim: Option<usize>,
    projection_class_embeddings_input_dim: Option<usize>,
    time_cond_proj_dim: Option<usize>,
}

impl Default for RawConfig {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Self {
            in_channels: 4,
            out_channels: 4,
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            block_out_channels: vec![320, 640, 1280, 1280],
            down_block_types: names(&[CROSS_DOWN, CROSS_DOWN, CROSS_DOWN, DOWN]),
            mid_block_type: Some(CROSS_MID.into()),
            up_block_types: names(&[UP, CROSS_UP, CROSS_UP, CROSS_UP]),
            layers_per_block: PerBlock::One(2),
            downsample_padding: 1,
            norm_num_groups: 32,
            norm_eps: 1e-5,
            cross_attention_dim: PerBlock::One(1280),
            transformer_layers_per_block: PerBlock::One(PerBlock::One(1)),
            reverse_transformer_layers_per_block: None,
            attention_head_dim: PerBlock::One(8),
            num_attention_heads: None,
            use_linear_projection: false,
            conv_in_kernel: 3,
            conv_out_kernel: 3,
            addition_embed_type: None,
            addition_time_embed_dim: None,
            projection_class_embeddings_input_dim: None,
            time_cond_proj_dim: None,
        }
    }
}

const DOWN: &str = "DownBlock2D";
const CROSS_DOWN: &str = "CrossAttnDownBlock2D";
const UP: &str = "UpBlock2D";
const CROSS_UP: &str = "CrossAttnUpBlock2D";
const MID: &str = "UNetMidBlock2D";
const CROSS_MID: &str = "UNetMidBlock2DCrossAttn";

/// Keys for which only these values are supported.
const FIXED: [(&str, &[Value]); 12] = [
    ("center_input_sample", &[Value::Bool(false)]),
    ("class_embed_type", &[]),
    ("num_class_embeds", &[]),
    ("dual_cross_attention", &[Value::Bool(false)]),
    ("only_cross_attention", &[Value::Bool(false)]),
    ("mid_block_only_cross_attention", &[Value::Bool(false)]),
    ("encoder_hid_dim_type", &[]),
    ("encoder_hid_dim", &[]),
    ("resnet_skip_time_act", &[Value::Bool(false)]),
    ("time_embedding_act_fn", &[]),
    ("timestep_post_act", &[]),
    ("cross_attention_norm", &[]),
];

/// Keys with strings or numbers, and their supported values, the most common first.
const FIXED_WORDS: [(&str, &[&str]); 5] = [
    ("act_fn", &["silu", "swish"]),
    ("resnet_time_scale_shift", &["default"]),
    ("time_embedding_type", &["positional"]),
    ("attention_type", &["default"]),
    ("dropout", &["0.0", "0"]),
];

/// Returns an error for configurations that [`UnetConfig`] cannot describe.
fn refuse_unsupported(json: &Value) -> Result<()> {
    let unsupported = |key, value: &Value, supported| Error::Unsupported { key, found: value.to_string(), supported };
    for (key, allowed) in FIXED {
        match &json[key] {
            Value::Null => {}
            value if allowed.contains(value) => {}
            value => return Err(unsupported(key, value, if allowed.is_empty() { "null" } else { "false" })),
        }
    }
    for (key, allowed) in FIXED_WORDS {
        let value = &json[key];
        let word = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        if !value.is_null() && !allowed.contains(&word.as_str()) {
            return Err(unsupported(key, value, allowed[0]));
        }
    }
    for key in ["resnet_out_scale_factor", "mid_block_scale_factor"] {
        if json[key].as_f64().is_some_and(|factor| factor != 1.0) {
            return Err(unsupported(key, &json[key], "1"));
        }
    }
    Ok(())
}

impl UnetConfig {
    /// Reads diffusers' `config.json`.
    ///
    /// # Errors
    /// [`Error::Json`], [`Error::Config`] for impossible values, [`Error::Unsupported`] for features that Kiln does not
    /// support.
    pub fn from_json(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text)?;
        refuse_unsupported(&json)?;
        serde_json::from_value::<RawConfig>(json)?.resolve()
    }
}

impl RawConfig {
    /// Resolves the settings of each block.
    fn resolve(self) -> Result<UnetConfig> {
        let channels = &self.block_out_channels;
        let n = channels.len();
        if n > MAX_LEVELS {
            let expected = format!("1 to {MAX_LEVELS}");
            return Err(Error::Config { key: "block_out_channels", found: format!("a list of {n}"), expected });
        }
        if n == 0 || channels.contains(&0) {
            let expected = "at least one block, each with channels".into();
            return Err(Error::Config { key: "block_out_channels", found: format!("{channels:?}"), expected });
        }
        let cross_down = cross("down_block_types", &self.down_block_types, n, [DOWN, CROSS_DOWN])?;
        let cross_up = cross("up_block_types", &self.up_block_types, n, [UP, CROSS_UP])?;
        let layers = self.layers_per_block.each("layers_per_block", n)?;
        let range = 1..=MAX_LAYERS;
        if let Some(found) = layers.iter().find(|layers| !range.contains(layers)) {
            let (found, expected) = (found.to_string(), limits::expected(&range));
            return Err(Error::Config { key: "layers_per_block", found, expected });
        }
        // diffusers calls the number of heads `attention_head_dim`, and keeps the wrong name for compatibility with its
        // old files.
        let heads = self.num_attention_heads.as_ref().unwrap_or(&self.attention_head_dim);
        let heads = heads.each("attention_head_dim", n)?;
        let context_dims = self.cross_attention_dim.each("cross_attention_dim", n)?;
        let depths = self.transformer_layers_per_block.each("transformer_layers_per_block", n)?;
        let reversed_depths = match &self.reverse_transformer_layers_per_block {
            Some(depths) => depths.each("reverse_transformer_layers_per_block", n)?,
            None => depths.iter().rev().cloned().collect(),
        };
        let block = |i: usize, cross: bool, layers: usize, depths: &PerBlock<usize>| -> Result<BlockConfig> {
            let transformer = TransformerConfig {
                num_heads: heads[i],
                context_dim: context_dims[i],
                layers: depths.each("transformer_layers_per_block", layers)?,
            };
            Ok(BlockConfig { channels: channels[i], layers, transformer: cross.then_some(transformer) })
        };
        let down = (0..n).map(|i| block(i, cross_down[i], layers[i], &depths[i])).collect::<Result<_>>()?;
        let up = (0..n)
            .map(|i| {
                let mirror = n - 1 - i;
                let depths = match &reversed_depths[i] {
                    // A list that mirrors the down block's has one layer less.
                    PerBlock::Each(list) if self.reverse_transformer_layers_per_block.is_none() => {
                        let mut list: Vec<usize> = list.iter().rev().copied().collect();
                        list.extend(list.last().copied());
                        PerBlock::Each(list)
                    }
                    depths => depths.clone(),
                };
                block(mirror, cross_up[i], layers[mirror] + 1, &depths)
            })
            .collect::<Result<_>>()?;
        let mid = match self.mid_block_type.as_deref() {
            None => None,
            Some(MID) => Some(BlockConfig { channels: channels[n - 1], layers: 1, transformer: None }),
            Some(CROSS_MID) => {
                let depth = match &depths[n - 1] {
                    PerBlock::One(depth) => *depth,
                    PerBlock::Each(list) => list.first().copied().unwrap_or(1),
                };
                Some(block(n - 1, true, 1, &PerBlock::One(depth))?)
            }
            Some(other) => {
                let supported = "UNetMidBlock2D, UNetMidBlock2DCrossAttn or null";
                return Err(Error::Unsupported { key: "mid_block_type", found: other.to_string(), supported });
            }
        };
        let config = UnetConfig {
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            conv_in_kernel: self.conv_in_kernel,
            conv_out_kernel: self.conv_out_kernel,
            flip_sin_to_cos: self.flip_sin_to_cos,
            freq_shift: self.freq_shift,
            norm_num_groups: self.norm_num_groups,
            norm_eps: self.norm_eps,
            downsample_padding: self.downsample_padding,
            use_linear_projection: self.use_linear_projection,
            added_embedding: self.added_embedding()?,
            time_cond_proj_dim: self.time_cond_proj_dim,
            down,
            mid,
            up,
        };
        config.validate()?;
        Ok(config)
    }

    fn added_embedding(&self) -> Result<Option<AddedEmbedding>> {
        let needed = |key, value: Option<usize>| {
            let error = || Error::Config { key, found: "missing".into(), expected: "a number, for text_time".into() };
            value.ok_or_else(error)
        };
        match self.addition_embed_type.as_deref() {
            None => Ok(None),
            Some("text_time") => Ok(Some(AddedEmbedding {
                time_embed_dim: needed("addition_time_embed_dim", self.addition_time_embed_dim)?,
                input_dim: needed("projection_class_embeddings_input_dim", self.projection_class_embeddings_input_dim)?,
                time_ids: SIZE_TIME_IDS,
            })),
            Some(other) => Err(Error::Unsupported {
                key: "addition_embed_type",
                found: other.to_string(),
                supported: "text_time or null",
            }),
        }
    }
}

/// Whether each block has cross attention.
fn cross(key: &'static str, types: &[String], blocks: usize, [plain, cross]: [&'static str; 2]) -> Result<Vec<bool>> {
    if types.len() != blocks {
        return Err(Error::Config {
            key,
            found: format!("a list of {}", types.len()),
            expected: format!("a list of {blocks}, one for each of block_out_channels"),
        });
    }
    let is_cross = |name: &String| match name.as_str() {
        name if name == plain => Ok(false),
        name if name == cross => Ok(true),
        _ => Err(Error::Unsupported {
            key,
            found: name.clone(),
            supported: "blocks named DownBlock2D, UpBlock2D, CrossAttnDownBlock2D and CrossAttnUpBlock2D",
        }),
    };
    types.iter().map(is_cross).collect()
}
