//! `kiln txt2img` and `kiln img2img`: a prompt, and perhaps input images, become images.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use kiln_bench::MemoryTraceFile;
use kiln_engine::{
    BatchSize, Engine, Event, HiresUpscaler, Job, LatentsFile, Like, ModelFolder, Output, PlannedFile, Planner,
    Request, Setup, TraceFile, UpscalerChoice, locate_model, number_text,
};
use kiln_request::InputSize;
use serde_json::json;

use crate::failure::Result;
use crate::flags::with_flags;
use crate::img2img_args::Inputs;
use crate::interrupt;
use crate::option_args::HiresArgs;
use crate::preview::Previews;
use crate::progress::{Progress, summary, summary_event};
use crate::pull::located;
use crate::small_model;
use crate::status::{self, is_json};
use crate::txt2img_args::Common;

/// The initial image, and the steps after the first pass.
pub enum Kind<'a> {
    /// Noise, and perhaps a second pass: `kiln txt2img`.
    Text(&'a HiresArgs),
    /// Images: `kiln img2img`.
    Images(&'a Inputs),
}

/// Runs the command. Everything that can be refused is refused before weights are
/// read.
pub fn run(mut args: Common, kind: Kind<'_>) -> Result<()> {
    interrupt::listen();
    args.run.start_threads()?;
    args.run.one_setup()?; // refuses devices before files come from the Hub
    args.run.fetch(&mut args.loras, &mut args.controls, &mut args.ip_adapters)?;
    let (mut options, mut setup) = (args.run.model_options(), args.previews.apply(args.run.one_setup()?));
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
    if let Some(refiner) = &request.refiner {
        located(refiner, &args.run.hub())?;
    }
    let left_out = |options: Vec<(&str, String)>, why: &str| {
        for (name, value) in options {
            let path = args.like.as_deref().unwrap_or(Path::new("")).display();
            caution!("{path}: {name}: {value} is left out: {why}");
        }
    };
    let mut requests = match kind {
        Kind::Text(hires) => {
            left_out(request.drop_input(), "the image was made from another one; see kiln img2img");
            let mut request = hires.apply(request);
            if let Some(HiresUpscaler::Pixels(UpscalerChoice::File(path))) = &mut request.hires_upscaler {
                *path = located(path, &args.run.hub())?;
            }
            vec![request]
        }
        Kind::Images(inputs) => {
            left_out(request.drop_hires(), "kiln img2img has no second pass");
            inputs.requests(request)
        }
    };
    if let Some(like) = &like {
        requests.iter_mut().try_for_each(|request| like.locate_inputs(request))?;
    }
    let resolve = |request: &Request| match (&kind, &request.init) {
        (Kind::Images(_), None) => {
            let (name, found) = ("init", "not given".into());
            Err(kiln_request::Error::Value {
                name,
                found,
                expected: "an image to begin with: the settings name none".into(),
            })
        }
        _ => request.resolve(&model),
    };
    requests.iter().try_for_each(|request| check_size(request, &model, &setup))?;
    let mut jobs = requests.iter().map(resolve).collect::<kiln_request::Result<Vec<Job>>>()?;
    setup.check()?;
    let mut advice: BTreeSet<String> = jobs.iter().flat_map(|job| job.advice(&model)).collect();
    if like.is_some() && args.request().ensd.is_none() {
        // AUTOMATIC1111 writes it into images of all samplers.
        advice.retain(|sentence| !sentence.starts_with("`ensd` "));
    }
    for warning in like.iter_mut().flat_map(Like::take_warnings).chain(advice) {
        caution!("{}", with_flags(&warning));
    }
    if args.batch_size == Some(BatchSize::Auto) {
        let sized = |job: Job| {
            let n = Planner::auto_batch_size(&model, &job, &setup)?;
            tell!("batch size {n}");
            Ok(job.with_batch_size(n)?)
        };
        jobs = jobs.into_iter().map(sized).collect::<Result<Vec<Job>>>()?;
    }
    let mut outputs = outputs(&args, &requests, &jobs)?;
    let mut latents = args.latents_out.as_deref().map(LatentsFile::plan).transpose()?;
    let trace = args.trace.as_deref().map(TraceFile::plan).transpose()?;
    let memory = args.memory_trace.as_deref().map(MemoryTraceFile::plan).transpose()?;
    let mut previews = args.preview.as_ref().map(Previews::plan).transpose()?.flatten();
    if args.run.model.is_none() && like.is_none() {
        small_model::announce(&model);
    }
    // A file that is the standard output must not be mixed with other lines.
    let others = [
        latents.as_ref().map(LatentsFile::file),
        trace.as_ref().map(TraceFile::file),
        memory.as_ref().map(MemoryTraceFile::file),
    ];
    let stdout_is_taken = outputs.iter().any(Output::is_standard_output)
        || others.into_iter().flatten().any(PlannedFile::is_standard_output);

    let mut progress = Progress::new();
    let describe = |job: &Job| describe(&model.name(), job);
    let mut made = 0;
    let Some(first) = jobs.first() else { return Ok(()) };
    describe(first);
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
    let mut engine = Engine::load_for(model.clone(), &setup, first, &mut on_load)?;
    if let Some(file) = trace {
        engine.trace(file);
    }
    if previews.is_some() && !engine.has_previews() {
        caution!(
            "there are no previews: the colors of this model's latents are not known (`latent_rgb` in kiln.json), and no TAESD is given"
        );
    }
    engine.preview_every(previews.as_ref().map(|_| args.preview_every.unwrap_or(1)));
    for (number, (job, output)) in jobs.iter().zip(&mut outputs).enumerate() {
        if number > 0 {
            progress.finish();
            progress = Progress::new();
            describe(job);
        }
        let mut on_event = |event: Event| -> kiln_engine::Result<ControlFlow<()>> {
            if let (Event::DecodeAgain { .. } | Event::Smaller { .. }, Some(previews)) = (&event, &mut previews) {
                previews.scrolled();
            }
            match event {
                Event::Begin(stage) => progress.begin(stage),
                Event::Text { .. } | Event::Enlarge { .. } => {}
                Event::Step { done, total } => progress.step(done, total),
                Event::Preview { index, step, image } => {
                    if let Some(previews) = &mut previews {
                        previews.show(index, step, &image, &progress);
                    }
                }
                Event::DecodeAgain { index, seed, from, to } => progress.warn(&format!(
                    "image {} (seed {seed}) overflowed {from} in the VAE; it and all following images are decoded in {to}",
                    index + 1
                )),
                Event::Smaller { stage, from, to } => {
                    progress.warn(&format!("out of memory for {} with {from}; continuing with {to}", stage.doing()))
                }
                Event::Image(image) => {
                    if let Some(previews) = &mut previews {
                        previews.done(&image, &progress);
                    }
                    let path = interrupt::whole(output.is_stream(), || output.save(&image))?;
                    // The same for all images: the first one has them.
                    for difference in like.take().iter().flat_map(|like| like.differences(&image, &model)) {
                        progress.warn(&with_flags(&difference));
                    }
                    made += 1;
                    status::event(json!({ "event": "made", "number": made, "file": path, "seed": image.seed }));
                    let line = path.display().to_string();
                    if stdout_is_taken { progress.tell(&line) } else { progress.line(&line) }
                    if let Some(latents) = &mut latents {
                        latents.push(&image);
                    }
                }
            }
            Ok(interrupt::proceed())
        };
        let result = interrupt::stoppable(|| engine.txt2img(job, &mut on_event));
        if result.is_err() {
            progress.finish();
        }
        result?;
    }
    progress.finish();
    memory.map_or(Ok(()), |memory| interrupt::whole(memory.file().is_stream(), || memory.write()))?;
    if let Some(latents) = latents {
        interrupt::whole(latents.file().is_stream(), || latents.write())?;
    }
    match is_json() {
        true => status::event(summary_event(jobs.iter().map(Job::images).sum(), made, &engine.timings())),
        false => tell!("{}", summary(&engine.timings())),
    }
    Ok(())
}

/// Prints a line about the job. It is the only place that shows a random seed if the names of the files do not contain it.
fn describe(model: &str, job: &Job) {
    let Job { width, height, steps, sampler, cfg_scale, seed, .. } = job;
    let images = job.images();
    if is_json() {
        return status::event(json!({
            "event": "job", "model": model, "all": images, "width": width, "height": height, "steps": steps,
            "sampler": sampler.to_string(), "cfg_scale": cfg_scale, "seed": seed,
        }));
    }
    let seeds = match images {
        ..=1 => format!("seed {seed}"),
        _ => format!("seeds {seed} to {}", job.seed_of(images - 1)),
    };
    tell!("{model}: {width}x{height}, {steps} steps of {sampler}, guidance {}, {seeds}", number_text(*cfg_scale));
    if let Some(pass) = job.second_pass() {
        let Job { width, height, steps, sampler, .. } = pass.job;
        tell!("then {width}x{height} by {}, {steps} steps of {sampler}", pass.upscaler);
    }
}

/// Refuses an input image by its header, since its results take hours or gigabytes: one whose own size is that of the results and
/// is extreme, and one for whose results there is no memory.
fn check_size(request: &Request, model: &ModelFolder, setup: &Setup) -> Result<()> {
    /// The most pixels of results without a requested size, as `kiln serve` allows them: 16 times those of a
    /// model for 512x512. More is planned before the image is decoded.
    const USUAL: usize = 4 << 20;
    // Whatever is wrong with the file is an error when it is read.
    let Ok(Some(InputSize { results: (width, height), .. })) = request.input_size(model.size_multiple()) else {
        return Ok(());
    };
    if width.saturating_mul(height) <= USUAL || model.is_refiner() {
        return Ok(());
    }
    if let (Some(path), true) = (&request.init, request.width.is_none() || request.height.is_none()) {
        let found = format!("{}, from which results get a size of {width}x{height}", path.display());
        let expected =
            format!("at most {USUAL} pixels of results without `width` and `height`; set both, also for this size");
        return Err(kiln_request::Error::Value { name: "init", found, expected }.into());
    }
    setup.check()?;
    let plain = Request { width: Some(width), height: Some(height), ..Request::default() };
    Ok(Planner::check(model, &plain.resolve(model)?, setup)?)
}

/// The files of all jobs. Where there are several, the results of each have its input's name, after `{input}` in the
/// pattern or, without a pattern, in the place of `kiln`.
fn outputs(args: &Common, requests: &[Request], jobs: &[Job]) -> Result<Vec<Output>> {
    const INPUT: &str = "{input}";
    let mut names: Vec<String> = Vec::new();
    let one = |(request, job): (&Request, &Job)| {
        let stem = request.init.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
        let mut stem = stem.filter(|stem| stem != "-").unwrap_or_else(|| "kiln".into()).replace(['{', '}'], "_");
        if names.contains(&stem) {
            stem = format!("{stem}-{}", names.len() + 1);
        }
        names.push(stem.clone());
        let usual = format!("{stem}-{{index}}-{{seed}}.png");
        let pattern = match args.output.as_deref() {
            Some(pattern) if pattern.contains(INPUT) => Some(pattern.replace(INPUT, &stem)),
            Some(pattern) if jobs.len() > 1 && Path::new(pattern).is_dir() => {
                Some(Path::new(pattern).join(usual).to_string_lossy().into_owned())
            }
            Some(pattern) if jobs.len() > 1 => {
                let expected = "a folder, or a name with {input}, since there are several input images".into();
                return Err(kiln_request::Error::Value { name: "output", found: pattern.into(), expected }.into());
            }
            None if jobs.len() > 1 => Some(usual),
            other => other.map(String::from),
        };
        Ok(Output::plan(pattern.as_deref(), args.overwrite, job)?)
    };
    requests.iter().zip(jobs).map(one).collect()
}
