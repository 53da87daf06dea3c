//! Checks every pending job against its model before anything is generated.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_engine::{DenoiserSpan, HubReference, Job, LoraName, LoraUse, Request, Setup, find_lora, find_option};
use kiln_models::{ModelFolder, locate_model};
use kiln_request::InputCache;

use super::plan::BatchOptions;
use super::problems::Problems;
use super::todos::{State, Todo};
use crate::error::{Error, Result};

/// Options without which the others of a request mean the same.
const ALONE: [&str; 8] =
    ["width", "height", "steps", "cfg_scale", "clip_skip", "strength", "hires_steps", "hires_strength"];

/// The images of one model, ready to run.
#[derive(Debug)]
pub(super) struct OfModel {
    pub(super) model: Arc<ModelFolder>,
    /// With their places in the list of todos.
    pub(super) jobs: Vec<(usize, Arc<Job>)>,
}

impl OfModel {
    /// Warnings about options that do not suit the model, for all jobs.
    pub(super) fn advice(&self) -> impl Iterator<Item = String> {
        self.jobs.iter().flat_map(|(_, job)| job.advice(&self.model))
    }
}

/// A model on the Hub that is not in the cache.
#[derive(Debug, Clone)]
pub struct NotDownloaded {
    /// Its name.
    pub model: PathBuf,
    /// The first line that names it.
    pub line: usize,
    /// The problem of the cached values.
    pub problem: String,
    /// Its images.
    pub images: usize,
}

/// The pending jobs with their models.
pub(super) struct Resolved {
    pub(super) models: Vec<OfModel>,
    /// Models whose jobs were not checked against them.
    pub(super) not_downloaded: Vec<NotDownloaded>,
}

/// Opens the models and resolves every pending job. No weights are read. Problems of jobs are added to `problems`: a value
/// that its model does not allow, a model, a LoRA, a control network or an input image that is missing.
///
/// # Errors
/// [`kiln_engine::Error::Request`] and [`kiln_engine::Error::Files`] for options of all jobs.
pub(super) fn resolve(todos: &[Todo], options: &BatchOptions, problems: &mut Problems) -> Result<Resolved> {
    options.setups.iter().try_for_each(Setup::check)?;
    let mut resolver = Resolver {
        options,
        models: Vec::new(),
        opened: HashMap::new(),
        not_downloaded: Vec::new(),
        loras: HashMap::new(),
        schedules: HashMap::new(),
        inputs: InputCache::default(),
    };
    for (id, todo) in todos.iter().enumerate().filter(|(_, todo)| todo.state == State::Pending) {
        resolver.add(id, todo, problems);
    }
    let models = resolver.models.into_iter().map(|(_, of_model)| of_model).collect();
    Ok(Resolved { models, not_downloaded: resolver.not_downloaded })
}

struct Resolver<'a> {
    options: &'a BatchOptions,
    models: Vec<(PathBuf, OfModel)>,
    /// The models by the names in jobs, or their errors.
    opened: HashMap<Option<PathBuf>, std::result::Result<usize, String>>,
    not_downloaded: Vec<NotDownloaded>,
    /// LoRA files that were located, and their errors.
    loras: HashMap<LoraName, Option<String>>,
    /// The schedules of the jobs so far, by all that they are made from.
    schedules: HashMap<(usize, String), Arc<[DenoiserSpan]>>,
    /// The input images of the jobs that came last.
    inputs: InputCache,
}

impl Resolver<'_> {
    /// Resolves a job, or adds what is wrong with it: all that can be found.
    fn add(&mut self, id: usize, todo: &Todo, problems: &mut Problems) {
        let (line, request) = (todo.task.line, &todo.task.request);
        let Err(problem) = self.try_add(id, todo) else { return };
        problem.into_iter().for_each(|problem| problems.push(line, problem));
        self.add_others(todo, problems);
        request.range_errors().iter().for_each(|error| problems.push(line, error.to_string()));
        missing_files(request).iter().for_each(|error| problems.push(line, error.to_string()));
        for lora in &request.loras {
            self.find(lora).unwrap_or_else(|problem| problems.push(line, problem));
        }
    }

    /// Adds what else the model does not allow of a job: it is resolved again without the value that was wrong, while that is one
    /// of [`ALONE`].
    fn add_others(&mut self, todo: &Todo, problems: &mut Problems) {
        let Ok(model) = self.model(todo.task.model.as_ref()) else { return };
        let mut request = todo.task.request.clone();
        for _ in ALONE {
            let Err(error) = request.resolve_with(&self.models[model].1.model, &mut self.inputs) else { return };
            problems.push(todo.task.line, error.to_string());
            let name = name_of(&error).filter(|name| ALONE.contains(name));
            let Some(row) = name.and_then(find_option) else { return };
            row.copy(&Request::default(), &mut request);
        }
    }

    /// Resolves a job. The error is `None` where its model is not downloaded.
    fn try_add(&mut self, id: usize, todo: &Todo) -> std::result::Result<(), Option<String>> {
        let name = todo.task.model.as_ref();
        let model = match self.model(name) {
            Err(problem) if name.is_some_and(|name| is_on_hub(name)) => {
                self.note_not_downloaded(name.cloned().unwrap_or_default(), todo.task.line, problem);
                return Err(None);
            }
            other => other?,
        };
        let of_model = &self.models[model].1.model;
        let job =
            todo.task.request.resolve_with(of_model, &mut self.inputs).map_err(|error| Some(error.to_string()))?;
        // Images are read again when they are needed: 10,000 of them would not fit into memory.
        let mut job = job.without_pixels();
        self.share_schedule(model, &mut job).map_err(|error| Some(error.to_string()))?;
        job.loras.iter().try_for_each(|lora| self.find(lora))?;
        if let Some(missing) = missing_files(&todo.task.request).first() {
            return Err(Some(missing.to_string()));
        }
        self.models[model].1.jobs.push((id, Arc::new(job)));
        Ok(())
    }

    fn note_not_downloaded(&mut self, model: PathBuf, line: usize, problem: String) {
        match self.not_downloaded.iter_mut().find(|known| known.model == model) {
            Some(known) => known.images += 1,
            None => self.not_downloaded.push(NotDownloaded { model, line, problem, images: 1 }),
        }
    }

    /// Gives a job the schedule of an earlier one that has the same: a set may have many jobs, and a schedule takes some
    /// tens of KiB.
    fn share_schedule(&mut self, model: usize, job: &mut Job) -> Result<()> {
        let spans = job.spans(&self.models[model].1.model)?;
        let key = (model, job.schedule_key());
        job.share_spans(self.schedules.entry(key).or_insert(spans).clone());
        job.second_job_mut().map_or(Ok(()), |second| self.share_schedule(model, second))
    }

    /// The index of a model in the list.
    fn model(&mut self, name: Option<&PathBuf>) -> std::result::Result<usize, String> {
        let name = name.cloned();
        if let Some(known) = self.opened.get(&name) {
            return known.clone();
        }
        let opened = self.open(&name).map_err(|error| error.to_string());
        self.opened.insert(name, opened.clone());
        opened
    }

    fn open(&mut self, name: &Option<PathBuf>) -> Result<usize> {
        let path = locate_model(name.as_deref())?;
        // By its own name: blobs in the Hub's cache have no extension, so the link's name is used.
        let whole = path.canonicalize().map_err(Error::read(&path))?;
        if let Some(known) = self.models.iter().position(|(other, _)| *other == whole) {
            return Ok(known);
        }
        let model = Arc::new(ModelFolder::open_with(&path, &self.options.model_options)?);
        self.models.push((whole, OfModel { model, jobs: Vec::new() }));
        Ok(self.models.len() - 1)
    }

    fn find(&mut self, lora: &LoraUse) -> std::result::Result<(), String> {
        let folder = self.options.setups.first().and_then(|setup| setup.lora_dir.as_deref());
        let look = || find_lora(&lora.lora, folder).err().map(|error| error.to_string());
        self.loras.entry(lora.lora.clone()).or_insert_with(look).clone().map_or(Ok(()), Err)
    }
}

/// The option that an error is about.
fn name_of(error: &kiln_request::Error) -> Option<&'static str> {
    match error {
        kiln_request::Error::Value { name, .. } => Some(name),
        _ => None,
    }
}

/// Whether a model is named on the Hub, and is not in the cache.
fn is_on_hub(name: &Path) -> bool {
    let is_name = name.to_str().is_some_and(|name| name.starts_with("hf:") && name.parse::<HubReference>().is_ok());
    is_name && kiln_models::cached(name).is_err()
}

/// The control networks and images of a request that are not there. `hf:` names are looked up in the Hub's cache.
fn missing_files(request: &Request) -> Vec<kiln_files::Error> {
    let input = [("init", &request.init), ("mask", &request.mask)];
    let input = input.into_iter().filter_map(|(name, path)| Some((format!("`{name}`, an image"), path.as_ref()?)));
    let controls = request.controls.iter().flat_map(|control| {
        let net = Some(("`net` of a control: a control network's file, or its folder".to_string(), &control.net));
        [net, control.image.as_ref().map(|image| ("`controls`, an image".to_string(), image))]
    });
    let references = request.references.iter().map(|path| ("`references`, an image".to_string(), path));
    let is_missing = |path: &Path| {
        path != Path::new("-") && !path.exists() && !kiln_models::cached(path).is_ok_and(|found| found.is_some())
    };
    let all = input.chain(controls.flatten()).chain(references).filter(|(_, path)| is_missing(path));
    all.map(|(looked_for, path)| kiln_files::Error::NotFound { path: path.clone(), looked_for }).collect()
}
