//! The LoRAs that are merged into a model's weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kiln_weights::{Lora, Network, Patch, Targets};

use super::{LoraUse, find_lora};
use crate::component::LoadedComponent;
use crate::error::{Error, Result};

/// The merged LoRAs and the available ones.
pub(crate) struct AppliedLoras {
    targets: Targets,
    folder: Option<PathBuf>,
    current: Vec<Applied>,
}

struct Applied {
    file: File,
    lora: Arc<Lora>,
    text: f32,
    unet: f32,
}

/// The state of a file when it was opened.
#[derive(PartialEq)]
struct File {
    path: PathBuf,
    modified: Option<SystemTime>,
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
        Self { targets: Targets::new(&segments), folder: folder.map(Path::to_path_buf), current: Vec::new() }
    }

    /// Merges exactly these LoRAs into the weights, in this order. Files are found, opened and checked before any
    /// weight changes; LoRAs that were merged before are not opened again.
    ///
    /// # Errors
    /// [`Error::Files`], and errors of [`Lora::open`] and [`LoadedComponent::patch`].
    pub(crate) fn set(&mut self, uses: &[LoraUse], networks: &[(Network, &LoadedComponent)]) -> Result<Changed> {
        let wanted = uses.iter().map(|wanted| self.open(wanted)).collect::<Result<Vec<_>>>()?;
        let mut changed = Changed::default();
        self.current = wanted;
        for &(network, part) in networks {
            let strength = |applied: &Applied| if network == Network::Unet { applied.unet } else { applied.text };
            let of_network = |applied: &Applied| -> Vec<(Arc<Patch>, f32)> {
                let patches = applied.lora.patches().iter().filter(|patch| patch.network() == network);
                patches.map(|patch| (patch.clone(), strength(applied))).collect()
            };
            let is_changed = part.patch(self.current.iter().flat_map(of_network))?;
            let which = if network == Network::Unet { &mut changed.unet } else { &mut changed.text };
            *which |= is_changed;
        }
        Ok(changed)
    }

    /// The files of the merged LoRAs in order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<Lora>> {
        self.current.iter().map(|applied| &applied.lora)
    }

    fn open(&self, wanted: &LoraUse) -> Result<Applied> {
        let path = find_lora(&wanted.lora, self.folder.as_deref())?;
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
        let (file, &LoraUse { text, unet, .. }) = (File { path, modified }, wanted);
        if let Some(known) = self.current.iter().find(|known| known.file == file) {
            return Ok(Applied { file, lora: known.lora.clone(), text, unet });
        }
        let lora = Lora::open(&file.path, &self.targets).map_err(Error::from)?;
        warn_of_unused(&file.path, &lora);
        tracing::info!(path = %file.path.display(), patches = lora.patches().len(), text, unet, "LoRA");
        Ok(Applied { file, lora: Arc::new(lora), text, unet })
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
