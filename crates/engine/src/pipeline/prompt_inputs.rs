//! The image prompts of a group of images: keys and values, which are made once, and what acts at each evaluation.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_media::{Rgb8Image, clip_pixels};
use kiln_models::{ImageEmbeds, ModelFolder};
use kiln_network::Inputs;
use kiln_request::{IpAdapter, IpAdapterUse, acts, downsampled_mask};
use kiln_scheduler::Convention;
use kiln_unet::{ImagePrompt, KeysValues, PromptFeatures, PromptInput, UnetConfig};
use kiln_weights::Placement;

use crate::component::{LoadedComponent, WeightResidency};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::loaded_prompts::{FeatureKey, LoadedEncoder, factors};
use crate::networks::Networks;
use crate::pipeline::batch::Batch;
use crate::pipeline::control_inputs::At;
use crate::pipeline::event::{Event, OnEvent, Stage};

/// The image prompts of a group.
#[derive(Default)]
pub struct PromptInputs {
    prompts: Vec<GroupPrompt>,
    convention: Convention,
    /// Steps of the sampler.
    steps: usize,
}

/// A side of the black image, which is resized.
const BLACK_SIDE: usize = 8;

/// Keys and values of each cross-attention layer, `(n, t, c)` for `n` images.
type Layers = Vec<Option<KeysValues>>;

struct GroupPrompt {
    using: IpAdapterUse,
    /// The keys and values of the unconditional rows, if any.
    negative: Option<Layers>,
    positive: Layers,
    /// `(n, h*w, c)` for every size and number of channels of a layer; empty if it acts everywhere.
    masks: Vec<Tensor>,
}

impl PromptInputs {
    fn active(&self, at: At) -> impl Iterator<Item = &GroupPrompt> {
        let at = at.evaluation(self.steps);
        let is_active = move |prompt: &&GroupPrompt| {
            let part = (prompt.using.start, prompt.using.end);
            prompt.using.weight != 0.0 && acts(part, self.convention, at)
        };
        self.prompts.iter().filter(is_active)
    }

    /// Adds the prompts that act at an evaluation with `unconditional` rows before `conditional` ones for each image.
    pub(crate) fn add_to(
        &self,
        inputs: &mut Inputs,
        at: At,
        (unconditional, conditional): (usize, usize),
    ) -> Result<()> {
        let rows = |negative: Option<&Tensor>, positive: &Tensor| -> Result<Tensor> {
            let negative = negative.unwrap_or(positive);
            let all = std::iter::repeat_n(negative, unconditional).chain(std::iter::repeat_n(positive, conditional));
            Ok(match all.collect::<Vec<_>>().as_slice() {
                [one] => (*one).clone(),
                many => Tensor::cat(many, 0)?,
            })
        };
        let prompt = |prompt: &GroupPrompt| -> Result<ImagePrompt> {
            let layer = |(i, positive): (usize, &Option<KeysValues>)| {
                let negative = prompt.negative.as_ref().and_then(|layers| layers.get(i)?.as_ref());
                let of = |positive: &KeysValues| -> Result<KeysValues> {
                    Ok(KeysValues {
                        keys: rows(negative.map(|layer| &layer.keys), &positive.keys)?,
                        values: rows(negative.map(|layer| &layer.values), &positive.values)?,
                    })
                };
                positive.as_ref().map(of).transpose()
            };
            Ok(ImagePrompt {
                layers: prompt.positive.iter().enumerate().map(layer).collect::<Result<_>>()?,
                masks: prompt.masks.iter().map(|mask| rows(None, mask)).collect::<Result<_>>()?,
            })
        };
        self.active(at).try_for_each(|active| {
            prompt(active)?.add_to(inputs);
            Ok(())
        })
    }

    /// Whether other prompts act at an evaluation than at the one before.
    pub(crate) fn changes_at(&self, at: At) -> bool {
        let active = |at: At| self.active(at).map(std::ptr::from_ref).collect::<Vec<_>>();
        at.call > 0 && active(at) != active(at.previous())
    }
}

/// The rows of tokens of a prompt: those of the unconditional half first, if any, then one for each image that is unlike the
/// others.
struct Rows {
    tokens: Tensor,
    has_negative: bool,
    /// The row of each image of the batch.
    of_image: Vec<usize>,
}

/// Encodes the images of a batch's image prompts, and makes the keys and values of all layers. Weights are in memory for
/// this alone. Each image of the batch has the bits that it has alone.
pub(crate) fn encode_prompts(
    engine: &mut Engine,
    batch: &Batch<'_>,
    is_guided: bool,
    on_event: &mut OnEvent<'_>,
) -> Result<PromptInputs> {
    let job = batch.job();
    let (convention, steps) = (job.sampling.convention, job.steps);
    if job.ip_adapters.is_empty() {
        return Ok(PromptInputs { convention, steps, ..PromptInputs::default() });
    }
    on_event(Event::begin(Stage::ImagePrompt))?;
    let begin = Instant::now();
    engine.make_room_for(Stage::ImagePrompt);
    let keep = engine.memory_manager.keep(Stage::ImagePrompt)?;
    let (networks, model) = (&mut engine.networks, &engine.model);
    let one = |i| networks.encode_prompt(batch, i, is_guided, model, &keep);
    let made = (0..job.ip_adapters.len()).map(one).collect::<Result<Vec<_>>>();
    networks.prompts.components().for_each(LoadedComponent::leave);
    engine.after("encoded image prompts");
    engine.timings.encode += begin.elapsed();
    Ok(PromptInputs { prompts: made?, convention, steps })
}

impl Networks {
    /// Prompt number `i` of the jobs of a batch with `model`.
    fn encode_prompt(
        &mut self,
        batch: &Batch<'_>,
        i: usize,
        is_guided: bool,
        model: &ModelFolder,
        keep: &WeightResidency,
    ) -> Result<GroupPrompt> {
        let adapter = &batch.job().ip_adapters[i];
        let missing = || Error::value("ip_adapters", adapter.using.model.display(), "an IP-Adapter that is open");
        let features = self.prompts.get(adapter).ok_or_else(missing)?.net.config().projection.features();
        let inputs = self.prompt_rows(batch, i, features, is_guided, keep)?;
        let loaded = self.prompts.get(adapter).ok_or_else(missing)?;
        let unet = model.unet_for(&adapter.using.model, "an IP-Adapter")?;
        let weights = factors(&adapter.using, unet);
        loaded.component.enter(keep)?;
        let layers = loaded.component.run(|| -> Result<_> {
            let rows = inputs.tokens(&loaded.net, adapter.using.shortcut)?;
            let keys = loaded.net.keys_values(&rows.tokens, &weights)?;
            Ok((rows, keys))
        });
        loaded.component.leave();
        let (rows, layers) = layers?;
        let select = |indices: &[usize]| -> Result<Layers> {
            let part = |tensor: &Tensor| -> Result<Tensor> {
                let parts: Vec<Tensor> =
                    indices.iter().map(|&row| tensor.narrow(0, row, 1)).collect::<candle_core::Result<_>>()?;
                Ok(Tensor::cat(&parts, 0)?)
            };
            let of = |layer: &KeysValues| -> Result<KeysValues> {
                Ok(KeysValues { keys: part(&layer.keys)?, values: part(&layer.values)? })
            };
            layers.iter().map(|layer| layer.as_ref().map(of).transpose()).collect()
        };
        let negative = rows.has_negative.then(|| select(&vec![0; batch.len()])).transpose()?;
        let masks = self.prompt_masks(batch, i, &weights, model)?;
        Ok(GroupPrompt { using: adapter.using.clone(), negative, positive: select(&rows.of_image)?, masks })
    }

    /// The features of prompt number `i` of the jobs of a batch.
    fn prompt_rows(
        &mut self,
        batch: &Batch<'_>,
        i: usize,
        features: PromptFeatures,
        is_guided: bool,
        keep: &WeightResidency,
    ) -> Result<Features> {
        let adapter = &batch.job().ip_adapters[i];
        let Placement { device, dtype, .. } = self.first.component.placement();
        let place = (device.clone(), *dtype);
        let mut inputs = Features { of_image: vec![0; batch.len()], ..Features::default() };
        if let Some(path) = &adapter.using.embeds {
            let config = self.prompts.get(adapter).map(|loaded| loaded.net.config().projection);
            let identity = config.and_then(|projection| projection.identity_dim());
            let dim = identity.or(config.and_then(|projection| projection.encoder_dim())).unwrap_or(0);
            let is_tokens = features == PromptFeatures::Tokens;
            let embeds = read_embeds(path, is_tokens, dim, is_guided, &place)?;
            let list = if identity.is_some() { &mut inputs.identities } else { &mut inputs.features };
            *list = embeds;
        }
        let Some(shown) = adapter.image.as_ref() else {
            inputs.has_negative = is_guided;
            return Ok(inputs);
        };
        let mut images: Vec<Arc<Rgb8Image>> = Vec::new();
        for (place, (job, _)) in batch.images().enumerate() {
            let image = job.ip_adapters.get(i).and_then(|adapter| adapter.image.as_ref()).unwrap_or(shown);
            let known = images.iter().position(|known| Arc::ptr_eq(known, image) || known == image);
            inputs.of_image[place] = known.unwrap_or_else(|| {
                images.push(image.clone());
                images.len() - 1
            });
        }
        let mut positive = Vec::with_capacity(images.len());
        for image in &images {
            positive.push(self.image_features(adapter, Some(image), keep)?);
        }
        if is_guided {
            inputs.features.push(match features {
                // diffusers: an embedding of zeros, or the features of an image of zeros.
                PromptFeatures::Embedding => positive[0].zeros_like()?,
                // ComfyUI_IPAdapter_plus: those of a black image, whose pixels are normalized.
                _ if batch.job().sampling.convention == Convention::ComfyUi => {
                    let black = Rgb8Image::filled(BLACK_SIDE, BLACK_SIDE, [0; 3])?;
                    self.image_features(adapter, Some(&black), keep)?
                }
                _ => self.image_features(adapter, None, keep)?,
            });
        }
        inputs.has_negative = is_guided;
        inputs.features.extend(positive);
        if let [_, ..] = inputs.identities.as_slice() {
            // A vector for each of the rows.
            let last = inputs.identities[inputs.identities.len() - 1].clone();
            while inputs.identities.len() < inputs.features.len() {
                inputs.identities.push(last.clone());
            }
        }
        Ok(inputs)
    }

    /// The features of an image, or of zeros instead of its normalized pixels, `(1, ..)`.
    fn image_features(
        &mut self,
        adapter: &IpAdapter,
        image: Option<&Rgb8Image>,
        keep: &WeightResidency,
    ) -> Result<Tensor> {
        let missing = || Error::value("ip_adapters", adapter.using.model.display(), "an image encoder that is open");
        let Placement { device, dtype, .. } = self.first.component.placement();
        let loaded = self.prompts.get(adapter).and_then(|loaded| loaded.encoder.as_ref()).ok_or_else(missing)?;
        let image_key = image.map(|image| {
            let (width, height) = image.size();
            format!("{width}x{height} {}", kiln_files::sha256(image.data()))
        });
        let key = FeatureKey { encoder: loaded.path.clone(), features: loaded.features, image: image_key };
        if let Some(known) = self.prompts.known(&key) {
            return Ok(known.to_device(device)?);
        }
        let features = encode_image(loaded, image, (device, *dtype), keep)?;
        self.prompts.keep(key, features.to_device(&Device::Cpu)?);
        Ok(features)
    }

    /// The masks of prompt number `i` in the sizes of the layers in which it acts.
    fn prompt_masks(&self, batch: &Batch<'_>, i: usize, weights: &[f32], model: &ModelFolder) -> Result<Vec<Tensor>> {
        let job = batch.job();
        if job.ip_adapters[i].mask.is_none() {
            return Ok(Vec::new());
        }
        let Placement { device, dtype, .. } = self.first.component.placement();
        let f = model.vae_config().downscale();
        let mut sizes = BTreeSet::new();
        let layers = model.unet_config().map(UnetConfig::cross_layers).unwrap_or_default();
        for (layer, weight) in layers.into_iter().zip(weights) {
            if *weight != 0.0 {
                let halved = |size: usize| (0..layer.level).fold(size, |size, _| size.div_ceil(2));
                sizes.insert((halved(job.height / f) * halved(job.width / f), layer.channels));
            }
        }
        let mask = |(pixels, channels): (usize, usize)| -> Result<Tensor> {
            let mut rows = Vec::with_capacity(batch.len());
            for (job, _) in batch.images() {
                let mask = job.ip_adapters.get(i).and_then(|adapter| adapter.mask.as_ref());
                let none = || Error::value("ip_adapters", "no `mask`", "one, as the other images of the batch have");
                let values = downsampled_mask(mask.ok_or_else(none)?, pixels);
                rows.push(Tensor::from_vec(values, (1, pixels, 1), &Device::Cpu)?);
            }
            let rows = Tensor::cat(&rows, 0)?.broadcast_as((batch.len(), pixels, channels))?.contiguous()?;
            Ok(rows.to_dtype(*dtype)?.to_device(device)?)
        };
        sizes.into_iter().map(mask).collect()
    }
}

/// The features of a prompt: those of the unconditional half first, if any.
#[derive(Default)]
struct Features {
    /// `(n, ..)` each, for `n` images of a file, or one.
    features: Vec<Tensor>,
    identities: Vec<Tensor>,
    has_negative: bool,
    /// The number of each image's features among those after the unconditional ones.
    of_image: Vec<usize>,
}

impl Features {
    /// The tokens of all rows.
    fn tokens(self, net: &kiln_unet::ImagePromptNet, shortcut: bool) -> Result<Rows> {
        let count = self.features.len().max(self.identities.len());
        let mut tokens = Vec::with_capacity(count);
        for i in 0..count {
            let input = PromptInput {
                features: self.features.get(i).cloned(),
                identity: self.identities.get(i).cloned(),
                shortcut,
            };
            let found = net.tokens(&input)?;
            let (n, t, c) = found.dims3()?;
            tokens.push(found.reshape((1, n * t, c))?); // several images of a file are one prompt
        }
        let first = usize::from(self.has_negative);
        let of_image = self.of_image.iter().map(|image| first + image).collect();
        Ok(Rows { tokens: Tensor::cat(&tokens, 0)?, has_negative: self.has_negative, of_image })
    }
}

/// The features in a file: those of the unconditional half first where `is_guided`, zeros where the file has none.
fn read_embeds(
    path: &Path,
    is_tokens: bool,
    dim: usize,
    is_guided: bool,
    (device, dtype): &(Device, DType),
) -> Result<Vec<Tensor>> {
    let ImageEmbeds { negative, positive } = ImageEmbeds::open(path, is_tokens, dim)?;
    let mut all = Vec::with_capacity(2);
    if is_guided {
        all.push(match negative {
            Some(negative) => negative,
            None if !is_tokens => positive.zeros_like()?,
            None => {
                let found = format!("{} without features of the unconditional half", path.display());
                let expected = "a file with both, (2, n, t, d): those of an image of zeros first";
                return Err(Error::value("ip_adapters", found, expected));
            }
        });
    }
    all.push(positive);
    all.iter().map(|tensor| Ok(tensor.to_dtype(*dtype)?.to_device(device)?)).collect()
}

/// Runs an image encoder, whose weights are in memory for this alone.
fn encode_image(
    encoder: &LoadedEncoder,
    image: Option<&Rgb8Image>,
    (device, dtype): (&Device, DType),
    keep: &WeightResidency,
) -> Result<Tensor> {
    let size = encoder.net.config().image_size;
    let shape = (1, 3, size, size);
    let pixels = match image {
        Some(image) => Tensor::from_vec(clip_pixels(image, size)?, shape, &Device::Cpu)?,
        None => Tensor::zeros(shape, DType::F32, &Device::Cpu)?,
    };
    let pixels = pixels.to_dtype(dtype)?.to_device(device)?;
    encoder.component.enter(keep)?;
    let features = encoder.component.run(|| encoder.net.forward(&pixels, encoder.features));
    encoder.component.leave();
    Ok(features?)
}
