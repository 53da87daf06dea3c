//! Requests from fields: the one reader of options for the command line, the lines of a job file, the routes of a server and
//! Python.

mod field;
mod unique;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_scheduler::{ScheduleChoice, SigmaRange, short_name};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use self::field::{JobField, job_fields};
pub use self::unique::UniqueJson;
use crate::options::{OPTIONS, OptionKind, OptionRow, Request};

/// A request with a model and a file name: a line of a job file, or the body of a route.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// The request.
    pub request: Request,
    /// The model's name or path.
    pub model: Option<PathBuf>,
    /// A pattern for the file's name.
    pub output: Option<String>,
}

/// An invalid field of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FieldError {
    /// The field as written; `None` if the problem concerns no single field.
    pub field: Option<String>,
    /// The problem, with the field's name.
    pub message: String,
}

impl From<String> for FieldError {
    fn from(message: String) -> Self {
        Self { field: None, message }
    }
}

/// Collects the fields of a job. Each value is parsed once, into the request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestBuilder {
    request: Request,
    /// The fields that were set. `false` stands for a `null`, which is the default.
    fields: Vec<(JobField, bool)>,
    /// The range of noise levels that the schedule's name includes: AUTOMATIC1111's "Karras" is not the id `karras`.
    named_range: Option<SigmaRange>,
    /// The values of [`JobField::OWN`].
    own: [Option<String>; 2],
}

impl RequestBuilder {
    /// The options of a request that differ from their defaults, and its prompt.
    pub fn of(request: &Request) -> Self {
        let mut this = Self::default();
        for row in changed(request) {
            row.copy(request, &mut this.request);
            this.fields.push((JobField::Option(row), true));
        }
        this
    }

    /// The fields of an object of JSON, checked one by one.
    ///
    /// # Errors
    /// [`FieldError`] with the field that is unknown, set twice or has a value of another type.
    pub fn of_object(object: Map<String, Value>) -> Result<Self, FieldError> {
        let mut this = Self::default();
        object.into_iter().try_for_each(|(name, value)| this.add(&name, value))?;
        Ok(this)
    }

    /// Sets a field that is not set yet.
    ///
    /// # Errors
    /// See [`Self::of_object`].
    pub fn add(&mut self, name: &str, value: Value) -> Result<(), FieldError> {
        let wrong = |message: String| FieldError { field: Some(short_name(name)), message };
        let field = JobField::named(name).map_err(wrong)?;
        let is_second = self.fields.iter().any(|(known, _)| *known == field);
        self.set_json(field, value).map_err(|problem| wrong(format!("{name}: {problem}")))?;
        if is_second { Err(wrong(format!("{} is set twice", field.name()))) } else { Ok(()) }
    }

    /// Sets a field in place of its former value.
    ///
    /// # Errors
    /// [`FieldError`] with the field that is unknown or has a value of another type.
    pub fn replace(&mut self, name: &str, value: Value) -> Result<(), FieldError> {
        self.fields.retain(|(field, _)| field.name() != name);
        self.add(name, value)
    }

    /// Sets a field to a value of JSON. `null` stands for its default.
    ///
    /// # Errors
    /// The expected values.
    pub fn set_json(&mut self, field: JobField, value: Value) -> Result<(), String> {
        let (row, value) = match (field, value) {
            (_, Value::Null) => {
                self.clear(field);
                return Ok(());
            }
            (_, Value::String(text)) => return self.set_text(field, &text),
            (JobField::Option(row), value) if !is_verbatim(row.kind) => (row, value),
            _ => return Err("expected a string".into()),
        };
        match (row.kind, value) {
            (OptionKind::Seed, value) if value.as_f64().is_some_and(|seed| seed < 0.0) => {
                self.clear(field);
                return Ok(());
            }
            (OptionKind::Loras, Value::Array(all)) => self.request.loras = items(all)?,
            (OptionKind::Controls, Value::Array(all)) => self.request.controls = items(all)?,
            (OptionKind::IpAdapters, Value::Array(all)) => self.request.ip_adapters = items(all)?,
            (OptionKind::Regions, Value::Array(all)) => self.request.regions = items(all)?,
            (_, value) => return self.put_checked(row, value),
        }
        self.mark(field, true);
        Ok(())
    }

    /// Sets a field to a text, as cells and forms have it.
    ///
    /// # Errors
    /// The expected values.
    pub fn set_text(&mut self, field: JobField, text: &str) -> Result<(), String> {
        let plain = text.trim();
        let row = match field {
            JobField::Option(row) => row,
            JobField::Own(i) => {
                self.own[i] = Some(text.into());
                self.mark(field, true);
                return Ok(());
            }
        };
        match row.kind {
            kind if is_verbatim(kind) => self.read(row, text),
            OptionKind::Seed if plain.parse::<i128>().is_ok_and(|seed| seed < 0) => {
                self.clear(field);
                Ok(())
            }
            OptionKind::Flag | OptionKind::Switch if ["on", "off"].contains(&plain) => self.read(row, plain),
            OptionKind::Form(_)
            | OptionKind::Borders
            | OptionKind::Loras
            | OptionKind::Controls
            | OptionKind::IpAdapters
            | OptionKind::Regions
            | OptionKind::Files
            | OptionKind::Size
            | OptionKind::Numbers => self.read(row, plain),
            // A number is a number if the field takes one; names of samplers and the like are text.
            _ if plain.parse::<Value>().is_ok_and(|value| self.put(row, &value).is_ok()) => Ok(()),
            _ => self.put_checked(row, plain.into()),
        }
    }

    /// Sets an option to an argument of the command line.
    ///
    /// # Errors
    /// The expected values.
    pub fn read(&mut self, row: &'static OptionRow, text: &str) -> Result<(), String> {
        row.value_mut(&mut self.request).read(text)?;
        self.mark_text(row, text);
        Ok(())
    }

    /// [`Self::read`] for a path, which may be any bytes.
    ///
    /// # Errors
    /// The expected values.
    pub fn read_path(&mut self, row: &'static OptionRow, path: &Path) -> Result<(), String> {
        row.value_mut(&mut self.request).read_path(path)?;
        self.mark(JobField::Option(row), true);
        Ok(())
    }

    /// Takes the fields of `other` in place of its own.
    pub fn overlay(&mut self, other: &Self) {
        for (field, has_value) in &other.fields {
            self.mark(*field, *has_value);
            match field {
                JobField::Option(row) => row.copy(&other.request, &mut self.request),
                JobField::Own(i) => self.own[*i].clone_from(&other.own[*i]),
            }
            if field.name() == SCHEDULER {
                self.named_range = other.named_range;
            }
        }
    }

    /// Leaves the fields to their defaults for which `is_kept` is false.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        let (kept, others) = std::mem::take(&mut self.fields).into_iter().partition(|(field, _)| is_kept(field.name()));
        let others: Vec<(JobField, bool)> = others;
        others.into_iter().for_each(|(field, _)| self.clear(field));
        self.fields = kept;
    }

    /// Whether a field has a value.
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, has_value)| *has_value && field.name() == name)
    }

    /// Whether no field was set.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The options that were set, in their order.
    pub fn rows(&self) -> impl Iterator<Item = &'static OptionRow> {
        self.fields.iter().filter_map(|(field, _)| field.row())
    }

    /// The request with the fields that were set until now.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The range of noise levels: that of the request, or that of the schedule's name.
    pub fn sigma_range(&self) -> Option<SigmaRange> {
        self.request.sigma_range.or(self.named_range)
    }

    /// The value of a field as JSON.
    pub fn json(&self, field: JobField) -> Value {
        match field {
            JobField::Option(row) => row.json(&self.request),
            JobField::Own(i) => self.own[i].clone().into(),
        }
    }

    /// The job.
    ///
    /// # Errors
    /// A message if the prompt is missing.
    pub fn build(self) -> Result<JobSpec, String> {
        if !self.has("prompt") {
            return Err("the job has no prompt".into());
        }
        let sigma_range = self.sigma_range();
        let Self { request, own: [model, output], .. } = self;
        Ok(JobSpec { request: Request { sigma_range, ..request }, model: model.map(PathBuf::from), output })
    }

    /// Leaves a field to its default.
    fn clear(&mut self, field: JobField) {
        match field {
            JobField::Option(row) => row.copy(&Request::default(), &mut self.request),
            JobField::Own(i) => self.own[i] = None,
        }
        if field.name() == SCHEDULER {
            self.named_range = None;
        }
        self.mark(field, false);
    }

    /// Records that a field was set.
    fn mark(&mut self, field: JobField, has_value: bool) {
        self.fields.retain(|(known, _)| *known != field);
        self.fields.push((field, has_value));
    }

    fn mark_text(&mut self, row: &'static OptionRow, text: &str) {
        if row.name == SCHEDULER {
            self.named_range = text.parse::<ScheduleChoice>().ok().and_then(|choice| choice.range);
        }
        self.mark(JobField::Option(row), true);
    }

    /// Sets an option to a value of JSON if it has the right type.
    fn put(&mut self, row: &'static OptionRow, value: &Value) -> Result<(), serde_json::Error> {
        row.set_json(&mut self.request, value)?;
        match value {
            Value::String(text) => self.mark_text(row, text),
            other => self.mark(JobField::Option(row), !other.is_null()),
        }
        Ok(())
    }

    /// [`Self::put`] with a message for users.
    fn put_checked(&mut self, row: &'static OptionRow, value: Value) -> Result<(), String> {
        let Err(problem) = self.put(row, &value) else { return Ok(()) };
        // Languages with one type of numbers write 512.0 for 512.
        if whole(&value).is_some_and(|whole| self.put(row, &whole).is_ok()) {
            return Ok(());
        }
        let mut scratch = Request::default();
        let examples = [(Value::from(1.5), "a number"), (1.into(), "a whole number"), (true.into(), "true or false")];
        let expected = examples.into_iter().find(|(example, _)| row.set_json(&mut scratch, example).is_ok());
        Err(match expected {
            Some((_, expected)) => format!("{} is not {expected}", short_name(&value.to_string())),
            None => problem.to_string(),
        })
    }
}

/// The option whose text includes a range of noise levels.
const SCHEDULER: &str = "scheduler";

impl JobSpec {
    /// The job of an object of JSON, with the fields of a line of a job file.
    ///
    /// # Errors
    /// See [`RequestBuilder::of_object`] and [`RequestBuilder::build`].
    pub fn of_object(object: Map<String, Value>) -> Result<Self, FieldError> {
        Ok(RequestBuilder::of_object(object)?.build()?)
    }

    /// The object in a text, for [`Self::of_object`].
    ///
    /// # Errors
    /// A message names the place at which the text is not JSON, or a field that is set twice.
    pub fn object(text: &[u8]) -> Result<Map<String, Value>, String> {
        let UniqueJson(value) =
            serde_json::from_slice(text).map_err(|error| format!("the job is not a JSON object: {error}"))?;
        match value {
            Value::Object(object) => Ok(object),
            _ => Err("expected an object, as in {\"prompt\": \"a red apple\"}".into()),
        }
    }
}

impl Request {
    /// The prompt, and the options that differ from their defaults, as JSON.
    pub fn changed_fields(&self) -> Map<String, Value> {
        changed(self).map(|row| (row.name.to_string(), row.json(self))).collect()
    }
}

/// The rows of [`Request::changed_fields`]. JSON has no values for numbers that are not finite.
fn changed(request: &Request) -> impl Iterator<Item = &'static OptionRow> {
    let is_changed = |row: &OptionRow| !row.value(request).is_default() && !row.json(request).is_null();
    OPTIONS.iter().filter(move |row| row.name == "prompt" || is_changed(row))
}

/// Whether texts of this type are values as they are.
fn is_verbatim(kind: OptionKind) -> bool {
    matches!(kind, OptionKind::Text | OptionKind::Folder | OptionKind::File | OptionKind::Model)
}

/// The items of a list, each an object or a text.
fn items<T: FromStr<Err = String> + DeserializeOwned>(all: Vec<Value>) -> Result<Vec<T>, String> {
    let item = |value| match value {
        Value::String(text) => text.parse(),
        other => serde_json::from_value(other).map_err(|error| error.to_string()),
    };
    all.into_iter().map(item).collect()
}

/// The whole number that a number with a point is, if f64 has all numbers of its size.
fn whole(value: &Value) -> Option<Value> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 2f64.powi(53))?;
    value.is_f64().then(|| Value::from(number as i64))
}

#[cfg(test)]
mod tests;
