//! The inputs of a U-Net besides latents and timestep, by their types.

use std::sync::Arc;

use candle_core::Tensor;
use kiln_nn::TensorLike;

use crate::control::ControlKinds;
use crate::error::Result;
use crate::hooks::HookInputs;
use crate::image_prompt::{ImagePrompt, KeysValues};

/// The inputs of a U-Net besides latents and timestep, as [`Conditioning::of`] reads them from named inputs. The text is always
/// there; a network does without what is `None`.
///
/// All tensors but [`Self::guidance`] have a row for each of the `b` images of the batch. With guidance the batch holds
/// each image several times: the unconditional rows first, then the conditional ones.
#[derive(Debug, Clone)]
pub struct Conditioning<T = Tensor> {
    /// The text's tokens, `(b, s, context_dim)`.
    pub context: T,
    /// SDXL's added conditions.
    pub added: Option<AddedConditions<T>>,
    /// The guidance input of networks with [`crate::UnetConfig::time_cond_proj_dim`], [`guidance_input`], `(1)` in f32
    /// whatever the network's type. Others ignore it.
    pub guidance: Option<T>,
    /// Channels that follow the latents' own in the input, `(b, e, h, w)`. An inpainting network takes five: the mask,
    /// and the latents of the masked image. They are not scaled as the latents are.
    pub extra_channels: Option<T>,
    /// The residuals of control networks, which are added to the feature maps.
    pub residuals: Option<Residuals<T>>,
    /// The inputs of the control networks whose residuals are added. A U-Net takes the residuals alone.
    pub controls: Vec<ControlInput<T>>,
    /// The feature maps of T2I-Adapters, added to the outputs of the down blocks and of the middle block, `(b, h, w, c)`,
    /// already weighed.
    pub features: Vec<T>,
    /// Images that cross-attention layers attend to in addition to the text (IP-Adapter).
    pub image_prompts: Vec<ImagePrompt<T>>,
    /// The text's keys and values for each cross-attention layer, in the order in which they run, where they are made once
    /// for all steps ([`crate::Unet::text_keys`]); empty where each step makes them of the text.
    pub text_keys: Vec<KeysValues<T>>,
    /// Parts that change the network. With several conditions those of the first one.
    pub hooks: HookInputs<T>,
}

/// SDXL's second conditioning.
#[derive(Debug, Clone)]
pub struct AddedConditions<T = Tensor> {
    /// The pooled text, `(b, pooled_dim)`.
    pub text_embeds: T,
    /// For every image original height and width, crop top and left, target height and width in pixels: `(b, 6)`; for a
    /// refiner an aesthetic score instead of the last two, `(b, 5)`. In f32 whatever the network's type.
    pub time_ids: T,
}

/// The residuals of a control network, added to a U-Net's feature maps (ControlNet, arXiv 2302.05543), already weighed.
/// Maps are `(r, h, w, c)`: for the last `r` rows of the batch, which are the conditional ones, or all `b` of them.
#[derive(Debug, Clone)]
pub struct Residuals<T = Tensor> {
    /// One for each skip connection, in the order in which the way down makes them: of the first convolution, of every
    /// layer, of every downsampling. They are added once the way down is done, so that it runs as it does without them.
    pub down: Vec<T>,
    /// Added to the middle block's result.
    pub mid: T,
}

/// The inputs of a control network instead of the U-Net's extra channels.
#[derive(Debug, Clone)]
pub struct ControlInput<T = Tensor> {
    /// Which of the control networks.
    pub network: usize,
    /// The embedded control image ([`crate::ControlHint`]), `(r, h, w, c)`; a Union network may have several. The network
    /// runs for the last `r` rows of the batch.
    pub hints: Vec<T>,
    /// The types of these images, for a Union network.
    pub kinds: Option<ControlKinds<T>>,
    /// The factors of its residuals: one for each skip connection, then the middle's.
    pub scales: Arc<[f32]>,
    /// The text's keys and values for each of its cross-attention layers and the last `r` rows ([`crate::ControlNet::text_keys`]); empty
    /// where each step makes them of the text.
    pub text_keys: Vec<KeysValues<T>>,
}

/// The last `rows` rows of a tensor whose first dimension is the batch: all of them if there are no more.
///
/// # Errors
/// Errors of the tensors.
pub(crate) fn last_rows<T: TensorLike>(x: &T, rows: usize) -> kiln_nn::Result<T> {
    match x.dims().first() {
        Some(&b) if b > rows => x.narrow(0, b - rows, rows)?.contiguous(),
        _ => Ok(x.clone()),
    }
}

/// `x` with `y` added to its last rows: all of them where both have as many. Rows without `y` stay as they are, as diffusers'
/// residuals of zeros leave them.
///
/// # Errors
/// Errors of the tensors.
pub(crate) fn add_to_last_rows<T: TensorLike>(x: &T, y: &T) -> Result<T> {
    let [b, ..] = x.size4()?;
    let [r, ..] = y.size4()?;
    if r >= b {
        return Ok(x.add(y)?);
    }
    let first = x.narrow(0, 0, b - r)?;
    Ok(T::cat(&[&first, &x.narrow(0, b - r, r)?.add(y)?], 0)?)
}

impl<T: TensorLike> Residuals<T> {
    /// The sum with those of another network.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn add(&self, other: &Self) -> Result<Self> {
        let sum = |(a, b): (&T, &T)| {
            if a.size4()?[0] < b.size4()?[0] { add_to_last_rows(b, a) } else { add_to_last_rows(a, b) }
        };
        Ok(Self {
            down: self.down.iter().zip(&other.down).map(sum).collect::<Result<_>>()?,
            mid: sum((&self.mid, &other.mid))?,
        })
    }
}

/// The number that distilled networks embed for the guidance of strength `scale`: 1000 times what it is over 1, as in
/// diffusers' `LatentConsistencyModelPipeline`.
pub fn guidance_input(scale: f64) -> f32 {
    (scale - 1.0) as f32 * 1000.0
}

impl<T: TensorLike> Conditioning<T> {
    /// Text alone.
    pub fn of_text(context: T) -> Self {
        Self {
            context,
            added: None,
            guidance: None,
            extra_channels: None,
            residuals: None,
            controls: Vec::new(),
            features: Vec::new(),
            image_prompts: Vec::new(),
            text_keys: Vec::new(),
            hooks: HookInputs::default(),
        }
    }
}
