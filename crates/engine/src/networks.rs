//! The networks of an engine: opened, in memory together or in turns, and dropped.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kiln_models::ModelFolder;
use kiln_request::Refiner;
use kiln_weights::Placement;

use crate::component::{LoadedComponent, WeightResidency};
use crate::component_spec::ComponentSpec;
use crate::error::Result;
use crate::loaded_model::{LoadedModel, Opening};
use crate::loaded_prompts::LoadedPrompts;
use crate::pipeline::decoder::Decoder;
use crate::pipeline::image_encoder::ImageEncoder;
use crate::pipeline::reference_inputs::EncodedReferences;
use crate::pipeline::second_denoiser::SecondDenoiser;
use kiln_enlarge::Enlarger;

/// All networks that are open.
pub(crate) struct Networks {
    /// The engine's own model, which is the first of every run.
    pub(crate) first: LoadedModel,
    /// The models that follow it in the current job: its refiner.
    pub(crate) others: Vec<(Refiner, LoadedModel)>,
    /// The IP-Adapters, whose weights are in memory while images are encoded alone.
    pub(crate) prompts: LoadedPrompts,
    /// Shared with the thread that decodes while steps run, if there is one.
    pub(crate) decoder: Arc<Mutex<Decoder>>,
    /// Whether text encoders and the decoder may run while steps run.
    pub(crate) may_overlap: bool,
    /// Opened by the first job that begins with an image, and closed by the next one that does not.
    pub(crate) image_encoder: Option<ImageEncoder>,
    /// The reference images that were encoded last, with their latents.
    pub(crate) references: EncodedReferences,
    /// The network between two passes, with its file, loaded by the first job that needs it.
    pub(crate) enlarger: Option<(PathBuf, Enlarger)>,
}

impl Networks {
    /// The model with this number, or the first if there is none.
    pub(crate) fn model(&self, number: usize) -> &LoadedModel {
        number.checked_sub(1).and_then(|i| self.others.get(i)).map_or(&self.first, |(_, model)| model)
    }

    /// The same, to change it.
    pub(crate) fn model_mut(&mut self, number: usize) -> &mut LoadedModel {
        let Self { first, others, .. } = self;
        number.checked_sub(1).and_then(|i| others.get_mut(i)).map_or(first, |(_, model)| model)
    }

    /// All models, the first one first.
    pub(crate) fn models(&self) -> impl Iterator<Item = &LoadedModel> {
        std::iter::once(&self.first).chain(self.others.iter().map(|(_, model)| model))
    }

    /// The same, to change them.
    pub(crate) fn models_mut(&mut self) -> impl Iterator<Item = &mut LoadedModel> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(|(_, model)| model))
    }

    /// Opens the model of a refiner behind the others, with text encoders that have the placement `text`. LoRAs of the first model are
    /// merged into it if the networks are the same.
    ///
    /// # Errors
    /// Errors of [`LoadedModel::open`].
    pub(crate) fn push(
        &mut self,
        refiner: &Refiner,
        base: &ModelFolder,
        opening: Opening<'_>,
        text: &Placement,
    ) -> Result<()> {
        let (model, number) = (refiner.model(), self.others.len() + 1);
        let layers = opening.setup.eight_bit_layers(opening.placement.device.is_cuda());
        let opened = LoadedModel::open(model, number, layers.as_deref(), opening, text)?;
        let is_alike = model.denoiser_config() == base.denoiser_config() && model.texts() == base.texts();
        let opened = if is_alike { opened.with_loras(opening.setup) } else { opened };
        self.others.push((refiner.clone(), opened));
        Ok(())
    }

    /// Closes the models that follow the first.
    pub(crate) fn close_others(&mut self) {
        for (_, mut model) in self.others.drain(..) {
            model.leave();
        }
    }

    /// The refiner whose model is open.
    pub(crate) fn refiner(&self) -> Option<&Refiner> {
        self.others.first().map(|(refiner, _)| refiner)
    }

    /// The decoder, once no other thread decodes.
    pub(crate) fn decoder(&self) -> MutexGuard<'_, Decoder> {
        self.decoder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The encoder of initial images, opened the first time.
    ///
    /// # Errors
    /// Errors of [`ImageEncoder::open`].
    pub(crate) fn image_encoder(&mut self, model: &ModelFolder, opening: Opening<'_>) -> Result<&mut ImageEncoder> {
        match self.image_encoder {
            Some(ref mut encoder) => Ok(encoder),
            None => {
                let Opening { setup, placement, options } = opening;
                let encoder = ImageEncoder::open(model, setup.taesd.as_deref(), placement, options)?;
                Ok(self.image_encoder.insert(encoder))
            }
        }
    }

    /// Closes the encoder of initial images, if it is open.
    pub(crate) fn close_image_encoder(&mut self) {
        if let Some(encoder) = self.image_encoder.take() {
            encoder.part().leave();
        }
    }

    /// Reads the weights of all networks that stay in memory in the mode that keeps all; `begin` is called before each.
    ///
    /// # Errors
    /// Errors of `begin` and of [`LoadedComponent::enter`].
    pub(crate) fn enter_all(&self, begin: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut enter = |component: &LoadedComponent| -> Result<()> {
            begin()?;
            component.enter(&WeightResidency::Whole)
        };
        // The text encoders last, since they go first: the room that they leave is not between the others' weights.
        enter(self.decoder().part())?;
        self.first.step_components().try_for_each(&mut enter)?;
        self.first.text().parts().try_for_each(&mut enter)?;
        self.others.iter().flat_map(|(_, model)| model.step_components()).try_for_each(&mut enter)
    }

    /// Frees the memory of the networks that `which` selects, once no other thread runs them. Recorded steps go with the denoiser
    /// whose weights they read.
    pub(crate) fn leave(&mut self, which: impl Fn(&ComponentSpec) -> bool) {
        for model in self.models_mut() {
            if which(&model.component.spec()) {
                model.recorded.clear();
            }
        }
        let leave = |component: &LoadedComponent| {
            if which(&component.spec()) {
                component.leave();
            }
        };
        for model in self.models() {
            if which(&ComponentSpec::TEXT) {
                model.text().parts().for_each(leave);
            }
            model.step_components().chain(model.controls.image_components()).for_each(leave);
        }
        self.prompts.components().for_each(leave);
        if which(&ComponentSpec::DECODER) {
            self.decoder().part().leave();
        }
        self.image_encoder.iter().for_each(|encoder| leave(encoder.part()));
        if which(&ComponentSpec::UPSCALER) {
            self.enlarger = None;
        }
    }

    /// Frees all memory but that of encoded texts, on all devices.
    pub(crate) fn clear(&mut self) {
        self.models_mut().flat_map(|model| &mut model.second).for_each(SecondDenoiser::clear);
        self.leave(|_| true);
    }
}
