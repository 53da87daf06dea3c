//! The components of a model to convert: their tensors under the names that the networks declare.

use std::borrow::Cow;

use kiln_families::{BuiltInTokenizer, Component as ComponentSpec, ComponentKind, FamilyRef, TextPart, of_unet};
use kiln_vae::{Decoder, Encoder, VaeConfig};
use kiln_weights::ldm::{ClipDialect, Names, VaeDialect, VaeShape, same_names};
use kiln_weights::{KeyRule, ParamInfo, ParamSource, Renamed, Segments, StoredType, encode, mismatches};

use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::single_file::SingleFile;
use crate::single_file::configs::{built_in_tokenizer, clip_padding, is_openai};
use crate::text_stage::TextFacts;

const VAE_CONFIG: &str = "vae/config.json";
/// A buffer that text encoders of 2022 contain.
const POSITION_IDS: &str = "text_model.embeddings.position_ids";

/// A component: a source, and its sorted tensor names.
pub(super) struct ConvertedComponent {
    pub(super) source: Box<dyn ParamSource>,
    pub(super) keys: Vec<String>,
}

/// A text encoder.
pub(super) struct ConvertedText {
    pub(super) part: ConvertedComponent,
    /// The prefix and the names of its tensors in a single file.
    pub(super) place: (&'static str, Names),
    /// The tokenizer that a single file without one means.
    pub(super) tokenizer: Option<BuiltInTokenizer>,
}

/// The components of a model, and the properties that determine their names in a single file.
pub(super) struct ConvertedModel {
    pub(super) family: FamilyRef,
    pub(super) denoiser: ConvertedComponent,
    /// The names of the denoiser's tensors in a single file.
    pub(super) denoiser_names: Names,
    pub(super) vae: ConvertedComponent,
    /// The names of the autoencoder's tensors in a single file.
    pub(super) vae_names: Names,
    /// The text encoders, in the order of the family.
    pub(super) text: Vec<ConvertedText>,
}

impl ConvertedModel {
    /// Opens the components and checks that every tensor exists.
    pub(super) fn open(files: &ModelFiles) -> Result<Self> {
        let family = files.family();
        let path_of = |name: &str| files.config_path(name);
        let text = |&component: &_| -> Result<TextPart> {
            let name = ComponentSpec::config(component);
            let config =
                family.text_encoder(component, &files.config(&name)?).map_err(Error::in_file(path_of(&name)))?;
            Ok(TextPart { component, config, tokenizer: None })
        };
        let texts = files.texts().iter().map(text).collect::<Result<Vec<_>>>()?;
        let name = files.denoiser().config();
        let json = files.config(&name)?;
        let denoiser = |pooled| family.denoiser(&json, pooled).map_err(Error::in_file(path_of(&name)));
        let stage = family.text_stage(&texts, denoiser(None)?.as_ref())?;
        let pooled = TextFacts::of(stage.as_ref()).pooled;
        let config = denoiser(Some(pooled))?;
        let config = files.denoiser_config(family, config, (pooled, None))?;
        let denoiser = ConvertedComponent::new(files.denoiser_weights()?, &[config.build().segments()])?;
        let vae_config =
            VaeConfig::from_json(&files.config(VAE_CONFIG)?).map_err(Error::in_file(path_of(VAE_CONFIG)))?;
        let (decoder, encoder) = (Decoder::new(&vae_config), Encoder::new(&vae_config));
        let mut vae = ConvertedComponent::new(files.vae()?, &[encoder.segments(), decoder.segments()])?;
        if vae_config.has_frames() {
            vae.keep_all(); // also what joins frames
        }
        let mut text = Vec::new();
        for (i, (part, network)) in texts.iter().zip(stage.networks()).enumerate() {
            let mut converted = ConvertedComponent::new(files.text_encoder(i)?, &[network.segments])?;
            if converted.source.info(POSITION_IDS).is_some() {
                converted.keys.push(POSITION_IDS.into());
                converted.keys.sort();
            }
            if part.component.kind == ComponentKind::LanguageModel {
                // The number of its layers says which of them is taken, also those behind that one.
                converted.keep_all();
            }
            let place = family.text_names((i, texts.len()), part.component, part.config.as_ref());
            let tokenizer = built_in_tokenizer(family, part.component.kind, part.config.as_ref());
            text.push(ConvertedText { part: converted, place, tokenizer });
        }
        let denoiser_names = family.denoiser_names(config.as_ref());
        let vae_names = match vae_config.has_frames() {
            true => same_names(),
            false => VaeShape::ldm_names(vae_config.block_out_channels.len()),
        };
        Ok(Self { family, denoiser, denoiser_names, vae, vae_names, text })
    }

    /// The components of a single file by name only, with any shapes: sufficient if the names do not change. `None` if
    /// the file does not have all components of a model with CompVis' names.
    pub(super) fn of_names(file: &SingleFile) -> Option<Self> {
        let part = |source: Box<dyn ParamSource>| {
            let mut keys = source.keys();
            keys.retain(|key| source.info(key).is_some());
            keys.sort();
            keys.dedup();
            ConvertedComponent { source, keys }
        };
        let shape = file.unet_shape()?;
        let family = of_unet(shape);
        let found = ["text_encoder", "text_encoder_2"].map(|folder| file.text_of(folder, ComponentKind::Clip));
        let count = found.iter().flatten().count();
        let texts = found
            .into_iter()
            .flatten()
            .filter_map(|i| Some((file.texts.get(i)?.1.shape.clip()?, file.text_encoder(i)?)));
        let text = texts.enumerate().map(|(place, (shape, source))| {
            let is_open = !is_openai(shape.dialect, shape.hidden_size);
            let (prefix, dialect): (_, ClipDialect) = family.single_text(place, count, is_open);
            let tokenizer = Some(BuiltInTokenizer::Clip(clip_padding(shape.dialect, shape.hidden_size)));
            ConvertedText { part: part(source), place: (prefix, dialect.names()), tokenizer }
        });
        let text: Vec<ConvertedText> = text.collect();
        let vae_shape = &file.vae.as_ref()?.shape;
        let vae_names = match vae_shape.dialect {
            VaeDialect::Frames | VaeDialect::Wan => same_names(),
            VaeDialect::Ldm | VaeDialect::Diffusers => VaeShape::ldm_names(vae_shape.channels.len()),
        };
        let (denoiser, denoiser_names) = (part(file.denoiser()?), shape.names());
        let vae = part(Box::new(Renamed::new(file.vae()?, KeyRule::VAE_ATTENTION)));
        (!text.is_empty()).then_some(Self { family, denoiser, denoiser_names, vae, vae_names, text })
    }
}

impl ConvertedComponent {
    fn new(source: Box<dyn ParamSource>, networks: &[&Segments]) -> Result<Self> {
        let mut keys = Vec::new();
        for segments in networks {
            if let Some(error) = mismatches(segments, &source).into_iter().next() {
                return Err(error.into());
            }
            keys.extend(segments.iter().flat_map(|segment| segment.params()).map(|param| param.key.clone()));
        }
        keys.sort();
        keys.dedup(); // both halves of an autoencoder with patches have the statistics of its latents
        Ok(Self { source, keys })
    }

    /// Adds the tensors that the network does not declare.
    fn keep_all(&mut self) {
        let source = &self.source;
        self.keys = source.keys().into_iter().filter(|key| source.info(key).is_some()).collect();
        self.keys.sort();
        self.keys.dedup();
    }

    /// Shape and stored type. The source has every name of `keys`.
    pub(super) fn info(&self, key: &str) -> Result<ParamInfo> {
        self.source.info(key).ok_or_else(|| self.missing(key))
    }

    /// The elements in `dtype`.
    pub(super) fn bytes(&self, key: &str, dtype: StoredType) -> kiln_weights::Result<Cow<'_, [u8]>> {
        let missing = || kiln_weights::Error::Missing {
            origin: self.source.origin(key),
            key: key.to_string(),
            expected: Vec::new(),
        };
        let data = self.source.data(key)?.ok_or_else(missing)?;
        if data.info.dtype == dtype {
            return Ok(data.bytes);
        }
        let found = format!("{:?}", data.info.dtype);
        let (origin, key) = (self.source.origin(key), key.to_string());
        encode(&data, dtype).map(Cow::Owned).ok_or(kiln_weights::Error::StoredDType { origin, key, found })
    }

    fn missing(&self, key: &str) -> Error {
        let (origin, key) = (self.source.origin(key), key.to_string());
        kiln_weights::Error::Missing { origin, key, expected: Vec::new() }.into()
    }
}
