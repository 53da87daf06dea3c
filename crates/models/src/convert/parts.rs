//! The components of a model to convert: their tensors under the names that the networks declare.

use std::borrow::Cow;

use kiln_clip::{TextEncoder, TextEncoderConfig};
use kiln_unet::{Unet, UnetConfig};
use kiln_vae::{Decoder, Encoder, VaeConfig};
use kiln_weights::ldm::UnetShape;
use kiln_weights::{KeyRule, ParamInfo, ParamSource, Renamed, Segments, StoredType, encode, mismatches};

use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::single_file::SingleFile;
use crate::single_file::configs::is_openai;
use crate::single_file::shapes::unet_shape;

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
    /// Channels of its token embeddings.
    pub(super) width: usize,
    /// Whether it is an OpenCLIP encoder.
    pub(super) is_open: bool,
}

/// The components of a model, and the properties that determine their names in a single file.
pub(super) struct ConvertedModel {
    pub(super) unet: ConvertedComponent,
    pub(super) unet_shape: UnetShape,
    pub(super) vae: ConvertedComponent,
    pub(super) vae_levels: usize,
    /// The text encoders, in the order of the family.
    pub(super) text: Vec<ConvertedText>,
}

impl ConvertedModel {
    /// Opens the components and checks that every tensor exists.
    pub(super) fn open(files: &ModelFiles) -> Result<Self> {
        fn read<T, E: std::fmt::Display>(
            files: &ModelFiles,
            name: &str,
            parse: fn(&str) -> std::result::Result<T, E>,
        ) -> Result<T> {
            parse(&files.config(name)?).map_err(|error| Error::model(&files.config_path(name), error))
        }
        let unet_config = read(files, "unet/config.json", UnetConfig::from_json)?;
        let unet_config = files.unet_config(unet_config, None)?;
        let unet = ConvertedComponent::new(files.unet()?, &[Unet::new(unet_config.clone()).segments()])?;
        let vae_config = read(files, "vae/config.json", VaeConfig::from_json)?;
        let (decoder, encoder) = (Decoder::new(&vae_config), Encoder::new(&vae_config));
        let vae = ConvertedComponent::new(files.vae()?, &[encoder.segments(), decoder.segments()])?;
        let mut text = Vec::new();
        for (i, component) in files.texts().iter().filter(|text| files.has_config(&text.config())).enumerate() {
            let config = read(files, &component.config(), TextEncoderConfig::from_json)?;
            let encoder = TextEncoder::new(config.clone())?;
            let mut part = ConvertedComponent::new(files.text_encoder(i)?, &[encoder.segments()])?;
            if part.source.info(POSITION_IDS).is_some() {
                part.keys.push(POSITION_IDS.into());
                part.keys.sort();
            }
            // Stable Diffusion 2 has OpenCLIP's encoder, with the usual activation.
            text.push(ConvertedText { part, width: config.hidden_size, is_open: config.hidden_act == "gelu" });
        }
        let (unet_shape, vae_levels) = (unet_shape(&unet_config), vae_config.block_out_channels.len());
        Ok(Self { unet, unet_shape, vae, vae_levels, text })
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
        let text = file.text.iter().enumerate().filter_map(|(i, found)| {
            let (shape, source) = (&found.as_ref()?.shape, file.text_encoder(i)?);
            let is_open = !is_openai(shape.dialect, shape.hidden_size);
            Some(ConvertedText { part: part(source), width: shape.hidden_size, is_open })
        });
        let text: Vec<ConvertedText> = text.collect();
        let (unet_shape, vae_levels) = (file.unet_shape()?.clone(), file.vae.as_ref()?.shape.channels.len());
        let (unet, vae) = (part(file.unet()?), part(Box::new(Renamed::new(file.vae()?, KeyRule::VAE_ATTENTION))));
        (!text.is_empty()).then_some(Self { unet, unet_shape, vae, vae_levels, text })
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
        Ok(Self { source, keys })
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
