//! `kiln bench`: measures the time of a model's stages.

use std::path::Path;

use kiln_bench::{
    BenchEvent, BenchPlan, BenchReport, BenchStage, DEEP_CACHE_STEPS, MemoryTraceFile, ReportFile, StreamStage,
};
use kiln_engine::{Architecture, Machine, ModelFolder, Setup, TraceFile, cache_folder, locate_model};

use crate::bench_args::BenchArgs;
use crate::failure::Result;
use crate::interrupt;
use crate::output::{print, print_json};
use crate::selftest;
use crate::table::{size, table, thousands};
use crate::usage;

/// Runs the command. All checks come before weights are created.
pub fn run(args: &BenchArgs) -> Result<()> {
    interrupt::listen();
    args.start_threads()?;
    if args.selftest {
        return selftest::run(args);
    }
    let models = match &args.config {
        Some(folder) => vec![Architecture::from_folder(&ModelFolder::open(&locate_model(Some(folder))?)?)],
        None => {
            let presets = args.presets().iter().map(|&preset| Architecture::preset(preset));
            presets.collect::<kiln_models::Result<_>>()?
        }
    };
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let file = args.json.as_deref().filter(|_| !to_stdout).map(ReportFile::plan).transpose()?;
    let trace = args.trace.as_deref().map(TraceFile::plan).transpose()?;
    let memory = args.memory_trace.as_deref().map(MemoryTraceFile::plan).transpose()?;
    let memory = memory.map(MemoryTraceFile::start).transpose()?;
    let plan = args.plan();
    let plan = BenchPlan { setup: Setup { cache_dir: cache_folder(), ..plan.setup.clone() }, ..plan };
    let mut report = plan.run(&models, &mut |event| {
        tell(event);
        interrupt::proceed()
    })?;
    report.commit = usage::commit();
    memory.map_or(Ok(()), |memory| interrupt::whole(memory.file().is_stream(), || memory.write()))?;
    if to_stdout {
        print_json(&serde_json::json!(report));
    } else if !file.as_ref().is_some_and(|file| file.file().is_standard_output()) {
        print(&text(&report));
    }
    file.map_or(Ok(()), |file| interrupt::whole(file.file().is_stream(), || file.write(&report)))?;
    let steps = report.models.iter().filter_map(|model| model.trace.as_ref());
    trace.map_or(Ok(()), |file| interrupt::whole(file.file().is_stream(), || file.write(steps)))?;
    Ok(())
}

/// Prints a line for every stage on the error stream.
fn tell(event: BenchEvent<'_>) {
    if event.done.is_none() {
        tell!("{} {}: {} runs", event.model, event.stage.id(), event.total);
    }
}

/// The measured streaming of a step, compared with the possible overlap.
fn streamed(stream: &StreamStage) -> String {
    let [resident, ring, copied] =
        [stream.resident_bytes, stream.ring_bytes, stream.streamed_bytes].map(|bytes| size(bytes as u64));
    let [copies, waits, copy_only, compute_only, compute, simulated] = [
        stream.copy_seconds,
        stream.stall_seconds,
        stream.copy_only_seconds,
        stream.compute_only_seconds,
        stream.compute_seconds,
        stream.simulated_seconds,
    ]
    .map(|seconds| format!("{:.1} ms", seconds * 1e3));
    format!(
        "{resident} resident, {copied} per step through a ring of {ring}: copies {copies}, {:.0} waits of {waits} in total; \
         copies only {copy_only}, compute only {compute_only}, compute while copying {compute}, simulated overlap \
         {simulated}, overlap {:.0} % of that",
        stream.stalls,
        stream.overlap * 100.0
    )
}

/// The machine of a measurement in words.
pub fn in_words(machine: &Machine) -> String {
    let mut text = format!("{}, {} threads", machine.processor, machine.threads);
    if machine.device != "cpu" {
        text += &format!(", {}", machine.device);
    }
    if let Some(features) = &machine.features {
        text += &format!(", {features}");
    }
    text
}

fn text(report: &BenchReport) -> String {
    let mut text = in_words(&report.machine);
    let linear = report.weight_type.as_ref().map_or_else(String::new, |kept| format!(" with linear layers in {kept}"));
    let compute = report.compute.as_ref().map_or_else(String::new, |kind| format!(", computed in {kind}"));
    text += &format!("; {}{linear}{compute}; kiln {}", report.dtype, report.version);
    text += &report.commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    let head = ["model", "stage", "what", "median s", "min s", "max s", "s/image", "GFLOP", "GFLOP/s", "faults"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for model in &report.models {
        for stage in &model.stages {
            let what = match stage.stage {
                BenchStage::Step => format!("step, {} of {}x{}", model.batch, model.width, model.height),
                BenchStage::ControlStep => {
                    format!("with a ControlNet, {} of {}x{}", model.batch, model.width, model.height)
                }
                BenchStage::IpAdapterStep => {
                    format!("with an image prompt, {} of {}x{}", model.batch, model.width, model.height)
                }
                BenchStage::DeepCacheSteps => {
                    format!("{DEEP_CACHE_STEPS} steps, {} of {}x{}", model.batch, model.width, model.height)
                }
                BenchStage::BlockCacheStep => {
                    format!("with the first block alone, {} of {}x{}", model.batch, model.width, model.height)
                }
                BenchStage::Vae => format!("an image of {}x{} in {}", model.width, model.height, model.decoder_dtype),
                BenchStage::VaeEncode => {
                    format!("latents of {}x{} in {}", model.width, model.height, model.decoder_dtype)
                }
                BenchStage::Upscale => {
                    format!("x4plus, {}x{} to {}x{}", model.width, model.height, 4 * model.width, 4 * model.height)
                }
                BenchStage::Text => "77 tokens".into(),
                BenchStage::Call => {
                    format!("{} steps, {} of {}x{}", report.steps, model.batch, model.width, model.height)
                }
            };
            let seconds = [stage.seconds.median, stage.seconds.min, stage.seconds.max].map(|s| format!("{s:.4}"));
            let seconds_per_image = stage.seconds_per_picture.map_or_else(String::new, |s| format!("{s:.4}"));
            let speed = [stage.flop * 1e-9, stage.gflop_per_second].map(|value| format!("{value:.1}"));
            let names = vec![model.name.clone(), stage.stage.id().to_string(), what];
            let faults = thousands(stage.faults.iter().copied().max().unwrap_or(0) as usize);
            rows.push([names, seconds.to_vec(), vec![seconds_per_image], speed.to_vec(), vec![faults]].concat());
        }
    }
    text += "\n\n";
    text += &table(&rows, 3);
    for (model, stage) in report.models.iter().flat_map(|model| model.stages.iter().map(move |stage| (model, stage))) {
        if let Some(gpu) = stage.card {
            let (used, reserved, driver) = (size(gpu.peak_used), size(gpu.peak_reserved), size(gpu.driver));
            text += &format!(
                "\n{} {}: peak GPU memory {used} in use, {reserved} reserved, {driver} allocated by the driver",
                model.name,
                stage.stage.id()
            );
        }
    }
    text += &report.link.map_or_else(String::new, |link| format!("\nlink to the GPU: {link}"));
    for model in &report.models {
        for stream in model.stages.iter().filter_map(|stage| stage.stream) {
            text += &format!("\n{}: {}", model.name, streamed(&stream));
        }
    }
    if let Some(peak) = report.peak_resident_bytes {
        text += &format!("\npeak memory of the process, over all stages: {}\n", size(peak));
    }
    text
}
