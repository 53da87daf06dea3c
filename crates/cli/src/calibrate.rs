//! `kiln calibrate`: measures the layers of a model for products in 8 bits.

use std::ops::ControlFlow;

use kiln_batch::{JobFile, JobSet};
use kiln_engine::{
    Calibration, CalibrationEvent, CalibrationLimits, CalibrationStage, ComputeScales, Job, ModelFolder,
    Result as EngineResult, locate_model,
};
use serde_json::json;

use crate::bar::Bar;
use crate::calibrate_args::CalibrateArgs;
use crate::failure::Result;
use crate::interrupt;
use crate::output::print;
use crate::pull::located;
use crate::status::{is_json, object};

/// Runs the command. Everything that can be refused is refused before weights are read.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    interrupt::listen();
    args.start_threads()?;
    let output = ComputeScales::plan(&args.output, args.overwrite)?;
    let file = JobFile::read(&args.prompts, None)?;
    let set = JobSet::new(&file, &args.set, Vec::new(), None)?;
    let setup = args.setup();
    setup.check()?;
    located(&args.model, &args.hub())?;
    let model = ModelFolder::open(&locate_model(Some(&args.model))?)?;
    let jobs = set.requests().map(|request| Ok(request.resolve(&model)?)).collect::<EngineResult<Vec<Job>>>()?;
    let mut shown = Shown::new(jobs.len());
    let limits = CalibrationLimits { budget: args.budget, tolerance: args.tolerance };
    let mut on_event = |event| shown.event(event);
    let done = interrupt::stoppable(|| Calibration::measure(model, &setup, &jobs, limits, &mut on_event));
    shown.bar.finish();
    let Calibration { scales, covered, fixed, kept, psnr } = done?;
    interrupt::whole(output.is_stream(), || scales.write(&output))?;
    if is_json() {
        object(json!({
            "event": "calibrated", "file": output.path(), "covered": covered, "fixed": fixed, "kept": kept,
            "psnr": psnr,
        }));
    } else {
        tell!(
            "{covered} layers in 8 bits, {fixed} of them with fixed ranges; {kept} keep their type. Mean PSNR of the images: \
             {psnr:.1} dB"
        );
    }
    if !output.is_standard_output() {
        print(&format!("{}\n", output.path().display()));
    }
    Ok(())
}

/// Progress: a bar on a terminal, and a line for each stage.
struct Shown {
    bar: Bar,
    stage: Option<CalibrationStage>,
}

impl Shown {
    fn new(jobs: usize) -> Self {
        Self { bar: Bar::new("{bar:24} {pos}/{len}", jobs as u64), stage: None }
    }

    fn event(&mut self, CalibrationEvent { stage, job, .. }: CalibrationEvent) -> ControlFlow<()> {
        if self.stage.replace(stage) != Some(stage) {
            let what = match stage {
                CalibrationStage::Load => "loading the model".to_string(),
                CalibrationStage::Ranges => "measuring the ranges of inputs".to_string(),
                CalibrationStage::Errors => "measuring the errors of layers".to_string(),
                CalibrationStage::Images { kept } => format!("making images in 8 bits, {kept} layers keep their type"),
            };
            self.bar.above(|| tell!("{what}"));
        }
        if let Some(bar) = &*self.bar {
            bar.set_position(job as u64);
        }
        interrupt::proceed()
    }
}
