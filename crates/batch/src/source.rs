//! Job files: JSON Lines, CSV, or one prompt per line.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use serde_json::Value;

use super::fields::{Fields, fields_of_json, long_name, of_text};
use super::unique::Unique;
use crate::error::{Error, Result};

/// The format of a job file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFormat {
    /// One JSON object per line.
    JsonLines,
    /// Columns named in the first line; an empty cell is omitted.
    Csv,
    /// One prompt per line.
    Text,
}

impl FromStr for JobFormat {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "jsonl" => Ok(Self::JsonLines),
            "csv" => Ok(Self::Csv),
            "text" => Ok(Self::Text),
            _ => Err("expected jsonl, csv or text".into()),
        }
    }
}

/// Jobs as written in a file.
#[derive(Debug, Clone)]
pub struct JobFile {
    /// The name of the file in messages.
    pub(crate) name: String,
    pub(crate) entries: Vec<Entry>,
}

/// A job of a file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) fields: Fields,
}

/// The name of the standard input.
const STANDARD_INPUT: &str = "-";
/// The maximum size of a job file: kilobytes for each of the 100,000 images that a set may have.
const MAX_BYTES: u64 = 256 << 20;

impl JobFile {
    /// Reads a file, or the standard input if `path` is `-`. Without a format the extension determines it; otherwise a
    /// file that starts with a brace is JSON Lines, and any other file is text.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`] where the file cannot be read, [`Error::Job`] with the line and the field of what is wrong in it.
    pub fn read(path: &Path, format: Option<JobFormat>) -> Result<Self> {
        let (name, bytes) = if path == Path::new(STANDARD_INPUT) {
            let name = "the standard input".to_string();
            let bytes = read(std::io::stdin().lock()).map_err(Error::read(Path::new(&name)))?;
            (name, bytes)
        } else {
            // A pipe of the shell may replace a file: `kiln batch <(make jobs)`.
            let bytes = File::open(path).and_then(read).map_err(Error::read(path))?;
            (path.display().to_string(), bytes)
        };
        let by_name = match path.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl" | "ndjson") => Some(JobFormat::JsonLines),
            Some("csv") => Some(JobFormat::Csv),
            Some("txt") => Some(JobFormat::Text),
            _ => None,
        };
        Self::parse(&name, &bytes, format.or(by_name))
    }

    /// One empty job, for sets that only have axes.
    pub fn nothing() -> Self {
        Self { name: "grid".into(), entries: vec![Entry { line: 1, fields: Fields::new() }] }
    }

    /// Parses the bytes of a file that messages call `name`, for the fuzz targets. Without a format the first character
    /// determines it.
    ///
    /// # Errors
    /// [`Error::Job`] as [`Self::read`].
    #[doc(hidden)]
    pub fn parse(name: &str, bytes: &[u8], format: Option<JobFormat>) -> Result<Self> {
        let problem = |line: usize, problem: String| Error::Job { file: name.into(), line, problem };
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            problem(line, "is not valid UTF-8; save the file as UTF-8".into())
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let guessed = if text.trim_start().starts_with('{') { JobFormat::JsonLines } else { JobFormat::Text };
        let entries = match format.unwrap_or(guessed) {
            JobFormat::JsonLines => json_lines(text),
            JobFormat::Csv => csv(text),
            JobFormat::Text => Ok(prompts(text)),
        };
        let entries = entries.map_err(|(line, what)| problem(line, what))?;
        if entries.is_empty() {
            return Err(problem(1, "contains no jobs".into()));
        }
        Ok(Self { name: name.into(), entries })
    }
}

/// Reads a file, a pipe or a device to the end, within a limit.
fn read(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let problem = format!("is larger than {} MiB, the limit of job files", MAX_BYTES >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// A line and its error.
type Wrong = (usize, String);

/// Empty lines and lines that start with `#` are skipped.
fn prompts(text: &str) -> Vec<Entry> {
    let lines = text.lines().map(str::trim).enumerate();
    let prompts = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let entry = |(i, line): (usize, &str)| Entry {
        line: i + 1,
        fields: Fields::from_iter([("prompt".to_string(), Value::from(line))]),
    };
    prompts.map(entry).collect()
}

fn json_lines(text: &str) -> std::result::Result<Vec<Entry>, Wrong> {
    let mut entries = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String| (i + 1, what);
        let Unique(value) = serde_json::from_str(line).map_err(|error| {
            wrong(format!("is not a JSON object on one line: {error}").replace(" at line 1 column", ", column"))
        })?;
        let Value::Object(said) = value else {
            return Err(wrong("expected an object, as in {\"prompt\": \"a red apple\"}".into()));
        };
        entries.push(Entry { line: i + 1, fields: fields_of_json(said).map_err(|error| wrong(error.message))? });
    }
    Ok(entries)
}

fn csv(text: &str) -> std::result::Result<Vec<Entry>, Wrong> {
    let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
    let wrong = |error: csv::Error| {
        let line = error.position().map_or(1, |position| position.line() as usize);
        let what = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!(
                    "has {len} cells, expected {expected_len}, as in the first line; cells with commas need \"quotes\""
                )
            }
            _ => error.to_string(),
        };
        (line, what)
    };
    let mut columns = Vec::new();
    for name in reader.headers().map_err(wrong)? {
        let field = long_name(name).map_err(|what| (1, what))?;
        if columns.contains(&field) {
            return Err((1, format!("has two columns for {field}")));
        }
        columns.push(field);
    }
    let mut entries = Vec::new();
    for record in reader.records() {
        let record = record.map_err(wrong)?;
        let line = record.position().map_or(1, |position| position.line() as usize);
        let mut fields = Fields::new();
        for (field, cell) in columns.iter().zip(&record) {
            if !cell.trim().is_empty() {
                let value = of_text(field, cell).map_err(|what| (line, format!("{field}: {what}")))?;
                fields.insert(field.clone(), value);
            }
        }
        entries.push(Entry { line, fields });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(format: Option<JobFormat>, text: &str) -> Result<Vec<(usize, String)>> {
        let file = JobFile::parse("jobs", text.as_bytes(), format)?;
        Ok(file.entries.into_iter().map(|entry| (entry.line, Value::from(entry.fields).to_string())).collect())
    }

    #[test]
    fn one_prompt_per_line() {
        let found = parse(None, "\u{feff}a red apple\r\n\n# fruit\n  a pear, {ripe|green} \n").unwrap();
        let expected = [(1, r#"{"prompt":"a red apple"}"#), (4, r#"{"prompt":"a pear, {ripe|green}"}"#)];
        assert_eq!(found, expected.map(|(line, fields)| (line, fields.to_string())));
    }

    #[test]
    fn json_and_csv_are_equivalent() {
        let json = "{\"prompt\": \"a, b\", \"cfg\": 3, \"seed\": 7}\n\n{\"prompt\": \"c\", \"seed\": -1}\n";
        let csv = "prompt,cfg_scale,seed\n\"a, b\",3,7\n\nc,,-1\n";
        let expected = [r#"{"cfg_scale":3,"prompt":"a, b","seed":7}"#, r#"{"prompt":"c","seed":null}"#];
        let found = parse(None, json).unwrap();
        assert_eq!(found, [(1, expected[0].to_string()), (3, expected[1].to_string())]);
        assert_eq!(parse(Some(JobFormat::Csv), csv).unwrap().into_iter().map(|(_, x)| x).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn errors_name_the_line() {
        for (format, text, expected) in [
            (None, "{\"prompt\": \"a\"}\n{\"prompt\": ", "jobs:2: is not a JSON object on one line: EOF"),
            (None, "{\"prompt\": \"a\"}\n[1]", "jobs:2: expected an object"),
            (None, "{\"prompt\": \"a\", \"promt\": 1}", "jobs:1: unknown field `promt`"),
            (None, "{\"prompt\": \"a\", \"steps\": \"x\"}", "jobs:1: steps: \"x\" is not a whole number"),
            (
                None,
                "{\"prompt\": \"a\", \"prompt\": \"b\"}",
                "jobs:1: is not a JSON object on one line: the key `prompt`",
            ),
            (None, "{\"prompt\": \"a\", \"cfg\": 1, \"cfg_scale\": 2}", "jobs:1: cfg_scale is set twice"),
            (None, "\n# nothing\n", "jobs:1: contains no jobs"),
            (Some(JobFormat::Csv), "prompt,cgf\na,1\n", "jobs:1: unknown field `cgf`"),
            (Some(JobFormat::Csv), "prompt,cfg\na,1\nb,c,2\n", "jobs:3: has 3 cells, expected 2"),
            (Some(JobFormat::Csv), "prompt,cfg\na,1\nb,c\n", "jobs:3: cfg_scale: \"c\" is not a number"),
            (Some(JobFormat::Csv), "prompt,cfg,cfg-scale\na,1,1\n", "jobs:1: has two columns for cfg_scale"),
        ] {
            let message = parse(format, text).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
        let message = JobFile::read(Path::new("/dev/zero"), None).unwrap_err().to_string();
        assert!(message.contains("/dev/zero: is larger than 256 MiB"), "{message}");
        let message = JobFile::parse("jobs", b"a\nb\n\xff", None).unwrap_err().to_string();
        assert!(message.starts_with("jobs:3: is not valid UTF-8"), "{message}");
    }
}
