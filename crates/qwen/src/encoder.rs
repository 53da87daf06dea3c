//! A Qwen3 language model as a text encoder: token ids to the hidden states of some of its layers.
//!
//! A token table and layers of transformers' [`Qwen3Model`], or of the text part of Qwen2.5-VL. The layers behind the last hidden
//! state that is taken are not part of it, and the last normalization only if its result is taken. The text part of Qwen2.5-VL has
//! positions on three axes, which are equal for text: they are plain rotary positions. With its vision tower, tokens of images take the
//! place of tokens in the text.
//!
//! [`Qwen3Model`]: https://github.com/huggingface/transformers/blob/main/src/transformers/models/qwen3/modeling_qwen3.py

use candle_core::{DType, Device, Tensor};
use kiln_network::text::TextDevice;
use kiln_nn::{Embedding, RopeTables, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::config::QwenConfig;
use crate::error::{Error, Result};
use crate::layer::{Layer, Norm, Shared};
use crate::text::{Text, TextImage};
use crate::vision::{ImagePatches, VisionConfig, VisionTower};

/// The names in the checkpoint.
const TABLE: &str = "model.embed_tokens";
const LAYERS: &str = "model.layers";
const NORM: &str = "model.norm";

/// The largest number of tokens of a text.
const MAX_TOKENS: usize = 1 << 15;

/// A Qwen3 language model as a text encoder.
pub struct QwenEncoder {
    config: QwenConfig,
    /// The numbers of layers after which the hidden states are taken.
    hidden: Vec<usize>,
    segments: Segments,
    table: SegmentModule<Embedding>,
    vision: Option<VisionTower>,
    layers: Vec<SegmentModule<Layer>>,
    /// The last normalization, if its result is taken.
    norm: Option<SegmentModule<Norm>>,
}

impl QwenEncoder {
    /// Builds the network and declares its parameters: a segment with the token table, which stays on the host, and one for each
    /// layer up to the last of `hidden`: the numbers of layers after which the hidden states are taken, in rising order. Hidden
    /// state `k` is transformers' `hidden_states[k]`, without the last normalization.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid or has too few layers.
    pub fn new(config: QwenConfig, hidden: &[usize]) -> Result<Self> {
        config.validate()?;
        let last = hidden.last().copied().unwrap_or(0);
        if last == 0 || last >= config.num_hidden_layers || !hidden.is_sorted() {
            let expected = format!("more than {}: the hidden states after {hidden:?} layers are taken", last.max(1));
            let (key, found) = ("num_hidden_layers", config.num_hidden_layers.to_string());
            return Err(Error::Config { network: config.label(), key, found, expected });
        }
        Ok(Self::build(config, hidden, None))
    }

    /// Like [`Self::new`], with all layers and the last normalization, whose result is the only hidden state: transformers'
    /// `hidden_states[-1]`.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid.
    pub fn normed(config: QwenConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self::build_normed(config, None))
    }

    /// Like [`Self::normed`], with the vision tower: a segment with the patch embedding, one for each block and one with the merger
    /// come before the layers.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid or has no vision tower.
    pub fn seeing(config: QwenConfig) -> Result<Self> {
        config.validate()?;
        let vision = config.validate_vision()?;
        Ok(Self::build_normed(config, Some(vision)))
    }

    /// The network of a valid configuration with the last normalization.
    fn build_normed(config: QwenConfig, vision: Option<VisionConfig>) -> Self {
        let last = config.num_hidden_layers;
        let mut encoder = Self::build(config, &[last], vision);
        let Self { segments, config, norm, .. } = &mut encoder;
        *norm = Some(segments.add(NORM, |p| Norm::new(&p.pp(NORM), config)));
        encoder
    }

    /// The network of a valid configuration, without the last normalization.
    fn build(config: QwenConfig, hidden: &[usize], vision: Option<VisionConfig>) -> Self {
        let last = hidden.last().copied().unwrap_or(0);
        let mut segments = Segments::default();
        let table =
            segments.add_in_source(TABLE, |p| Embedding::new(&p.pp(TABLE), config.vocab_size, config.hidden_size));
        let vision = vision.map(|vision| VisionTower::new(&mut segments, vision));
        let layers = (0..last).map(|i| format!("{LAYERS}.{i}"));
        let layers = layers.map(|name| segments.add(name.as_str(), |p| Layer::new(&p.pp(&name), &config))).collect();
        Self { config, hidden: hidden.to_vec(), segments, table, vision, layers, norm: None }
    }

    /// The parameters' segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The configuration.
    pub fn config(&self) -> &QwenConfig {
        &self.config
    }

    /// The configuration of the vision tower, if the network has one.
    pub fn vision(&self) -> Option<&VisionConfig> {
        self.vision.as_ref().map(VisionTower::config)
    }

    /// Channels of a token of the output: those of all hidden states that are taken.
    pub fn channels(&self) -> usize {
        self.hidden.len() * self.config.hidden_size
    }

    /// Encodes texts of any length each: the hidden states next to each other, `(1, s, channels)` for each text, in the weights'
    /// type. The rows of the table are gathered on the host; `device` runs the rest.
    ///
    /// # Errors
    /// [`Error::Input`] for a text without tokens or with too many, [`Error::Token`] for an id outside of the vocabulary, and
    /// [`Error::Nn`] if a part fails or has no weights.
    pub fn encode(&self, texts: &[Text], device: &Device) -> Result<Vec<Tensor>> {
        self.forward(texts, &[], device)
    }

    /// Like [`Self::encode`] for texts with `images`, on any device. With Vulkan, Metal and DirectX 12 the results are copied
    /// from the GPU to host memory.
    ///
    /// # Errors
    /// See [`Self::encode`], and [`Error::Input`] for an image that is not among `images`, has no place for its tokens, or that a
    /// network without a vision tower is to see.
    pub fn encode_with(&self, texts: &[Text], images: &[ImagePatches], device: &TextDevice) -> Result<Vec<Tensor>> {
        match device {
            TextDevice::Candle { device, .. } => self.forward(texts, images, device),
            TextDevice::Backend(backend) => Ok(TextDevice::download(self.forward(texts, images, backend)?)?),
        }
    }

    /// The computation of [`Self::encode_with`] for tensors of any kind: [`Tensor`],
    /// [`kiln_nn::ops::portable::PortableTensor`], or [`kiln_nn::MetaTensor`] to count bytes and operations. Each layer runs for all texts, one after the other: weights that are streamed are needed once, and a text has
    /// the same bits alone.
    ///
    /// # Errors
    /// See [`Self::encode_with`].
    pub fn forward<T: TensorLike>(
        &self,
        texts: &[Text],
        images: &[ImagePatches],
        device: &T::Device,
    ) -> Result<Vec<T>> {
        self.check(texts, images)?;
        let mut states = T::run(&self.table, |table| {
            let row = |text: &Text| {
                let rows = table.forward::<T>(&text.ids, device)?; // (s, hidden_size)
                rows.reshape(&[1, text.ids.len(), self.config.hidden_size])?.to_device(device)
            };
            texts.iter().map(row).collect::<kiln_nn::Result<Vec<T>>>()
        })?;
        let Some(dtype) = states.first().map(|first| first.dtype()) else { return Ok(states) };
        if let Some(vision) = self.vision.as_ref().filter(|_| !images.is_empty()) {
            let seen = vision.forward(images, &states[0])?;
            for (x, text) in states.iter_mut().zip(texts) {
                *x = with_images(x, &text.images, &seen)?;
            }
        }
        for x in &mut states {
            *x = x.to_dtype(DType::F32)?;
        }
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let plain = self.tables(longest, &states)?;
        let of_text = |(text, like): (&Text, &T)| match text.images.is_empty() {
            true => plain.tokens(0, text.ids.len()),
            false => self.tables_with(text, images, like),
        };
        let tables = texts.iter().zip(&states).map(of_text).collect::<kiln_nn::Result<Vec<_>>>()?;
        let lengths = texts.iter().zip(&states).map(|(text, like)| length(text, like));
        let lengths = lengths.collect::<kiln_nn::Result<Vec<_>>>()?;
        let mut taken: Vec<Option<T>> = vec![None; texts.len()];
        for (i, layer) in self.layers.iter().enumerate() {
            T::run(layer, |layer| {
                for ((x, tables), length) in states.iter_mut().zip(&tables).zip(&lengths) {
                    *x = layer.forward(x, &Shared { tables, length: length.as_ref(), dtype })?;
                }
                Ok(())
            })?;
            let is_taken = |hidden: &&usize| **hidden == i + 1 && self.norm.is_none();
            for _ in self.hidden.iter().filter(is_taken) {
                for (taken, x) in taken.iter_mut().zip(&states) {
                    let x = x.to_dtype(dtype)?;
                    *taken = Some(match taken.take() {
                        Some(before) => before.concat_channels(&x)?,
                        None => x,
                    });
                }
            }
        }
        if let Some(norm) = &self.norm {
            let normed = |norm: &Norm| states.iter().map(|x| norm.forward(x, dtype)).collect();
            return Ok(T::run(norm, normed)?);
        }
        Ok(taken.into_iter().flatten().collect())
    }

    /// The rotary positions of `longest` tokens, on the device of `states`, which are in f32.
    fn tables<T: TensorLike>(&self, longest: usize, states: &[T]) -> kiln_nn::Result<RopeTables<T>> {
        let positions: Vec<[f64; 1]> = (0..longest).map(|i| [i as f64]).collect();
        let RopeTables { cos, sin } = RopeTables::new(&positions, [self.config.head_dim], self.config.theta())?;
        let there = |table: &Tensor| match states.first() {
            Some(like) => like.new_constant(table),
            None => Err(kiln_nn::ops::Error::Config { op: "rope", message: "there are no texts".into() }.into()),
        };
        Ok(RopeTables { cos: there(&cos)?, sin: there(&sin)? })
    }

    /// The rotary positions of a text with images, on the device of `like`, which is in f32.
    fn tables_with<T: TensorLike>(
        &self,
        text: &Text,
        images: &[ImagePatches],
        like: &T,
    ) -> kiln_nn::Result<RopeTables<T>> {
        let grid = |image: usize| images.get(image).map_or([0; 2], ImagePatches::grid);
        let RopeTables { cos, sin } =
            RopeTables::in_sections(&text.positions(grid), self.config.sections(), self.config.theta())?;
        Ok(RopeTables { cos: like.new_constant(&cos)?, sin: like.new_constant(&sin)? })
    }

    fn check(&self, texts: &[Text], images: &[ImagePatches]) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        for Text { ids, length, images: own } in texts {
            if ids.is_empty() || ids.len() > MAX_TOKENS || *length == 0 || *length > ids.len() {
                let (expected, found) = (format!("1 to {MAX_TOKENS} tokens"), vec![ids.len()]);
                return Err(Error::Input { network: self.config.label(), input: "ids", expected, found });
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
                return Err(Error::Token { network: self.config.label(), id, vocab_size });
            }
            let mut end = 0;
            for &TextImage { start, image } in own {
                let tokens = images.get(image).filter(|_| self.vision.is_some()).map(ImagePatches::tokens);
                let next = tokens.filter(|_| start >= end).and_then(|tokens| start.checked_add(tokens));
                end = next.filter(|&next| next <= *length).ok_or_else(|| Error::Input {
                    network: self.config.label(),
                    input: "images",
                    expected: format!("images that are among {} and have places in the text, in order", images.len()),
                    found: vec![image, start],
                })?;
            }
        }
        Ok(())
    }
}

/// Tokens `x` `(1, s, d)` with those of images, of `seen` `(1, n, d)` each, in the places of `images`.
fn with_images<T: TensorLike>(x: &T, images: &[TextImage], seen: &[T]) -> kiln_nn::Result<T> {
    let ([_, s, _], mut at) = (x.size3()?, 0);
    let mut parts = Vec::with_capacity(2 * images.len() + 1);
    for &TextImage { start, image } in images {
        let Some(tokens) = seen.get(image) else { continue };
        if start > at {
            parts.push(x.narrow(1, at, start - at)?);
        }
        parts.push(tokens.clone());
        at = start + tokens.size3()?[1];
    }
    if s > at {
        parts.push(x.narrow(1, at, s - at)?);
    }
    T::cat(&parts.iter().collect::<Vec<_>>(), 1)
}

/// The number of tokens that are attended to, if some are not, on the device of `like`, which is in f32.
fn length<T: TensorLike>(text: &Text, like: &T) -> kiln_nn::Result<Option<T>> {
    let is_padded = text.length < text.ids.len();
    let constant = || like.new_constant(&Tensor::new(&[text.length as f32], &Device::Cpu)?);
    is_padded.then(constant).transpose()
}
