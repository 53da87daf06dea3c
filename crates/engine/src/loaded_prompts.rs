//! The IP-Adapters of an engine: opened for the jobs that name them, and dropped by those that do not.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use kiln_clip::{ImageFeatures, VisionConfig, VisionEncoder};
use kiln_models::{ImageEmbeds, IpAdapterFile, ModelFolder, encoded};
use kiln_request::{IpAdapter, IpAdapterUse, LoraName, LoraUse, PromptBlock};
use kiln_unet::{BlockId, ImagePromptConfig, ImagePromptNet, LayerId, PromptFeatures, UnetConfig};
use kiln_weights::Placement;

use crate::component::{ComponentOptions, LoadedComponent};
use crate::component_spec::ComponentSpec;
use crate::error::{Error, Result};
use crate::open_files::{FileState, OpenFiles};

/// Features of images that are kept: those of the images of the last jobs, so that another seed encodes none.
const KEPT: usize = 8;

/// The IP-Adapters that are open, in the order in which the current job names them.
#[derive(Default)]
pub(crate) struct LoadedPrompts {
    files: OpenFiles<Key, LoadedPrompt>,
    features: VecDeque<(FeatureKey, Tensor)>,
}

/// The source of features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FeatureKey {
    /// The encoder's path.
    pub(crate) encoder: PathBuf,
    pub(crate) features: ImageFeatures,
    /// The SHA-256 of the image's pixels with its size; `None` is the image of zeros after normalization.
    pub(crate) image: Option<String>,
}

/// One IP-Adapter. No weights are in memory but while an image is encoded.
pub(crate) struct LoadedPrompt {
    pub(crate) net: ImagePromptNet,
    pub(crate) component: LoadedComponent,
    /// The image encoder, where an image is encoded.
    pub(crate) encoder: Option<LoadedEncoder>,
    /// The file if it has a LoRA of the U-Net.
    lora: Option<PathBuf>,
}

/// An image encoder.
pub(crate) struct LoadedEncoder {
    pub(crate) path: PathBuf,
    pub(crate) net: VisionEncoder,
    pub(crate) component: LoadedComponent,
    pub(crate) features: ImageFeatures,
}

/// The files that an adapter is opened with.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    file: FileState,
    encoder: Option<PathBuf>,
    /// Whether an image is encoded.
    has_image: bool,
}

impl Key {
    fn of(adapter: &IpAdapter) -> Self {
        let file = FileState::of(&adapter.using.model);
        Self { file, encoder: adapter.using.encoder.clone(), has_image: adapter.image.is_some() }
    }
}

impl LoadedPrompts {
    /// Makes the adapters of `adapters` the open ones. Returns whether any adapter came, went or changed its place.
    ///
    /// # Errors
    /// Errors of [`IpAdapterFile::open`], and [`Error::Request`] for prompts that do not go with their files. Then nothing has
    /// changed.
    pub(crate) fn set(
        &mut self,
        adapters: &[IpAdapter],
        model: &ModelFolder,
        placement: &Placement,
        copies: &ComponentOptions,
    ) -> Result<bool> {
        let keys: Vec<Key> = adapters.iter().map(Key::of).collect();
        let check_all = |key: &Key, loaded: &LoadedPrompt| {
            let unet = model.unet_for(&key.file.path, "an IP-Adapter")?;
            let own = adapters.iter().zip(&keys).filter(|(_, own)| *own == key);
            own.into_iter().try_for_each(|(adapter, _)| check(adapter, loaded.net.config(), unet))
        };
        let open = |key: &Key| LoadedPrompt::open(key, model, placement, copies);
        let has_changed = self.files.set(keys.iter().cloned(), open, check_all)?;
        if has_changed {
            let used: Vec<&Path> =
                self.files.iter().filter_map(|loaded| Some(loaded.encoder.as_ref()?.path.as_path())).collect();
            self.features.retain(|(key, _)| used.contains(&key.encoder.as_path()));
        }
        Ok(has_changed)
    }

    /// The adapter that is open for a prompt.
    pub(crate) fn get(&self, adapter: &IpAdapter) -> Option<&LoadedPrompt> {
        self.files.get(&Key::of(adapter))
    }

    /// The open adapters, for plans.
    pub(crate) fn plans(&self) -> Vec<PromptPlan> {
        let of = |loaded: &LoadedPrompt| PromptPlan {
            config: loaded.net.config().clone(),
            encoder: loaded.encoder.as_ref().map(|encoder| (encoder.net.config().clone(), encoder.features)),
        };
        self.files.iter().map(of).collect()
    }

    /// The LoRAs that the open adapters' files have for the U-Net (FaceID).
    pub(crate) fn loras(&self) -> impl Iterator<Item = LoraUse> {
        let files = self.files.iter().filter_map(|loaded| loaded.lora.clone());
        files.map(|path| LoraUse { lora: LoraName::File(path), text: 0.0, unet: 1.0 })
    }

    /// Features that are known.
    pub(crate) fn known(&self, key: &FeatureKey) -> Option<Tensor> {
        self.features.iter().find(|(known, _)| known == key).map(|(_, features)| features.clone())
    }

    /// Keeps features.
    pub(crate) fn keep(&mut self, key: FeatureKey, features: Tensor) {
        self.features.truncate(KEPT - 1);
        self.features.push_front((key, features));
    }

    /// The weights of all adapters and encoders.
    pub(crate) fn components(&self) -> impl Iterator<Item = &LoadedComponent> {
        self.files.iter().flat_map(|loaded| {
            let encoder = loaded.encoder.as_ref().map(|encoder| &encoder.component);
            std::iter::once(&loaded.component).chain(encoder)
        })
    }
}

impl LoadedPrompt {
    fn open(key: &Key, model: &ModelFolder, placement: &Placement, copies: &ComponentOptions) -> Result<Self> {
        let opened = IpAdapterFile::open(&key.file.path, model)?;
        let net = ImagePromptNet::new(opened.config().clone(), model.unet_for(&key.file.path, "an IP-Adapter")?)?;
        // They run once an image: their matrices have no type of their own. If the device is not candle's they run on the CPU.
        let placement = placement.clone().with_matrices(None).with_backend(None);
        let spec = ComponentSpec::IMAGE_PROMPT;
        let component = LoadedComponent::new(spec, net.segments(), opened.weights(), &placement, copies);
        let encoder = match encoded(opened.config().projection.features()).filter(|_| key.has_image) {
            Some(features) => opened.image_encoder(key.encoder.as_deref(), model)?.map(|found| -> Result<_> {
                let net = VisionEncoder::new(found.config().clone())?;
                let component = LoadedComponent::new(spec, net.segments(), found.weights(), &placement, copies);
                Ok(LoadedEncoder { path: found.path().to_path_buf(), net, component, features })
            }),
            None => None,
        };
        let kind = opened.config().projection.label();
        tracing::info!(path = %key.file.path.display(), kind, "IP-Adapter");
        let lora = opened.has_lora().then(|| opened.path().to_path_buf());
        Ok(Self { net, component, encoder: encoder.transpose()?, lora })
    }
}

/// An IP-Adapter, for plans.
#[derive(Debug, Clone)]
pub struct PromptPlan {
    pub(crate) config: ImagePromptConfig,
    /// The image encoder, and what is taken of it.
    pub(crate) encoder: Option<(VisionConfig, ImageFeatures)>,
}

/// The plans of the IP-Adapters of `adapters`. No weights are read.
///
/// # Errors
/// See [`IpAdapterFile::open`] and of the image encoders.
pub fn prompt_plans<'a>(
    model: &ModelFolder,
    adapters: impl IntoIterator<Item = &'a IpAdapterUse>,
) -> Result<Vec<PromptPlan>> {
    let mut seen: Vec<(&Path, Option<&Path>, bool)> = Vec::new();
    let mut plans = Vec::new();
    for adapter in adapters {
        let key = (adapter.model.as_path(), adapter.encoder.as_deref(), adapter.image.is_some());
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let file = IpAdapterFile::open(&adapter.model, model)?;
        let encoder = match encoded(file.config().projection.features()).filter(|_| adapter.image.is_some()) {
            Some(features) => {
                let found = file.image_encoder(adapter.encoder.as_deref(), model)?;
                found.map(|found| (found.config().clone(), features))
            }
            None => None,
        };
        plans.push(PromptPlan { config: file.config().clone(), encoder });
    }
    Ok(plans)
}

/// Refuses a prompt that does not go with its file.
fn check(adapter: &IpAdapter, config: &ImagePromptConfig, unet: &UnetConfig) -> Result<()> {
    let refuse = |found: String, expected: String| Err(Error::value("ip_adapters", found, expected));
    let (image, embeds) = (adapter.image.is_some(), adapter.using.embeds.is_some());
    let label = config.projection.label();
    match (config.projection.features(), image, embeds) {
        (PromptFeatures::Embedding | PromptFeatures::Tokens, true, true) => {
            return refuse("`image` and `embeds`".into(), format!("one of them for an {label}"));
        }
        (PromptFeatures::Identity, true, _) => {
            let expected = format!("`embeds` alone for an {label}: a file with the vector of the face's identity");
            return refuse("`image`".into(), expected);
        }
        (PromptFeatures::IdentityAndTokens, image, embeds) if !(image && embeds) => {
            let found = if image { "no `embeds`" } else { "no `image`" };
            let expected = format!("`embeds` with the vector of the face's identity, and an `image`, for an {label}");
            return refuse(found.into(), expected);
        }
        _ => {}
    }
    if adapter.using.shortcut && config.projection.features() != PromptFeatures::IdentityAndTokens {
        return refuse("shortcut=true".into(), format!("no `shortcut` for an {label}"));
    }
    if let Some(path) = &adapter.using.embeds {
        // Refused before texts are encoded.
        let projection = config.projection;
        let dim = projection.identity_dim().or(projection.encoder_dim()).unwrap_or(0);
        ImageEmbeds::open(path, projection.features() == PromptFeatures::Tokens, dim)?;
    }
    let layers = unet.cross_layers();
    for (block, _) in adapter.using.blocks.all() {
        let found = format!("blocks={block}");
        if block.is_of_xl() && unet.pooled_dim().is_none() {
            return refuse(
                found,
                "names of blocks, as up.1: style and layout are blocks of Stable Diffusion XL".into(),
            );
        }
        let one = kiln_request::PromptBlocks::default();
        let only = one.with(*block, 1.0);
        if layers.iter().all(|layer| only.factor(place(layer.id)) == 0.0) {
            let mut names: Vec<String> = layers.iter().map(|layer| place(layer.id).to_string()).collect();
            names.dedup();
            return refuse(found, format!("blocks of the model: {}", names.join(", ")));
        }
    }
    Ok(())
}

/// The transformer of a layer, as requests name it.
fn place(id: LayerId) -> PromptBlock {
    match id.block {
        BlockId::Down(block) => PromptBlock::Down(block, Some(id.transformer)),
        BlockId::Mid => PromptBlock::Mid,
        BlockId::Up(block) => PromptBlock::Up(block, Some(id.transformer)),
    }
}

/// The transformers with cross-attention of a model's U-Net, in the order in which they run; none for a model without one.
pub fn prompt_blocks(model: &ModelFolder) -> Vec<PromptBlock> {
    let layers = model.unet_config().map(UnetConfig::cross_layers).unwrap_or_default();
    let mut blocks: Vec<PromptBlock> = layers.iter().map(|layer| place(layer.id)).collect();
    blocks.dedup();
    blocks
}

/// The factors of all cross-attention layers, in the order in which they run.
pub(crate) fn factors(using: &IpAdapterUse, unet: &UnetConfig) -> Vec<f32> {
    let factor = |id| (using.weight * using.blocks.factor(place(id))) as f32;
    unet.cross_layers().iter().map(|layer| factor(layer.id)).collect()
}
