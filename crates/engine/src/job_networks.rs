//! The networks that a job has besides the model's own: what it adds to the weights, and what runs next to them.

use std::sync::PoisonError;

use kiln_request::{Control, IpAdapter, Job, LoraUse};

use crate::applied_loras::Changed;
use crate::engine::Engine;
use crate::error::Result;
use crate::pipeline::event::{Event, Stage};
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::refiner::networks;

impl Engine {
    /// Makes these LoRAs the ones that are in the weights, added in this order; none takes all away, and the weights are
    /// the bytes that they were. Only segments that change are read again. [`Self::txt2img`] does so with its job's.
    ///
    /// # Errors
    /// [`crate::Error::Files`] where there is no such file, [`crate::Error::Weights`] where one does not fit the model. Where that
    /// is found out, nothing has changed yet.
    pub fn set_loras(&mut self, loras: &[LoraUse]) -> Result<()> {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        // FaceID's files have LoRAs of their own.
        let all: Vec<LoraUse> = loras.iter().cloned().chain(self.prompts.loras()).collect();
        let result = self.loras.set(&all, &networks(&self.unet_component, &text));
        let changed = result.as_ref().copied().unwrap_or(Changed::ALL); // whatever came before an error
        if changed.unet {
            self.recorded.clear(); // it reads the weights where they were
            self.second.iter_mut().for_each(SecondDenoiser::clear);
        }
        text.set_loras(self.loras.files(), changed.text);
        drop(text);
        self.origin.start_loras(loras);
        result?;
        self.refiner.as_mut().map_or(Ok(()), |refiner| refiner.set_loras(loras))
    }

    /// Makes the control networks of `controls` the open ones; none closes all. Networks that stay keep their weights, and
    /// those of the model are where they were unless the plan of memory changes its mode.
    ///
    /// # Errors
    /// Those of [`kiln_models::ControlFile::open`]: nothing has changed then. Errors of the networks' dry runs.
    pub fn set_controls(&mut self, controls: &[Control]) -> Result<()> {
        if self.controls.set(controls, &self.model, &self.placement, &self.options)? {
            self.recorded.clear(); // it has the networks that were open in it
            let configs = self.controls.configs();
            self.second.iter_mut().for_each(|second| second.set_controls(&configs));
            self.memory_manager.set_controls(&configs);
            self.origin.start_controls(controls);
        }
        Ok(())
    }

    /// Makes the IP-Adapters of `adapters` the open ones; none closes all. Their weights are in memory only while images are
    /// encoded; a LoRA in a file is added with the next [`Self::set_loras`].
    ///
    /// # Errors
    /// Those of [`kiln_models::IpAdapterFile::open`], and [`crate::Error::Request`] for prompts that do not go with their files:
    /// nothing has changed then.
    pub fn set_ip_adapters(&mut self, adapters: &[IpAdapter]) -> Result<()> {
        if self.prompts.set(adapters, &self.model, &self.placement, &self.options)? {
            self.memory_manager.set_prompts(self.prompts.plans());
            self.origin.start_ip_adapters(adapters);
        }
        Ok(())
    }

    /// Opens the refiner, the control networks and the IP-Adapters of `job`, and adds its LoRAs to the weights. Where there is not
    /// enough memory, the memory mode becomes a smaller one, and `tell` is called with an [`Event::Smaller`].
    ///
    /// # Errors
    /// The errors of [`Engine::set_loras`], [`Engine::set_controls`] and [`Engine::set_ip_adapters`], and the errors that `tell`
    /// returns.
    pub fn take_networks(&mut self, job: &Job, tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        self.set_refiner(job.refiner.as_ref())?;
        self.set_controls(&job.controls)?;
        self.set_ip_adapters(&job.ip_adapters)?;
        self.take_loras(&job.loras, tell)
    }

    /// Calls [`Engine::set_loras`]. Where there is not enough memory, the memory mode becomes a smaller one, and `tell` is called
    /// with an [`Event::Smaller`].
    ///
    /// # Errors
    /// The errors of [`Engine::set_loras`], and the errors that `tell` returns.
    pub fn take_loras(&mut self, loras: &[LoraUse], tell: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        self.attempt(Stage::Load, tell, |engine, _| engine.set_loras(loras))
    }
}
