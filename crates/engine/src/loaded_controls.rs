//! The control networks of an engine: opened for the jobs that name them, and dropped by those that do not.

use std::path::Path;
use std::sync::Arc;

use kiln_models::{ControlFile, ModelFolder};
use kiln_network::{Control, ControlConfig, ControlModes, ControlSpec, ControlTakes, ControlTypes};
use kiln_request::{Control as JobControl, ControlMode, ControlType};
use kiln_weights::{Placement, Segments};

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
    config: Arc<dyn ControlConfig>,
    pub(crate) model: Box<dyn Control>,
    pub(crate) spec: ControlSpec,
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
            own.into_iter().try_for_each(|control| check_use(control, &loaded.spec))
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
        self.files.iter().map(|loaded| &*loaded.model).collect()
    }

    /// Their configurations.
    pub(crate) fn configs(&self) -> Vec<Arc<dyn ControlConfig>> {
        self.files.iter().map(|loaded| loaded.config.clone()).collect()
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
        let config = opened.config().clone();
        let model = config.build();
        let none = Segments::default();
        let component =
            |spec, segments, placement| LoadedComponent::new(spec, segments, opened.weights(), placement, copies);
        // Control images are seen on the CPU if the device is not candle's.
        let image = placement.clone().with_backend(None);
        let image_component = component(ComponentSpec::CONTROL_IMAGE, model.image_segments().unwrap_or(&none), &image);
        let component = component(ComponentSpec::CONTROL, model.step_segments(), placement);
        tracing::info!(path = %path.display(), "control network");
        Ok(Self { config, spec: model.spec(), model, component, image_component })
    }
}

/// The number by which a network knows a type of control images: the type's own, or that of a wider type.
pub(crate) fn type_number(types: ControlTypes, kind: ControlType) -> Option<usize> {
    let number = |kind: ControlType| types.names.iter().position(|name| *name == kind.id());
    number(kind).or_else(|| number(kind.wider()?))
}

/// Refuses what a control says that its network does not have: a mode, a hole, a type of a network for one type, or no type of a
/// Union network.
fn check_use(control: &JobControl, spec: &ControlSpec) -> Result<()> {
    let (using, name, label) = (&control.using, control.using.name(), spec.label);
    let refuse = |found: String, expected: String| Err(Error::value("controls", found, expected));
    let ControlModes { guess, prompt, control: conditional } = spec.modes;
    let has_mode = match using.mode {
        ControlMode::Balanced => true,
        ControlMode::Prompt => prompt,
        ControlMode::Control => conditional,
    };
    if (using.guess && !guess) || !has_mode {
        let found = if using.guess { "guess=true".into() } else { format!("mode={}", using.mode.id()) };
        let expected = match (prompt, conditional) {
            (true, true) => "no guess mode",
            (false, true) => "the modes balanced and control",
            _ => "the mode balanced",
        };
        return refuse(found, format!("{expected}: {name} is {label}"));
    }
    if let (Some(_), ControlTakes::Latents { masked: false, .. }) = (&control.hole, spec.takes) {
        let expected = format!("another preprocessor: {name} is {label}, which takes no mask");
        return refuse(format!("preprocess={}", using.preprocess.as_deref().unwrap_or_default()), expected);
    }
    if let (None, ControlTakes::Latents { masked: true, .. }) = (&control.hole, spec.takes) {
        let expected = format!("preprocess=inpaint too: {name} is {label} that takes a mask");
        return refuse(format!("net={}", using.net.display()), expected);
    }
    match (spec.types, using.kind()) {
        (Some(types), None) => {
            let known = types.names.join(", ");
            let expected = format!("a type too, one of {known}: {name} is a network for several types");
            refuse(format!("net={}", using.net.display()), expected)
        }
        (Some(types), Some(kind)) if type_number(types, kind).is_none() => {
            let expected = format!("a type that {name} has: one of {}", types.names.join(", "));
            refuse(format!("type={}", kind.id()), expected)
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
) -> Result<Vec<Arc<dyn ControlConfig>>> {
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
