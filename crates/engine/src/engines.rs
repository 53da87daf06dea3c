//! Several models in the memory of one device: the one that runs, and those that ran before it and may run again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kiln_files::ByteSize;
use kiln_mempool::HostPool;
use kiln_models::ModelFolder;
use kiln_request::Job;

use crate::engine::Engine;
use crate::error::Result;
use crate::memory::MemoryOptions;
use crate::pipeline::event::Event;
use crate::pipeline::running::RunningBatch;
use crate::plan::Workload;
use crate::room::LIBRARIES;
use crate::setup::Setup;

/// The engines of one setup, each with its model. One runs; the weights of others stay in memory, as long as the plan of the one that
/// runs keeps all of its own networks there, too. The least recently used one is dropped first.
pub struct Engines {
    setup: Setup,
    most: usize,
    current: Option<Loaded>,
    /// Those that rest, the least recently used one first.
    resting: Vec<Resting>,
}

/// A model that is loaded.
struct Loaded {
    model: Arc<ModelFolder>,
    engine: Engine,
}

/// A model whose weights stay in memory.
struct Resting {
    loaded: Loaded,
    /// The bytes that it holds.
    bytes: usize,
}

impl Engines {
    /// No engines yet. At most `most` models are in memory at once, the one that runs among them; `None` if memory alone limits them.
    pub fn new(setup: Setup, most: Option<usize>) -> Self {
        // The weights that a second device holds are in no plan of the first one.
        let most = if setup.second.is_some() { 1 } else { most.unwrap_or(usize::MAX) };
        Self { setup, most, current: None, resting: Vec::new() }
    }

    /// The engine that runs.
    pub fn current(&self) -> Option<&Engine> {
        self.current.as_ref().map(|loaded| &loaded.engine)
    }

    /// The same, to run it.
    pub fn current_mut(&mut self) -> Option<&mut Engine> {
        self.current.as_mut().map(|loaded| &mut loaded.engine)
    }

    /// The models whose weights are in memory.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ModelFolder>> {
        self.loaded().map(|loaded| &loaded.model)
    }

    /// The engines of these models.
    pub fn iter(&self) -> impl Iterator<Item = &Engine> {
        self.loaded().map(|loaded| &loaded.engine)
    }

    fn loaded(&self) -> impl Iterator<Item = &Loaded> {
        self.resting.iter().map(|resting| &resting.loaded).chain(&self.current)
    }

    /// Makes the engine of `model` the one that runs. The engine before it rests, or is dropped if the two do not fit. Returns whether
    /// the weights had to be read; `watch` gets the stage meanwhile, and may stop that.
    ///
    /// # Errors
    /// See [`Engine::load`]. No engine runs then.
    pub fn switch(
        &mut self,
        model: &Arc<ModelFolder>,
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<bool> {
        if self.current.as_ref().is_some_and(|loaded| Arc::ptr_eq(&loaded.model, model)) {
            return Ok(false);
        }
        self.rest();
        if let Some(place) = self.resting.iter().position(|resting| Arc::ptr_eq(&resting.loaded.model, model)) {
            let Loaded { mut engine, model } = self.resting.remove(place).loaded;
            engine.resume(self.held());
            self.current = Some(Loaded { model, engine });
            self.make_room_for(None)?;
            return Ok(false);
        }
        while !self.resting.is_empty() && self.resting.len() >= self.most {
            self.resting.remove(0);
        }
        let start = Instant::now();
        let mut engine = self.open(model)?.loaded(start, watch)?;
        if !self.resting.is_empty() && !engine.fits_whole(None)? {
            // Memory was out in spite of the plan.
            drop(engine);
            self.resting.clear();
            engine = self.open(model)?.loaded(start, watch)?;
        }
        self.current = Some(Loaded { model: model.clone(), engine });
        Ok(true)
    }

    /// Opens a model. Engines that rest are dropped until all of its networks fit, or none is left.
    fn open(&mut self, model: &Arc<ModelFolder>) -> Result<Engine> {
        loop {
            let memory = MemoryOptions { held_by_others: self.held(), ..self.setup.memory.clone() };
            let setup = Setup { memory, ..self.setup.clone() };
            let engine = Engine::open(ModelFolder::clone(model), &setup, None, &[])?;
            if self.resting.is_empty() || engine.fits_whole(None)? {
                return Ok(engine);
            }
            drop(engine);
            self.drop_oldest();
        }
    }

    /// Drops engines that rest until all networks of the current one stay in memory while `job` runs together with `running`, or none
    /// rests any more.
    ///
    /// # Errors
    /// Errors of the job's texts and of the networks' dry runs.
    pub fn make_room(&mut self, running: &RunningBatch, job: &Job) -> Result<()> {
        if self.resting.is_empty() {
            return Ok(());
        }
        let Some(engine) = self.current_mut() else { return Ok(()) };
        let (work, _) = engine.work(job)?;
        let work = running.work().map_or(work, |others| others.with(work));
        self.make_room_for(Some(work))
    }

    /// Drops all engines.
    pub fn clear(&mut self) {
        self.current = None;
        self.resting.clear();
    }

    fn make_room_for(&mut self, work: Option<Workload>) -> Result<()> {
        while let Some(loaded) = &self.current
            && !self.resting.is_empty()
            && !loaded.engine.fits_whole(work)?
        {
            self.drop_oldest();
            let held = self.held();
            self.current.iter_mut().for_each(|loaded| loaded.engine.memory_manager.set_held_by_others(held));
        }
        Ok(())
    }

    /// Has the current engine rest, or drops it.
    fn rest(&mut self) {
        let Some(mut loaded) = self.current.take() else { return };
        if self.most < 2 {
            return;
        }
        match loaded.engine.rest() {
            Ok(Some(bytes)) => self.resting.push(Resting { loaded, bytes }),
            Ok(None) => {}
            Err(error) => tracing::warn!("{} leaves memory: {error}", loaded.model.name()),
        }
    }

    fn drop_oldest(&mut self) {
        if !self.resting.is_empty() {
            let oldest = self.resting.remove(0);
            tracing::info!(model = oldest.loaded.model.name(), bytes = %ByteSize(oldest.bytes), "leaves memory");
        }
    }

    /// The bytes that engines hold that rest.
    fn held(&self) -> usize {
        self.resting.iter().map(|resting| resting.bytes).sum()
    }
}

impl Engine {
    /// Drops what only a running job needs, so that another engine can run. Returns the bytes that stay; `None` if weights do not stay
    /// in memory between jobs, so that there is nothing to keep.
    ///
    /// # Errors
    /// Errors of the pool.
    fn rest(&mut self) -> Result<Option<usize>> {
        let Some(bytes) = self.memory_manager.resident_bytes() else { return Ok(None) };
        self.set_refiner(None)?;
        self.set_controls(&[])?;
        self.set_ip_adapters(&[])?;
        self.networks.close_image_encoder();
        self.networks.enlarger = None;
        self.networks.models_mut().for_each(|model| model.recorded.clear());
        HostPool::trim(0.0);
        if let Some(pool) = &self.pool {
            pool.trim(0.0)?;
            return Ok(Some(bytes + LIBRARIES as usize));
        }
        Ok(Some(bytes))
    }

    /// Goes on after [`Self::rest`], while other engines hold `held` bytes.
    fn resume(&mut self, held: usize) {
        self.memory_manager.set_held_by_others(held);
    }

    /// Whether all networks stay in memory during `work`, or during the work that was planned last, next to what other engines hold.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    fn fits_whole(&self, work: Option<Workload>) -> Result<bool> {
        self.memory_manager.fits_whole(work.map(|work| self.memory_manager.with_controls(work)))
    }
}
