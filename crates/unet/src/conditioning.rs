//! What a denoiser gets besides latents and timestep.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use kiln_nn::{MetaTensor, TensorLike};

use crate::control::ControlKinds;
use crate::error::{Error, Result};
use crate::hooks::{AttentionMap, DeepShrink, FeatureCache, HookInputs};
use crate::image_prompt::{ImagePrompt, KeysValues};

/// The inputs of a denoiser besides latents and timestep. The text is always there; what is `None` a network does
/// without.
///
/// All tensors but [`Self::guidance`] have a row for each of the `b` images of the batch. With guidance the batch holds
/// each image several times: the unconditional rows first, then the conditional ones.
#[derive(Debug, Clone)]
pub struct Conditioning<T = Tensor> {
    /// The text's tokens, `(b, s, context_dim)`.
    pub context: T,
    /// What SDXL adds.
    pub added: Option<AddedConditions<T>>,
    /// What networks with [`crate::UnetConfig::time_cond_proj_dim`] take as the strength of the guidance,
    /// [`guidance_input`], `(1)` in f32 whatever the network's type. Others ignore it.
    pub guidance: Option<T>,
    /// Channels that follow the latents' own in the input, `(b, e, h, w)`. An inpainting network takes five: the mask,
    /// and the latents of the masked image. They are not scaled as the latents are.
    pub extra_channels: Option<T>,
    /// What control networks add to the feature maps.
    pub residuals: Option<Residuals<T>>,
    /// The inputs of the control networks whose residuals are added. A U-Net takes the residuals alone.
    pub controls: Vec<ControlInput<T>>,
    /// What T2I-Adapters add to the outputs of the down blocks and of the middle block, `(b, h, w, c)`, already weighed.
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

/// What a control network adds to a U-Net's feature maps (ControlNet, arXiv 2302.05543), already weighed. Maps are
/// `(r, h, w, c)`: for the last `r` rows of the batch, which are the conditional ones, or all `b` of them.
#[derive(Debug, Clone)]
pub struct Residuals<T = Tensor> {
    /// One for each skip connection, in the order in which the way down makes them: of the first convolution, of every
    /// layer, of every downsampling. They are added once the way down is done, so that it runs as it does without them.
    pub down: Vec<T>,
    /// Added to the middle block's result.
    pub mid: T,
}

/// What a control network gets instead of the U-Net's extra channels.
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
}

/// `x` with `y` added to its last rows: all of them where both have as many. Rows without `y` stay as they are, as diffusers'
/// residuals of zeros leave them.
///
/// # Errors
/// Those of the tensors.
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
    /// Those of the tensors.
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

    /// Conditions whose rows `f` makes of the rows of `all`, tensor by tensor. The guidance is the first one's.
    ///
    /// # Errors
    /// [`Error::Input`] where `all` is empty or does not have the same conditions throughout, and those of `f`.
    pub fn combine(all: &[&Self], mut f: impl FnMut(&[&T]) -> Result<T>) -> Result<Self> {
        let fail = |input: &'static str| Error::Input {
            input,
            expected: "in all conditions of a batch, or in none".into(),
            found: Vec::new(),
        };
        let first = all.first().ok_or_else(|| fail("context"))?;
        let mut image_prompts = Vec::with_capacity(first.image_prompts.len());
        for i in 0..all.iter().map(|one| one.image_prompts.len()).max().unwrap_or(0) {
            let prompts: Vec<_> = all.iter().filter_map(|one| one.image_prompts.get(i)).collect();
            if prompts.len() != all.len() {
                return Err(fail("image_prompts"));
            }
            image_prompts.push(ImagePrompt::combine(&prompts, &mut f)?);
        }
        let text_keys =
            KeysValues::combine(&all.iter().map(|one| one.text_keys.as_slice()).collect::<Vec<_>>(), &mut f)?;
        let mut combined = |input: &'static str, of: &dyn Fn(&Self) -> Option<T>| -> Result<Option<T>> {
            let found: Vec<T> = all.iter().filter_map(|one| of(one)).collect();
            match found.len() {
                0 => Ok(None),
                count if count == all.len() => f(&found.iter().collect::<Vec<_>>()).map(Some),
                _ => Err(fail(input)),
            }
        };
        let context = combined("context", &|one| Some(one.context.clone()))?.ok_or_else(|| fail("context"))?;
        let text_embeds = combined("text_embeds", &|one| Some(one.added.as_ref()?.text_embeds.clone()))?;
        let time_ids = combined("time_ids", &|one| Some(one.added.as_ref()?.time_ids.clone()))?;
        let mid = combined("residuals.mid", &|one| Some(one.residuals.as_ref()?.mid.clone()))?;
        let count = first.residuals.as_ref().map_or(0, |residuals| residuals.down.len());
        let mut down = Vec::with_capacity(count);
        for i in 0..count {
            down.extend(combined("residuals.down", &|one| one.residuals.as_ref()?.down.get(i).cloned())?);
        }
        let mut controls = Vec::with_capacity(first.controls.len());
        for (i, control) in first.controls.iter().enumerate() {
            let mut hints = Vec::with_capacity(control.hints.len());
            for k in 0..control.hints.len() {
                hints.extend(combined("controls", &|one| one.controls.get(i)?.hints.get(k).cloned())?);
            }
            controls.push(ControlInput { hints, ..control.clone() });
        }
        let mut features = Vec::with_capacity(first.features.len());
        for i in 0..first.features.len() {
            features.extend(combined("features", &|one| one.features.get(i).cloned())?);
        }
        let feature = combined("hooks.cache", &|one| one.hooks.feature().cloned())?;
        let cache = first.hooks.cache.as_ref().zip(feature);
        let cache = cache.map(|(cache, feature)| FeatureCache { feature, ..*cache });
        Ok(Self {
            context,
            added: text_embeds.zip(time_ids).map(|(text_embeds, time_ids)| AddedConditions { text_embeds, time_ids }),
            guidance: first.guidance.clone(),
            extra_channels: combined("extra_channels", &|one| one.extra_channels.clone())?,
            residuals: mid.map(|mid| Residuals { down, mid }),
            controls,
            features,
            image_prompts,
            text_keys,
            hooks: HookInputs { cache, ..first.hooks.clone() },
        })
    }

    /// All tensors, in one order.
    pub fn tensors(&self) -> Vec<&T> {
        let Self {
            context,
            added,
            guidance,
            extra_channels,
            residuals,
            controls,
            features,
            image_prompts,
            text_keys,
            hooks,
        } = self;
        let mut tensors = vec![context];
        tensors.extend(guidance);
        tensors.extend(added.iter().flat_map(|added| [&added.text_embeds, &added.time_ids]));
        tensors.extend(extra_channels);
        tensors.extend(residuals.iter().flat_map(|residuals| residuals.down.iter().chain([&residuals.mid])));
        tensors.extend(controls.iter().flat_map(|control| &control.hints));
        tensors.extend(controls.iter().filter_map(|control| control.kinds.as_ref()).map(|kinds| &kinds.flags));
        tensors.extend(features);
        tensors.extend(image_prompts.iter().flat_map(ImagePrompt::tensors));
        tensors.extend(text_keys.iter().flat_map(|layer| [&layer.keys, &layer.values]));
        tensors.extend(hooks.tensors());
        tensors
    }

    /// What of the conditions is no tensor: the control networks that run, their factors, and the parts that change the
    /// network. A recorded step has these values in it.
    pub fn constants(&self) -> Vec<u64> {
        let of = |control: &ControlInput<T>| {
            let scales = control.scales.iter().map(|scale| u64::from(scale.to_bits()));
            let kinds = control.kinds.iter().flat_map(|kinds| &kinds.images);
            let kinds = kinds.flat_map(|(number, weight)| [*number as u64, u64::from(weight.to_bits())]);
            let head = [control.network as u64, control.hints.len() as u64, control.scales.len() as u64];
            head.into_iter().chain(scales).chain(kinds).collect::<Vec<_>>()
        };
        let prompts = self.image_prompts.iter().flat_map(ImagePrompt::constants);
        let others = prompts.chain([self.text_keys.len() as u64]).chain(self.hooks.constants());
        self.controls.iter().flat_map(of).chain(others).collect()
    }

    /// The same conditions in another dtype; the sizes and the guidance stay f32.
    ///
    /// # Errors
    /// Those of the tensors.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let same = |tensors: &[&T]| tensors.first().map(|tensor| tensor.to_dtype(dtype)).transpose();
        let mut cast = Self::combine(&[self], |tensors| Ok(same(tensors)?.unwrap_or_else(|| self.context.clone())))?;
        if let (Some(cast), Some(added)) = (&mut cast.added, &self.added) {
            cast.time_ids = added.time_ids.clone();
        }
        Ok(cast)
    }

    /// The same conditions in memory of their own.
    ///
    /// # Errors
    /// Those of the tensors.
    pub fn copy(&self) -> Result<Self> {
        let copied = |tensors: &[&T]| tensors.first().unwrap_or(&&self.context).copy();
        let mut copy = Self::combine(&[self], |tensors| Ok(copied(tensors)?))?;
        copy.guidance = self.guidance.as_ref().map(T::copy).transpose()?;
        for kinds in copy.controls.iter_mut().filter_map(|control| control.kinds.as_mut()) {
            kinds.flags = kinds.flags.copy()?;
        }
        copy.hooks.map = match &self.hooks.map {
            Some(AttentionMap { map }) => Some(AttentionMap { map: map.copy()? }),
            None => None,
        };
        copy.hooks.shrink = match &self.hooks.shrink {
            Some(DeepShrink { step, down: [a, b], up: [c, d] }) => {
                Some(DeepShrink { step: *step, down: [a.copy()?, b.copy()?], up: [c.copy()?, d.copy()?] })
            }
            None => None,
        };
        Ok(copy)
    }
}

impl Conditioning<MetaTensor> {
    /// The bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.tensors().into_iter().map(MetaTensor::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn ones(b: usize, last: usize) -> Tensor {
        Tensor::ones((b, 1, last), DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn rows_of_several_conditions_become_one() {
        let with_extra = |b| Conditioning { extra_channels: Some(ones(b, 5)), ..Conditioning::of_text(ones(b, 3)) };
        let cat = |parts: &[&Tensor]| Ok(TensorLike::cat(parts, 0)?);
        let joined = Conditioning::combine(&[&with_extra(1), &with_extra(2)], cat).unwrap();
        assert_eq!(joined.context.dims(), [3, 1, 3]);
        assert_eq!(joined.extra_channels.unwrap().dims(), [3, 1, 5]);
        let error = Conditioning::combine(&[&with_extra(1), &Conditioning::of_text(ones(1, 3))], cat).unwrap_err();
        assert!(error.to_string().contains("extra_channels"), "{error}");
    }
}
