//! `kiln txt2img`: generates images from a prompt.

use kiln_bench::MemoryTraceFile;
use kiln_engine::{
    BatchSize, Engine, Event, LatentsFile, Like, ModelFolder, Output, PlannedFile, Planner, TraceFile, locate_model,
    number_text,
};

use crate::failure::Result;
use crate::flags::with_flags;
use crate::interrupt;
use crate::progress::{Progress, summary};
use crate::txt2img_args::Txt2img;

/// Runs the command. All checks come before weights are read.
pub fn run(mut args: Txt2img) -> Result<()> {
    interrupt::listen();
    args.run.fetch(&mut args.loras)?;
    let (mut options, mut setup) = (args.run.model_options(), args.run.setup());
    let mut like = args.like.as_deref().map(Like::read).transpose()?;
    let path = match (&args.run.model, &like) {
        (None, Some(like)) => like.locate_model(setup.cache_dir.as_deref())?,
        (model, _) => locate_model(model.as_deref())?,
    };
    if let Some(like) = &mut like {
        let (sampler, schedule) = args.names();
        like.check_names(sampler, schedule)?;
        like.fill_in(&mut options, &mut setup);
    }
    let model = ModelFolder::open_with(&path, &options)?;
    let mut request = match &mut like {
        None => args.request(),
        Some(like) => args.request_over(like.request(&model, &setup)),
    };
    let mut job = request.resolve(&model)?;
    setup.check()?;
    for warning in like.iter_mut().flat_map(Like::take_warnings) {
        tell!("warning: {}", with_flags(&warning));
    }
    if args.batch_size == Some(BatchSize::Auto) {
        request.batch_size = Some(Planner::auto_batch_size(&model, &job, &setup)?);
        job = request.resolve(&model)?;
        tell!("batch size {}", job.batch_size);
    }
    let mut output = Output::plan(args.output.as_deref(), args.overwrite, &job)?;
    let mut latents = args.latents_out.as_deref().map(LatentsFile::plan).transpose()?;
    let trace = args.trace.as_deref().map(TraceFile::plan).transpose()?;
    let memory = args.memory_trace.as_deref().map(MemoryTraceFile::plan).transpose()?;
    // A file that is the standard output must not be mixed with other lines.
    let others = [
        latents.as_ref().map(LatentsFile::file),
        trace.as_ref().map(TraceFile::file),
        memory.as_ref().map(MemoryTraceFile::file),
    ];
    let stdout_is_taken =
        output.is_standard_output() || others.into_iter().flatten().any(PlannedFile::is_standard_output);

    let mut progress = Progress::new();
    tell!(
        "{}: {}x{}, {} steps of {}, guidance {}, seed {}",
        model.name(),
        job.width,
        job.height,
        job.steps,
        job.sampler,
        number_text(job.cfg_scale),
        job.seed
    );
    let mut on_load = |event| {
        match event {
            Event::Begin(stage) => progress.begin(stage),
            Event::Smaller { from, to, .. } => {
                progress.warn(&format!("out of memory with {from}; continuing with {to}"))
            }
            _ => {}
        }
        interrupt::proceed()
    };
    let memory = memory.map(MemoryTraceFile::start).transpose()?;
    let files = model.clone();
    let mut engine = Engine::load_for(model, &setup, &job, &mut on_load)?;
    if let Some(file) = trace {
        engine.trace(file);
    }
    let result = engine.txt2img(&job, &mut |event| {
        match event {
            Event::Begin(stage) => progress.begin(stage),
            Event::Text { .. } => {}
            Event::Step { done, total } => progress.step(done, total),
            Event::DecodeAgain { index, seed, from, to } => progress.warn(&format!(
                "image {} (seed {seed}) overflowed {from} in the VAE; it and all following images are decoded in {to}",
                index + 1
            )),
            Event::Smaller { stage, from, to } => {
                progress.warn(&format!("out of memory for {} with {from}; continuing with {to}", stage.doing()))
            }
            Event::Picture(picture) => {
                let path = interrupt::whole(output.is_stream(), || output.save(&picture))?;
                // Of all pictures the same: the first one tells.
                for difference in like.take().iter().flat_map(|like| like.differences(&picture, &files)) {
                    progress.warn(&format!("warning: {}", with_flags(&difference)));
                }
                let line = format!("{} (seed {})", path.display(), picture.seed);
                if stdout_is_taken {
                    progress.warn(&line)
                } else {
                    progress.line(&line)
                }
                if let Some(latents) = &mut latents {
                    latents.push(&picture);
                }
            }
        }
        Ok(interrupt::proceed())
    });
    progress.finish();
    result?;
    memory.map_or(Ok(()), |memory| interrupt::whole(memory.file().is_stream(), || memory.write()))?;
    if let Some(latents) = latents {
        interrupt::whole(latents.file().is_stream(), || latents.write())?;
    }
    tell!("{}", summary(&engine.timings()));
    Ok(())
}
