//! Plans a set: finds finished images in the journal, and fixes names and seeds of new ones.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use kiln_engine::limits::{MAX_IMAGES, in_range, random_seed};
use kiln_engine::{BatchSize, ImageReport, Request, Setup};
use kiln_files::{PlannedFile, check_folder};
use kiln_models::ModelOptions;

use super::grid::Axis;
use super::journal::{Journal, Line, Made, Planned, Record, Records};
use super::names::{file_name, is_fixed, with_suffix};
use super::resolve::{OfModel, resolve};
use super::set::{JobSet, Task};
use super::shard::Shard;
use super::sheet::{ContactSheet, check_name};
use crate::error::{Error, Result};

/// The most engines of a run.
const MAX_ENGINES: usize = 256;

/// Options of a batch run.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The folder for the images, the journal and the index. Created if missing.
    pub folder: PathBuf,
    /// The shard of the set.
    pub shard: Option<Shard>,
    /// Generates failed images of earlier runs again.
    pub retry: bool,
    /// Replaces existing files that are not in the journal.
    pub overwrite: bool,
    /// The maximum batch size of the denoiser.
    pub batch_size: BatchSize,
    /// One image at a time, so that its bits do not depend on the others on a GPU either.
    pub deterministic: bool,
    /// Overrides of the models' files.
    pub model_options: ModelOptions,
    /// How models run: an engine for each, all of which take from the set.
    pub setups: Vec<Setup>,
    /// A contact sheet of all images.
    pub sheet: Option<ContactSheet>,
}

/// A set that is ready to run.
#[derive(Debug)]
pub struct BatchRun {
    pub(super) todos: Vec<Todo>,
    pub(super) axes: Vec<Axis>,
    pub(super) journal: Journal,
    /// The pending images by model.
    pub(super) models: Vec<OfModel>,
    pub(super) sheet: Option<PlannedFile>,
    pub(super) options: BatchOptions,
}

/// One image and its state.
#[derive(Debug, Clone)]
pub(crate) struct Todo {
    /// With all seeds.
    pub(crate) task: Task,
    pub(crate) planned: Planned,
    pub(crate) path: PathBuf,
    /// Whether an existing file with its name is its own or an earlier version of it.
    pub(crate) replace: bool,
    pub(crate) state: State,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Pending,
    Made(Made),
    Failed(String),
}

impl BatchRun {
    /// Reads the journal of the folder, plans missing images, and checks every pending job against its model without
    /// reading weights. On success, names and seeds are fixed in the journal; on failure nothing was planned.
    ///
    /// # Errors
    /// [`Error::Busy`] where another process is at work on the same images, [`kiln_engine::Error::Files`] where a file would be
    /// overwritten, [`Error::Job`] with the line of a job that cannot be made or of a journal that is none,
    /// [`kiln_engine::Error::Request`] where two jobs have one name or the sheet cannot be, those of files.
    pub fn plan(set: JobSet, options: BatchOptions) -> Result<Self> {
        if let BatchSize::Of(size) = options.batch_size {
            in_range("batch_size", size, 1, MAX_IMAGES)?;
        }
        in_range("device", options.setups.len(), 1, MAX_ENGINES)?;
        let folder = &options.folder;
        let sheet = options.sheet.as_ref().map(ContactSheet::plan).transpose()?;
        if !folder.is_dir() {
            // The check of the folder has a better error message.
            std::fs::create_dir_all(folder).map_err(|error| match check_folder(folder, "a folder for the images") {
                Err(problem @ kiln_files::Error::Read { .. }) => problem.into(),
                _ => Error::write(folder)(error),
            })?;
        }
        sheet.as_ref().map_or(Ok(()), PlannedFile::check_folder)?;
        let suffix = options.shard.map(Shard::suffix).unwrap_or_default();
        let (mut journal, own) = Journal::open(&folder.join(format!("journal{suffix}.jsonl")))?;
        let records = Known { own, others: others(&journal, folder, options.shard)? };
        let JobSet { name, tasks, axes } = set;
        let tasks = tasks.into_iter().filter(|task| options.shard.is_none_or(|shard| shard.has(task.number)));
        let (todos, lines) = plan(tasks.collect(), records, &options)?;
        sheet.as_ref().map_or(Ok(()), |sheet| check_name(sheet, &todos))?;
        let models = resolve(&todos, &name, &options)?;
        journal.append(&lines)?;
        Ok(Self { todos, axes, journal, models, sheet, options })
    }

    /// The number of images in this shard.
    pub fn all(&self) -> usize {
        self.todos.len()
    }

    /// The number of images that were finished before.
    pub fn made(&self) -> usize {
        self.todos.iter().filter(|todo| matches!(todo.state, State::Made(_))).count()
    }

    /// The number of images that failed before and will not be tried.
    pub fn failed(&self) -> usize {
        self.todos.iter().filter(|todo| matches!(todo.state, State::Failed(_))).count()
    }

    /// The journal's path.
    pub fn journal_path(&self) -> PathBuf {
        self.journal.path().to_path_buf()
    }

    /// The path of a shard's own file with this name.
    pub(super) fn own_file(&self, stem: &str, ending: &str) -> PathBuf {
        let suffix = self.options.shard.map(Shard::suffix).unwrap_or_default();
        self.options.folder.join(format!("{stem}{suffix}{ending}"))
    }
}

/// The contents of the journals in a folder.
struct Known {
    own: Records,
    /// Those of other shards or of the whole set, which may have been split differently before.
    others: Records,
}

/// Reads the other journals of the folder, which other processes may be writing: those of other shards except shards
/// that share images with `own`.
fn others(journal: &Journal, folder: &Path, own: Option<Shard>) -> Result<Records> {
    let mut others = Records::new();
    let entries = std::fs::read_dir(folder).map_err(Error::read(folder))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| path != journal.path()) {
        let Some(part) = part_of(&path) else { continue };
        let shares = part.zip(own).is_none_or(|(part, own)| part.overlaps(own));
        if shares && Journal::is_written(&path)? {
            return Err(Error::Busy(path));
        }
        for (key, record) in Journal::peek(&path)? {
            let known: &mut Record = others.entry(key).or_default();
            if known.made.is_none() {
                *known = record;
            }
        }
    }
    Ok(others)
}

/// The shard of a journal by its file name; `Some(None)` is the whole set. Other files are not journals, for example
/// journal-notes.jsonl.
fn part_of(path: &Path) -> Option<Option<Shard>> {
    let suffix = path.file_name()?.to_str()?.strip_prefix("journal")?.strip_suffix(".jsonl")?;
    if suffix.is_empty() { Some(None) } else { Shard::of_suffix(suffix).map(Some) }
}

impl Known {
    /// The names of finished files.
    fn files(&self) -> HashSet<String> {
        let made = self.own.values().chain(self.others.values()).filter(|record| record.made.is_some());
        made.filter_map(|record| Some(record.planned.as_ref()?.file.clone())).collect()
    }

    /// The state of an image, and whether the own journal has it.
    fn take(&mut self, key: &str) -> (Record, bool) {
        match (self.own.remove(key), self.others.remove(key)) {
            (Some(own), Some(other)) if own.made.is_none() && other.made.is_some() => (other, true),
            (Some(own), _) => (own, true),
            (None, other) => (other.unwrap_or_default(), false),
        }
    }
}

/// The images with their states, and the lines to append to the journal.
fn plan(tasks: Vec<Task>, mut records: Known, options: &BatchOptions) -> Result<(Vec<Todo>, Vec<Line>)> {
    let owned = records.files();
    let known: Vec<(Record, bool)> = tasks.iter().map(|task| records.take(&task.key)).collect();
    // The owners of names: planned names are fixed, so they are added first.
    let mut taken: HashMap<String, usize> = HashMap::new();
    for (task, (record, _)) in tasks.iter().zip(&known) {
        if let Some(planned) = &record.planned {
            taken.insert(planned.file.clone(), task.line);
        }
    }
    let (mut todos, mut lines) = (Vec::with_capacity(tasks.len()), Vec::new());
    for (mut task, (Record { planned, made, failed }, is_own)) in tasks.into_iter().zip(known) {
        let is_new = planned.is_none();
        let planned = planned.map_or_else(|| plan_one(&task, &mut taken), Ok)?;
        if !is_own {
            lines.push(Line::Plan { plan: task.key.clone(), planned: planned.clone() });
        }
        task.request.seed = Some(planned.seed);
        task.request.subseed = planned.subseed.or(task.request.subseed);
        let path = options.folder.join(&planned.file);
        // A file with another size was changed by someone and is kept; with `overwrite` it may be a file that existed
        // before the image was renamed.
        let is_it = |file: std::fs::Metadata, made: &Made| file.len() == made.bytes || !options.overwrite;
        let there = |made: &Made| path.metadata().is_ok_and(|file| file.is_file() && is_it(file, made));
        let mut replace = options.overwrite || made.is_some() || owned.contains(&planned.file);
        let state = match (made.filter(there), failed) {
            (Some(made), _) => State::Made(made),
            (None, Some(error)) if !options.retry => State::Failed(error),
            _ => State::Pending,
        };
        if state == State::Pending {
            check_regular(&path)?;
            // A journal that lost its last lines does not contain the finished image; the file itself shows it.
            replace |= !is_new && is_made_by(&path, &task.request);
            if !replace && path.symlink_metadata().is_ok() {
                return Err(kiln_files::Error::Exists(path).into());
            }
        }
        todos.push(Todo { task, planned, path, replace, state });
    }
    check_folders(&todos, &taken, &options.folder)?;
    Ok((todos, lines))
}

/// Fails if a folder or a device has the image's name.
fn check_regular(path: &Path) -> Result<()> {
    match path.metadata() {
        Ok(found) if !found.is_file() => {
            let found = format!("'{}'", path.display());
            let expected = "the name of a regular file; there is a folder or a device of that name".into();
            Err(Error::value("output", found, expected))
        }
        _ => Ok(()),
    }
}

/// Whether a file is an image that Kiln wrote with the seeds of `request`.
fn is_made_by(path: &Path, request: &Request) -> bool {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let settings = is_file.then(|| ImageReport::read(path).ok()?.kiln).flatten();
    settings.is_some_and(|settings| {
        let varied = request.subseed.is_none() || settings.request.subseed == request.subseed;
        settings.request.seed == request.seed && varied
    })
}

/// Fails for names whose folders are other images (`a.png` and `a.png/b.png`) or existing files.
fn check_folders(todos: &[Todo], taken: &HashMap<String, usize>, folder: &Path) -> Result<()> {
    let mut checked = HashSet::new();
    for todo in todos {
        for above in Path::new(&todo.planned.file).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if !checked.insert(above.to_path_buf()) {
                continue;
            }
            if let Some(line) = above.to_str().and_then(|above| taken.get(above)) {
                let found = format!("'{}' in line {}", todo.planned.file, todo.task.line);
                let expected = format!("another folder; {} is an image, in line {line}", above.display());
                return Err(Error::value("output", found, expected));
            }
            match check_folder(&folder.join(above), "a folder for images") {
                Err(kiln_files::Error::NotFound { .. }) => {} // it will be created
                other => other?,
            }
        }
    }
    Ok(())
}

/// Fixes the name and the seeds of a new image.
fn plan_one(task: &Task, taken: &mut HashMap<String, usize>) -> Result<Planned> {
    let Task { number, line, request, output, .. } = task;
    let seed = request.seed.unwrap_or_else(random_seed);
    let varied = request.subseed_strength.is_some_and(|strength| strength > 0.0) && request.subseed.is_none();
    let subseed = varied.then(random_seed);
    let pattern = output.as_deref();
    let name = file_name(pattern, *number, seed);
    let mut file = name.clone();
    for i in 2.. {
        let Some(other) = taken.get(&file) else { break };
        if pattern.is_some_and(is_fixed) {
            let found = format!("'{file}' in line {line}, and in line {other}");
            let expected = "a name for each job; {index} and {seed} may be in it".into();
            return Err(Error::value("output", found, expected));
        }
        file = with_suffix(&name, &format!("-{i}"));
    }
    taken.insert(file.clone(), *line);
    Ok(Planned { number: *number, file, seed, subseed })
}
