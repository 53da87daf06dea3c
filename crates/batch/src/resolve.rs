//! Checks every pending job against its model before anything is generated.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_engine::{DenoiserSpan, Job, LoraName, LoraUse, Setup, find_lora};
use kiln_models::{ModelFolder, locate_model};
use kiln_request::InputCache;

use super::plan::{BatchOptions, State, Todo};
use crate::error::{Error, Result};

/// The images of one model, ready to run.
#[derive(Debug)]
pub(super) struct OfModel {
    pub(super) model: Arc<ModelFolder>,
    /// With their places in the list of todos.
    pub(super) jobs: Vec<(usize, Arc<Job>)>,
}

impl OfModel {
    /// What does not suit the model, for all jobs.
    pub(super) fn advice(&self) -> impl Iterator<Item = String> {
        self.jobs.iter().flat_map(|(_, job)| job.advice(&self.model))
    }
}

/// Opens the models and resolves every pending job. No weights are read.
///
/// # Errors
/// [`Error::Job`] with the first line of `file` that cannot be made: a value that its model does not allow, a model or a
/// LoRA file that is missing. [`kiln_engine::Error::Request`] and [`kiln_engine::Error::Files`] for what is said for all jobs.
pub(super) fn resolve(todos: &[Todo], file: &str, options: &BatchOptions) -> Result<Vec<OfModel>> {
    options.setups.iter().try_for_each(Setup::check)?;
    let mut resolver = Resolver {
        options,
        models: Vec::new(),
        opened: HashMap::new(),
        loras: HashMap::new(),
        schedules: HashMap::new(),
        inputs: InputCache::default(),
    };
    let mut first: Option<(usize, String)> = None;
    let mut bad = 0;
    for (id, todo) in todos.iter().enumerate().filter(|(_, todo)| todo.state == State::Pending) {
        if let Err(problem) = resolver.add(id, todo) {
            bad += 1;
            first.get_or_insert((todo.task.line, problem));
        }
    }
    match first {
        None => Ok(resolver.models.into_iter().map(|(_, of_model)| of_model).collect()),
        Some((line, mut problem)) => {
            if bad > 1 {
                problem += &format!("; {bad} images of this file are impossible, this is the first");
            }
            Err(Error::Job { file: file.into(), line, problem })
        }
    }
}

struct Resolver<'a> {
    options: &'a BatchOptions,
    models: Vec<(PathBuf, OfModel)>,
    /// The models by the names in jobs, or their errors.
    opened: HashMap<Option<PathBuf>, std::result::Result<usize, String>>,
    /// LoRA files that were located, and their errors.
    loras: HashMap<LoraName, Option<String>>,
    /// The schedules of the jobs so far, by all that they are made from.
    schedules: HashMap<(usize, String), Arc<[DenoiserSpan]>>,
    /// The input images of the jobs that came last.
    inputs: InputCache,
}

impl Resolver<'_> {
    fn add(&mut self, id: usize, todo: &Todo) -> std::result::Result<(), String> {
        let model = self.model(todo.task.model.as_ref())?;
        let of_model = &self.models[model].1.model;
        let job = todo.task.request.resolve_with(of_model, &mut self.inputs).map_err(|error| error.to_string())?;
        // Images are read again when they are needed: 10,000 of them would not fit into memory.
        let mut job = job.without_pixels();
        self.share_schedule(model, &mut job).map_err(|error| error.to_string())?;
        job.loras.iter().try_for_each(|lora| self.find(lora))?;
        self.models[model].1.jobs.push((id, Arc::new(job)));
        Ok(())
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
