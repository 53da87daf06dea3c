//! The conditions of some rows of a batch, on another device: for a step whose rows several devices share.

use std::ops::Range;

use candle_core::{Device, Tensor};
use kiln_nn::ops::peer;

use crate::conditioning::{AddedConditions, Conditioning, ControlInput, Residuals};
use crate::control::ControlKinds;
use crate::error::{Error, Result};
use crate::hooks::{DeepShrink, HookInputs, PerturbedAttention};
use crate::image_prompt::{ImagePrompt, KeysValues};

/// Some of the `b` rows of a batch, on a device.
struct RowRange<'a> {
    rows: Range<usize>,
    b: usize,
    device: &'a Device,
}

impl RowRange<'_> {
    /// A tensor that has no rows.
    fn whole(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(peer::to_device(tensor, self.device).map_err(kiln_nn::Error::from)?)
    }

    /// The rows of a tensor `(r, ..)` for the last `r` of the `b` rows; `None` where it has none of them.
    fn of(&self, tensor: &Tensor) -> Result<Option<Tensor>> {
        let r = tensor.dims().first().copied().unwrap_or(0);
        let without = self.b.saturating_sub(r);
        let (start, end) = (self.rows.start.saturating_sub(without), self.rows.end.saturating_sub(without));
        if start >= end {
            return Ok(None);
        }
        let part = tensor.narrow(0, start, end - start).map_err(kiln_nn::Error::from)?;
        self.whole(&part).map(Some)
    }

    /// The same of a tensor with a row for each of the `b` rows.
    fn of_all(&self, input: &'static str, tensor: &Tensor) -> Result<Tensor> {
        let expected = || format!("{} rows", self.b);
        self.of(tensor)?.ok_or_else(|| Error::Input { input, expected: expected(), found: tensor.dims().to_vec() })
    }

    fn residuals(&self, residuals: &Residuals) -> Result<Option<Residuals>> {
        let Some(mid) = self.of(&residuals.mid)? else { return Ok(None) };
        let down = residuals.down.iter().filter_map(|map| self.of(map).transpose()).collect::<Result<_>>()?;
        Ok(Some(Residuals { down, mid }))
    }

    fn control(&self, control: &ControlInput) -> Result<Option<ControlInput>> {
        let hints: Vec<Tensor> =
            control.hints.iter().filter_map(|hint| self.of(hint).transpose()).collect::<Result<_>>()?;
        if hints.len() < control.hints.len() {
            return Ok(None); // the network does not run for these rows
        }
        let kinds = control.kinds.as_ref().map(|kinds| -> Result<_> {
            Ok(ControlKinds { images: kinds.images.clone(), flags: self.whole(&kinds.flags)? })
        });
        Ok(Some(ControlInput { hints, kinds: kinds.transpose()?, ..control.clone() }))
    }

    fn keys(&self, layer: &KeysValues) -> Result<KeysValues> {
        Ok(KeysValues { keys: self.of_all("keys", &layer.keys)?, values: self.of_all("values", &layer.values)? })
    }

    fn image_prompt(&self, prompt: &ImagePrompt) -> Result<ImagePrompt> {
        let layers = prompt.layers.iter().map(|layer| layer.as_ref().map(|layer| self.keys(layer)).transpose());
        let masks = prompt.masks.iter().map(|mask| self.of_all("masks", mask));
        Ok(ImagePrompt { layers: layers.collect::<Result<_>>()?, masks: masks.collect::<Result<_>>()? })
    }

    fn hooks(&self, hooks: &HookInputs) -> Result<HookInputs> {
        let fail = |input| Error::Input {
            input,
            expected: "none where two devices share the rows".into(),
            found: vec![self.rows.start, self.rows.end],
        };
        if hooks.cache.is_some() {
            return Err(fail("hooks.cache"));
        }
        if hooks.map.is_some() {
            return Err(fail("hooks.map"));
        }
        let perturbed = hooks.perturbed.and_then(|all| {
            let first = self.b.saturating_sub(all.rows(self.b));
            let count = self.rows.end.saturating_sub(self.rows.start.max(first));
            (count > 0).then_some(PerturbedAttention { part: (count, self.rows.len()), ..all })
        });
        let shrink = hooks.shrink.as_ref().map(|shrink| -> Result<_> {
            let [a, b] = &shrink.down;
            let [c, d] = &shrink.up;
            let (down, up) = ([self.whole(a)?, self.whole(b)?], [self.whole(c)?, self.whole(d)?]);
            Ok(DeepShrink { step: shrink.step, down, up })
        });
        Ok(HookInputs { perturbed, freeu: hooks.freeu, cache: None, shrink: shrink.transpose()?, map: None })
    }
}

impl Conditioning {
    /// The conditions of `rows` on `device`, without the text's keys and values, which the device makes itself. What does not act on
    /// these rows is left out. On the same device they share the memory of the whole.
    ///
    /// # Errors
    /// [`Error::Input`] for rows that are not there, and for what all rows have in common: a stored feature (DeepCache) and the attention of
    /// self-attention guidance. Errors of the copies.
    pub fn of_rows(&self, rows: Range<usize>, device: &Device) -> Result<Self> {
        let b = self.context.dims().first().copied().unwrap_or(0);
        let of = RowRange { rows, b, device };
        let added = self.added.as_ref().map(|added| -> Result<_> {
            Ok(AddedConditions {
                text_embeds: of.of_all("text_embeds", &added.text_embeds)?,
                time_ids: of.of_all("time_ids", &added.time_ids)?,
            })
        });
        let extra = self.extra_channels.as_ref().map(|extra| of.of_all("extra_channels", extra));
        let residuals = self.residuals.as_ref().map(|residuals| of.residuals(residuals)).transpose()?;
        Ok(Self {
            context: of.of_all("context", &self.context)?,
            added: added.transpose()?,
            guidance: self.guidance.as_ref().map(|guidance| of.whole(guidance)).transpose()?,
            extra_channels: extra.transpose()?,
            residuals: residuals.flatten(),
            controls: self.controls.iter().filter_map(|one| of.control(one).transpose()).collect::<Result<_>>()?,
            features: self.features.iter().filter_map(|map| of.of(map).transpose()).collect::<Result<_>>()?,
            image_prompts: self.image_prompts.iter().map(|prompt| of.image_prompt(prompt)).collect::<Result<_>>()?,
            text_keys: Vec::new(),
            hooks: of.hooks(&self.hooks)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::DType;

    use super::*;
    use crate::hooks::LayerSelection;

    /// Row `i` of a tensor `(b, 2)` has the values `i`.
    fn rows(b: usize) -> Tensor {
        Tensor::arange(0f32, b as f32, &Device::Cpu).unwrap().reshape((b, 1)).unwrap().repeat((1, 2)).unwrap()
    }

    fn first(tensor: &Tensor) -> Vec<f32> {
        tensor.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap().iter().map(|row| row[0]).collect()
    }

    #[test]
    fn rows_are_those_of_the_end_where_there_are_fewer() {
        let control = ControlInput { network: 0, hints: vec![rows(2)], kinds: None, scales: Arc::new([1.0]) };
        let layers: LayerSelection = "mid".parse().unwrap();
        let hooks =
            HookInputs { perturbed: Some(PerturbedAttention { layers, part: (1, 2) }), ..HookInputs::default() };
        let all =
            Conditioning { controls: vec![control], features: vec![rows(4)], hooks, ..Conditioning::of_text(rows(4)) };
        let low = all.of_rows(0..2, &Device::Cpu).unwrap();
        assert_eq!((first(&low.context), first(&low.features[0])), (vec![0.0, 1.0], vec![0.0, 1.0]));
        assert!(low.controls.is_empty() && low.hooks.perturbed.is_none(), "these act on the last two rows");
        let middle = all.of_rows(1..3, &Device::Cpu).unwrap();
        assert_eq!(first(&middle.controls[0].hints[0]), [0.0]);
        assert_eq!(middle.hooks.perturbed.map(|one| one.part), Some((1, 2)));
        let high = all.of_rows(2..4, &Device::Cpu).unwrap();
        assert_eq!((first(&high.context), first(&high.controls[0].hints[0])), (vec![2.0, 3.0], vec![0.0, 1.0]));
        assert_eq!(high.hooks.perturbed.map(|one| one.rows(2)), Some(2));
        assert!(all.of_rows(4..5, &Device::Cpu).is_err());
    }
}
