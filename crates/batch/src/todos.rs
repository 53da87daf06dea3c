//! The images of a set: their names and seeds, and which of them are finished.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use kiln_engine::limits::random_seed;
use kiln_engine::{ImageReport, Request};
use kiln_files::{check_folder, folder_of};

use super::journal::{Line, Made, Planned, Record, Records};
use super::names::{file_name, is_fixed, with_suffix};
use super::plan::BatchOptions;
use super::problems::Problems;
use super::set::Task;
use crate::error::{Error, Result};

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

/// The contents of the journals in a folder.
pub(super) struct Known {
    pub(super) own: Records,
    /// The records of other shards or of the whole set, which may have been split differently before.
    pub(super) others: Records,
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

/// The images with their states, and the lines to append to the journal. An image that cannot have its name is one of
/// `problems`.
pub(super) fn plan(
    tasks: Vec<Task>,
    mut records: Known,
    options: &BatchOptions,
    problems: &mut Problems,
) -> (Vec<Todo>, Vec<Line>) {
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
    for (mut task, (Record { planned, made, failed, .. }, is_own)) in tasks.into_iter().zip(known) {
        let is_new = planned.is_none();
        let planned = match planned.map_or_else(|| plan_one(&task, &mut taken), Ok) {
            Ok(planned) => planned,
            Err(error) => {
                problems.push(task.line, error.to_string());
                continue;
            }
        };
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
            // A journal that lost its last lines does not contain the finished image; the file itself shows it.
            replace |= !is_new && is_made_by(&path, &task.request);
            if let Err(error) = check_place(&path, replace) {
                problems.push(task.line, error.to_string());
            }
        }
        todos.push(Todo { task, planned, path, replace, state });
    }
    check_folders(&todos, &taken, &options.folder, problems);
    (todos, lines)
}

/// Fails if a folder or a device has the image's name, or a file that must not be replaced.
fn check_place(path: &Path, replace: bool) -> Result<()> {
    match path.metadata() {
        Ok(found) if !found.is_file() => {
            let found = format!("'{}'", path.display());
            let expected = "the name of a regular file; there is a folder or a device of that name".into();
            Err(Error::value("output", found, expected))
        }
        _ if !replace && path.symlink_metadata().is_ok() => Err(kiln_files::Error::Exists(path.to_path_buf()).into()),
        _ => Ok(()),
    }
}

/// Renames the images that a killed process had written and recorded, and not yet renamed.
pub(super) fn adopt(own: &mut Records, options: &BatchOptions) {
    for record in own.values_mut() {
        let (Some(planned), Some(made), Some(part)) = (&record.planned, &record.made, &record.part) else { continue };
        let path = options.folder.join(&planned.file);
        let part = folder_of(&path).join(part);
        let size = |path: &Path| path.symlink_metadata().ok().filter(|file| file.is_file()).map(|file| file.len());
        let is_free = match path.symlink_metadata() {
            Ok(found) => options.overwrite && found.is_file() && found.len() != made.bytes,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        let request = Request { seed: Some(planned.seed), subseed: planned.subseed, ..Request::default() };
        if is_free && size(&part) == Some(made.bytes) && is_made_by(&part, &request) {
            match std::fs::rename(&part, &path) {
                Ok(()) => tracing::info!("{}: a run that was killed had finished it", path.display()),
                Err(error) => tracing::info!("{}: {error}; it is generated again", part.display()),
            }
        }
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

/// Finds names whose folders are other images (`a.png` and `a.png/b.png`) or existing files.
fn check_folders(todos: &[Todo], taken: &HashMap<String, usize>, folder: &Path, problems: &mut Problems) {
    let mut checked = HashSet::new();
    for todo in todos {
        for above in Path::new(&todo.planned.file).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if !checked.insert(above.to_path_buf()) {
                continue;
            }
            let line = todo.task.line;
            if let Some(other) = above.to_str().and_then(|above| taken.get(above)) {
                let found = format!("'{}' in line {line}", todo.planned.file);
                let expected = format!("another folder; {} is an image, in line {other}", above.display());
                problems.push(line, Error::value("output", found, expected).to_string());
                continue;
            }
            match check_folder(&folder.join(above), "a folder for images") {
                Ok(()) | Err(kiln_files::Error::NotFound { .. }) => {} // it will be created
                Err(error) => problems.push(line, error.to_string()),
            }
        }
    }
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
