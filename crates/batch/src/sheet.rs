//! The contact sheet: small versions of all images of a set with labels.
//!
//! With axes, the values of the last one are the columns, and rows are labelled with the values of the others and with
//! the fields that differ between jobs; several jobs follow each other. Without axes images form a square, each above
//! its number, seed and prompt.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use kiln_engine::limits::in_range;
use kiln_files::{FileRules, PlannedFile, folder_of};
use kiln_media::{Canvas, LETTER, LINE, Thumbnail, size_of};
use serde_json::Value;

use super::fields::{Fields, said};
use super::grid::Axis;
use super::plan::{State, Todo};
use crate::error::{Error, Result};

/// The maximum side of a sheet in pixels, which limits its memory to 200 MB.
const MAX_SIDE: usize = 8192;
/// The minimum and maximum of an image's longest side on the sheet.
const SMALLEST: usize = 24;
const LARGEST: usize = 1024;
/// Pixels between images.
const GAP: usize = 6;
/// Characters in a line of a row's label.
const LABEL_LETTERS: usize = 22;

/// The cells and labels of a sheet.
struct Layout<'a> {
    columns: usize,
    /// Labels above the columns.
    titles: Vec<String>,
    /// Labels to the left of the rows, if any row has one.
    labels: Vec<String>,
    /// Images row by row.
    cells: Vec<Vec<Option<&'a Todo>>>,
    /// Lines below each image.
    caption_lines: usize,
}

/// A requested contact sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContactSheet {
    /// The PNG file.
    pub file: PathBuf,
    /// The longest side of an image in pixels; images are smaller if the sheet would be too large.
    pub side: usize,
}

impl ContactSheet {
    /// Checks the values before images are generated. It does not check whether the folder is writable.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Request`] with the option.
    pub(crate) fn plan(&self) -> Result<PlannedFile> {
        in_range("thumbnail", self.side, SMALLEST, LARGEST)?;
        let what = "the contact sheet";
        let rules = FileRules { field: "contact_sheet", what, extensions: &["png"], overwrite: true };
        let file = PlannedFile::named(&self.file, rules)?;
        if file.is_standard_output() {
            return Err(rules.refused(&self.file, "a file; the standard output gets the names of the images").into());
        }
        Ok(file)
    }
}

/// Fails if the sheet would replace an image of its set.
///
/// # Errors
/// [`kiln_engine::Error::Request`] with the option.
pub(crate) fn check_name(sheet: &PlannedFile, todos: &[Todo]) -> Result<()> {
    // Files with one name in one folder are the same, however the folder is written.
    let place = |path: &Path| Some((folder_of(path).canonicalize().ok()?, path.file_name()?.to_os_string()));
    let (path, own) = (sheet.path(), place(sheet.path()));
    let same_name = todos.iter().filter(|todo| todo.path.file_name() == path.file_name());
    match same_name.map(|todo| &todo.path).find(|image| *image == path || own.is_some() && place(image) == own) {
        None => Ok(()),
        Some(image) => {
            let expected = format!("another name; {} is an image of the set", image.display());
            Err(Error::value("contact_sheet", format!("'{}'", path.display()), expected))
        }
    }
}

/// Writes the sheet atomically. The longest side of an image on it is at most `side` pixels.
///
/// # Errors
/// [`kiln_engine::Error::Request`] where there are too many images, [`kiln_engine::Error::Files`] where a file cannot be read or written.
pub(crate) fn write_sheet(file: &PlannedFile, side: usize, todos: &[Todo], axes: &[Axis]) -> Result<()> {
    let layout = if axes.is_empty() { square(todos) } else { table(todos, axes) };
    let canvas = draw(&layout, side)?;
    let bytes = canvas.png().map_err(|error| Error::write(file.path())(std::io::Error::other(error)))?;
    Ok(file.write(|to| to.write_all(&bytes))?)
}

fn square(todos: &[Todo]) -> Layout<'_> {
    let columns = (todos.len() as f64).sqrt().ceil() as usize;
    let cells: Vec<Vec<_>> = todos.chunks(columns.max(1)).map(|row| row.iter().map(Some).collect()).collect();
    Layout { columns, titles: Vec::new(), labels: vec![String::new(); cells.len()], cells, caption_lines: 2 }
}

fn table<'a>(todos: &'a [Todo], axes: &[Axis]) -> Layout<'a> {
    let Some((across, down)) = axes.split_last() else { return square(todos) };
    let title = |axis: &Axis, i: usize| format!("{} {}", axis.field, axis.values[i].0);
    let differing = differing(todos, axes);
    let mut layout = Layout {
        columns: across.values.len(),
        titles: (0..across.values.len()).map(|i| title(across, i)).collect(),
        labels: Vec::new(),
        cells: Vec::new(),
        caption_lines: 0,
    };
    // A row is a job with its values on the other axes and the index among equal combinations.
    let mut rows: Vec<(usize, &[usize], usize)> = Vec::new();
    let mut counts = HashMap::new();
    for todo in todos {
        let task = &todo.task;
        let nth = counts.entry((task.line, &task.place)).or_insert(0);
        let Some((&column, others)) = task.place.split_last() else { continue };
        let row = (task.line, others, *nth);
        *nth += 1;
        let at = rows.iter().rposition(|known| *known == row).unwrap_or_else(|| {
            rows.push(row);
            let mut label: Vec<String> = down.iter().zip(others).map(|(axis, &i)| title(axis, i)).collect();
            label.splice(0..0, differing.iter().filter_map(|field| said_of(todo, field)));
            layout.labels.push(label.join("\n"));
            layout.cells.push(vec![None; layout.columns]);
            rows.len() - 1
        });
        layout.cells[at][column] = Some(todo);
    }
    layout
}

/// The fields that differ between jobs, the prompt first.
fn differing(todos: &[Todo], axes: &[Axis]) -> Vec<String> {
    let mut lines = HashSet::new();
    let jobs: Vec<Fields> =
        todos.iter().filter(|todo| lines.insert(todo.task.line)).map(|todo| said(&todo.task.request)).collect();
    let fields: BTreeSet<&String> = jobs.iter().flat_map(Fields::keys).collect();
    let on_axis = |field: &str| field == "seed" || axes.iter().any(|axis| axis.field == field);
    let differs = |field: &str| jobs.iter().any(|job| job.get(field) != jobs[0].get(field));
    let mut differing: Vec<String> =
        fields.into_iter().filter(|field| !on_axis(field) && differs(field)).cloned().collect();
    differing.sort_by_key(|field| field != "prompt");
    differing
}

/// The value of a field in an image's request, for a label.
fn said_of(todo: &Todo, field: &str) -> Option<String> {
    match said(&todo.task.request).remove(field)? {
        Value::String(text) if field == "prompt" => Some(text),
        value => Some(format!("{field} {}", shown(&value))),
    }
}

/// A value in short form: 5, not 5.0.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        value => value.to_string(),
    }
}

fn draw(layout: &Layout<'_>, wanted: usize) -> Result<Canvas> {
    let labelled = layout.labels.iter().any(|label| !label.is_empty());
    let left = GAP + if labelled { LABEL_LETTERS * LETTER + GAP } else { 0 };
    let top = GAP + if layout.titles.is_empty() { 0 } else { LINE };
    let below = layout.caption_lines * LINE;
    let (columns, rows) = (layout.columns.max(1), layout.cells.len().max(1));
    let room = |side: usize, before: usize, count: usize, extra: usize| {
        (side.saturating_sub(before) / count).saturating_sub(GAP + extra)
    };
    let side = wanted.min(room(MAX_SIDE, left, columns, 0)).min(room(MAX_SIDE, top, rows, below));
    if side < SMALLEST {
        let (found, expected) = (format!("{rows} rows of {columns} images"), "fewer images on one sheet".into());
        return Err(Error::value("contact_sheet", found, expected));
    }
    // Small images have small cells with space for a few characters.
    let mut largest = 2 * SMALLEST;
    for todo in layout.cells.iter().flatten().flatten().filter(|todo| matches!(todo.state, State::Made(_))) {
        let (width, height) = size_of(&todo.path)?;
        largest = largest.max(width).max(height);
    }
    let side = side.min(largest);
    let (width, height) = (left + columns * (side + GAP), top + rows * (side + below + GAP));
    let mut canvas = Canvas::new(width, height);
    for (column, title) in layout.titles.iter().enumerate() {
        canvas.text(&short(title, side), left + column * (side + GAP), GAP);
    }
    for (row, (label, cells)) in layout.labels.iter().zip(&layout.cells).enumerate() {
        let y = top + row * (side + below + GAP);
        for (i, line) in wrapped(label, side / LINE).iter().enumerate() {
            canvas.text(line, GAP, y + i * LINE);
        }
        for (column, todo) in cells.iter().enumerate() {
            let (Some(todo), x) = (todo, left + column * (side + GAP)) else { continue };
            match &todo.state {
                State::Made(_) => canvas.draw(&Thumbnail::read(&todo.path, side)?, x, y),
                State::Failed(_) => canvas.text("failed", x, y),
                State::Pending => {}
            }
            if layout.caption_lines > 0 {
                let number = format!("{} seed {}", todo.task.number, todo.planned.seed);
                canvas.text(&short(&number, side), x, y + side);
                canvas.text(&short(&todo.task.request.prompt, side), x, y + side + LINE);
            }
        }
    }
    Ok(canvas)
}

/// The part of a text that fits into `width` pixels.
fn short(text: &str, width: usize) -> String {
    let letters = width / LETTER;
    match text.chars().count() <= letters {
        true => text.into(),
        false => text.chars().take(letters.saturating_sub(2)).chain("..".chars()).collect(),
    }
}

/// A label in at most `lines` lines, with breaks between words.
fn wrapped(label: &str, lines: usize) -> Vec<String> {
    let mut all = vec![];
    for part in label.lines() {
        let mut line = String::new();
        for word in part.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LABEL_LETTERS {
                all.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += &short(word, LABEL_LETTERS * LETTER);
        }
        all.push(line);
    }
    all.truncate(lines.max(1));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_they_are_typed() {
        let values = [Value::from(5.0), Value::from(2.5), Value::from(u64::MAX), Value::from("euler_a")];
        assert_eq!(values.map(|value| shown(&value)), ["5", "2.5", "18446744073709551615", "euler_a"]);
    }

    #[test]
    fn labels_are_broken_between_words() {
        let label = "a photograph of a red apple\nsteps 4";
        assert_eq!(wrapped(label, 9), ["a photograph of a red", "apple", "steps 4"]);
        assert_eq!(wrapped(label, 1), ["a photograph of a red"]);
        assert_eq!(short("sampler euler", 70), "sampler ..");
    }
}
