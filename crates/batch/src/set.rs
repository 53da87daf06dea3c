//! All images of a set with their numbers.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use kiln_engine::Request;
use kiln_engine::limits::MAX_IMAGES;
use kiln_files::sha256;
use kiln_request::JobSpec;
use serde_json::{Map, Value, json};

use super::assignment::Assignment;
use super::grid::{Axis, combinations, count};
use super::names::{check_pattern, with_index};
use super::problems::Problems;
use super::source::JobFile;
use crate::error::{Error, Result};

/// The images of a job file in all combinations of some axes.
#[derive(Debug, Clone)]
pub struct JobSet {
    pub(crate) tasks: Vec<Task>,
    pub(crate) axes: Vec<Axis>,
    /// The problems of jobs that are no tasks.
    pub(crate) problems: Problems,
}

/// One image to generate.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Its number in the set, from 1.
    pub(crate) number: usize,
    /// The line of its job in the file.
    pub(crate) line: usize,
    /// The request for one image. Its seed may be random.
    pub(crate) request: Request,
    /// The model in the job.
    pub(crate) model: Option<PathBuf>,
    /// The pattern of its file name.
    pub(crate) output: Option<String>,
    /// The index of its value on each axis.
    pub(crate) place: Vec<usize>,
    /// Its key, a hash of its content.
    pub(crate) key: String,
}

impl JobSet {
    /// The images of `file`: `set` sets fields of all jobs and overrides the file, and `axes` set more of them in all
    /// combinations. Jobs without a model use `model`.
    ///
    /// # Errors
    /// [`Error::Job`] or [`Error::Jobs`] with the lines of all invalid jobs, [`kiln_engine::Error::Request`] if there are too
    /// many images or two axes of one field.
    pub fn new(file: &JobFile, set: &[Assignment], axes: Vec<Axis>, model: Option<&Path>) -> Result<Self> {
        let this = Self::with_problems(file, set, axes, model)?;
        this.problems.clone().result()?;
        Ok(this)
    }

    /// Like [`Self::new`], but invalid jobs are errors of [`BatchRun::plan`](crate::BatchRun::plan), which reports them with
    /// all others.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Request`] if there are too many images or two axes of one field.
    pub fn with_problems(file: &JobFile, set: &[Assignment], axes: Vec<Axis>, model: Option<&Path>) -> Result<Self> {
        for (i, axis) in axes.iter().enumerate() {
            if axes[..i].iter().any(|other| other.field == axis.field) {
                let expected = "one axis for each field".into();
                return Err(Error::value("grid", format!("two axes of {}", axis.field.name()), expected));
            }
        }
        let mut this = Self { tasks: Vec::new(), axes, problems: file.problems.clone() };
        let mut seen = HashMap::new();
        for entry in &file.entries {
            for place in combinations(&this.axes) {
                let mut fields = entry.fields.clone();
                let on_axes = this.axes.iter().zip(&place).map(|(axis, &i)| &axis.values[i].1);
                let of_all = set.iter().map(|Assignment(fields)| fields);
                of_all.chain(on_axes).for_each(|more| fields.overlay(more));
                let spec = fields.build();
                if let Err(problem) = spec.and_then(|spec| this.push(entry.line, spec, place, model, &mut seen)) {
                    this.problems.push(entry.line, problem);
                    break; // the others of this line have the same, or their number has no bound
                }
                if this.tasks.len() > MAX_IMAGES {
                    let expected = format!("at most {MAX_IMAGES} images in total");
                    let found = format!("{} jobs in {} combinations", file.entries.len(), count(&this.axes));
                    return Err(Error::value("the set", found, expected));
                }
            }
        }
        Ok(this)
    }

    /// Whether jobs of the file cannot be, so that [`BatchRun::plan`](crate::BatchRun::plan) refuses the set.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The requests of its images, one image each.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.tasks.iter().map(|task| &task.request)
    }

    /// The models of its images without duplicates.
    pub fn models(&self) -> BTreeSet<&Path> {
        self.tasks.iter().filter_map(|task| task.model.as_deref()).collect()
    }

    /// The refiners of its images without duplicates.
    pub fn refiners(&self) -> BTreeSet<&Path> {
        self.tasks.iter().filter_map(|task| task.request.refiner.as_deref()).collect()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds the images of a job.
    fn push(
        &mut self,
        line: usize,
        spec: JobSpec,
        place: Vec<usize>,
        model: Option<&Path>,
        seen: &mut HashMap<String, usize>,
    ) -> std::result::Result<(), String> {
        let JobSpec { mut request, model: named, mut output } = spec;
        let (counts, sizes) = (request.batch_count.take(), request.batch_size.take());
        let images = counts.unwrap_or(1).saturating_mul(sizes.unwrap_or(1));
        if !(1..=MAX_IMAGES).contains(&images) {
            return Err(format!("batch_count times batch_size is {images}, expected 1 to {MAX_IMAGES}"));
        }
        let is_one_of_several = images > 1 || count(&self.axes) > 1;
        if let Some(pattern) = &mut output {
            *pattern = check_pattern(pattern)?;
            if is_one_of_several {
                *pattern = with_index(pattern);
            }
        }
        let model = named.or_else(|| model.map(Path::to_path_buf));
        for i in 0..images as u64 {
            let mut request = request.clone();
            // Counted as in a single request: variations have the same seed and differ in the subseed.
            if request.subseed_strength.is_some_and(|strength| strength > 0.0) {
                request.subseed = request.subseed.map(|seed| seed.wrapping_add(i));
            } else {
                request.seed = request.seed.map(|seed| seed.wrapping_add(i));
            }
            let key = key(&request.changed_fields(), model.as_deref(), output.as_deref(), seen);
            let number = self.tasks.len() + 1;
            let (model, output, place) = (model.clone(), output.clone(), place.clone());
            self.tasks.push(Task { number, line, request, model, output, place, key });
        }
        Ok(())
    }
}

/// The key of an image, independent of its number: a hash of its request and of the number of equal requests before it.
fn key(
    changed: &Map<String, Value>,
    model: Option<&Path>,
    output: Option<&str>,
    seen: &mut HashMap<String, usize>,
) -> String {
    let asked = json!([changed, model, output]).to_string();
    let before = seen.entry(asked.clone()).or_insert(0);
    let times = Value::from(*before);
    *before += 1;
    sha256(format!("{asked}{times}").as_bytes())[..16].to_string() // 64 bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, set: &[&str], axes: &[&str]) -> Result<JobSet> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.jsonl");
        std::fs::write(&path, text).unwrap();
        let set: Vec<Assignment> = set.iter().map(|text| text.parse().unwrap()).collect();
        let axes = axes.iter().map(|text| text.parse().unwrap()).collect();
        JobSet::new(&JobFile::read(&path, None).unwrap(), &set, axes, None)
    }

    #[test]
    fn jobs_run_in_all_combinations() {
        let text = "{\"prompt\": \"a\", \"steps\": 3}\n{\"prompt\": \"b\", \"seed\": 1, \"batch_count\": 2}\n";
        let set = set(text, &["steps=5"], &["cfg=3,7"]).unwrap();
        let jobs: Vec<_> = set
            .tasks
            .iter()
            .map(|task| (task.number, task.line, &*task.request.prompt, task.request.cfg_scale, task.request.seed))
            .collect();
        let expected = [
            (1, 1, "a", Some(3.0), None),
            (2, 1, "a", Some(7.0), None),
            (3, 2, "b", Some(3.0), Some(1)),
            (4, 2, "b", Some(3.0), Some(2)),
            (5, 2, "b", Some(7.0), Some(1)),
            (6, 2, "b", Some(7.0), Some(2)),
        ];
        assert_eq!(jobs, expected);
        assert!(set.tasks.iter().all(|task| task.request.steps == Some(5)));
        assert_eq!(set.tasks.iter().map(|task| task.place[0]).collect::<Vec<_>>(), [0, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn keys_depend_on_content_and_not_on_position() {
        let keys = |text: &str| set(text, &[], &[]).unwrap().tasks.into_iter().map(|task| task.key).collect::<Vec<_>>();
        let (a, b) = ("{\"prompt\": \"a\"}", "{\"prompt\": \"b\", \"seed\": 1}");
        let two = keys(&format!("{a}\n{b}\n{a}"));
        assert!(two[0] != two[1] && two[0] != two[2], "the same job twice is two images");
        assert_eq!(keys(&format!("{b}\n{a}\n{a}")), [two[1].clone(), two[0].clone(), two[2].clone()]);
        assert_ne!(keys("{\"prompt\": \"b\", \"seed\": 2}"), two[1..2]);
    }

    #[test]
    fn impossible_sets_are_refused() {
        let message = |text: &str, axes: &[&str]| set(text, &[], axes).unwrap_err().to_string();
        let job = "{\"prompt\": \"a\"}";
        assert!(message("{\"steps\": 1}", &[]).contains("jobs.jsonl:1: the job has no prompt"));
        assert!(message(job, &["seed=1,2", "seed=3"]).contains("`grid` is two axes of seed"));
        assert!(message(job, &["seed=1..1000", "steps=1..101"]).contains("at most 100000 images"));
        assert!(message("{\"prompt\": \"a\", \"batch_count\": 0}", &[]).contains("batch_count times batch_size is 0"));
        assert!(message("{\"prompt\": \"a\", \"output\": \"../a.png\"}", &[]).contains(":1: output: "));
    }
}
