//! The trait of all families.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use kiln_clip::ClipPadding;
use kiln_network::text::{EncoderConfig, TextStage};
use kiln_network::{ControlConfig, DenoiserConfig};
use kiln_scheduler::{Convention, SigmaSchedule};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{ClipDialect, Names, UnetShape, same_names};
use serde_json::Value;

use crate::component::{Component, ComponentKind};
use crate::control::{FileControl, ReferenceSizes, References};
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::{Error, Result};
use crate::file_networks::{FileDenoiser, FileText};
use crate::flow::FlowRules;
use crate::mark::Mark;
use crate::text_part::{TextPart, encoder_config};
use crate::tokenizer::BuiltInTokenizer;
use crate::variant::Variant;

/// A family of [`crate::FAMILIES`].
pub type FamilyRef = &'static dyn Family;

/// The hidden layer of a CLIP text encoder that conditions the denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLayer {
    /// The layer, counted from the last, which is 1.
    pub from_end: usize,
    /// Whether the final normalization follows.
    pub final_layer_norm: bool,
}

/// Factors from latents to colors, for previews.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentColors {
    /// Red, green and blue from -1 to 1 for each channel of the latents.
    pub factors: &'static [[f32; 3]],
    /// The scaling factor of the autoencoder that they belong to.
    pub scaling_factor: f64,
}

/// Values of a family's official configurations that tensor shapes do not show.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DerivedConfig {
    /// The scaling factor of the autoencoder.
    pub scaling_factor: f64,
    /// The value that is subtracted from the autoencoder's latents before scaling.
    pub shift_factor: Option<f64>,
    /// The side of the autoencoder's training images in pixels.
    pub vae_sample_size: usize,
    /// Whether the autoencoder overflows in f16.
    pub force_upcast: bool,
    /// The architecture in GGUF files, as stable-diffusion.cpp names it.
    pub gguf: &'static str,
}

/// A model family: the pipelines of one kind of denoiser.
///
/// A family that Kiln only recognizes implements [`Self::id`], [`Self::label`], [`Self::marks`] and [`Self::class_prefixes`];
/// the other methods have defaults for it. A family that runs makes its networks ([`Self::denoiser`],
/// [`Self::text_encoder`], [`Self::text_stage`]).
pub trait Family: Sync {
    /// The id in JSON: `sdxl`.
    fn id(&self) -> &'static str;

    /// The name of the family: `Stable Diffusion XL`.
    fn label(&self) -> &'static str;

    /// Whether Kiln runs models of this family.
    fn runs(&self) -> bool {
        false
    }

    /// The classes of diffusers whose pipelines have the components of this family and can run: with an input image, a mask
    /// or a control network, which are options of a request.
    fn classes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Beginnings of other classes in `model_index.json` and `config.json`, with the name of what has them:
    /// `("Flux", "a FLUX.1 model")`.
    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Tensors by which networks are recognized that Kiln does not run; the most specific marks first.
    fn marks(&self) -> &'static [Mark] {
        &[]
    }

    /// Tensors by which the denoiser is recognized, if Kiln runs the family and the denoiser is no U-Net; the most specific marks
    /// first.
    fn denoiser_marks(&self) -> &'static [Mark] {
        &[]
    }

    /// Parts of tensor names that LoRA files of this family have, with dots and with underscores.
    fn lora_marks(&self) -> &'static [&'static str] {
        &[]
    }

    /// The networks of a pipeline. Text encoders are in the order in which their channels are joined.
    fn components(&self) -> &'static [Component] {
        &[]
    }

    /// The configuration of the denoiser, from the text of its `config.json`. The pooled text has `pooled` channels, if that is
    /// known.
    ///
    /// # Errors
    /// Errors of the network for an invalid value, and [`Error::NotRun`].
    fn denoiser(&self, _json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Err(Error::NotRun(self.label()))
    }

    /// The configuration of a text encoder, from the text of its `config.json`.
    ///
    /// # Errors
    /// Errors of the network for an invalid value, and [`Error::NotRun`].
    fn text_encoder(&self, component: &Component, json: &str) -> Result<Arc<dyn EncoderConfig>> {
        encoder_config(component.kind, json).unwrap_or_else(|| Err(Error::NotRun(self.label())))
    }

    /// The text encoders of a model with the denoiser `denoiser`. The model has those of [`Self::components`] in `parts`, in this
    /// order, which is that of the stage's networks. No weights are read.
    ///
    /// # Errors
    /// Errors of tokenizers, [`Error::OtherEncoder`] and [`Error::NotRun`].
    fn text_stage(&self, _parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        Err(Error::NotRun(self.label()))
    }

    /// The denoiser of this family whose tensors `source` has without a prefix. `None` for another network. U-Nets are
    /// recognized by [`Self::has_unet`].
    fn read_denoiser(&self, _source: &dyn ParamSource) -> Option<FileDenoiser> {
        None
    }

    /// The text encoder of `kind` whose tensors `source` has without a prefix.
    fn read_text(&self, kind: ComponentKind, source: &dyn ParamSource) -> Option<FileText> {
        FileText::read(kind, source)
    }

    /// The tokenizer of a text encoder of `kind` in a single file without one; of CLIP with `padding`. `None` for other networks.
    fn built_in_tokenizer(&self, kind: ComponentKind, padding: ClipPadding) -> Option<BuiltInTokenizer> {
        BuiltInTokenizer::of(kind, padding)
    }

    /// The configuration of a text encoder in a single file, for which a folder has `config`.
    fn text_in_file(&self, _component: &Component, config: Arc<dyn EncoderConfig>) -> Arc<dyn EncoderConfig> {
        config
    }

    /// The configuration of a text encoder in a model of the class `class` in diffusers, for which other models have `config`.
    fn text_of_class(&self, _class: &str, config: Arc<dyn EncoderConfig>) -> Arc<dyn EncoderConfig> {
        config
    }

    /// The classes of diffusers of control networks for models of this family, with the name of what has them:
    /// `("FluxControlNetModel", "a FLUX.1 ControlNet")`.
    fn control_classes(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The configuration of a control network of one of [`Self::control_classes`], from the text of its `config.json`.
    ///
    /// # Errors
    /// Errors of the network for an invalid value, and [`Error::NotRun`].
    fn control(&self, _class: &str, _json: &str) -> Result<Arc<dyn ControlConfig>> {
        Err(Error::NotRun(self.label()))
    }

    /// Tensors by which control networks in one file are recognized, if the denoiser is no U-Net; the most specific marks first.
    fn control_marks(&self) -> &'static [Mark] {
        &[]
    }

    /// The control network whose tensors `source` has. `None` for another network, and for those of U-Nets.
    fn read_control(&self, _source: &dyn ParamSource) -> Option<Result<FileControl>> {
        None
    }

    /// The rule for the size of reference images; `None` if the denoiser takes none.
    fn references(&self) -> Option<ReferenceSizes> {
        None
    }

    /// How a model of this family takes reference images; `None` if it takes none.
    fn references_of(&self, _model: &ModelTraits<'_>) -> Option<References> {
        self.references().map(References::of_denoiser)
    }

    /// The `scheduler_config.json` of a model in one file with this denoiser.
    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        Value::Null
    }

    /// The class in diffusers of a pipeline with a denoiser in one file.
    fn class_of_file(&self, _denoiser: &FileDenoiser) -> Option<&'static str> {
        self.classes().first().copied()
    }

    /// The class of a pipeline whose denoiser is in one file of this name, if the name says more than the tensors.
    fn class_of_name(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// Whether a model may lack some of the text encoders.
    fn texts_are_optional(&self) -> bool {
        false
    }

    /// The names of a denoiser's tensors in a single file. Tensors that the table does not contain keep their names.
    fn denoiser_names(&self, _config: &dyn DenoiserConfig) -> Names {
        Names::default()
    }

    /// The side of a denoiser's training images in latents, if its configuration has no `sample_size`.
    fn sample_size(&self) -> usize {
        64
    }

    /// The denoiser among the components.
    fn denoiser_component(&self) -> Option<&'static Component> {
        self.components().iter().find(|component| component.is_denoiser())
    }

    /// The text encoders among the components.
    fn text_components(&self) -> Vec<&'static Component> {
        self.components().iter().filter(|component| component.kind.is_text_encoder()).collect()
    }

    /// Whether a U-Net of this shape is the denoiser of this family.
    fn has_unet(&self, _unet: &UnetShape) -> bool {
        false
    }

    /// The variant of a U-Net for which [`Self::has_unet`] is true.
    fn variant(&self, _unet: &UnetShape) -> Variant {
        Variant::OTHER
    }

    /// The name of the family with what is special about a model; `is_refiner` for a model that continues images.
    fn model_label(&self, _is_refiner: bool) -> &'static str {
        self.label()
    }

    /// The defaults of a request for this model.
    fn defaults(&self, _model: &ModelTraits<'_>) -> FamilyDefaults {
        FamilyDefaults::new(20, 7.0)
    }

    /// The rules for the noise levels of flow models; `None` for a family of diffusion models. `is_dynamic` says whether the
    /// shift of the model's configuration depends on the size, and `convention` which program's rules are meant.
    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        None
    }

    /// Whether diffusers' pipeline turns classifier-free guidance off without a negative prompt.
    fn guides_by_negative_prompt(&self) -> bool {
        false
    }

    /// The side of the tokens, in latents, to whose norm without guidance diffusers' pipeline scales the guided prediction; `None` if it
    /// does not.
    fn restored_norm(&self) -> Option<usize> {
        None
    }

    /// Whether rows of a batch can leave out blocks of the denoiser, for skip-layer guidance.
    fn skips_blocks(&self) -> bool {
        false
    }

    /// The hidden layer of CLIP text encoders: the usual one, or layer `clip_skip` from the last.
    fn text_layer(&self, clip_skip: Option<usize>) -> TextLayer {
        TextLayer { from_end: clip_skip.unwrap_or(1), final_layer_norm: true }
    }

    /// Whether AUTOMATIC1111 leaves `clip_skip` without effect.
    fn a1111_ignores_clip_skip(&self) -> bool {
        false
    }

    /// Whether a missing negative prompt means zeros in place of the encoded empty text, given
    /// `force_zeros_for_empty_prompt` of `model_index.json`.
    fn zeros_for_no_negative(&self, _force_zeros: Option<bool>) -> bool {
        false
    }

    /// Whether the denoiser takes sizes and crops of the training image.
    fn takes_sizes(&self) -> bool {
        false
    }

    /// Whether diffusers has a pipeline from an image to an image for models that are distilled with the guidance inside, and
    /// thereby a rule for their timesteps.
    fn has_distilled_img2img(&self) -> bool {
        false
    }

    /// Whether the defaults of Stable Diffusion's schedule apply (`SchedulerConfig::for_stable_diffusion`).
    fn has_stable_diffusion_schedule(&self) -> bool {
        false
    }

    /// The schedule that `asked` stands for: some have levels of their own for a family.
    fn sigma_schedule(&self, asked: SigmaSchedule) -> SigmaSchedule {
        asked
    }

    /// Whether the autoencoder decodes in bf16 in place of f16 if its configuration has `force_upcast`.
    fn obeys_force_upcast(&self) -> bool {
        false
    }

    /// Factors for previews that belong to the usual autoencoder.
    fn latent_colors(&self) -> Option<LatentColors> {
        None
    }

    /// Values for the configurations of a model in one file. `None` if Kiln cannot derive them.
    fn derived_config(&self) -> Option<DerivedConfig> {
        None
    }

    /// The prefix and the names that the tensors of a converted text encoder have in a single file. `place` is its place among
    /// `count` encoders.
    fn text_names(
        &self,
        (_place, _count): (usize, usize),
        component: &Component,
        _config: &dyn EncoderConfig,
    ) -> (&'static str, Names) {
        let names = match component.kind {
            ComponentKind::Clip => ClipDialect::Transformers.names(),
            _ => same_names(),
        };
        (component.prefixes.first().copied().unwrap_or_default(), names)
    }

    /// The prefix and the naming scheme that a converted text encoder of CLIP has in a single file. `place` is its place among
    /// `count` encoders; `is_open` means an encoder of OpenCLIP.
    fn single_text(&self, _place: usize, _count: usize, is_open: bool) -> (&'static str, ClipDialect) {
        match is_open {
            false => ("cond_stage_model.transformer.", ClipDialect::Transformers),
            true => ("cond_stage_model.model.", ClipDialect::OpenClip),
        }
    }
}

/// Families are equal if their ids are.
impl PartialEq for dyn Family + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for dyn Family + '_ {}

impl Debug for dyn Family + '_ {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}
