//! Running batches of one model, one for each set of networks: LoRAs, control networks, IP-Adapters, and a refiner.

use std::time::{Duration, Instant};

use kiln_engine::{Control, Engine, IpAdapter, IpAdapterUse, Job, LoraUse, Refiner, Result, RunningBatch};

/// Networks stay in memory for so many times the time that it took to bring them there, while others wait.
const STAY: u32 = 4;

/// Running batches, of which the weights fit one at a time.
#[derive(Default)]
pub(super) struct Lanes {
    /// By their numbers, which stay the same.
    lanes: Vec<(usize, Lane)>,
    numbers: usize,
    /// The lane whose networks are in memory, and until when it stays.
    current: Option<(usize, Instant)>,
}

struct Lane {
    loras: Vec<LoraUse>,
    controls: Vec<Control>,
    ip_adapters: Vec<IpAdapter>,
    refiner: Option<Refiner>,
    running: RunningBatch,
}

impl Lane {
    fn new(job: &Job) -> Self {
        let (loras, controls, refiner) = (job.loras.clone(), job.controls.clone(), job.refiner.clone());
        let ip_adapters = job.ip_adapters.clone();
        Self { loras, controls, ip_adapters, refiner, running: RunningBatch::new() }
    }

    /// Whether a job's networks are these. Images and strengths are each job's own.
    fn fits(&self, job: &Job) -> bool {
        let nets = |controls: &[Control]| controls.iter().map(|control| control.using.net.clone()).collect::<Vec<_>>();
        let adapters = |all: &[IpAdapter]| all.iter().map(files_of).collect::<Vec<_>>();
        self.loras == job.loras
            && self.refiner == job.refiner
            && nets(&self.controls) == nets(&job.controls)
            && adapters(&self.ip_adapters) == adapters(&job.ip_adapters)
    }
}

/// The parts of an IP-Adapter that an engine opens, or checks as it opens the file.
fn files_of(adapter: &IpAdapter) -> (IpAdapterUse, bool, bool) {
    let IpAdapterUse { model, encoder, blocks, shortcut, embeds, .. } = adapter.using.clone();
    let opened = IpAdapterUse { encoder, blocks, shortcut, ..IpAdapterUse::new(model) };
    (opened, adapter.image.is_some(), embeds.is_some())
}

impl Lanes {
    /// The number of the lane for a job's networks.
    pub(super) fn of(&mut self, job: &Job) -> usize {
        if let Some((number, _)) = self.lanes.iter().find(|(_, lane)| lane.fits(job)) {
            return *number;
        }
        self.numbers += 1;
        self.lanes.push((self.numbers, Lane::new(job)));
        self.numbers
    }

    /// The lane that has to stay for a while, since its networks came at a cost.
    pub(super) fn staying(&self) -> Option<usize> {
        self.current.filter(|(_, until)| Instant::now() < *until).map(|(number, _)| number)
    }

    /// The running batch of a lane.
    pub(super) fn running(&mut self, number: usize) -> Option<&mut RunningBatch> {
        self.lanes.iter_mut().find(|(known, _)| *known == number).map(|(_, lane)| &mut lane.running)
    }

    /// Brings a lane's networks into memory.
    ///
    /// # Errors
    /// See [`Engine::set_refiner`], [`Engine::set_controls`], [`Engine::set_ip_adapters`] and [`Engine::set_loras`].
    pub(super) fn enter(&mut self, number: usize, engine: &mut Engine) -> Result<()> {
        if self.current.is_some_and(|(current, _)| current == number) {
            return Ok(());
        }
        let Some((_, lane)) = self.lanes.iter().find(|(known, _)| *known == number) else { return Ok(()) };
        self.current = None;
        let start = Instant::now();
        engine.set_refiner(lane.refiner.as_ref())?;
        engine.set_controls(&lane.controls)?;
        engine.set_ip_adapters(&lane.ip_adapters)?;
        engine.take_loras(&lane.loras, &mut |_| Ok(()))?;
        let cost: Duration = start.elapsed();
        self.current = Some((number, Instant::now() + STAY * cost));
        Ok(())
    }

    /// Forgets the lanes without images for which `is_wanted` is false.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(usize) -> bool) {
        self.lanes.retain(|(number, lane)| !lane.running.is_empty() || is_wanted(*number));
    }

    /// Whether no images are in any running batch.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(|(_, lane)| lane.running.is_empty())
    }

    /// Forgets everything; the engine goes.
    pub(super) fn clear(&mut self) {
        *self = Self { numbers: self.numbers, ..Self::default() };
    }
}
