//! Measures the layers of a model for products in 8 bits: the ranges of their inputs, balances between input channels, the
//! error of each layer, and which layers must keep their type.
//!
//! The images of some jobs are made three times or more. The first time the ranges of all inputs are measured. The second
//! time each layer is computed in four ways, next to its own type: with and without a balance, with a range for all calls or
//! one for each call. `ways` chooses. Then the images are made in 8 bits and compared with the
//! first ones. Where they differ by more than the budget, the layers with the largest errors keep their type, as few as
//! a bisection finds.

mod ranges;
mod ways;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kiln_compare::MOST_IN_MEAN;
use kiln_models::ModelFolder;
use kiln_request::Job;
use kiln_weights::{EightBitLayers, InputObserver, ParamSpec};

use crate::engine::Engine;
use crate::error::{Error, Result, proceed};
use crate::loaded_model::LoadedModel;
use crate::pipeline::event::Event;
use crate::scales_file::ComputeScales;
use crate::setup::{DeviceChoice, Setup};
use ranges::{ChannelRanges, RangeObserver};
use ways::WayObserver;

/// The bisection ends where the number of layers that keep their type is known up to this part of all layers.
const PRECISION: usize = 32;
/// The largest ratio of an image in dB: one without a difference would have none.
const MOST: f64 = MOST_IN_MEAN;
/// The largest tolerance.
const LARGEST_TOLERANCE: f64 = 1000.0;

/// How much an image, and a layer, may differ in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalibrationLimits {
    /// The least mean of the images' peak signal-to-noise ratios in dB, from 0 to 100.
    pub budget: f64,
    /// A layer has one range for all calls where its squared error is at most this many times that with a range for each call, from
    /// 0 to 1000.
    pub tolerance: f64,
}

impl Default for CalibrationLimits {
    /// 40 dB, and one range only where its error is no larger.
    fn default() -> Self {
        Self { budget: 40.0, tolerance: 1.0 }
    }
}

/// The options of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationStage {
    /// Loads the model.
    Load,
    /// Measures the ranges of inputs.
    Ranges,
    /// Measures the errors of layers.
    Errors,
    /// Makes images in 8 bits, with so many layers in their own type.
    Images {
        /// The number of those layers.
        kept: usize,
    },
}

/// The next part of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalibrationEvent {
    /// The stage.
    pub stage: CalibrationStage,
    /// The job, from 0.
    pub job: usize,
    /// The number of jobs.
    pub jobs: usize,
}

/// The result of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The scales.
    pub scales: ComputeScales,
    /// The number of layers that are computed in 8 bits.
    pub covered: usize,
    /// The number of those whose ranges are fixed.
    pub fixed: usize,
    /// The number of layers that keep their type.
    pub kept: usize,
    /// The mean of the images' peak signal-to-noise ratios in dB; an image counts with 100 dB at most.
    pub psnr: f64,
}

impl Calibration {
    /// Measures the denoiser of `model` for products in 8 bits with the images of `jobs`, on the CPU. Images in 8 bits are compared
    /// with those in the type of the setup. `watch` may stop the run. Besides the memory of a run it takes two copies of the denoiser's large layers in 8 bits.
    ///
    /// # Errors
    /// [`Error::Request`] for a GPU, a setup with layers in 8 bits, a job with LoRAs or no job, and for other limits, before
    /// weights are read; those of [`Engine::load_for`] and [`Engine::txt2img`].
    pub fn measure(
        model: ModelFolder,
        setup: &Setup,
        jobs: &[Job],
        limits: CalibrationLimits,
        watch: &mut dyn FnMut(CalibrationEvent) -> ControlFlow<()>,
    ) -> Result<Self> {
        let Some(first) = jobs.first() else { return Err(Error::value("prompts", "empty", "at least one prompt")) };
        if let DeviceChoice::Cuda(_) | DeviceChoice::Portable(_) = setup.device {
            return Err(Error::value("device", setup.device, "cpu: layers are measured on the CPU"));
        }
        let setup = &Setup { device: DeviceChoice::Cpu, ..setup.clone() };
        if setup.eight_bits(false).is_some() {
            return Err(Error::value("compute", setup.compute, "native: layers are compared with their own type"));
        }
        if let Some(lora) = jobs.iter().flat_map(|job| &job.loras).next() {
            return Err(Error::value("loras", lora.name(), "none: scales are those of the model alone"));
        }
        let CalibrationLimits { budget, tolerance } = limits;
        if !(0.0..=MOST).contains(&budget) {
            return Err(Error::value("budget", budget, format!("a number of dB from 0 to {MOST}")));
        }
        if !(0.0..=LARGEST_TOLERANCE).contains(&tolerance) {
            return Err(Error::value("tolerance", tolerance, format!("a number from 0 to {LARGEST_TOLERANCE}")));
        }
        let setup = Setup { device: DeviceChoice::Cpu, second: None, ..setup.clone() };
        let start = CalibrationEvent { stage: CalibrationStage::Load, job: 0, jobs: jobs.len() };
        let mut engine = Engine::load_for(model, &setup, first, &mut |_| watch(start))?;
        measured(&mut engine, jobs, limits, watch)
    }
}

/// Measures as [`Calibration::measure`], for values that were checked.
fn measured(
    engine: &mut Engine,
    jobs: &[Job],
    limits: CalibrationLimits,
    watch: &mut dyn FnMut(CalibrationEvent) -> ControlFlow<()>,
) -> Result<Calibration> {
    let CalibrationLimits { budget, tolerance } = limits;
    let mut draw = |engine: &mut Engine, stage: CalibrationStage| drawn(engine, jobs, stage, watch);
    let observers: BTreeMap<String, Arc<RangeObserver>> =
        engine.networks.first.layers().map(|param| (param.key.clone(), Arc::default())).collect();
    engine.networks.first.observe(&observers);
    let expected = draw(engine, CalibrationStage::Ranges)?;
    let ranges = observers.into_iter().map(|(name, observer)| (name, observer.ranges()));
    let ranges: BTreeMap<String, ChannelRanges> = ranges.filter(|(_, ranges)| ranges.calls > 0).collect();

    let observers = engine.networks.first.ways(&ranges)?;
    engine.networks.first.observe(&observers);
    draw(engine, CalibrationStage::Errors)?;
    let best = observers
        .iter()
        .filter_map(|(name, ways)| Some((name.clone(), ways.best(name, ranges.get(name)?, tolerance)?)));
    let digest = ComputeScales::digest(&engine.model, engine.setup.cache_dir.as_deref())?;
    let mut scales = ComputeScales { model_sha256: digest, layers: best.collect(), notes: BTreeMap::new() };
    drop(observers);
    engine.networks.first.unet.segments().observe(|_| None);

    let mut names: Vec<(f32, String)> = scales.layers.iter().map(|(name, layer)| (layer.error, name.clone())).collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let mut attempt = |engine: &mut Engine, kept: usize| -> Result<f64> {
        scales.keep(names.iter().take(kept).map(|(_, name)| name));
        engine.networks.first.compute_in(Some(&scales.eight_bit_layers()));
        Ok(psnr(&draw(engine, CalibrationStage::Images { kept })?, &expected))
    };
    // With so many layers in their own type images differ too much, and with so many they do not.
    let (mut few, mut enough) = (0, (0, attempt(engine, 0)?));
    if enough.1 < budget {
        enough = (names.len(), MOST);
        while enough.0 - few > (names.len() / PRECISION).max(1) {
            let middle = few.midpoint(enough.0);
            match attempt(engine, middle)? {
                psnr if psnr < budget => few = middle,
                psnr => enough = (middle, psnr),
            }
        }
    }
    let (kept, psnr) = enough;
    scales.keep(names.iter().take(kept).map(|(_, name)| name));
    scales.notes = [
        ("kiln", env!("CARGO_PKG_VERSION").to_string()),
        ("model", engine.model.name()),
        ("dtype", engine.dtype.as_str().to_string()),
        ("images", jobs.len().to_string()),
        ("budget_db", budget.to_string()),
        ("tolerance", tolerance.to_string()),
        ("psnr_db", format!("{psnr:.2}")),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into();
    let covered = scales.layers.values().filter(|layer| !layer.is_kept);
    let (covered, fixed) = (covered.clone().count(), covered.filter(|layer| !layer.is_dynamic).count());
    Ok(Calibration { scales, covered, fixed, kept, psnr })
}

/// The pixels of each image of `jobs`.
fn drawn(
    engine: &mut Engine,
    jobs: &[Job],
    stage: CalibrationStage,
    watch: &mut dyn FnMut(CalibrationEvent) -> ControlFlow<()>,
) -> Result<Vec<Vec<u8>>> {
    let mut images = Vec::new();
    for (i, job) in jobs.iter().enumerate() {
        let event = CalibrationEvent { stage, job: i, jobs: jobs.len() };
        proceed(watch(event))?;
        engine.txt2img(job, &mut |happened| {
            if let Event::Image(image) = happened {
                images.push(image.rgb);
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(images)
}

impl LoadedModel {
    /// Computes these layers of the denoiser in 8 bits from now on, or none. Its weights are read again.
    fn compute_in(&mut self, layers: Option<&EightBitLayers>) {
        self.recorded.clear(); // it reads the weights where they were
        self.component.leave();
        self.unet.segments().set_8_bits(layers);
    }

    /// The weights of the layers that may be computed in 8 bits.
    fn layers(&self) -> impl Iterator<Item = &ParamSpec> {
        let params = self.unet.segments().iter().flat_map(|segment| segment.params());
        params.filter(|param| param.int8_matrix().is_some())
    }

    fn observe<T: InputObserver + 'static>(&self, observers: &BTreeMap<String, Arc<T>>) {
        let of = |param: &ParamSpec| Some(observers.get(&param.key)?.clone() as Arc<dyn InputObserver>);
        self.unet.segments().observe(of);
    }

    /// The ways of each layer whose ranges are known.
    fn ways(&self, ranges: &BTreeMap<String, ChannelRanges>) -> Result<BTreeMap<String, Arc<WayObserver>>> {
        let mut all = BTreeMap::new();
        for param in self.layers() {
            let Some(ranges) = ranges.get(&param.key) else { continue };
            let Some(values) = self.component.values(&param.key)? else { continue };
            if let Some(ways) = WayObserver::new(param, &values, ranges)? {
                all.insert(param.key.clone(), Arc::new(ways));
            }
        }
        Ok(all)
    }
}

/// The mean of the images' peak signal-to-noise ratios in dB; 0 for an image that cannot be compared.
fn psnr(found: &[Vec<u8>], expected: &[Vec<u8>]) -> f64 {
    let ratios = found.iter().zip(expected).map(|(a, b)| kiln_compare::psnr(a, b).unwrap_or(0.0).min(MOST));
    ratios.sum::<f64>() / expected.len().max(1) as f64
}
