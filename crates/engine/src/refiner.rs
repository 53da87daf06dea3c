//! The second model of an engine: the text encoders and the denoiser of a job's refiner. Its autoencoder is not used: images
//! are encoded and decoded by the engine's own model.

use kiln_models::ModelFolder;
use kiln_request::{Job, LoraUse, Refiner};
use kiln_unet::Unet;
use kiln_weights::{Network, Placement};

use crate::applied_loras::{AppliedLoras, Changed};
use crate::component::{ComponentOptions, LoadedComponent, WeightResidency};
use crate::engine::Engine;
use crate::error::Result;
use crate::pipeline::batch::Batch;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::text::TextEncoders;
use crate::pipeline::text_plan::BatchTexts;
use crate::plan::Workload;
use crate::read_ahead::ReadAhead;
use crate::setup::Setup;
use crate::words::Embeddings;

/// A refiner whose files are open.
pub(crate) struct RefinerNetworks {
    refiner: Refiner,
    pub(crate) text: TextEncoders,
    pub(crate) unet: Unet,
    pub(crate) component: LoadedComponent,
    pub(crate) recorded: RecordedStep,
    /// Where the networks are those of the engine's own model, so that its LoRAs fit.
    loras: Option<AppliedLoras>,
    /// Reads the weights while the model before it runs.
    read_ahead: Option<ReadAhead>,
}

impl RefinerNetworks {
    /// Opens and checks the files. No weights are read.
    ///
    /// # Errors
    /// [`crate::Error::Weights`] where weights are missing or do not fit.
    pub(crate) fn open(
        refiner: &Refiner,
        base: &ModelFolder,
        setup: &Setup,
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Result<Self> {
        let model = refiner.model();
        let unet = Unet::new(model.unet_config().clone());
        unet.segments().set_8_bits(setup.eight_bit_layers().as_deref());
        let component = LoadedComponent::shared(unet.segments(), model.files().unet()?, placement, options, "unet");
        component.check()?;
        let embeddings = Embeddings::open(setup.embeddings_dir.as_deref())?;
        let text = TextEncoders::open(model, [placement, placement], options, embeddings, setup.cached_texts())?;
        let is_alike =
            model.unet_config() == base.unet_config() && model.text_encoder_configs() == base.text_encoder_configs();
        let loras = is_alike.then(|| AppliedLoras::new(&networks(&component, &text), setup.lora_dir.as_deref()));
        let (refiner, recorded) = (refiner.clone(), RecordedStep::default());
        Ok(Self { refiner, text, unet, component, recorded, loras, read_ahead: None })
    }

    /// Whose networks these are.
    pub(crate) fn refiner(&self) -> &Refiner {
        &self.refiner
    }

    /// Merges the LoRAs of the engine's own model into the weights, where they fit.
    ///
    /// # Errors
    /// As [`AppliedLoras::set`].
    pub(crate) fn set_loras(&mut self, loras: &[LoraUse]) -> Result<()> {
        let Some(applied) = &mut self.loras else { return Ok(()) };
        let result = applied.set(loras, &networks(&self.component, &self.text));
        let changed = result.as_ref().copied().unwrap_or(Changed::ALL); // whatever came before an error
        if changed.unet {
            self.recorded.clear(); // it reads the weights where they were
        }
        self.text.set_loras(applied.files(), changed.text);
        result.map(drop)
    }

    /// Begins to read the denoiser's weights from the disk, if it has none in memory. They take no memory of the device yet.
    pub(crate) fn read_ahead(&mut self) {
        if self.read_ahead.is_none() && !self.component.is_entered() {
            self.read_ahead = self.component.read_ahead();
        }
    }

    /// Prepares the denoiser to run.
    ///
    /// # Errors
    /// As [`LoadedComponent::enter`].
    pub(crate) fn enter(&mut self, keep: &WeightResidency) -> Result<()> {
        self.read_ahead = None; // what it has not read yet is read now
        self.component.enter(keep)
    }

    /// Frees the denoiser's memory.
    pub(crate) fn leave(&mut self) {
        self.recorded.clear(); // it reads the weights where they were
        self.component.leave();
    }

    /// Frees all memory but that of encoded texts.
    pub(crate) fn clear(&mut self) {
        self.leave();
        self.text.parts().for_each(LoadedComponent::leave);
    }
}

impl Engine {
    /// Makes this refiner the second model, or none. The weights of another one are dropped. [`Self::txt2img`] does so with its
    /// job's. LoRAs of the model are set afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Weights`] where weights are missing or do not fit. Then there is no refiner.
    pub fn set_refiner(&mut self, refiner: Option<&Refiner>) -> Result<()> {
        if self.refiner.as_ref().map(RefinerNetworks::refiner) == refiner {
            return Ok(());
        }
        if let Some(mut before) = self.refiner.take() {
            before.clear();
        }
        self.memory_manager.set_refiner(refiner.map(Refiner::model))?;
        if let Some(refiner) = refiner {
            let networks = RefinerNetworks::open(refiner, &self.model, &self.setup, &self.placement, &self.options)?;
            tracing::info!(refiner = %refiner.model().path().display(), "opened");
            self.refiner = Some(networks);
            self.origin.start_refiner(refiner.model());
        }
        Ok(())
    }

    /// Reads and tokenizes the texts of a batch, for every model of its run.
    ///
    /// # Errors
    /// Those of the tokenizers, and [`crate::Error::Request`] for texts of extreme lengths and for a job whose steps two devices
    /// cannot share.
    pub(crate) fn plan_texts(&mut self, batch: &Batch<'_>) -> Result<BatchTexts> {
        self.check_parallel(batch.job())?;
        let base = self.text().plan(batch)?;
        let refiner = self.refiner.as_mut().map(|refiner| refiner.text.plan(batch)).transpose()?;
        Ok(BatchTexts { base, refiner })
    }

    /// The work of a batch of `job`, and the texts of its first batches, as [`TextEncoders::work`] has them.
    ///
    /// # Errors
    /// As [`Self::plan_texts`].
    pub(crate) fn work(&mut self, job: &Job) -> Result<(Workload, Vec<BatchTexts>)> {
        self.check_parallel(job)?;
        let (work, base) = self.text().work(job)?;
        let Some(refiner) = &mut self.refiner else {
            return Ok((work, base.into_iter().map(|base| BatchTexts { base, refiner: None }).collect()));
        };
        let (other, refiner) = refiner.text.work(job)?;
        let work = work.with_texts(other.guided, [other.parts, other.chunks, other.context, other.texts]);
        let both = base.into_iter().zip(refiner);
        Ok((work, both.map(|(base, refiner)| BatchTexts { base, refiner: Some(refiner) }).collect()))
    }
}

/// The parts that LoRAs change.
pub(crate) fn networks<'a>(unet: &'a LoadedComponent, text: &'a TextEncoders) -> Vec<(Network, &'a LoadedComponent)> {
    std::iter::once((Network::Unet, unet)).chain(text.networks()).collect()
}
