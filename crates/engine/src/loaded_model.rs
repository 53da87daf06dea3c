//! A model of an engine as its steps need it: text encoders, and a denoiser with all that runs in its steps. The engine's own model
//! is the first of a run; others, as a refiner, take over its latents. The autoencoder is that of the first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kiln_models::ModelFolder;
use kiln_network::{Denoiser, OnBackend};
use kiln_request::LoraUse;
use kiln_weights::{EightBitLayers, Network, Placement};

use crate::applied_loras::{AppliedLoras, Changed};
use crate::component::{ComponentOptions, LoadedComponent};
use crate::component_spec::ComponentSpec;
use crate::error::Result;
use crate::loaded_controls::LoadedControls;
use crate::memory_manager::MemoryManager;
use crate::pipeline::event::Stage;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::pipeline::text::TextEncoders;
use crate::read_ahead::ReadAhead;
use crate::setup::Setup;
use crate::words::Embeddings;

/// A model whose files are open.
pub(crate) struct LoadedModel {
    /// Shared with the thread that encodes while steps run, if there is one.
    pub(crate) text: Arc<Mutex<TextEncoders>>,
    pub(crate) unet: Box<dyn Denoiser>,
    pub(crate) component: LoadedComponent,
    /// The control networks that run in its steps.
    pub(crate) controls: LoadedControls,
    pub(crate) recorded: RecordedStep,
    /// The device that shares its guided steps ([`Setup::second`]).
    pub(crate) second: Option<SecondDenoiser>,
    /// `None` if LoRAs of the first model do not fit this one.
    loras: Option<AppliedLoras>,
    /// The name of the denoiser in LoRA files; `None` if they do not change it.
    lora_name: Option<Network>,
    /// Reads the weights while the model before it runs.
    read_ahead: Option<ReadAhead>,
}

/// The values that all networks of an engine are opened with.
#[derive(Clone, Copy)]
pub(crate) struct Opening<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) placement: &'a Placement,
    pub(crate) options: &'a ComponentOptions,
}

impl LoadedModel {
    /// Opens and checks the files of the model that is number `number` of a run, with these layers of the denoiser in 8 bits; its
    /// text encoders have the placement `text`. No weights are read.
    ///
    /// # Errors
    /// [`crate::Error::Weights`] if weights are missing or do not fit.
    pub(crate) fn open(
        model: &ModelFolder,
        number: usize,
        layers: Option<&EightBitLayers>,
        opening: Opening<'_>,
        text: &Placement,
    ) -> Result<Self> {
        let Opening { setup, placement, options } = opening;
        let unet = model.denoiser();
        let unet = match &placement.backend {
            Some(backend) => Box::new(OnBackend::new(unet, backend.clone())),
            None => unet,
        };
        unet.segments().set_8_bits(layers);
        let (spec, files) = (ComponentSpec::denoiser(number), model.files().denoiser_weights()?);
        let component = LoadedComponent::shared(spec, unet.segments(), files, placement, options, "unet");
        component.check()?;
        let embeddings = Embeddings::open(setup.embeddings_dir.as_deref())?;
        let text = TextEncoders::open(model, [text, placement], options, embeddings, setup.cached_texts())?;
        Ok(Self {
            text: Arc::new(Mutex::new(text)),
            unet,
            component,
            controls: LoadedControls::default(),
            recorded: RecordedStep::default(),
            second: None,
            loras: None,
            lora_name: model.denoiser_component().lora,
            read_ahead: None,
        })
    }

    /// This model with LoRAs, whose names are searched in the setup's folder.
    pub(crate) fn with_loras(mut self, setup: &Setup) -> Self {
        let applied =
            AppliedLoras::new(&networks((self.lora_name, &self.component), &self.text()), setup.lora_dir.as_deref());
        self.loras = Some(applied);
        self
    }

    /// The text encoders, once no other thread encodes.
    pub(crate) fn text(&self) -> MutexGuard<'_, TextEncoders> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weights that run in every step.
    pub(crate) fn step_components(&self) -> impl Iterator<Item = &LoadedComponent> {
        std::iter::once(&self.component).chain(self.controls.components())
    }

    /// Merges these LoRAs into the weights, if LoRAs fit.
    ///
    /// # Errors
    /// Errors of [`AppliedLoras::set`].
    pub(crate) fn set_loras(&mut self, loras: &[LoraUse]) -> Result<()> {
        let Some(applied) = &mut self.loras else { return Ok(()) };
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let result = applied.set(loras, &networks((self.lora_name, &self.component), &text));
        let changed = result.as_ref().copied().unwrap_or(Changed::ALL); // whatever came before an error
        if changed.unet {
            self.recorded.clear(); // it reads the weights where they were
            self.second.iter_mut().for_each(SecondDenoiser::clear);
        }
        text.set_loras(applied.files(), changed.text);
        result.map(drop)
    }

    /// Prepares the denoiser and its control networks to run in the residency that `memory` plans.
    ///
    /// # Errors
    /// Errors of [`LoadedComponent::enter`].
    pub(crate) fn enter(&mut self, memory: &MemoryManager) -> Result<()> {
        self.read_ahead = None; // what it has not read yet is read now
        let keep = memory.keep(self.stage())?;
        for (i, component) in self.controls.components().enumerate() {
            component.enter(&memory.keep_control(i)?)?;
        }
        self.component.enter(&keep)
    }

    /// Prepares the second device for its part of the steps. If weights stream, the first device computes all of them.
    ///
    /// # Errors
    /// Errors of [`SecondDenoiser::enter`].
    pub(crate) fn enter_second(&mut self, memory: &MemoryManager) -> Result<()> {
        let Some(second) = &mut self.second else { return Ok(()) };
        if memory.mode().streams() {
            second.clear();
            return Ok(());
        }
        second.enter(&self.component, &self.controls, memory.plan().keeps_text_keys)
    }

    /// Begins to read the denoiser's weights from the disk, if it has none in memory. They take no memory of the device yet.
    pub(crate) fn read_ahead(&mut self) {
        if self.read_ahead.is_none() && !self.component.is_entered() {
            self.read_ahead = self.component.read_ahead();
        }
    }

    /// Frees all memory but that of encoded texts.
    pub(crate) fn leave(&mut self) {
        self.recorded.clear(); // it reads the weights where they were
        self.component.leave();
        self.text().parts().for_each(LoadedComponent::leave);
    }

    /// The stage in which its denoiser runs.
    pub(crate) fn stage(&self) -> Stage {
        self.component.spec().stage
    }
}

/// The parts that LoRAs change.
fn networks<'a>(
    (name, denoiser): (Option<Network>, &'a LoadedComponent),
    text: &'a TextEncoders,
) -> Vec<(Network, &'a LoadedComponent)> {
    name.map(|name| (name, denoiser)).into_iter().chain(text.networks()).collect()
}
