//! The named inputs of a U-Net: who makes an input adds it here, and [`Conditioning::of`] reads it.

use kiln_network::slots::{
    ATTENTION_MAP, CACHED_FEATURE, CONTEXT, EXTRA_CHANNELS, GUIDANCE, PERTURBED, TEXT_EMBEDS, TIME_IDS,
};
use kiln_network::{Access, Inputs, Slot};
use kiln_nn::TensorLike;

use crate::conditioning::{AddedConditions, Conditioning, ControlInput, last_rows};
use crate::control::ControlKinds;
use crate::error::{Error, Result};
use crate::hooks::{AttentionMap, DeepShrink, FeatureCache, FreeU, HookInputs, LayerSelection, PerturbedAttention};
use crate::image_prompt::{ImagePrompt, KeysValues};

/// The text's keys and values, a pair for each cross-attention layer.
const TEXT_KEYS: [Slot; 2] = [Slot::each("text keys"), Slot::each("text values")];

/// The embedded images of a control network.
const HINT: Slot = Slot::last("control hint");
/// The flags of a Union network's types.
const KIND_FLAGS: Slot = Slot::shared("control types").keeping_dtype();
/// The feature maps of T2I-Adapters.
const FEATURE: Slot = Slot::last("adapter feature");
/// The text's keys and values, a pair for each cross-attention layer of a control network.
const CONTROL_TEXT_KEYS: [Slot; 2] = [Slot::last("control text keys"), Slot::last("control text values")];
/// The number of a control network.
const CONTROL: &str = "control network";
/// The factors of its residuals.
const CONTROL_SCALE: &str = "control scale";
/// Number and weight of each image's type, alternately.
const CONTROL_KIND: &str = "control type";

/// The keys and values of an image prompt, a pair for each layer in which it acts.
const PROMPT_KEYS: [Slot; 2] = [Slot::each("image prompt keys"), Slot::each("image prompt values")];
/// Its masks.
const PROMPT_MASK: Slot = Slot::each("image prompt mask");
/// For each layer, whether it acts there.
const PROMPT_LAYER: &str = "image prompt layer";

/// The skip connection that it is stored at.
const CACHE_BRANCH: &str = "cache branch";
/// The weights of deep shrink, of rows and of columns, on the way down and on the way up.
const SHRINK: [Slot; 2] = [Slot::shared("shrink down").keeping_dtype(), Slot::shared("shrink up").keeping_dtype()];
/// The step of deep shrink on the way down.
const SHRINK_STEP: &str = "shrink step";
/// FreeU's factors and rule.
const FREEU: &str = "freeu";
/// The layers with perturbed attention.
const PERTURBED_LAYER: &str = "perturbed layer";

impl<T: TensorLike> Conditioning<T> {
    /// The inputs of a U-Net among `inputs`; it takes no others. Tensors share their memory.
    ///
    /// # Errors
    /// [`Error::Input`] without a text, and for inputs of which a part is missing.
    pub fn of(inputs: &Inputs<T>) -> Result<Self> {
        let context = inputs.get(CONTEXT).cloned().ok_or_else(|| missing(CONTEXT.name))?;
        let added = inputs.get(TEXT_EMBEDS).zip(inputs.get(TIME_IDS));
        let added = added.map(|(text_embeds, time_ids)| AddedConditions {
            text_embeds: text_embeds.clone(),
            time_ids: time_ids.clone(),
        });
        let controls = (0..inputs.count_of(CONTROL)).filter_map(|index| ControlInput::of(inputs, index));
        let prompts = (0..inputs.count_of(PROMPT_LAYER)).map(|index| ImagePrompt::of(inputs, index));
        Ok(Self {
            added,
            guidance: inputs.get(GUIDANCE).cloned(),
            extra_channels: inputs.get(EXTRA_CHANNELS).cloned(),
            controls: controls.collect(),
            features: inputs.all(FEATURE).cloned().collect(),
            image_prompts: prompts.collect::<Result<_>>()?,
            text_keys: pairs(inputs, TEXT_KEYS, 0).collect(),
            hooks: HookInputs::of(inputs)?,
            ..Self::of_text(context)
        })
    }
}

/// Keys and values of a pair of slots.
fn pairs<T: TensorLike>(
    inputs: &Inputs<T>,
    [keys, values]: [Slot; 2],
    index: usize,
) -> impl Iterator<Item = KeysValues<T>> {
    let all = inputs.all_of(keys, index).zip(inputs.all_of(values, index));
    all.map(|(keys, values)| KeysValues { keys: keys.clone(), values: values.clone() })
}

fn missing(input: &'static str) -> Error {
    Error::Input { input, expected: "an input with all of its parts".into(), found: Vec::new() }
}

impl<T: TensorLike> KeysValues<T> {
    /// Adds the text's keys and values of all cross-attention layers, in the order in which they run.
    pub fn add_text(layers: Vec<Self>, inputs: &mut Inputs<T>) {
        Self::add_all(layers, TEXT_KEYS, 0, inputs);
    }

    fn add_all(layers: Vec<Self>, slots: [Slot; 2], index: usize, inputs: &mut Inputs<T>) {
        for Self { keys, values } in layers {
            inputs.add(slots[0], index, keys);
            inputs.add(slots[1], index, values);
        }
    }
}

impl<T: TensorLike> ControlInput<T> {
    /// Adds the input to those of other control networks.
    pub fn add_to(self, inputs: &mut Inputs<T>) {
        let index = inputs.count_of(CONTROL);
        let Self { network, hints, kinds, scales, text_keys } = self;
        inputs.add_constant(CONTROL, index, network as u64);
        scales.iter().for_each(|scale| inputs.add_constant(CONTROL_SCALE, index, u64::from(scale.to_bits())));
        hints.into_iter().for_each(|hint| inputs.add(HINT, index, hint));
        if let Some(ControlKinds { images, flags }) = kinds {
            for (number, weight) in images {
                inputs.add_constant(CONTROL_KIND, index, number as u64);
                inputs.add_constant(CONTROL_KIND, index, u64::from(weight.to_bits()));
            }
            inputs.add(KIND_FLAGS, index, flags);
        }
        KeysValues::add_all(text_keys, CONTROL_TEXT_KEYS, index, inputs);
    }

    /// Adds the text's keys and values that `make` returns for a control network without them and the text of its rows `(r, s,
    /// context_dim)`.
    pub(crate) fn add_text_keys(
        inputs: &mut Inputs<T>,
        make: impl Fn(&Self, &T) -> Result<Vec<KeysValues<T>>>,
    ) -> Result<()> {
        for index in 0..inputs.count_of(CONTROL) {
            let without = Self::of(inputs, index).filter(|input| input.text_keys.is_empty());
            let (Some(input), Some(context)) = (without, inputs.get(CONTEXT)) else { continue };
            let rows = input.hints.first().and_then(|hint| hint.dims().first()).copied().unwrap_or(0);
            let keys = make(&input, &last_rows(context, rows)?)?;
            KeysValues::add_all(keys, CONTROL_TEXT_KEYS, index, inputs);
        }
        Ok(())
    }

    /// The input of this index; `None` if its network runs for none of the rows.
    fn of(inputs: &Inputs<T>, index: usize) -> Option<Self> {
        let hints: Vec<T> = inputs.all_of(HINT, index).cloned().collect();
        let network = inputs.constants_of(CONTROL, index).next().filter(|_| !hints.is_empty())?;
        let kinds: Vec<u64> = inputs.constants_of(CONTROL_KIND, index).collect();
        let images = kinds.chunks_exact(2).map(|pair| (pair[0] as usize, float(pair[1])));
        let flags = inputs.all_of(KIND_FLAGS, index).next();
        Some(Self {
            network: network as usize,
            hints,
            kinds: flags.map(|flags| ControlKinds { images: images.collect(), flags: flags.clone() }),
            scales: inputs.constants_of(CONTROL_SCALE, index).map(float).collect(),
            text_keys: pairs(inputs, CONTROL_TEXT_KEYS, index).collect(),
        })
    }

    /// Whether feature maps were added.
    pub(crate) fn has_features(inputs: &Inputs<T>) -> bool {
        inputs.get(FEATURE).is_some()
    }

    /// Adds the feature maps of T2I-Adapters, already summed.
    pub fn add_features(features: Vec<T>, inputs: &mut Inputs<T>) {
        features.into_iter().for_each(|feature| inputs.add(FEATURE, 0, feature));
    }
}

fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

impl<T: TensorLike> ImagePrompt<T> {
    /// Adds the prompt to others.
    pub fn add_to(self, inputs: &mut Inputs<T>) {
        let index = inputs.count_of(PROMPT_LAYER);
        for layer in self.layers {
            inputs.add_constant(PROMPT_LAYER, index, u64::from(layer.is_some()));
            if let Some(KeysValues { keys, values }) = layer {
                inputs.add(PROMPT_KEYS[0], index, keys);
                inputs.add(PROMPT_KEYS[1], index, values);
            }
        }
        self.masks.into_iter().for_each(|mask| inputs.add(PROMPT_MASK, index, mask));
    }

    fn of(inputs: &Inputs<T>, index: usize) -> Result<Self> {
        let mut layers = pairs(inputs, PROMPT_KEYS, index);
        let layer = |acts| match acts {
            0 => Ok(None),
            _ => layers.next().map(Some).ok_or_else(|| missing(PROMPT_KEYS[0].name)),
        };
        Ok(Self {
            layers: inputs.constants_of(PROMPT_LAYER, index).map(layer).collect::<Result<_>>()?,
            masks: inputs.all_of(PROMPT_MASK, index).cloned().collect(),
        })
    }
}

impl<T: TensorLike> HookInputs<T> {
    /// Adds the hooks.
    pub fn add_to(self, mut inputs: Inputs<T>) -> Inputs<T> {
        let Self { perturbed, freeu, cache, shrink, map } = self;
        if let Some(PerturbedAttention { layers, rows }) = perturbed {
            layers.constants().for_each(|layer| inputs.add_constant(PERTURBED_LAYER, 0, layer));
            inputs = inputs.with_rows(PERTURBED, rows);
        }
        for value in freeu.iter().flat_map(FreeU::constants) {
            inputs.add_constant(FREEU, 0, value);
        }
        if let Some(FeatureCache { branch, is_shortcut, feature }) = cache {
            inputs.add_constant(CACHE_BRANCH, 0, branch as u64);
            inputs.add(if is_shortcut { CACHED_FEATURE.state() } else { CACHED_FEATURE.output() }, 0, feature);
        }
        if let Some(DeepShrink { step, down, up }) = shrink {
            inputs.add_constant(SHRINK_STEP, 0, step as u64);
            for (slot, weights) in SHRINK.into_iter().zip([down, up]) {
                weights.into_iter().for_each(|weights| inputs.add(slot, 0, weights));
            }
        }
        if let Some(AttentionMap { map }) = map {
            inputs.add(ATTENTION_MAP, 0, map);
        }
        inputs
    }

    fn of(inputs: &Inputs<T>) -> Result<Self> {
        let perturbed = PerturbedAttention {
            layers: LayerSelection::of_constants(inputs.constants_of(PERTURBED_LAYER, 0)),
            rows: inputs.rows_of(PERTURBED),
        };
        let cache = inputs.state().find(|(slot, _)| slot.name == CACHED_FEATURE.name);
        let cache = cache.zip(inputs.constant(CACHE_BRANCH)).map(|((slot, feature), branch)| FeatureCache {
            branch: branch as usize,
            is_shortcut: slot.access == Access::State,
            feature: feature.clone(),
        });
        let weights = |slot: Slot| -> Result<[T; 2]> {
            let all: Vec<T> = inputs.all(slot).cloned().collect();
            all.try_into().map_err(|_| missing(slot.name))
        };
        let shrink = inputs.constant(SHRINK_STEP).map(|step| -> Result<_> {
            Ok(DeepShrink { step: step as usize, down: weights(SHRINK[0])?, up: weights(SHRINK[1])? })
        });
        Ok(Self {
            perturbed: Some(perturbed).filter(|perturbed| perturbed.rows > 0),
            freeu: FreeU::of_constants(inputs.constants_of(FREEU, 0)),
            cache,
            shrink: shrink.transpose()?,
            map: inputs.get(ATTENTION_MAP).map(|map| AttentionMap { map: map.clone() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::hooks::FreeuRule;

    fn ones(b: usize) -> Tensor {
        Tensor::ones((b, 2), DType::F32, &Device::Cpu).unwrap()
    }

    fn keys() -> KeysValues {
        KeysValues { keys: ones(2), values: ones(2) }
    }

    fn hooks(is_shortcut: bool) -> HookInputs {
        HookInputs {
            perturbed: Some(PerturbedAttention { layers: "mid,up_blocks.1.attentions.0".parse().unwrap(), rows: 1 }),
            freeu: Some(FreeU { backbone: [1.5, 1.6], skip: [0.9, 0.2], rule: FreeuRule::V2 }),
            cache: Some(FeatureCache { branch: 2, is_shortcut, feature: ones(2) }),
            shrink: Some(DeepShrink::new(3, (4, 6), 2.0, &Device::Cpu).unwrap()),
            map: Some(AttentionMap { map: ones(2) }),
        }
    }

    fn control(network: usize, rows: usize) -> ControlInput {
        let kinds = Some(ControlKinds { images: vec![(1, 0.5), (3, 1.0)], flags: ones(1) });
        let text_keys = vec![KeysValues { keys: ones(rows), values: ones(rows) }; 2 + network % 2];
        ControlInput { network, hints: vec![ones(rows); 2], kinds, scales: [1.0, 0.25].into(), text_keys }
    }

    #[test]
    fn inputs_are_read_as_they_were_added() {
        let mut inputs = Inputs::new().with(CONTEXT, ones(2));
        control(4, 2).add_to(&mut inputs);
        let other = ControlInput { hints: vec![ones(2)], kinds: None, scales: [0.5].into(), ..control(5, 2) };
        other.add_to(&mut inputs);
        ControlInput::add_features(vec![ones(2)], &mut inputs);
        ImagePrompt { layers: vec![None, Some(keys())], masks: Vec::new() }.add_to(&mut inputs);
        ImagePrompt { layers: vec![Some(keys()), Some(keys())], masks: vec![ones(2)] }.add_to(&mut inputs);
        KeysValues::add_text(vec![keys(), keys()], &mut inputs);
        let found = Conditioning::of(&hooks(true).add_to(inputs)).unwrap();
        assert_eq!(found.controls.iter().map(|control| control.network).collect::<Vec<_>>(), [4, 5]);
        let [first, second] = [0, 1].map(|i| found.controls[i].clone());
        assert_eq!((first.hints.len(), &first.scales[..], second.kinds.is_none()), (2, &[1.0, 0.25][..], true));
        assert_eq!((first.text_keys.len(), second.text_keys.len()), (2, 3));
        assert_eq!(first.kinds.unwrap().images, [(1, 0.5), (3, 1.0)]);
        let acts = |prompt: &ImagePrompt| prompt.layers.iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(found.image_prompts.iter().map(acts).collect::<Vec<_>>(), [[false, true], [true, true]]);
        assert_eq!(found.image_prompts.iter().map(|prompt| prompt.masks.len()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((found.features.len(), found.text_keys.len()), (1, 2));
        let (found, expected) = (found.hooks, hooks(true));
        assert_eq!((found.perturbed, found.freeu), (expected.perturbed, expected.freeu));
        assert!(found.cache.is_some_and(|cache| cache.is_shortcut && cache.branch == 2));
        assert!(found.shrink.is_some_and(|shrink| shrink.step == 3 && shrink.up[1].dims() == [6, 3]));
        assert!(found.map.is_some());
    }

    #[test]
    fn nothing_is_read_where_nothing_was_added() {
        let found = Conditioning::of(&Inputs::new().with(CONTEXT, ones(2))).unwrap();
        assert!(found.controls.is_empty() && found.image_prompts.is_empty() && found.text_keys.is_empty());
        let HookInputs { perturbed, freeu, cache, shrink, map } = found.hooks;
        assert!(perturbed.is_none() && freeu.is_none() && cache.is_none() && shrink.is_none() && map.is_none());
        assert!(Conditioning::of(&Inputs::<Tensor>::new()).is_err(), "there is no text");
    }

    #[test]
    fn calls_with_other_values_of_hooks_are_others() {
        let base = || Inputs::new().with(CONTEXT, ones(2));
        let of = |hooks: HookInputs| hooks.add_to(base()).key();
        assert_eq!(of(hooks(true)), of(hooks(true)));
        let freeu = FreeU { backbone: [1.5, 1.7], skip: [0.9, 0.2], rule: FreeuRule::V2 };
        for other in [
            hooks(false),
            HookInputs { freeu: Some(freeu), ..hooks(true) },
            HookInputs { perturbed: None, ..hooks(true) },
            HookInputs { map: None, ..hooks(true) },
        ] {
            assert_ne!(of(other), of(hooks(true)));
        }
    }

    /// A control network whose image is for the last rows does not run for the others.
    #[test]
    fn rows_without_an_image_have_no_control() {
        let mut inputs = Inputs::new().with(CONTEXT, ones(4));
        control(0, 2).add_to(&mut inputs);
        let inputs = HookInputs { cache: None, map: None, ..hooks(true) }.add_to(inputs);
        let low = Conditioning::of(&inputs.rows(0..2).unwrap()).unwrap();
        assert!(low.controls.is_empty() && low.hooks.perturbed.is_none() && low.hooks.shrink.is_some());
        let high = Conditioning::of(&inputs.rows(1..4).unwrap()).unwrap();
        assert_eq!(high.controls[0].hints[0].dims(), [2, 2]);
        assert_eq!(high.hooks.perturbed.map(|perturbed| perturbed.rows), Some(1));
        let shared = hooks(false).add_to(Inputs::new().with(CONTEXT, ones(4)));
        assert!(shared.rows(0..2).is_err(), "a stored feature is of all rows");
    }
}
