//! The networks of a model by their configurations only, and built-in models.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use kiln_families::{FamilyRef, TextPart, of_id};
use kiln_network::DenoiserConfig;
use kiln_vae::{TinyConfig, VaeConfig};
use serde::Deserialize;
use serde_json::Value;

use crate::components::Component;
use crate::dtype::decoder_dtype;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::text_stage::TextFacts;

/// The models with built-in configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// The model that comes with Kiln, at 256x256.
    Emoji,
    /// Stable Diffusion 1.5 at 512x512.
    Sd15,
    /// Stable Diffusion XL at 1024x1024.
    Sdxl,
    /// SD-Turbo at 512x512 with TAESD, without guidance.
    SdTurbo,
    /// Stable Diffusion 3.5 medium at 1024x1024.
    Sd35Medium,
    /// Stable Diffusion 3.5 large at 1024x1024.
    Sd35Large,
    /// FLUX.1 dev at 1024x1024, without classifier-free guidance.
    FluxDev,
    /// FLUX.1 schnell at 1024x1024, without guidance.
    FluxSchnell,
    /// Chroma at 1024x1024.
    Chroma,
    /// FLUX.2 klein 4B, distilled, at 1024x1024.
    Flux2Klein4b,
    /// FLUX.2 klein 9B, distilled, at 1024x1024.
    Flux2Klein9b,
    /// Z-Image-Turbo at 1024x1024.
    ZImageTurbo,
    /// Qwen-Image at 1328x1328.
    QwenImage,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 13] = [
        Self::Emoji,
        Self::Sd15,
        Self::Sdxl,
        Self::SdTurbo,
        Self::Sd35Medium,
        Self::Sd35Large,
        Self::FluxDev,
        Self::FluxSchnell,
        Self::Chroma,
        Self::Flux2Klein4b,
        Self::Flux2Klein9b,
        Self::ZImageTurbo,
        Self::QwenImage,
    ];

    /// All names, with commas between them.
    pub fn names() -> String {
        Self::ALL.map(Self::id).join(", ")
    }

    /// The name on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Self::Emoji => "emoji",
            Self::Sd15 => "sd15-512",
            Self::Sdxl => "sdxl-1024",
            Self::SdTurbo => "sd-turbo",
            Self::Sd35Medium => "sd35-medium-1024",
            Self::Sd35Large => "sd35-large-1024",
            Self::FluxDev => "flux-dev-1024",
            Self::FluxSchnell => "flux-schnell-1024",
            Self::Chroma => "chroma-1024",
            Self::Flux2Klein4b => "flux2-klein-4b-1024",
            Self::Flux2Klein9b => "flux2-klein-9b-1024",
            Self::ZImageTurbo => "z-image-turbo-1024",
            Self::QwenImage => "qwen-image-1328",
        }
    }

    fn json(self) -> &'static str {
        match self {
            Self::Emoji => include_str!("presets/emoji.json"),
            Self::Sd15 => include_str!("presets/sd15-512.json"),
            Self::Sdxl => include_str!("presets/sdxl-1024.json"),
            Self::SdTurbo => include_str!("presets/sd-turbo.json"),
            Self::Sd35Medium => include_str!("presets/sd35-medium-1024.json"),
            Self::Sd35Large => include_str!("presets/sd35-large-1024.json"),
            Self::FluxDev => include_str!("presets/flux-dev-1024.json"),
            Self::FluxSchnell => include_str!("presets/flux-schnell-1024.json"),
            Self::Chroma => include_str!("presets/chroma-1024.json"),
            Self::Flux2Klein4b => include_str!("presets/flux2-klein-4b-1024.json"),
            Self::Flux2Klein9b => include_str!("presets/flux2-klein-9b-1024.json"),
            Self::ZImageTurbo => include_str!("presets/z-image-turbo-1024.json"),
            Self::QwenImage => include_str!("presets/qwen-image-1328.json"),
        }
    }
}

impl std::str::FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|preset| preset.id() == text);
        found.ok_or_else(|| format!("expected {}; another model by `config`", Self::names()))
    }
}

/// The networks of a model and the size of its images, without weights.
#[derive(Debug, Clone)]
pub struct Architecture {
    /// The name of the preset, the folder or the file.
    pub name: String,
    /// The pipeline family.
    pub family: FamilyRef,
    /// The text encoders, without tokenizers.
    pub texts: Vec<TextPart>,
    /// The denoiser.
    pub denoiser: Arc<dyn DenoiserConfig>,
    /// The autoencoder.
    pub vae: VaeConfig,
    /// The TAESD that decodes in its place.
    pub taesd: Option<TinyConfig>,
    /// Whether its steps have both halves of guidance. Models that are distilled for few steps have none.
    pub guided: bool,
    /// Width of the images in pixels.
    pub width: usize,
    /// Height of the images in pixels.
    pub height: usize,
}

/// Compares the networks and sizes: those of equal models print alike.
impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// The file of a preset: the networks' configurations in the format of diffusers and transformers, without keys that
/// have those libraries' defaults.
#[derive(Deserialize)]
struct PresetFile {
    width: usize,
    height: usize,
    /// The id of the family.
    family: String,
    text_encoders: Vec<Value>,
    denoiser: Value,
    vae: Value,
    taesd: Option<TinyConfig>,
    #[serde(default = "guided")]
    guided: bool,
}

fn guided() -> bool {
    true
}

impl Architecture {
    /// A model with a built-in configuration.
    ///
    /// # Errors
    /// None with the built-in files; a damaged one is named.
    pub fn preset(preset: Preset) -> Result<Self> {
        let file: PresetFile = serde_json::from_str(preset.json())
            .map_err(|error| Error::model(Path::new(preset.id()), format!("is not a valid preset: {error}")))?;
        let family = of_id(&file.family)
            .ok_or_else(|| Error::model(Path::new(preset.id()), format!("`family` is {}", file.family)))?;
        let text = |(component, json): (_, &Value)| -> Result<TextPart> {
            let config = family.text_encoder(component, &json.to_string())?;
            Ok(TextPart { component, config, tokenizer: None })
        };
        let texts =
            family.text_components().into_iter().zip(&file.text_encoders).map(text).collect::<Result<Vec<_>>>()?;
        let json = file.denoiser.to_string();
        let base = family.denoiser(&json, None)?;
        let TextFacts { pooled, .. } = TextFacts::of(family.text_stage(&texts, base.as_ref())?.as_ref());
        Ok(Self {
            name: preset.id().into(),
            family,
            texts,
            denoiser: family.denoiser(&json, Some(pooled))?,
            vae: VaeConfig::from_json(&file.vae.to_string())?,
            taesd: file.taesd,
            guided: file.guided,
            width: file.width,
            height: file.height,
        })
    }

    /// The model of a folder. Only the configurations are read; the weights may be missing.
    pub fn from_folder(model: &ModelFolder) -> Self {
        Self {
            name: model.name(),
            family: model.family(),
            texts: model.texts().to_vec(),
            denoiser: model.shared_denoiser_config(),
            vae: model.vae_config().clone(),
            taesd: None,
            guided: model.defaults().cfg_scale != 1.0,
            width: model.defaults().width,
            height: model.defaults().height,
        }
    }

    /// The type in which images are decoded if the model runs in `dtype`.
    pub fn decoder_dtype(&self, dtype: DType) -> DType {
        decoder_dtype(self.family, &self.vae, dtype)
    }

    /// The rows that a step has for each image: both halves of guidance, or one.
    pub fn halves(&self) -> usize {
        1 + usize::from(self.guided)
    }

    /// Its networks, in the order in which they run.
    pub fn components(&self) -> impl Iterator<Item = Component> {
        let texts = (0..self.texts.len()).map(Component::TextEncoder);
        texts.chain([Component::Denoiser, Component::Vae])
    }

    /// Height and width of the latents.
    pub fn latent_size(&self) -> (usize, usize) {
        (self.height / self.vae.downscale(), self.width / self.vae.downscale())
    }
}

#[cfg(test)]
mod tests {
    use kiln_testkit::{repository, shared_data};
    use kiln_vae::{Decoder, Encoder};

    use super::*;

    /// Parameters of the text encoders, the U-Net, the VAE's decoder and encoder.
    fn parameters(preset: Preset) -> (Vec<usize>, usize, usize, usize) {
        let model = Architecture::preset(preset).unwrap();
        let stage = model.text_stage().unwrap();
        (
            stage.networks().iter().map(|network| network.segments.parameters()).collect(),
            model.denoiser().segments().parameters(),
            Decoder::new(&model.vae).segments().parameters(),
            Encoder::new(&model.vae).segments().parameters(),
        )
    }

    /// Parameters of the encoder of T5 XXL.
    const T5: usize = 4_762_310_656;

    /// The counts are from PyTorch: the sum of `numel()` over `parameters()` of the classes in diffusers and
    /// transformers.
    #[test]
    fn presets_have_pytorchs_number_of_parameters() {
        let (texts, unet, decoder, encoder) = parameters(Preset::Sd15);
        assert_eq!((texts.as_slice(), unet), ([123_060_480].as_slice(), 859_520_964));
        assert_eq!((decoder, decoder + encoder), (49_490_199, 83_653_863));
        let (texts, unet, decoder, encoder) = parameters(Preset::Sdxl);
        assert_eq!((texts.as_slice(), unet), ([123_060_480, 694_659_840].as_slice(), 2_567_463_684));
        assert_eq!((decoder, decoder + encoder), (49_490_199, 83_653_863));
        let (texts, unet, ..) = parameters(Preset::SdTurbo);
        assert_eq!((texts.as_slice(), unet), ([340_387_840].as_slice(), 865_910_724));
        // The table of positions of Stable Diffusion 3 is a buffer there, and a tensor of the file.
        for (preset, parameters_of_denoiser) in
            [(Preset::Sd35Medium, 2_469_663_936), (Preset::Sd35Large, 8_146_280_768)]
        {
            let (texts, transformer, decoder, encoder) = parameters(preset);
            assert_eq!(
                (texts.as_slice(), transformer),
                ([123_650_304, 694_659_840, T5].as_slice(), parameters_of_denoiser)
            );
            assert_eq!(decoder + encoder, 83_819_683);
        }
        for (preset, parameters_of_denoiser) in
            [(Preset::FluxDev, 11_901_408_320), (Preset::FluxSchnell, 11_891_178_560)]
        {
            let (texts, transformer, ..) = parameters(preset);
            assert_eq!((texts.as_slice(), transformer), ([123_060_480, T5].as_slice(), parameters_of_denoiser));
        }
    }

    #[test]
    fn chroma_has_8_9_billion_parameters() {
        let (texts, transformer, ..) = parameters(Preset::Chroma);
        assert_eq!(texts, [T5]);
        assert!((8_850_000_000..8_950_000_000).contains(&transformer), "{transformer}");
    }

    #[test]
    fn qwen_image_has_the_sizes_of_its_authors() {
        let (texts, transformer, ..) = parameters(Preset::QwenImage);
        // The language model without its head, which is a matrix of the token table's size.
        let language_model = 7_615_616_512 - 152_064 * 3584;
        assert_eq!((texts.as_slice(), transformer), ([language_model].as_slice(), 20_430_401_088));
    }

    #[test]
    fn the_emoji_preset_is_the_model_that_comes_with_kiln() {
        let folder = ModelFolder::open(&repository().join("models/emoji")).unwrap();
        assert_eq!(Architecture::preset(Preset::Emoji).unwrap(), Architecture::from_folder(&folder));
    }

    #[test]
    #[ignore = "needs ../shared/data"]
    fn shared_data_presets_equal_the_official_configurations() {
        for (preset, name) in [(Preset::Sd15, "stable-diffusion-v1-5"), (Preset::Sdxl, "stable-diffusion-xl-base-1.0")]
        {
            let folder = shared_data(&format!("configs/{name}"));
            let official = Architecture::from_folder(&ModelFolder::open(&folder).unwrap());
            assert_eq!(Architecture { name: name.into(), ..Architecture::preset(preset).unwrap() }, official);
        }
    }

    #[test]
    fn names_are_read_back() {
        for preset in Preset::ALL {
            assert_eq!(preset.id().parse(), Ok(preset));
        }
        assert!("sd14".parse::<Preset>().unwrap_err().contains("emoji, sd15-512, sdxl-1024, sd-turbo"));
    }
}
