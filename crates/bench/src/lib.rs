//! Measurements. A [`BenchPlan`] times the stages of a model: one guided step, decoding an image, encoding a text,
//! or a whole call. A [`MemoryTraceFile`] records the memory of a process; [`replay_memory`] replays such a trace under other
//! policies of a pool, and [`plot_memory`] plots it. A [`SelfTest`] measures the errors of a device's operators.
//!
//! Networks have random weights ([`kiln_weights::RandomSource`]): their speed does not depend on the values, so a measurement
//! needs no checkpoint. A stage runs the code of a pipeline ([`kiln_engine::pipeline`]); loading is measured separately. The
//! crate knows no arguments.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use kiln_bench::{BenchPlan, BenchStage};
//! use kiln_engine::{Architecture, Preset};
//!
//! let plan = BenchPlan { stages: vec![BenchStage::Step], ..BenchPlan::default() };
//! let report = plan.run(&[Architecture::preset(Preset::Emoji)?], &mut |_| ControlFlow::Continue(()))?;
//! println!("{:.4} s a step", report.models[0].stages[0].seconds.median);
//! # Ok::<(), kiln_bench::Error>(())
//! ```
#![forbid(unsafe_code)]

mod call;
mod control_step;
mod error;
mod fits;
mod hooked_steps;
mod image_stages;
mod memory_trace;
mod report;
mod selftest;
mod stage;
mod streamed;

use std::ops::ControlFlow;
use std::str::FromStr;

use kiln_engine::limits::{in_range, side};
use kiln_engine::{ExecutionTarget, Machine, ResolvedDevice, Setup, start_threads};
use kiln_mempool::{ProcessMemory, SystemMemory};
use kiln_models::Architecture;
use kiln_ops::Target;
use serde::Serialize;

pub use error::{Error, Result};
pub use memory_trace::{MemoryRecording, MemoryTraceFile, ReplayRow, plot_memory, replay_memory};
pub use report::{BenchReport, CardMemory, ModelReport, ReportFile, StageReport, Summary};
pub use selftest::{ImageReport, OperatorReport, SelfTest, SelfTestReport};
pub use streamed::{StreamPlan, StreamStage};

pub use hooked_steps::DEEP_CACHE_STEPS;
use stage::Meter;

/// The stages to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BenchStage {
    /// One guided step: the denoiser over the conditional and the unconditional halves of a batch, and the guidance.
    Step,
    /// The step with one ControlNet, which runs for both halves.
    ControlStep,
    /// The step with the tokens of one image of a plain IP-Adapter.
    IpAdapterStep,
    /// [`DEEP_CACHE_STEPS`] guided steps with DeepCache, the first of which runs the whole network.
    DeepCacheSteps,
    /// The step with the first-block cache of a transformer, at which the first block alone runs.
    BlockCacheStep,
    /// Latents to one image.
    Vae,
    /// One image to its latents.
    VaeEncode,
    /// One image through a network of RealESRGAN_x4plus's shape, to four times its width and height.
    Upscale,
    /// One text of the shortest length through all text encoders: 77 tokens for CLIP, the usual length for T5.
    Text,
    /// A whole call with a loaded model: two prompts, the steps, decoding, and PNG files in memory.
    Call,
}

impl BenchStage {
    /// All stages in the order of measurement.
    pub const ALL: [Self; 10] = [
        Self::Step,
        Self::ControlStep,
        Self::IpAdapterStep,
        Self::DeepCacheSteps,
        Self::BlockCacheStep,
        Self::Vae,
        Self::VaeEncode,
        Self::Upscale,
        Self::Text,
        Self::Call,
    ];
    /// The default stages: a call takes as long as all of its steps.
    pub const USUAL: [Self; 3] = [Self::Step, Self::Vae, Self::Text];

    /// Whether it is measured with U-Nets alone.
    fn needs_unet(self) -> bool {
        matches!(self, Self::ControlStep | Self::IpAdapterStep | Self::DeepCacheSteps)
    }

    /// Whether it is measured with transformers alone.
    fn needs_transformer(self) -> bool {
        self == Self::BlockCacheStep
    }

    /// The name on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::ControlStep => "control-step",
            Self::IpAdapterStep => "ip-adapter-step",
            Self::DeepCacheSteps => "deepcache-steps",
            Self::BlockCacheStep => "block-cache-step",
            Self::Vae => "vae",
            Self::VaeEncode => "vae-encode",
            Self::Upscale => "upscale",
            Self::Text => "text",
            Self::Call => "call",
        }
    }
}

impl FromStr for BenchStage {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|stage| stage.id() == text);
        found.ok_or_else(|| format!("expected {}", Self::ALL.map(Self::id).join(", ")))
    }
}

/// The options of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchPlan {
    /// Width and height of the images in pixels; `None` means each model's default.
    pub size: Option<(usize, usize)>,
    /// The batch size of a step or a call.
    pub batch: usize,
    /// Steps of a whole call.
    pub steps: usize,
    /// The stages.
    pub stages: Vec<BenchStage>,
    /// The number of measured runs of each stage.
    pub runs: usize,
    /// The number of warm-up runs of each stage. A step on a GPU runs at least until its CUDA graph is captured.
    pub warmup: usize,
    /// Whether one more step of each model is run and traced after the measured ones.
    pub trace: bool,
    /// The streaming of weights; `None` if they are resident.
    pub stream: Option<StreamPlan>,
    /// Where it runs and in which types. Measurements run on the threads of the process, which [`start_threads`] starts.
    pub setup: Setup,
}

impl Default for BenchPlan {
    fn default() -> Self {
        let stages = BenchStage::USUAL.to_vec();
        Self {
            size: None,
            batch: 1,
            steps: 20,
            stages,
            runs: 5,
            warmup: 1,
            trace: false,
            stream: None,
            setup: Setup::default(),
        }
    }
}

/// An event of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchEvent<'a> {
    /// The model.
    pub model: &'a str,
    /// The stage.
    pub stage: BenchStage,
    /// Finished runs including warm-up; `None` while weights are created.
    pub done: Option<usize>,
    /// Total runs.
    pub total: usize,
}

/// More runs are rejected as an error of the user.
const MAX_RUNS: usize = 100_000;
/// More images in a batch fit into no memory.
const MAX_BATCH: usize = 1024;

impl BenchPlan {
    /// Measures `models`, with the networks of one stage in memory at a time. `watch` is called for every run and may
    /// stop the measurement between runs.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Request`] names an option that cannot be met, [`Error::Memory`] a stage that would not fit; both before
    /// its weights are made. [`kiln_engine::Error::Interrupted`] where `watch` stopped.
    pub fn run(
        &self,
        models: &[Architecture],
        watch: &mut dyn FnMut(BenchEvent<'_>) -> ControlFlow<()>,
    ) -> Result<BenchReport> {
        let models = models.iter().map(|model| self.sized(model)).collect::<Result<Vec<_>>>()?;
        start_threads(self.setup.threads)?;
        let setup = Setup { threads: None, ..self.setup.clone() };
        let ResolvedDevice { device, backend, dtype, matrices, pool, open: _open, .. } = setup.resolve()?;
        let on = ExecutionTarget::new(Target::of(&device), dtype).with_matrices(matrices);
        let on = if self.stream.is_some() { on.with_device(&device, &setup) } else { on };
        models.iter().try_for_each(|model| fits::check(self, model, on, SystemMemory::now()))?;
        let mut reports = Vec::new();
        for model in &models {
            let (pool, backend, trace) = (pool.as_ref(), backend.as_ref(), None);
            let mut meter =
                Meter { plan: self, model, device: &device, backend, dtype, matrices, on, pool, watch, trace };
            let stages = self.stages.iter().map(|&stage| meter.measure(stage)).collect::<Result<_>>()?;
            reports.push(ModelReport {
                name: model.name.clone(),
                width: model.width,
                height: model.height,
                batch: self.batch,
                decoder_dtype: model.decoder_dtype(dtype).as_str(),
                stages,
                trace: meter.trace,
            });
        }
        Ok(BenchReport {
            engine: "kiln",
            version: env!("CARGO_PKG_VERSION"),
            commit: None,
            machine: Machine::new(&device).with_backend(backend.as_ref()),
            link: on.link.filter(|_| self.stream.is_some()),
            dtype: format!("{dtype:?}").to_lowercase(),
            weight_type: matrices.map(|matrices| matrices.to_string()),
            compute: setup.eight_bits(device.is_cuda()).map(|_| setup.compute.to_string()),
            steps: self.steps,
            warmup: self.warmup,
            peak_resident_bytes: ProcessMemory::now().map(|memory| memory.peak_resident),
            models: reports,
        })
    }

    /// Checks every value and that the model has what the stages need, and gives the model with the size that was asked for.
    fn sized(&self, model: &Architecture) -> Result<Architecture> {
        in_range("runs", self.runs, 1, MAX_RUNS)?;
        in_range("warmup", self.warmup, 0, MAX_RUNS)?;
        in_range("batch", self.batch, 1, MAX_BATCH)?;
        in_range("steps", self.steps, 1, kiln_models::limits::MAX_STEPS)?;
        if self.stages.is_empty() {
            let expected = "at least one of the stages".into();
            return Err(kiln_request::Error::Value { name: "stages", found: "empty".into(), expected }.into());
        }
        if self.trace && !self.stages.contains(&BenchStage::Step) {
            let (found, expected) = ("given without a step".into(), "step among the `stages`".into());
            return Err(kiln_request::Error::Value { name: "trace", found, expected }.into());
        }
        let (width, height) = self.size.unwrap_or((model.width, model.height));
        if let Some(stage) = self.stages.iter().find(|stage| stage.needs_unet() && model.unet().is_none()) {
            return Err(Error::NoUnet(*stage));
        }
        if let Some(stage) = self.stages.iter().find(|stage| stage.needs_transformer() && model.unet().is_some()) {
            return Err(Error::NoTransformer(*stage));
        }
        let multiple = (model.vae.downscale() * model.denoiser().latents().multiple).max(8);
        side("size", width, multiple)?;
        side("size", height, multiple)?;
        Ok(Architecture { width, height, ..model.clone() })
    }
}

#[cfg(test)]
mod tests {
    use kiln_testkit::{fixtures, repository};

    use super::*;
    use kiln_engine::{DTypeChoice, DeviceChoice, ModelFolder};

    fn tiny(name: &str) -> Architecture {
        Architecture::from_folder(&ModelFolder::open(&fixtures("models").join(name)).unwrap())
    }

    fn plan() -> BenchPlan {
        let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() };
        BenchPlan { size: Some((64, 32)), runs: 3, warmup: 1, setup, ..BenchPlan::default() }
    }

    fn stages_of_unets() -> Vec<BenchStage> {
        BenchStage::ALL.into_iter().filter(|stage| !stage.needs_transformer()).collect()
    }

    #[test]
    fn every_stage_of_every_family_is_measured() {
        let mut events = 0;
        let of_unets = stages_of_unets();
        let plan = BenchPlan { batch: 2, steps: 2, stages: of_unets.clone(), ..plan() };
        let models = ["sd1", "sd2v", "sdxl"].map(tiny);
        let report = plan.run(&models, &mut |event| {
            events += usize::from(event.done.is_some());
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        assert_eq!(events, 3 * of_unets.len() * 4);
        assert_eq!(report.models.len(), 3);
        for model in &report.models {
            assert_eq!((model.width, model.height, model.batch), (64, 32, 2));
            assert_eq!(model.stages.iter().map(|stage| stage.stage).collect::<Vec<_>>(), of_unets);
            for stage in &model.stages {
                assert_eq!(stage.runs.len(), 3);
                assert!(0.0 < stage.seconds.min && stage.seconds.min <= stage.seconds.median);
                assert!(stage.seconds.median <= stage.seconds.max && stage.flop > 0.0 && stage.parameters > 0);
            }
            let of = |stage: BenchStage| model.stages.iter().find(|report| report.stage == stage).unwrap();
            let [step, vae, text, call] =
                [BenchStage::Step, BenchStage::Vae, BenchStage::Text, BenchStage::Call].map(of);
            assert_eq!(step.seconds_per_picture, Some(step.seconds.median / 2.0));
            assert_eq!((vae.seconds_per_picture, text.seconds_per_picture), (Some(vae.seconds.median), None));
            let flop = 2.0 * (step.flop + vae.flop + text.flop);
            assert!((call.flop / flop - 1.0).abs() < 1e-9);
            assert_eq!(call.parameters, step.parameters + vae.parameters + text.parameters);
        }
        let refused = BenchPlan { stages: vec![BenchStage::BlockCacheStep], ..plan };
        let error = refused.run(&models, &mut |_| panic!("a stage began")).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(
            error.to_string().starts_with("the stage block-cache-step needs a transformer, and the model"),
            "{error}"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["models"][2]["stages"][0]["stage"], "step");
        assert!(json["machine"]["threads"].as_u64().unwrap() > 0);
    }

    /// With the size's positions, and with guidance by the text alone.
    #[test]
    fn transformers_are_measured_without_the_stages_of_unets() {
        let model = Architecture::from_folder(&ModelFolder::open(&repository().join("models/emoji-sd3")).unwrap());
        let stages =
            vec![BenchStage::Step, BenchStage::Vae, BenchStage::Text, BenchStage::Call, BenchStage::BlockCacheStep];
        for stream in [None, Some(StreamPlan::default())] {
            let plan = BenchPlan { stages: stages.clone(), steps: 2, runs: 1, stream, ..plan() };
            let report = plan.run(std::slice::from_ref(&model), &mut |_| ControlFlow::Continue(())).unwrap();
            let stages = &report.models[0].stages;
            assert!(stages.iter().all(|stage| stage.flop > 0.0 && stage.seconds.min > 0.0));
            assert_eq!(stages[3].parameters, stages[..3].iter().map(|stage| stage.parameters).sum::<usize>());
            assert_eq!(stages[4].flop, stages[0].flop, "skipped operations are counted, so that they show as speed");
        }
        for stage in [BenchStage::ControlStep, BenchStage::IpAdapterStep, BenchStage::DeepCacheSteps] {
            let plan = BenchPlan { stages: vec![BenchStage::Step, stage], ..plan() };
            let error = plan.run(std::slice::from_ref(&model), &mut |_| panic!("a stage began")).unwrap_err();
            assert!(error.is_usage(), "{error}");
            assert!(error.to_string().starts_with(&format!("the stage {} needs a U-Net", stage.id())), "{error}");
        }
        let plan = BenchPlan { size: Some((72, 64)), ..plan() };
        let message = plan.run(&[model], &mut |_| panic!("a stage began")).unwrap_err().to_string();
        assert!(message.contains("the nearest is 80"), "{message}");
    }

    #[test]
    fn streamed_weights_are_measured_and_simulated() {
        let ring = 4 << 20;
        for stream in [
            StreamPlan::default(),
            StreamPlan { resident: 100_000, ring: None },
            StreamPlan { resident: 0, ring: Some(ring) },
        ] {
            let plan = BenchPlan { stages: stages_of_unets(), steps: 2, stream: Some(stream), ..plan() };
            let report = plan.run(&[tiny("sdxl")], &mut |_| ControlFlow::Continue(())).unwrap();
            let step = report.models[0].stages[0].stream.unwrap();
            assert!(step.resets == 0 && step.copy_only_seconds > 0.0 && step.compute_only_seconds > 0.0, "{step:?}");
            assert!(step.simulated_seconds >= step.compute_only_seconds * 0.999, "{step:?}");
            assert!(step.resident_bytes <= stream.resident && step.ring_bytes <= stream.ring.unwrap_or(ring));
        }
    }

    #[test]
    fn a_measurement_can_be_stopped() {
        let stop = |event: BenchEvent<'_>| match event.done {
            Some(2) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        assert!(matches!(
            plan().run(&[tiny("sd1")], &mut { stop }),
            Err(Error::Engine(kiln_engine::Error::Interrupted))
        ));
    }

    #[test]
    fn invalid_values_are_refused_before_weights_are_created() {
        let message = |plan: BenchPlan| {
            let error = plan.run(&[tiny("sd1")], &mut |_| panic!("a stage began")).unwrap_err();
            assert!(error.is_usage(), "{error}");
            error.to_string()
        };
        assert!(message(BenchPlan { runs: 0, ..plan() }).starts_with("`runs` is 0"));
        assert!(message(BenchPlan { steps: 0, ..plan() }).starts_with("`steps` is 0"));
        assert!(message(BenchPlan { batch: 0, ..plan() }).starts_with("`batch` is 0"));
        assert!(message(BenchPlan { size: Some((60, 64)), ..plan() }).contains("the nearest is 64"));
        assert!(message(BenchPlan { stages: Vec::new(), ..plan() }).starts_with("`stages` is empty"));
        let stages = vec![BenchStage::Vae];
        assert!(message(BenchPlan { stages, trace: true, ..plan() }).starts_with("`trace` is given without a step"));
    }
}
