//! What of a set is to do: what the journal knows is done, and what is new gets its name and its seeds.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use kiln_engine::limits::{MAX_PICTURES, in_range, random_seed};
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

/// How a set is made.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// Where the pictures go, with the journal and the index. Made where it is missing.
    pub folder: PathBuf,
    /// Which part of the set.
    pub shard: Option<Shard>,
    /// Makes again what failed in a run before.
    pub retry: bool,
    /// Replaces files that are there and are none of the journal's.
    pub overwrite: bool,
    /// How many pictures the denoiser makes at once, at most.
    pub batch_size: BatchSize,
    /// One picture at a time, so that on a card too its bits do not depend on the others.
    pub deterministic: bool,
    /// What of the models is not what their folders or files say.
    pub model_options: ModelOptions,
    /// How models are run.
    pub setup: Setup,
    /// A sheet of all pictures.
    pub sheet: Option<ContactSheet>,
}

/// A set that is ready to be made.
#[derive(Debug)]
pub struct BatchRun {
    pub(super) todos: Vec<Todo>,
    pub(super) axes: Vec<Axis>,
    pub(super) journal: Journal,
    /// The pending ones, by their models.
    pub(super) models: Vec<OfModel>,
    pub(super) sheet: Option<PlannedFile>,
    pub(super) options: BatchOptions,
}

/// One picture, and how far it is.
#[derive(Debug, Clone)]
pub(crate) struct Todo {
    /// With its seeds.
    pub(crate) task: Task,
    pub(crate) planned: Planned,
    pub(crate) path: PathBuf,
    /// Whether a file with its name is its own, or an older self.
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
    /// Reads the journal of the folder, plans what is missing, and checks every job that is to be made against its model,
    /// whose weights are not read. Names and seeds are fixed in the journal from here on; where this fails, nothing was
    /// planned.
    ///
    /// # Errors
    /// [`Error::Busy`] where another process is at work on the same pictures, [`kiln_engine::Error::Files`] where a file would be
    /// overwritten, [`Error::Job`] with the line of a job that cannot be made or of a journal that is none,
    /// [`kiln_engine::Error::Value`] where two jobs have one name or the sheet cannot be, those of files.
    pub fn plan(set: JobSet, options: BatchOptions) -> Result<Self> {
        if let BatchSize::Of(size) = options.batch_size {
            in_range("batch_size", size, 1, MAX_PICTURES)?;
        }
        let folder = &options.folder;
        let sheet = options.sheet.as_ref().map(ContactSheet::plan).transpose()?;
        if !folder.is_dir() {
            // What stands in the way is told better by looking at it.
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

    /// How many pictures are in this part of the set.
    pub fn all(&self) -> usize {
        self.todos.len()
    }

    /// How many were made before.
    pub fn made(&self) -> usize {
        self.todos.iter().filter(|todo| matches!(todo.state, State::Made(_))).count()
    }

    /// How many failed before, and will not be tried.
    pub fn failed(&self) -> usize {
        self.todos.iter().filter(|todo| matches!(todo.state, State::Failed(_))).count()
    }

    /// Where the journal is.
    pub fn journal_path(&self) -> PathBuf {
        self.journal.path().to_path_buf()
    }

    /// Where a part's own file of this name is.
    pub(super) fn own_file(&self, stem: &str, ending: &str) -> PathBuf {
        let suffix = self.options.shard.map(Shard::suffix).unwrap_or_default();
        self.options.folder.join(format!("{stem}{suffix}{ending}"))
    }
}

/// What the journals of a folder know.
struct Known {
    own: Records,
    /// Those of other parts, or of the whole: a set may be split otherwise than before.
    others: Records,
}

/// Reads the other journals of the folder, which other processes may be writing to: those of other parts, not those of
/// parts that share pictures with `own`.
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

/// Which part of a set a file is the journal of, by its name; `Some(None)` is the whole. Other files are no journals,
/// such as journal-notes.jsonl.
fn part_of(path: &Path) -> Option<Option<Shard>> {
    let suffix = path.file_name()?.to_str()?.strip_prefix("journal")?.strip_suffix(".jsonl")?;
    if suffix.is_empty() { Some(None) } else { Shard::of_suffix(suffix).map(Some) }
}

impl Known {
    /// The names of files that were made.
    fn files(&self) -> HashSet<String> {
        let made = self.own.values().chain(self.others.values()).filter(|record| record.made.is_some());
        made.filter_map(|record| Some(record.planned.as_ref()?.file.clone())).collect()
    }

    /// What is known of a picture, and whether the own journal has it.
    fn take(&mut self, key: &str) -> (Record, bool) {
        match (self.own.remove(key), self.others.remove(key)) {
            (Some(own), Some(other)) if own.made.is_none() && other.made.is_some() => (other, true),
            (Some(own), _) => (own, true),
            (None, other) => (other.unwrap_or_default(), false),
        }
    }
}

/// The pictures with what is known of them, and what the journal has to be told.
fn plan(tasks: Vec<Task>, mut records: Known, options: &BatchOptions) -> Result<(Vec<Todo>, Vec<Line>)> {
    let owned = records.files();
    let known: Vec<(Record, bool)> = tasks.iter().map(|task| records.take(&task.key)).collect();
    // By whom names are taken: names that are planned stay, so that they come first.
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
        // A file of another size was changed by somebody, who wants to keep it; only where files are replaced may it be one
        // that stood there before the picture got its name.
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
            // A journal that lost its last lines does not know that the picture was made; the picture does.
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

/// Refuses to put a picture in the place of a folder or a device.
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

/// Whether a file is a picture by Kiln with the seeds of `request`.
fn is_made_by(path: &Path, request: &Request) -> bool {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let settings = is_file.then(|| ImageReport::read(path).ok()?.kiln).flatten();
    settings.is_some_and(|settings| {
        let varied = request.subseed.is_none() || settings.request.subseed == request.subseed;
        settings.request.seed == request.seed && varied
    })
}

/// Refuses names whose folders are other pictures (`a.png` and `a.png/b.png`), or files that are there.
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
                Err(kiln_files::Error::NotFound { .. }) => {} // it will be made
                other => other?,
            }
        }
    }
    Ok(())
}

/// Fixes the name and the seeds of a picture that is new.
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
