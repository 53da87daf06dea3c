//! The control networks of an engine: opened for the jobs that name them, and dropped by those that do not.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kiln_models::{ControlFile, ControlNetwork, ModelFolder};
use kiln_request::Control;
use kiln_unet::{ControlConfig, ControlHint, ControlNet};
use kiln_weights::Placement;

use crate::component::{ComponentOptions, LoadedComponent};
use crate::error::Result;

/// The control networks that are open, in the order in which the current job names them.
#[derive(Default)]
pub(crate) struct LoadedControls {
    all: Vec<LoadedControl>,
}

/// One control network.
pub(crate) struct LoadedControl {
    file: File,
    pub(crate) net: ControlNet,
    pub(crate) hint: ControlHint,
    /// The network's weights, which run in every step.
    pub(crate) component: LoadedComponent,
    /// The weights of the image's embedding, which run once an image.
    pub(crate) hint_component: LoadedComponent,
}

/// The state of a file when it was opened.
#[derive(Debug, Clone, PartialEq)]
struct File {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl File {
    fn of(path: &Path) -> Self {
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
        Self { path: path.to_path_buf(), modified }
    }
}

impl LoadedControls {
    /// Makes the networks of `controls` the open ones: those that are open stay, others are opened and checked, and what no
    /// control names is dropped. Returns whether any network came, went or changed its place.
    ///
    /// # Errors
    /// Those of [`ControlFile::open`]. Then nothing has changed.
    pub(crate) fn set(
        &mut self,
        controls: &[Control],
        model: &ModelFolder,
        placement: &Placement,
        copies: &ComponentOptions,
    ) -> Result<bool> {
        let mut wanted: Vec<File> = Vec::new();
        for control in controls {
            let file = File::of(&control.using.net);
            if !wanted.contains(&file) {
                wanted.push(file);
            }
        }
        if wanted.iter().eq(self.all.iter().map(|loaded| &loaded.file)) {
            return Ok(false);
        }
        let is_open = |file: &File| self.all.iter().any(|loaded| loaded.file == *file);
        let mut opened = Vec::new();
        for file in wanted.iter().filter(|file| !is_open(file)) {
            opened.push(LoadedControl::open(file.clone(), model, placement, copies)?);
        }
        let mut known: Vec<LoadedControl> = std::mem::take(&mut self.all).into_iter().chain(opened).collect();
        for file in &wanted {
            if let Some(place) = known.iter().position(|loaded| loaded.file == *file) {
                self.all.push(known.swap_remove(place));
            }
        }
        Ok(true)
    }

    /// The place of the network of `control` in the list.
    pub(crate) fn place(&self, control: &Control) -> Option<usize> {
        self.all.iter().position(|loaded| loaded.file.path == control.using.net)
    }

    /// The network at a place.
    pub(crate) fn get(&self, place: usize) -> Option<&LoadedControl> {
        self.all.get(place)
    }

    /// The networks that run in every step.
    pub(crate) fn nets(&self) -> Vec<&ControlNet> {
        self.all.iter().map(|loaded| &loaded.net).collect()
    }

    /// Their configurations.
    pub(crate) fn configs(&self) -> Vec<ControlConfig> {
        self.all.iter().map(|loaded| loaded.net.config().clone()).collect()
    }

    /// The weights that run in every step.
    pub(crate) fn components(&self) -> impl Iterator<Item = &LoadedComponent> {
        self.all.iter().map(|loaded| &loaded.component)
    }

    /// Frees the memory of all weights.
    pub(crate) fn leave(&self) {
        for loaded in &self.all {
            loaded.component.leave();
            loaded.hint_component.leave();
        }
    }
}

impl LoadedControl {
    fn open(file: File, model: &ModelFolder, placement: &Placement, copies: &ComponentOptions) -> Result<Self> {
        let opened = ControlFile::open(&file.path, model)?;
        let ControlNetwork::ControlNet(config) = opened.network();
        let (net, hint) = (ControlNet::new(config.clone()), ControlHint::new(config));
        let component = LoadedComponent::new(net.segments(), opened.weights(), placement, copies);
        let hint_component = LoadedComponent::new(hint.segments(), opened.weights(), placement, copies);
        tracing::info!(path = %file.path.display(), "ControlNet");
        Ok(Self { file, net, hint, component, hint_component })
    }
}

/// The configurations of the control networks in `files`, each once, for a plan. No weights are read.
///
/// # Errors
/// Those of [`ControlFile::open`].
pub fn control_configs<'a>(
    model: &ModelFolder,
    files: impl IntoIterator<Item = &'a Path>,
) -> Result<Vec<ControlConfig>> {
    let mut seen: Vec<&Path> = Vec::new();
    let mut configs = Vec::new();
    for file in files {
        if !seen.contains(&file) {
            seen.push(file);
            let ControlNetwork::ControlNet(config) = ControlFile::open(file, model)?.network().clone();
            configs.push(config);
        }
    }
    Ok(configs)
}
