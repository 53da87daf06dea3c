//! All pictures of a set, numbered.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use kiln_engine::Request;
use kiln_engine::limits::MAX_PICTURES;
use kiln_files::sha256;
use serde_json::{Value, json};

use super::fields::{Assignment, Fields, Spec, said};
use super::grid::{Axis, combinations, count};
use super::names::{check_pattern, with_index};
use super::source::JobFile;
use crate::error::{Error, Result};

/// The pictures of a file of jobs, in all combinations of some axes.
#[derive(Debug, Clone)]
pub struct JobSet {
    /// What messages call the file of jobs.
    pub(crate) name: String,
    pub(crate) tasks: Vec<Task>,
    pub(crate) axes: Vec<Axis>,
}

/// One picture to make.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Its number in the set, from 1.
    pub(crate) number: usize,
    /// The line of the file that asks for it.
    pub(crate) line: usize,
    /// Asks for one picture. Its seed may be left to chance.
    pub(crate) request: Request,
    /// The model that it names.
    pub(crate) model: Option<PathBuf>,
    /// The pattern of its file's name.
    pub(crate) output: Option<String>,
    /// The number of its value on each axis.
    pub(crate) place: Vec<usize>,
    /// What it is known by.
    pub(crate) key: String,
}

impl JobSet {
    /// The pictures of `file`: `set` says fields of all jobs, whatever the file says, and `axes` more of them, in all
    /// combinations. Jobs that name no model get `model`.
    ///
    /// # Errors
    /// [`Error::Job`] with the line of a job that cannot be, [`kiln_engine::Error::Value`] where there are too many pictures or two axes
    /// of one field.
    pub fn new(file: &JobFile, set: &[Assignment], axes: Vec<Axis>, model: Option<&Path>) -> Result<Self> {
        for (i, axis) in axes.iter().enumerate() {
            if axes[..i].iter().any(|other| other.field == axis.field) {
                let expected = "one axis for each field".into();
                return Err(Error::value("grid", format!("two axes of {}", axis.field), expected));
            }
        }
        let mut this = Self { name: file.name.clone(), tasks: Vec::new(), axes };
        let mut seen = HashMap::new();
        for entry in &file.entries {
            let problem = |problem| Error::Job { file: file.name.clone(), line: entry.line, problem };
            for place in combinations(&this.axes) {
                let mut fields = entry.fields.clone();
                let on_axes = this.axes.iter().zip(&place).map(|(axis, &i)| (&axis.field, &axis.values[i].1));
                let of_all = set.iter().map(|Assignment { field, value }| (field, value));
                fields.extend(of_all.chain(on_axes).map(|(field, value)| (field.clone(), value.clone())));
                let spec = Spec::new(fields).map_err(problem)?;
                this.push(entry.line, spec, place, model, &mut seen).map_err(problem)?;
                if this.tasks.len() > MAX_PICTURES {
                    let expected = format!("at most {MAX_PICTURES} pictures in all");
                    let found = format!("{} jobs in {} combinations", file.entries.len(), count(&this.axes));
                    return Err(Error::value("the set", found, expected));
                }
            }
        }
        Ok(this)
    }

    /// How many pictures.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The models that its pictures name, each once.
    pub fn models(&self) -> BTreeSet<&Path> {
        self.tasks.iter().filter_map(|task| task.model.as_deref()).collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds the pictures of one job.
    fn push(
        &mut self,
        line: usize,
        spec: Spec,
        place: Vec<usize>,
        model: Option<&Path>,
        seen: &mut HashMap<String, usize>,
    ) -> std::result::Result<(), String> {
        let Spec { mut request, model: named, mut output } = spec;
        let (counts, sizes) = (request.batch_count.take(), request.batch_size.take());
        let pictures = counts.unwrap_or(1).saturating_mul(sizes.unwrap_or(1));
        if !(1..=MAX_PICTURES).contains(&pictures) {
            return Err(format!("batch_count times batch_size is {pictures}, expected 1 to {MAX_PICTURES}"));
        }
        let is_one_of_several = pictures > 1 || count(&self.axes) > 1;
        if let Some(pattern) = &mut output {
            *pattern = check_pattern(pattern)?;
            if is_one_of_several {
                *pattern = with_index(pattern);
            }
        }
        let model = named.or_else(|| model.map(Path::to_path_buf));
        for i in 0..pictures as u64 {
            let mut request = request.clone();
            // As one request counts: variations have one seed, and differ in the second.
            if request.subseed_strength.is_some_and(|strength| strength > 0.0) {
                request.subseed = request.subseed.map(|seed| seed.wrapping_add(i));
            } else {
                request.seed = request.seed.map(|seed| seed.wrapping_add(i));
            }
            let key = key(&said(&request), model.as_deref(), output.as_deref(), seen);
            let number = self.tasks.len() + 1;
            let (model, output, place) = (model.clone(), output.clone(), place.clone());
            self.tasks.push(Task { number, line, request, model, output, place, key });
        }
        Ok(())
    }
}

/// What a picture is known by, whatever its number: what is asked for, and how often it was asked for before.
fn key(said: &Fields, model: Option<&Path>, output: Option<&str>, seen: &mut HashMap<String, usize>) -> String {
    let asked = json!([said, model, output]).to_string();
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
    fn jobs_are_made_in_all_combinations() {
        let text = "{\"prompt\": \"a\", \"steps\": 3}\n{\"prompt\": \"b\", \"seed\": 1, \"batch_count\": 2}\n";
        let set = set(text, &["steps=5"], &["cfg=3,7"]).unwrap();
        let told: Vec<_> = set
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
        assert_eq!(told, expected);
        assert!(set.tasks.iter().all(|task| task.request.steps == Some(5)));
        assert_eq!(set.tasks.iter().map(|task| task.place[0]).collect::<Vec<_>>(), [0, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn keys_follow_what_is_asked_for_and_not_where() {
        let keys = |text: &str| set(text, &[], &[]).unwrap().tasks.into_iter().map(|task| task.key).collect::<Vec<_>>();
        let (a, b) = ("{\"prompt\": \"a\"}", "{\"prompt\": \"b\", \"seed\": 1}");
        let two = keys(&format!("{a}\n{b}\n{a}"));
        assert!(two[0] != two[1] && two[0] != two[2], "the same job twice is two pictures");
        assert_eq!(keys(&format!("{b}\n{a}\n{a}")), [two[1].clone(), two[0].clone(), two[2].clone()]);
        assert_ne!(keys("{\"prompt\": \"b\", \"seed\": 2}"), two[1..2]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let message = |text: &str, axes: &[&str]| set(text, &[], axes).unwrap_err().to_string();
        let job = "{\"prompt\": \"a\"}";
        assert!(message("{\"steps\": 1}", &[]).contains("jobs.jsonl:1: the job has no prompt"));
        assert!(message(job, &["seed=1,2", "seed=3"]).contains("`grid` is two axes of seed"));
        assert!(message(job, &["seed=1..1000", "steps=1..101"]).contains("at most 100000 pictures"));
        assert!(message("{\"prompt\": \"a\", \"batch_count\": 0}", &[]).contains("batch_count times batch_size is 0"));
        assert!(message("{\"prompt\": \"a\", \"output\": \"../a.png\"}", &[]).contains(":1: output: "));
    }
}
