//! The fields of a job: the options of a request by any of their names, and `model` and `output`.

use std::path::PathBuf;
use std::str::FromStr;

use kiln_engine::{ControlUse, IpAdapterUse, LoraUse, OPTIONS, OptionKind, Request, find_option, nearest_option};
use kiln_request::{OptionGroup, OptionRow};
use kiln_scheduler::{MAX_NAME, ScheduleChoice, short_name};
use serde::Serialize;
use serde_json::{Map, Value};

use super::unique::Unique;

/// The fields of a job that are not options of a request.
const MODEL: &str = "model";
const OUTPUT: &str = "output";
/// Their names.
pub(crate) const JOB_FIELDS: [&str; 2] = [MODEL, OUTPUT];

/// Fields with their values, by their long names.
pub(crate) type Fields = Map<String, Value>;

/// One job as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// The request.
    pub request: Request,
    /// The model's name or path.
    pub model: Option<PathBuf>,
    /// A pattern for the file's name.
    pub output: Option<String>,
}

/// `key=value`: a field for every job.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    pub(crate) field: String,
    pub(crate) value: Value,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected a field and its value, as in steps=30")?;
        let field = long_name(name)?;
        let value = of_text(&field, value).map_err(|problem| format!("{field}: {problem}"))?;
        Ok(Self { field, value })
    }
}

/// The long name of a field.
pub(crate) fn long_name(name: &str) -> Result<String, String> {
    let plain = if name.len() > MAX_NAME { String::new() } else { name.trim().to_ascii_lowercase() };
    if let Some(long) = find_option(&plain).map(|row| row.name).or(JOB_FIELDS.into_iter().find(|own| *own == plain)) {
        return Ok(long.to_string());
    }
    let (name, nearest) = (short_name(name.trim()), nearest_option(name, &JOB_FIELDS));
    Err(format!("unknown field `{name}`{nearest}"))
}

/// Whether a field has this name.
pub(crate) fn is_field(name: &str) -> bool {
    let plain = name.trim().to_ascii_lowercase();
    find_option(&plain).is_some() || JOB_FIELDS.contains(&&*plain)
}

/// The type of a field.
fn kind(field: &str) -> OptionKind {
    find_option(field).map_or(OptionKind::Text, |row| row.kind) // a model and an output are texts
}

/// The value of a field as JSON has it. `Null` leaves it to its default.
pub(crate) fn of_json(field: &str, value: Value) -> Result<Value, String> {
    match (kind(field), value) {
        (_, Value::Null) => Ok(Value::Null),
        (_, Value::String(text)) => of_text(field, &text),
        (OptionKind::Text | OptionKind::Folder | OptionKind::File | OptionKind::Model, _) => {
            Err("expected a string".into())
        }
        (OptionKind::Seed, value) if value.as_f64().is_some_and(|seed| seed < 0.0) => Ok(Value::Null),
        (kind @ (OptionKind::Loras | OptionKind::Controls | OptionKind::IpAdapters), Value::Array(all)) => {
            let one = |value: Value| match (value, kind) {
                (Value::String(text), OptionKind::Loras) => value_of::<LoraUse>(&text),
                (Value::String(text), OptionKind::IpAdapters) => value_of::<IpAdapterUse>(&text),
                (Value::String(text), _) => value_of::<ControlUse>(&text),
                (other, _) => Ok(other),
            };
            checked(field, all.into_iter().map(one).collect::<Result<Vec<_>, _>>()?.into())
        }
        (_, value) => checked(field, value),
    }
}

/// The value of a field that somebody wrote as text.
pub(crate) fn of_text(field: &str, text: &str) -> Result<Value, String> {
    match kind(field) {
        OptionKind::Text | OptionKind::Folder | OptionKind::File | OptionKind::Model => return Ok(text.into()),
        OptionKind::Seed if text.trim().parse::<i128>().is_ok_and(|seed| seed < 0) => return Ok(Value::Null),
        OptionKind::Flag | OptionKind::Switch if ["on", "off"].contains(&text.trim()) => {
            return Ok((text.trim() == "on").into());
        }
        OptionKind::Form(_)
        | OptionKind::Borders
        | OptionKind::Loras
        | OptionKind::Controls
        | OptionKind::IpAdapters
        | OptionKind::Files
        | OptionKind::Size
        | OptionKind::Numbers => {
            let mut request = Request::default();
            let row = find_option(field).ok_or("expected a field of a request")?;
            row.value_mut(&mut request).read(text.trim())?;
            let value = serde_json::to_value(request).map_err(|error| error.to_string())?;
            return Ok(value.get(row.name).cloned().unwrap_or_default());
        }
        _ => {}
    }
    let text = text.trim();
    // A number is a number where the field takes one; names of samplers and the like are text.
    if let Some(value) = text.parse::<Value>().ok().filter(|value| check(field, value).is_ok()) {
        return Ok(value);
    }
    checked(field, text.into())
}

/// The JSON of a part of a list that somebody wrote as text.
fn value_of<T: FromStr<Err = String> + Serialize>(text: &str) -> Result<Value, String> {
    serde_json::to_value(text.parse::<T>()?).map_err(|error| error.to_string())
}

fn checked(field: &str, value: Value) -> Result<Value, String> {
    match check(field, &value) {
        Ok(()) => Ok(value),
        // Languages with one type of numbers write 512.0 for 512.
        Err(_) if whole(&value).is_some_and(|whole| check(field, &whole).is_ok()) => Ok(whole(&value).unwrap_or(value)),
        Err(problem) => {
            let expected = expected(field);
            Err(expected.map_or(problem, |expected| format!("{} is not {expected}", short_name(&value.to_string()))))
        }
    }
}

/// The whole number that a number with a point is, as far as f64 has all of them.
fn whole(value: &Value) -> Option<Value> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 2f64.powi(53))?;
    value.is_f64().then(|| Value::from(number as i64))
}

/// Whether the request takes this value.
fn check(field: &str, value: &Value) -> Result<(), String> {
    let fields = Fields::from_iter([(field.to_string(), value.clone())]);
    serde_json::from_value::<Request>(fields.into()).map(drop).map_err(|error| error.to_string())
}

/// The values that a field of numbers or switches takes.
fn expected(field: &str) -> Option<&'static str> {
    let kinds = [(Value::from(1.5), "a number"), (1.into(), "a whole number"), (true.into(), "true or false")];
    kinds.into_iter().find(|(example, _)| check(field, example).is_ok()).map(|(_, kind)| kind)
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

impl From<FieldError> for String {
    fn from(error: FieldError) -> Self {
        error.message
    }
}

/// The fields of a job that is an object of JSON, checked one by one.
pub(crate) fn fields_of_json(object: Map<String, Value>) -> Result<Fields, FieldError> {
    let mut fields = Fields::new();
    object.into_iter().try_for_each(|(name, value)| add_field(&mut fields, &name, value))?;
    Ok(fields)
}

/// Adds a field of an object of JSON to those before it.
pub(crate) fn add_field(fields: &mut Fields, name: &str, value: Value) -> Result<(), FieldError> {
    let wrong = |message: String| FieldError { field: Some(short_name(name)), message };
    let field = long_name(name).map_err(wrong)?;
    let value = of_json(&field, value).map_err(|what| wrong(format!("{name}: {what}")))?;
    match fields.insert(field.clone(), value) {
        Some(_) => Err(wrong(format!("{field} is set twice"))),
        None => Ok(()),
    }
}

/// The fields of a job with a short help each, sorted by name: the name, its other names, and what it does.
pub fn job_fields() -> Vec<(&'static str, Vec<&'static str>, String)> {
    let of_row = |row: &'static OptionRow| (row.name, row.names().skip(1).collect(), row.help());
    let mut all: Vec<_> = OPTIONS.iter().filter(|row| row.group != OptionGroup::Internal).map(of_row).collect();
    all.push((MODEL, Vec::new(), "The model, as the run takes it. Default: that of the run.".into()));
    all.push((OUTPUT, Vec::new(), "The image's name in the folder, a .png, perhaps with {index} and {seed}.".into()));
    all.sort_unstable_by_key(|(name, ..)| *name);
    all
}

impl JobSpec {
    /// The job in the text of a JSON object, with the fields of a line of a job file. Fields that are named in `more`
    /// are not the job's; they are returned.
    ///
    /// # Errors
    /// A message names the field that is unknown, set twice or has a value that it does not take.
    pub fn parse(text: &[u8], more: &[&str]) -> Result<(Self, Map<String, Value>), String> {
        let mut object = Self::object(text)?;
        let taken = more.iter().filter_map(|name| object.remove_entry(*name)).collect();
        Ok((Self::of_object(object)?, taken))
    }

    /// The object in a text, for [`Self::of_object`].
    ///
    /// # Errors
    /// A message says where the text is not JSON, or names a field that is set twice.
    pub fn object(text: &[u8]) -> Result<Map<String, Value>, String> {
        let Unique(value) =
            serde_json::from_slice(text).map_err(|error| format!("the job is not a JSON object: {error}"))?;
        match value {
            Value::Object(object) => Ok(object),
            _ => Err("expected an object, as in {\"prompt\": \"a red apple\"}".into()),
        }
    }

    /// The job of an object of JSON, with the fields of a line of a job file.
    ///
    /// # Errors
    /// See [`Self::parse`]; the field is separate.
    pub fn of_object(object: Map<String, Value>) -> Result<Self, FieldError> {
        Ok(Self::new(fields_of_json(object)?)?)
    }

    /// From fields that were checked one by one.
    pub(crate) fn new(mut fields: Fields) -> Result<Self, String> {
        fields.retain(|_, value| !value.is_null());
        if !fields.contains_key("prompt") {
            return Err("the job has no prompt".into());
        }
        let mut text = |field: &str| fields.remove(field).and_then(|value| Some(value.as_str()?.to_string()));
        let (model, output) = (text(MODEL).map(PathBuf::from), text(OUTPUT));
        // AUTOMATIC1111's "Karras" says more than the id `karras`.
        let named =
            fields.get("scheduler").and_then(Value::as_str).and_then(|name| name.parse::<ScheduleChoice>().ok());
        if let Some(range) = named.and_then(|choice| choice.range).filter(|_| !fields.contains_key("sigma_range")) {
            fields.insert("sigma_range".into(), range.to_string().into());
        }
        let request = serde_json::from_value(fields.into()).map_err(|error| error.to_string())?;
        Ok(Self { request, model, output })
    }
}

/// The fields that a request sets, without defaults.
pub(crate) fn said(request: &Request) -> Fields {
    let fields = |request: &Request| match serde_json::to_value(request) {
        Ok(Value::Object(fields)) => fields,
        _ => Fields::new(),
    };
    let default = fields(&Request::default());
    let mut said = fields(request);
    said.retain(|field, value| field == "prompt" || default.get(field) != Some(value));
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_engine::Rng;
    use kiln_scheduler::{Convention, InitialNoise, SigmaRange};

    fn spec(fields: &[(&str, &str)]) -> JobSpec {
        let fields = fields.iter().map(|(name, text)| {
            let field = long_name(name).unwrap();
            let value = of_text(&field, text).unwrap();
            (field, value)
        });
        JobSpec::new(fields.collect()).unwrap()
    }

    #[test]
    fn text_becomes_what_the_field_takes() {
        let fields = [
            ("prompt", "42"),
            ("negative", "1.5"),
            ("Seed", "7"),
            ("steps", " 12 "),
            ("cfg", "3"),
            ("sampler", "DPM++ 2M Karras"),
            ("rng", "cuda"),
            ("seed-resize-from", "64x32"),
            ("sigmas", "10, 2,0.5"),
            ("lora", "a.safetensors:0.5; b.safetensors"),
            ("model", "emoji"),
            ("output", "{seed}.png"),
        ];
        let JobSpec { request, model, output } = spec(&fields);
        assert_eq!((&*request.prompt, request.negative_prompt.as_deref()), ("42", Some("1.5")));
        assert_eq!((request.seed, request.steps, request.cfg_scale), (Some(7), Some(12), Some(3.0)));
        assert_eq!((request.rng, request.seed_resize_from), (Rng::Cuda, Some((64, 32))));
        assert_eq!(request.sigmas, Some(vec![10.0, 2.0, 0.5]));
        assert_eq!(request.sampler.unwrap().to_string(), "DPM++ 2M Karras");
        assert_eq!(request.loras.iter().map(|lora| lora.unet).collect::<Vec<_>>(), [0.5, 1.0]);
        assert_eq!((model, output.as_deref()), (Some("emoji".into()), Some("{seed}.png")));
        assert_eq!(spec(&[("prompt", ""), ("seed", "-1")]).request, Request::default());
    }

    /// Every option can be a field of a job, as text and as JSON.
    #[test]
    fn every_option_is_a_field() {
        for row in OPTIONS {
            for text in row.kind.samples() {
                let mut expected = Request::default();
                row.value_mut(&mut expected).read(&text).unwrap();
                let value = of_text(row.name, &text).unwrap_or_else(|problem| panic!("{}: {problem}", row.name));
                let json = serde_json::to_value(&expected).unwrap()[row.name].clone();
                for value in [value, of_json(row.name, json).unwrap()] {
                    let fields = Fields::from_iter([(row.name.to_string(), value)]);
                    assert_eq!(serde_json::from_value::<Request>(fields.into()).unwrap(), expected, "{}", row.name);
                }
            }
        }
    }

    #[test]
    fn a_schedules_name_tells_its_range() {
        let range = |fields: &[(&str, &str)]| spec(&[&[("prompt", "a")], fields].concat()).request.sigma_range;
        assert_eq!(range(&[("scheduler", "karras")]), None);
        assert_eq!(range(&[("scheduler", "Karras")]), Some(SigmaRange::Table));
        assert_eq!(range(&[("scheduler", "Karras"), ("sigma-range", "spacing")]), Some(SigmaRange::Spacing));
        let options = [("convention", "A1111"), ("discard-penultimate-sigma", "true"), ("initial-noise", "sigma")];
        let found = spec(&[&[("prompt", "a")], &options[..]].concat()).request;
        assert_eq!(found.convention, Convention::Automatic1111);
        assert_eq!((found.discard_penultimate_sigma, found.initial_noise), (Some(true), Some(InitialNoise::Sigma)));
    }

    #[test]
    fn what_a_field_does_not_take_is_named() {
        let problem = |field: &str, value: Value| of_json(field, value).unwrap_err();
        assert_eq!(problem("steps", "many".into()), "\"many\" is not a whole number");
        assert_eq!(problem("steps", Value::from(2.5)), "2.5 is not a whole number");
        assert_eq!(of_json("steps", Value::from(20.0)), Ok(20.into()));
        assert_eq!(of_json("width", Value::from(-8.0)), Err("-8.0 is not a whole number".into()));
        assert_eq!(of_json("cfg_scale", Value::from(7.0)), Ok(7.0.into()));
        assert_eq!(problem("cfg_scale", true.into()), "true is not a number");
        assert_eq!(problem("prompt", 5.into()), "expected a string");
        assert!(problem("sampler", "eulr".into()).contains("did you mean euler"));
        assert!(problem("loras", vec![":0.5"].into()).contains("expected a file"));
        assert!(long_name("promt").unwrap_err().starts_with("unknown field `promt`, did you mean prompt"));
        assert!(long_name("promt").unwrap_err().len() < 100, "no list of all fields");
        let long = long_name(&"k".repeat(6_000_000)).unwrap_err();
        assert_eq!(long, format!("unknown field `{}...`.", "k".repeat(64)));
        for none in [Fields::new(), Fields::from_iter([("prompt".to_string(), Value::Null)])] {
            assert!(JobSpec::new(none).unwrap_err().contains("no prompt"));
        }
        assert!("steps".parse::<Assignment>().unwrap_err().contains("as in steps=30"));
    }

    #[test]
    fn what_was_not_said_is_not_told() {
        let request = Request { steps: Some(3), ..Request::default() };
        let said = Value::from(said(&request)).to_string();
        assert_eq!(said, r#"{"prompt":"","steps":3}"#);
    }
}
