//! Files of IP-Adapters: what a file is follows from its tensors, and whether it belongs to a model is known before its weights
//! are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_unet::{ImagePromptConfig, ImagePromptNet, UnetConfig};
use kiln_weights::{Checkpoint, ParamSource, mismatches};

use crate::control::family;
use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::hub;
use crate::image_encoder::ImageEncoderFile;
use crate::model::ModelFolder;

/// An IP-Adapter for one model.
#[derive(Clone)]
pub struct IpAdapterFile {
    path: PathBuf,
    config: ImagePromptConfig,
    source: Arc<dyn ParamSource>,
    has_lora: bool,
}

impl IpAdapterFile {
    /// Opens an IP-Adapter for `model`: a file with its authors' names (`image_proj`, `ip_adapter.1.to_k_ip`), in any format of
    /// [`Checkpoint::open`]. `hf:OWNER/NAME/FILE` is looked up in the Hub's cache. Only the table of the tensors is read.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Model`] if it is something else or belongs to another family of
    /// models, [`Error::Weights`] if it cannot be read or its tensors do not match.
    pub fn open(path: &Path, model: &ModelFolder) -> Result<Self> {
        let path = hub::cached(path)?.unwrap_or_else(|| path.to_path_buf());
        if !path.exists() {
            return Err(Error::not_found(path, "`model` of an IP-Adapter: its file".into()));
        }
        if path.is_dir() {
            return Err(Error::model(&path, "is a folder, expected the file of an IP-Adapter"));
        }
        let checkpoint = Checkpoint::open(&path)?;
        let keys = checkpoint.keys();
        let kind = FileKind::of(&checkpoint);
        if kind != FileKind::IpAdapter {
            return Err(Error::model(&path, format!("is {}, expected an IP-Adapter", kind.label())));
        }
        let has_lora = keys.iter().any(|key| key.contains("_lora."));
        let source: Arc<dyn ParamSource> = Arc::new(checkpoint);
        let shape = |name: &str| source.info(name).map(|info| info.shape);
        let config = ImagePromptConfig::from_shapes(&shape).map_err(|error| Error::model(&path, error))?;
        check_family(&path, &config, model)?;
        let unet = model.unet_for(&path, "an IP-Adapter")?;
        let net = ImagePromptNet::new(config.clone(), unet).map_err(|error| Error::model(&path, error))?;
        if let Some(error) = mismatches(net.segments(), source.as_ref()).into_iter().next() {
            return Err(error.into());
        }
        Ok(Self { path, config, source, has_lora })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration of its network.
    pub fn config(&self) -> &ImagePromptConfig {
        &self.config
    }

    /// Its weights, under the names that the network declares.
    pub fn weights(&self) -> Arc<dyn ParamSource> {
        self.source.clone()
    }

    /// Whether it has a LoRA of the U-Net besides, as FaceID files have.
    pub fn has_lora(&self) -> bool {
        self.has_lora
    }

    /// The image encoder that it takes: the one at `path`, or else the first that fits of the folders where published files
    /// have it: `image_encoder` next to the file, next to its folder, in `models` and `sdxl_models` there, and in the model's
    /// folder. `None` for a file that takes none.
    ///
    /// # Errors
    /// See [`ImageEncoderFile::open`], [`Error::Model`] for an encoder that does not fit, [`Error::Files`] where none is
    /// found.
    pub fn image_encoder(&self, path: Option<&Path>, model: &ModelFolder) -> Result<Option<ImageEncoderFile>> {
        let projection = &self.config.projection;
        let Some(dim) = projection.encoder_dim() else { return Ok(None) };
        let features = projection.features();
        let needed = ImageEncoderFile::needed(features, dim);
        if let Some(path) = path {
            let encoder = ImageEncoderFile::open(path)?;
            if !encoder.fits(features, dim) {
                let problem = format!(
                    "is {}, but the {} {} needs {needed}",
                    encoder.described(),
                    projection.label(),
                    self.path.display()
                );
                return Err(Error::model(path, problem));
            }
            return Ok(Some(encoder));
        }
        let own = self.path.parent().unwrap_or(Path::new("."));
        let above = own.parent().unwrap_or(Path::new("."));
        let folders = [
            own.to_path_buf(),
            above.to_path_buf(),
            above.join("models"),
            above.join("sdxl_models"),
            model.path().to_path_buf(),
        ];
        for folder in folders.map(|folder| folder.join("image_encoder")) {
            if !folder.is_dir() {
                continue;
            }
            let encoder = ImageEncoderFile::open(&folder)?;
            if encoder.fits(features, dim) {
                return Ok(Some(encoder));
            }
        }
        let looked_for = format!(
            "an image encoder for the {} {}: give {needed} as its `encoder`",
            projection.label(),
            self.path.display()
        );
        Err(Error::not_found(own.join("image_encoder"), looked_for))
    }
}

/// Refuses an adapter for another family of models than `model`'s.
fn check_family(path: &Path, config: &ImagePromptConfig, model: &ModelFolder) -> Result<()> {
    let base = model.unet_for(path, "an IP-Adapter")?;
    if config.fits(base) {
        return Ok(());
    }
    let own = match config.context_dim {
        2048 => "Stable Diffusion XL",
        1024 => "Stable Diffusion 2",
        768 => "Stable Diffusion 1",
        _ => "Stable Diffusion of another shape",
    };
    let text = |unet: &UnetConfig| unet.context_dim().unwrap_or(0);
    let problem = format!(
        "is an {} for {own} (text of {} channels, {} cross-attention layers), but the model {} is {} (text of {} channels, {} \
         cross-attention layers): give an IP-Adapter for that family",
        config.projection.label(),
        config.context_dim,
        config.layers.len(),
        model.name(),
        family(base),
        text(base),
        base.cross_layers().len()
    );
    Err(Error::model(path, problem))
}
