//! The control networks of an engine: opened for the jobs that name them, and dropped by those that do not.

use std::path::Path;

use kiln_models::{ControlFile, ModelFolder};
use kiln_network::Control;
use kiln_request::{Control as JobControl, ControlMode, ControlType};
use kiln_unet::{ControlModel, ControlModelConfig};
use kiln_weights::Placement;

use crate::component::{ComponentOptions, LoadedComponent};
use crate::component_spec::ComponentSpec;
use crate::error::{Error, Result};
use crate::open_files::{FileState, OpenFiles};

/// The control networks that are open, in the order in which the current job names them.
#[derive(Default)]
pub(crate) struct LoadedControls {
    files: OpenFiles<FileState, LoadedControl>,
}

/// One control network.
pub(crate) struct LoadedControl {
    pub(crate) model: ControlModel,
    /// The weights that run in every step.
    pub(crate) component: LoadedComponent,
    /// The weights that run once an image.
    pub(crate) image_component: LoadedComponent,
}

impl LoadedControls {
    /// Makes the networks of `controls` the open ones. Returns whether any network came, went or changed its place.
    ///
    /// # Errors
    /// Errors of [`ControlFile::open`], and [`Error::Request`] for what a control says that its network does not have. Then
    /// nothing has changed.
    pub(crate) fn set(
        &mut self,
        controls: &[JobControl],
        model: &ModelFolder,
        placement: &Placement,
        copies: &ComponentOptions,
    ) -> Result<bool> {
        let open = |file: &FileState| LoadedControl::open(&file.path, model, placement, copies);
        let check = |file: &FileState, loaded: &LoadedControl| {
            let own = controls.iter().filter(|control| control.using.net == file.path);
            own.into_iter().try_for_each(|control| check_use(control, &loaded.model.config()))
        };
        self.files.set(controls.iter().map(|control| FileState::of(&control.using.net)), open, check)
    }

    /// The place of the network of `control` in the list.
    pub(crate) fn place(&self, control: &JobControl) -> Option<usize> {
        self.files.all().iter().position(|(file, _)| file.path == control.using.net)
    }

    /// The network at a place.
    pub(crate) fn get(&self, place: usize) -> Option<&LoadedControl> {
        self.files.all().get(place).map(|(_, loaded)| loaded)
    }

    /// The networks.
    pub(crate) fn models(&self) -> Vec<&dyn Control> {
        self.files.iter().map(|loaded| &loaded.model as &dyn Control).collect()
    }

    /// Their configurations.
    pub(crate) fn configs(&self) -> Vec<ControlModelConfig> {
        self.files.iter().map(|loaded| loaded.model.config()).collect()
    }

    /// The weights that run in every step.
    pub(crate) fn components(&self) -> impl Iterator<Item = &LoadedComponent> {
        self.files.iter().map(|loaded| &loaded.component)
    }

    /// The weights that run once an image.
    pub(crate) fn image_components(&self) -> impl Iterator<Item = &LoadedComponent> {
        self.files.iter().map(|loaded| &loaded.image_component)
    }
}

impl LoadedControl {
    fn open(path: &Path, model: &ModelFolder, placement: &Placement, copies: &ComponentOptions) -> Result<Self> {
        let opened = ControlFile::open(path, model)?;
        let model = ControlModel::new(opened.config());
        let component = |spec, segments| LoadedComponent::new(spec, segments, opened.weights(), placement, copies);
        let image_component = component(ComponentSpec::CONTROL_IMAGE, model.image_segments());
        let component = component(ComponentSpec::CONTROL, model.step_segments());
        tracing::info!(path = %path.display(), "control network");
        Ok(Self { model, component, image_component })
    }
}

/// Refuses what a control says that its network does not have: a type of a network for one type, a guess mode of an adapter, or
/// no type of a Union network.
fn check_use(control: &JobControl, config: &ControlModelConfig) -> Result<()> {
    let (using, name) = (&control.using, control.using.name());
    let refuse = |found: String, expected: String| Err(Error::value("controls", found, expected));
    let types = match config {
        ControlModelConfig::ControlNet(config) => config.union.map(|union| union.types),
        ControlModelConfig::Adapter(_) if using.guess => {
            return refuse("guess=true".into(), format!("no guess mode: {name} is a T2I-Adapter"));
        }
        ControlModelConfig::Lllite(_) if using.guess || using.mode == ControlMode::Prompt => {
            let found = if using.guess { "guess=true".into() } else { format!("mode={}", using.mode.id()) };
            return refuse(found, format!("the modes balanced and control: {name} is a ControlNet-LLLite"));
        }
        ControlModelConfig::Adapter(_) | ControlModelConfig::Lllite(_) => None,
    };
    let known = |types: usize| ControlType::IDS.iter().take(types).copied().collect::<Vec<_>>().join(", ");
    match (types, using.kind()) {
        (Some(types), None) => {
            let expected = format!("a type too, one of {}: {name} is a network for several types", known(types));
            refuse(format!("net={}", using.net.display()), expected)
        }
        (Some(types), Some(kind)) if kind.number() >= types => {
            refuse(format!("type={}", kind.id()), format!("a type that {name} has: one of {}", known(types)))
        }
        // The type of a preprocessor says nothing to a network for one type.
        (None, _) if using.kind.is_some() => {
            let expected = format!("no type: {name} is for one type of control images");
            refuse(format!("type={}", using.kind.map_or("", ControlType::id)), expected)
        }
        _ => Ok(()),
    }
}

/// The configurations of the control networks in `files`, each once, for a plan. No weights are read.
///
/// # Errors
/// See [`ControlFile::open`].
pub fn control_configs<'a>(
    model: &ModelFolder,
    files: impl IntoIterator<Item = &'a Path>,
) -> Result<Vec<ControlModelConfig>> {
    let mut seen: Vec<&Path> = Vec::new();
    let mut configs = Vec::new();
    for file in files {
        if !seen.contains(&file) {
            seen.push(file);
            configs.push(ControlFile::open(file, model)?.config().clone());
        }
    }
    Ok(configs)
}
