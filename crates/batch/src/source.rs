//! Job files: JSON Lines, CSV, or one prompt per line.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use kiln_files::open_regular;
use kiln_request::{JobField, JobSpec, Request, RequestBuilder, UniqueJson};
use serde_json::Value;

use super::problems::Problems;
use crate::error::{Error, Result};

/// The format of a job file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFormat {
    /// One JSON object per line.
    JsonLines,
    /// Columns named in the first line, between commas, semicolons or tabs; an empty cell is omitted.
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
    pub(crate) entries: Vec<Entry>,
    /// The problems of lines that are no entries.
    pub(crate) problems: Problems,
}

/// A job of a file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) fields: RequestBuilder,
}

/// The name of the standard input.
const STANDARD_INPUT: &str = "-";
/// The maximum size of a job file: kilobytes for each of the 100,000 images that a set may have.
const MAX_BYTES: u64 = 256 << 20;
/// Wrong fields of one line that are reported.
const MAX_OF_LINE: usize = 20;

impl JobFile {
    /// Reads a file, or the standard input if `path` is `-`. Without a format the extension determines it; otherwise a
    /// file that starts with a brace is JSON Lines, and any other file is text. Lines that are wrong are errors of
    /// [`JobSet::new`](crate::JobSet::new) or of [`BatchRun::plan`](crate::BatchRun::plan), which report all of them at once.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`] if the file cannot be read, is no regular file or has more than 256 MiB, [`Error::Job`]
    /// if it has no jobs.
    pub fn read(path: &Path, format: Option<JobFormat>) -> Result<Self> {
        let (name, bytes) = if path == Path::new(STANDARD_INPUT) {
            let name = "the standard input".to_string();
            let bytes = read_to_end(std::io::stdin().lock()).map_err(Error::read(Path::new(&name)))?;
            (name, bytes)
        } else {
            let bytes = open(path).and_then(read_to_end).map_err(Error::read(path))?;
            (path.display().to_string(), bytes)
        };
        let by_name = match path.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl" | "ndjson") => Some(JobFormat::JsonLines),
            Some("csv" | "tsv") => Some(JobFormat::Csv),
            Some("txt") => Some(JobFormat::Text),
            _ => None,
        };
        Self::parse(&name, &bytes, format.or(by_name))
    }

    /// One empty job, for sets that only have axes.
    pub fn nothing() -> Self {
        Self { entries: vec![Entry { line: 1, fields: RequestBuilder::default() }], problems: Problems::new("grid") }
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
        let mut problems = Problems::new(name);
        let entries = match format.unwrap_or(guessed) {
            JobFormat::JsonLines => json_lines(text, &mut problems),
            JobFormat::Csv => csv_jobs(text, &mut problems),
            JobFormat::Text => prompts(text),
        };
        if entries.is_empty() && problems.is_empty() {
            return Err(problem(1, "contains no jobs".into()));
        }
        Ok(Self { entries, problems })
    }
}

/// Opens a regular file, or a pipe that the shell has opened for this process: `kiln batch <(make jobs)`. A FIFO with a name
/// may never have a writer, and a device no end.
fn open(path: &Path) -> std::io::Result<File> {
    let is_of_process = ["/dev/fd", "/proc/self/fd"].iter().any(|folder| path.parent() == Some(Path::new(folder)));
    #[cfg(unix)]
    if is_of_process && std::os::unix::fs::FileTypeExt::is_fifo(&path.metadata()?.file_type()) {
        return File::open(path);
    }
    let _ = is_of_process;
    open_regular(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => std::io::Error::new(
            error.kind(),
            format!("{error}; other input is read from the standard input, by the name -"),
        ),
        _ => error,
    })
}

/// Reads a file or a pipe to the end, within a limit.
fn read_to_end(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let problem = format!("is larger than {} MiB, the limit of job files", MAX_BYTES >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// Empty lines and lines that start with `#` are skipped.
fn prompts(text: &str) -> Vec<Entry> {
    let lines = text.lines().map(str::trim).enumerate();
    let prompts = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let of_prompt = |prompt: &str| RequestBuilder::of(&Request { prompt: prompt.into(), ..Request::default() });
    prompts.map(|(i, line)| Entry { line: i + 1, fields: of_prompt(line) }).collect()
}

fn json_lines(text: &str, problems: &mut Problems) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(UniqueJson(Value::Object(object))) => {
                let (mut fields, mut wrong) = (RequestBuilder::default(), 0);
                for (name, value) in object {
                    if let Err(error) = fields.add(&name, value) {
                        problems.push(i + 1, error.message);
                        wrong += 1;
                    }
                    if wrong == MAX_OF_LINE {
                        break;
                    }
                }
                match wrong {
                    0 => entries.push(Entry { line: i + 1, fields }),
                    _ => add_ranges(fields, i + 1, problems),
                }
            }
            Ok(_) => problems.push(i + 1, "expected an object, as in {\"prompt\": \"a red apple\"}"),
            Err(error) => {
                let problem = format!("is not a JSON object on one line: {error}");
                problems.push(i + 1, problem.replace(" at line 1 column", ", column"));
            }
        }
    }
    entries
}

/// The separators of a CSV file with their names. Spreadsheets write semicolons where a comma is the decimal point.
const SEPARATORS: [(u8, &str); 3] = [(b',', "commas"), (b';', "semicolons"), (b'\t', "tabs")];

fn reader(text: &str, separator: u8) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().delimiter(separator).from_reader(text.as_bytes())
}

/// The separator with which the first line has the most names of fields, or else the most columns, and its name.
fn separator(text: &str) -> (u8, &'static str) {
    let first = text.lines().next().unwrap_or_default();
    let fit = |(separator, _): &(u8, &str)| {
        let mut reader = reader(first, *separator);
        let names = reader.headers().cloned().unwrap_or_default();
        (names.iter().filter(|name| JobField::find(name).is_some()).count(), names.len())
    };
    let [comma, others @ ..] = SEPARATORS;
    others.into_iter().fold(comma, |best, other| if fit(&other) > fit(&best) { other } else { best })
}

fn csv_jobs(text: &str, problems: &mut Problems) -> Vec<Entry> {
    let (separator, separators) = separator(text);
    let mut reader = reader(text, separator);
    let wrong = |error: csv::Error| {
        let line = error.position().map_or(1, |position| position.line() as usize);
        let what = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => format!(
                "has {len} {}, expected {expected_len}, as in the first line; cells with {separators} need \"quotes\"",
                if *len == 1 { "cell" } else { "cells" }
            ),
            _ => error.to_string(),
        };
        (line, what)
    };
    let names = match reader.headers() {
        Ok(names) => names.clone(),
        Err(error) => {
            let (line, what) = wrong(error);
            problems.push(line, what);
            return Vec::new();
        }
    };
    // Columns with a wrong name are reported, and their cells are not read.
    let mut columns: Vec<Option<JobField>> = Vec::new();
    for name in &names {
        let field = JobField::named(name).and_then(|field| match columns.contains(&Some(field)) {
            true => Err(format!("has two columns for {}", field.name())),
            false => Ok(field),
        });
        columns.push(field.map_err(|what| problems.push(1, what)).ok());
    }
    let is_whole = columns.iter().all(Option::is_some);
    let mut entries = Vec::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let is_end = error.is_io_error();
                let (line, what) = wrong(error);
                problems.push(line, what);
                if is_end { break } else { continue }
            }
        };
        let line = record.position().map_or(1, |position| position.line() as usize);
        let (mut fields, mut is_right) = (RequestBuilder::default(), is_whole);
        for (field, cell) in columns.iter().zip(&record) {
            let Some(field) = field.filter(|_| !cell.trim().is_empty()) else { continue };
            if let Err(what) = fields.set_text(field, cell) {
                problems.push(line, format!("{}: {what}", field.name()));
                is_right = false;
            }
        }
        match is_right {
            true => entries.push(Entry { line, fields }),
            false => add_ranges(fields, line, problems),
        }
    }
    entries
}

/// Adds the values out of range among the other fields of a line with wrong fields.
fn add_ranges(fields: RequestBuilder, line: usize, problems: &mut Problems) {
    if let Ok(JobSpec { request, .. }) = fields.build() {
        request.range_errors().iter().for_each(|error| problems.push(line, error.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(format: Option<JobFormat>, text: &str) -> Result<Vec<(usize, String)>> {
        let file = JobFile::parse("jobs", text.as_bytes(), format)?;
        file.problems.result()?;
        let json = |fields: &RequestBuilder| {
            let rows = fields.rows().map(|row| (row.name.to_string(), row.json(fields.request())));
            Value::Object(rows.collect()).to_string()
        };
        Ok(file.entries.into_iter().map(|entry| (entry.line, json(&entry.fields))).collect())
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
        let expected = [r#"{"cfg_scale":3.0,"prompt":"a, b","seed":7}"#, r#"{"prompt":"c","seed":null}"#];
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
        let message = read_to_end(std::io::repeat(b'a')).unwrap_err().to_string();
        assert!(message.contains("is larger than 256 MiB"), "{message}");
        let message = JobFile::parse("jobs", b"a\nb\n\xff", None).unwrap_err().to_string();
        assert!(message.starts_with("jobs:3: is not valid UTF-8"), "{message}");
    }

    /// Spreadsheets of half of Europe write semicolons.
    #[test]
    fn semicolons_and_tabs_separate_cells_where_the_first_line_has_them() {
        let expected = parse(Some(JobFormat::Csv), "prompt,seed,lora\n\"a, b; c\",7,\nd,,x.safetensors\n").unwrap();
        for separator in [";", "\t"] {
            let text = "prompt|seed|lora\n\"a, b; c\"|7|\nd||x.safetensors\n".replace('|', separator);
            assert_eq!(parse(Some(JobFormat::Csv), &text).unwrap(), expected);
        }
        let message = |text: &str| parse(Some(JobFormat::Csv), text).unwrap_err().to_string();
        let unequal = message("prompt;seed\na\n");
        assert_eq!(
            unequal,
            "jobs:2: has 1 cell, expected 2, as in the first line; cells with semicolons need \"quotes\""
        );
        // A wrong name does not change the separator.
        assert!(message("promt;seed\na;1\n").starts_with("jobs:1: unknown field `promt`"));
        assert_eq!(parse(Some(JobFormat::Csv), "prompt\n\"a; b\"\n").unwrap().len(), 1);
    }

    #[test]
    fn all_wrong_lines_are_reported_in_their_order() {
        let lines =
            "{\"prompt\": \"a\", \"stepz\": 1, \"seeed\": 2}\n{\"prompt\": \"b\"}\n{\n[1]\n{\"steps\": \"x\"}\n";
        let message = parse(None, lines).unwrap_err().to_string();
        let lines: Vec<&str> = message.lines().collect();
        assert_eq!(lines.len(), 6, "{message}");
        assert_eq!(lines[0], "jobs has 5 errors, nothing was made");
        let expected =
            ["1: unknown field `", "1: unknown field `", "3: is not a JSON", "4: expected an object", "5: steps: "];
        assert!(
            lines[1..].iter().zip(expected).all(|(line, begin)| line.starts_with(&format!("jobs:{begin}"))),
            "{message}"
        );
        let message = parse(Some(JobFormat::Csv), "prompt,stepz,steps\na,1,x\nb,2\nc,3,4\n").unwrap_err().to_string();
        let lines: Vec<&str> = message.lines().map(|line| line.split_once(": ").unwrap_or_default().0).collect();
        assert_eq!(lines[1..], ["jobs:1", "jobs:2", "jobs:3"], "{message}");
    }

    /// A FIFO may never have a writer, and some devices have no end.
    #[cfg(unix)]
    #[test]
    fn fifos_and_devices_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("jobs.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for (path, kind) in [(&*fifo, "a FIFO"), (Path::new("/dev/zero"), "a device"), (folder.path(), "a folder")] {
            let message = JobFile::read(path, None).unwrap_err().to_string();
            assert!(message.contains(&format!("is {kind}, expected a regular file; other input")), "{message}");
        }
    }
}
