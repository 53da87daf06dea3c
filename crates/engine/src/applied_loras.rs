//! The LoRAs that are merged into a model's weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_models::{LoraNotes, foreign_lora};
use kiln_weights::{Lora, Network, Patch, Targets};

use super::{LoraUse, find_lora};
use crate::component::LoadedComponent;
use crate::error::{Error, Result};
use crate::open_files::{FileState, OpenFiles};

/// The merged LoRAs and the available ones.
pub(crate) struct AppliedLoras {
    targets: Targets,
    folder: Option<PathBuf>,
    files: OpenFiles<FileState, Arc<Lora>>,
    current: Vec<Applied>,
}

struct Applied {
    lora: Arc<Lora>,
    text: f32,
    unet: f32,
}

/// The networks that changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) unet: bool,
    pub(crate) text: bool,
}

impl Changed {
    /// Both networks.
    pub(crate) const ALL: Self = Self { unet: true, text: true };
}

impl AppliedLoras {
    /// No LoRAs yet, for networks with these segments. Names are searched in `folder`.
    pub(crate) fn new(networks: &[(Network, &LoadedComponent)], folder: Option<&Path>) -> Self {
        let segments: Vec<_> = networks.iter().map(|(network, part)| (*network, part.segments())).collect();
        Self {
            targets: Targets::new(&segments),
            folder: folder.map(Path::to_path_buf),
            files: OpenFiles::default(),
            current: Vec::new(),
        }
    }

    /// Merges exactly these LoRAs into the weights, in this order. Files are found, opened and checked before any
    /// weight changes; LoRAs that were merged before are not opened again.
    ///
    /// # Errors
    /// [`Error::Files`], and errors of [`Lora::open`] and [`LoadedComponent::patch`].
    pub(crate) fn set(&mut self, uses: &[LoraUse], networks: &[(Network, &LoadedComponent)]) -> Result<Changed> {
        let find = |wanted: &LoraUse| -> Result<FileState> {
            Ok(FileState::of(&find_lora(&wanted.lora, self.folder.as_deref())?))
        };
        let files = uses.iter().map(find).collect::<Result<Vec<_>>>()?;
        let open = |file: &FileState| open(&file.path, &self.targets);
        self.files.set(files.iter().cloned(), open, |_, _| Ok(()))?;
        let applied = |(wanted, file): (&LoraUse, &FileState)| {
            let &LoraUse { text, unet, .. } = wanted;
            Some(Applied { lora: self.files.get(file)?.clone(), text, unet })
        };
        self.current = uses.iter().zip(&files).filter_map(applied).collect();
        let mut changed = Changed::default();
        for &(network, part) in networks {
            let strength = |applied: &Applied| if network.is_denoiser() { applied.unet } else { applied.text };
            let of_network = |applied: &Applied| -> Vec<(Arc<Patch>, f32)> {
                let patches = applied.lora.patches().iter().filter(|patch| patch.network() == network);
                patches.map(|patch| (patch.clone(), strength(applied))).collect()
            };
            let is_changed = part.patch(self.current.iter().flat_map(of_network))?;
            let which = if network.is_denoiser() { &mut changed.unet } else { &mut changed.text };
            *which |= is_changed;
        }
        Ok(changed)
    }

    /// The files of the merged LoRAs in order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<Lora>> {
        self.current.iter().map(|applied| &applied.lora)
    }
}

/// Opens a file with a LoRA for these networks.
fn open(path: &Path, targets: &Targets) -> Result<Arc<Lora>> {
    let refused = |error| foreign_lora(path).map_or_else(|| with_base(error, path), Error::from);
    let lora = Lora::open(path, targets).map_err(refused)?;
    warn_of_unused(path, &lora);
    tracing::info!(path = %path.display(), patches = lora.patches().len(), "LoRA");
    Ok(Arc::new(lora))
}

/// The error with the model that the LoRA is for, if it does not fit and its file names one.
fn with_base(error: kiln_weights::Error, path: &Path) -> Error {
    let base = || LoraNotes::read(path).ok()?.base;
    match error {
        kiln_weights::Error::Format { path: file, problem } => {
            let base = base().map_or(String::new(), |base| format!("; it is for {base}"));
            kiln_weights::Error::Format { path: file, problem: format!("{problem}{base}") }.into()
        }
        kiln_weights::Error::Shape { key, expected, found, .. } if base().is_some() => {
            let base = base().unwrap_or_default();
            let problem = format!("is for {base}: tensor `{key}` has shape {found:?}, expected {expected:?}");
            kiln_weights::Error::Format { path: path.to_path_buf(), problem }.into()
        }
        other => other.into(),
    }
}

/// Logs the number of tensors in a file without effect, the reason, and the first names.
fn warn_of_unused(path: &Path, lora: &Lora) {
    const NAMED: usize = 3;
    let unused = lora.unused();
    let Some(first) = unused.first() else { return };
    let names: Vec<&str> = unused.iter().take(NAMED).map(|unused| unused.key.as_str()).collect();
    let more = if unused.len() > NAMED { ", ..." } else { "" };
    tracing::warn!(
        "{}: {} of {} tensors change nothing, since {} ({}{more})",
        path.display(),
        unused.len(),
        lora.tensors(),
        first.reason,
        names.join(", ")
    );
}
