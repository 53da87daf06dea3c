//! Plans a set: finds finished images in the journal, and fixes names and seeds of new ones.

use std::path::{Path, PathBuf};

use kiln_engine::limits::{MAX_IMAGES, in_range};
use kiln_engine::{BatchSize, Setup};
use kiln_files::{PlannedFile, check_folder, folder_of};
use kiln_models::ModelOptions;

use super::grid::Axis;
use super::journal::{Journal, Line, Record, Records};
use super::problems::Problems;
use super::resolve::{NotDownloaded, OfModel, Resolved, resolve};
use super::set::JobSet;
use super::shard::Shard;
use super::sheet::{ContactSheet, check_name};
use super::todos::{Known, State, Todo, adopt, plan};
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

impl BatchRun {
    /// Reads the journal of the folder, plans missing images, and checks every pending job against its model without
    /// reading weights. On success, names and seeds are fixed in the journal; on failure nothing was planned or created.
    ///
    /// # Errors
    /// [`Error::Busy`] where another process is at work on the same images; [`Error::Job`] or [`Error::Jobs`] with the lines of all
    /// jobs that cannot be made, or of a journal that is none; [`kiln_engine::Error::Request`] where the sheet cannot be; those of
    /// files.
    pub fn plan(set: JobSet, options: BatchOptions) -> Result<Self> {
        let sheet = check_options(&options)?;
        let (folder, path) = (&options.folder, options.own_file("journal", ".jsonl"));
        // A new folder is created when all jobs are right.
        let opened = if path.symlink_metadata().is_ok() { Some(Journal::open(&path)?) } else { None };
        let (journal, mut own) = opened.map_or((None, Records::new()), |(journal, own)| (Some(journal), own));
        if journal.is_some() {
            adopt(&mut own, &options);
        }
        let known = Known { own, others: others(&path, folder, options.shard)? };
        let SetPlan { todos, lines, models, .. } = SetPlan::of(&set, known, &options, sheet.as_ref())?.checked()?;
        let mut journal = match journal {
            Some(journal) => {
                sheet.as_ref().map_or(Ok(()), PlannedFile::check_folder)?;
                journal
            }
            None => {
                create_folder(folder, sheet.as_ref(), &todos)?;
                let (journal, own) = Journal::open(&path)?;
                // Another process may have begun meanwhile, also with a part that shares images.
                if !own.is_empty() {
                    return Err(Error::Busy(path));
                }
                others(&path, folder, options.shard)?;
                journal
            }
        };
        journal.append(&lines)?;
        Ok(Self { todos, axes: set.axes, journal, models, sheet, options })
    }

    /// Checks a set as [`Self::plan`] does, and finds what it would refuse. Nothing is created, written or downloaded.
    ///
    /// # Errors
    /// See [`Self::plan`], but for the jobs.
    pub fn check(set: &JobSet, options: &BatchOptions) -> Result<Checked> {
        let sheet = check_options(options)?;
        let path = options.own_file("journal", ".jsonl");
        let own = if path.symlink_metadata().is_ok() { Journal::peek(&path)? } else { Records::new() };
        let known = Known { own, others: others(&path, &options.folder, options.shard)? };
        let SetPlan { todos, problems, not_downloaded, .. } = SetPlan::of(set, known, options, sheet.as_ref())?;
        let pending = todos.iter().filter(|todo| todo.state == State::Pending).count();
        Ok(Checked { problems: problems.sorted(), images: todos.len(), pending, not_downloaded })
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
        self.options.own_file(stem, ending)
    }
}

impl BatchOptions {
    fn own_file(&self, stem: &str, ending: &str) -> PathBuf {
        let suffix = self.shard.map(Shard::suffix).unwrap_or_default();
        self.folder.join(format!("{stem}{suffix}{ending}"))
    }
}

/// The result of [`BatchRun::check`].
#[derive(Debug, Clone)]
pub struct Checked {
    /// The problems of jobs, in the order of lines.
    pub problems: Problems,
    /// The images of the jobs that are right, or whose values are wrong for their model alone.
    pub images: usize,
    /// The number of them that a run would generate.
    pub pending: usize,
    /// Models on the Hub that are not in the cache: their jobs were not checked against them.
    pub not_downloaded: Vec<NotDownloaded>,
}

/// A set as a run would make it.
struct SetPlan {
    todos: Vec<Todo>,
    lines: Vec<Line>,
    models: Vec<OfModel>,
    problems: Problems,
    not_downloaded: Vec<NotDownloaded>,
}

impl SetPlan {
    fn of(set: &JobSet, known: Known, options: &BatchOptions, sheet: Option<&PlannedFile>) -> Result<Self> {
        let mut problems = set.problems.clone();
        let tasks = set.tasks.iter().filter(|task| options.shard.is_none_or(|shard| shard.has(task.number)));
        let (todos, lines) = plan(tasks.cloned().collect(), known, options, &mut problems);
        sheet.map_or(Ok(()), |sheet| check_name(sheet, &todos))?;
        let Resolved { models, not_downloaded } = resolve(&todos, options, &mut problems)?;
        Ok(Self { todos, lines, models, problems, not_downloaded })
    }

    /// The plan, if it has no problem.
    fn checked(mut self) -> Result<Self> {
        if self.problems.is_empty() {
            self.not_downloaded.iter().for_each(|one| self.problems.push(one.line, &*one.problem));
        }
        std::mem::take(&mut self.problems).result()?;
        Ok(self)
    }
}

/// Checks what does not depend on jobs, without creating anything.
fn check_options(options: &BatchOptions) -> Result<Option<PlannedFile>> {
    if let BatchSize::Of(size) = options.batch_size {
        in_range("batch_size", size, 1, MAX_IMAGES)?;
    }
    in_range("device", options.setups.len(), 1, MAX_ENGINES)?;
    let sheet = options.sheet.as_ref().map(ContactSheet::plan).transpose()?;
    if options.folder.symlink_metadata().is_ok() {
        check_folder(&options.folder, "a folder for the images")?;
    }
    // A sheet in a folder that the run creates is checked then.
    if let Some(sheet) = sheet.as_ref().filter(|sheet| folder_of(sheet.path()).exists()) {
        sheet.check_folder()?;
    }
    Ok(sheet)
}

/// Creates the folder for the images if it is missing. It is removed if the sheet cannot be written.
fn create_folder(folder: &Path, sheet: Option<&PlannedFile>, todos: &[Todo]) -> Result<()> {
    let is_new = !folder.is_dir();
    if is_new {
        // The check of the folder has a better error message.
        std::fs::create_dir_all(folder).map_err(|error| match check_folder(folder, "a folder for the images") {
            Err(problem @ kiln_files::Error::Read { .. }) => problem.into(),
            _ => Error::write(folder)(error),
        })?;
    }
    // Of a folder that was not there, only now all names are known: `./out/../out/a.png`.
    let check = |sheet: &PlannedFile| sheet.check_folder().map_err(Error::from).and_then(|()| check_name(sheet, todos));
    let checked = sheet.map_or(Ok(()), check);
    if is_new && checked.is_err() {
        let _ = std::fs::remove_dir(folder); // the error of the sheet is the one to report
    }
    checked
}

/// Reads the journals of the folder besides `journal`, which other processes may be writing: those of other shards except
/// shards that share images with `own`. A folder that is not there has none.
fn others(journal: &Path, folder: &Path, own: Option<Shard>) -> Result<Records> {
    let mut others = Records::new();
    if folder.symlink_metadata().is_err() {
        return Ok(others); // it will be created
    }
    let entries = std::fs::read_dir(folder).map_err(Error::read(folder))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| path != journal) {
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
