//! The contact sheet: small versions of all images of a set with labels.
//!
//! With axes, the values of the last one are the columns, and rows are labelled with the values of the others and with
//! the fields that differ between jobs; several jobs follow each other. Without axes images form a square, each above
//! its number and what differs: fields, the seed, the prompt.

mod labels;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use kiln_engine::limits::in_range;
use kiln_files::{FileRules, PlannedFile, folder_of};
use kiln_media::{Canvas, LETTER, LINE, Thumbnail, size_of};
use serde_json::{Map, Value};

use super::grid::Axis;
use super::todos::{State, Todo};
use crate::error::{Error, Result};
use labels::{differing, distinct, fields_of, lines, longest, name, of_axis, wrapped};

/// The maximum side of a sheet in pixels, which limits its memory to 200 MB.
const MAX_SIDE: usize = 8192;
/// The minimum and maximum of an image's longest side on the sheet.
const SMALLEST: usize = 24;
const LARGEST: usize = 1024;
/// Pixels between images.
const GAP: usize = 6;
/// Characters in a line of a row's label.
const LABEL_LETTERS: usize = 26;
/// Characters in a line above or below an image that is smaller than them.
const CELL_LETTERS: usize = 18;
/// Lines of a label.
const MAX_LINES: usize = 8;

/// The cells and labels of a sheet.
struct Layout<'a> {
    columns: usize,
    /// The field whose values the columns are.
    heading: String,
    /// Labels above the columns.
    titles: Vec<String>,
    /// Texts to the left of the rows, if any row has one.
    labels: Vec<Vec<String>>,
    /// Images row by row.
    cells: Vec<Vec<Option<Cell<'a>>>>,
}

/// An image with the texts below it.
#[derive(Clone)]
struct Cell<'a> {
    todo: &'a Todo,
    caption: Vec<String>,
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
/// [`kiln_engine::Error::Request`] if there are too many images, [`kiln_engine::Error::Files`] if a file cannot be read or
/// written.
pub(crate) fn write_sheet(file: &PlannedFile, side: usize, todos: &[Todo], axes: &[Axis]) -> Result<()> {
    let layout = if axes.is_empty() { square(todos) } else { table(todos, axes) };
    let canvas = draw(&layout, side)?;
    let bytes = canvas.png().map_err(|error| Error::write(file.path())(std::io::Error::other(error)))?;
    Ok(file.write(|to| to.write_all(&bytes))?)
}

/// The differences between the jobs of a set, for labels.
struct Differences {
    fields: Vec<Map<String, Value>>,
    differing: Vec<String>,
    prompts: Vec<(String, String)>,
}

impl Differences {
    /// Those besides the fields of `axes`.
    fn of(todos: &[Todo], axes: &[Axis]) -> Self {
        let mut seen = HashSet::new();
        let fields: Vec<Map<String, Value>> =
            todos.iter().filter(|todo| seen.insert(todo.task.line)).map(fields_of).collect();
        let on_axis = |field: &str| axes.iter().any(|axis| axis.field.name() == field);
        let differing = differing(&fields, on_axis).into_iter().map(String::from).collect();
        let prompts: Vec<String> =
            fields.iter().filter_map(|job| Some(job.get("prompt")?.as_str()?.to_string())).collect();
        Self { differing, prompts: distinct(&prompts), fields }
    }

    /// The lines of an image.
    fn lines(&self, todo: &Todo) -> Vec<String> {
        let differing: Vec<&str> = self.differing.iter().map(String::as_str).collect();
        match differing.is_empty() || self.fields.len() < 2 {
            true => Vec::new(),
            false => lines(&fields_of(todo), &differing, &self.prompts),
        }
    }
}

fn square<'a>(todos: &'a [Todo]) -> Layout<'a> {
    let columns = ((todos.len() as f64).sqrt().ceil() as usize).max(1);
    let differences = Differences::of(todos, &[]);
    let seeds: HashSet<u64> = todos.iter().map(|todo| todo.planned.seed).collect();
    let cell = |todo: &'a Todo| {
        let seed = if seeds.len() > 1 { format!(" seed {}", todo.planned.seed) } else { String::new() };
        let first = format!("{}{seed}", todo.task.number);
        Some(Cell { todo, caption: std::iter::once(first).chain(differences.lines(todo)).collect() })
    };
    let cells: Vec<Vec<_>> = todos.chunks(columns).map(|row| row.iter().map(cell).collect()).collect();
    Layout { columns, heading: String::new(), titles: Vec::new(), labels: vec![Vec::new(); cells.len()], cells }
}

fn table<'a>(todos: &'a [Todo], axes: &[Axis]) -> Layout<'a> {
    let Some((across, down)) = axes.split_last() else { return square(todos) };
    let differences = Differences::of(todos, axes);
    let titles: Vec<String> = (0..across.values.len()).map(|i| of_axis(across, i)).collect();
    let short: HashMap<String, String> = distinct(&titles).into_iter().collect();
    let mut layout = Layout {
        columns: titles.len(),
        heading: name(across.field.name()).to_string(),
        titles: titles.iter().map(|title| short.get(title).unwrap_or(title).clone()).collect(),
        labels: Vec::new(),
        cells: Vec::new(),
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
            let mut label = differences.lines(todo);
            label.extend(
                down.iter().zip(others).map(|(axis, &i)| format!("{} {}", name(axis.field.name()), of_axis(axis, i))),
            );
            layout.labels.push(label);
            layout.cells.push(vec![None; layout.columns]);
            rows.len() - 1
        });
        layout.cells[at][column] = Some(Cell { todo, caption: Vec::new() });
    }
    add_seeds(&mut layout);
    layout
}

/// Labels rows with their seeds, where each row has one of its own.
fn add_seeds(layout: &mut Layout<'_>) {
    let seed = |row: &Vec<Option<Cell<'_>>>| {
        let mut seeds = row.iter().flatten().map(|cell| cell.todo.planned.seed);
        let first = seeds.next()?;
        seeds.all(|seed| seed == first).then_some(first)
    };
    let seeds: Option<Vec<u64>> = layout.cells.iter().map(seed).collect();
    let Some(seeds) = seeds.filter(|seeds| seeds.iter().any(|seed| *seed != seeds[0])) else { return };
    for (label, seed) in layout.labels.iter_mut().zip(seeds) {
        let line = format!("seed {seed}");
        if !label.contains(&line) {
            label.push(line);
        }
    }
}

/// Sizes of a sheet in pixels, and its texts in lines.
struct Sizes {
    side: usize,
    cell: usize,
    left: usize,
    top: usize,
    row: usize,
    titles: Vec<Vec<String>>,
    labels: Vec<Vec<String>>,
    /// Lines of each caption.
    captions: usize,
}

impl Sizes {
    /// Cells are as wide as images or as their texts; rows are as high as images with captions, or as their labels. Where the
    /// sheet would be too large, texts are cut first, and then images are smaller.
    fn of(layout: &Layout<'_>, wanted: usize) -> Result<Self> {
        let (columns, rows) = (layout.columns.max(1), layout.cells.len().max(1));
        let label_letters = longest(layout.labels.iter().flatten()).min(LABEL_LETTERS);
        let left = GAP + if label_letters > 0 { label_letters * LETTER + GAP } else { 0 };
        let room = |before: usize, count: usize| (MAX_SIDE.saturating_sub(before) / count).saturating_sub(GAP);
        let captions = layout.cells.iter().flatten().flatten().flat_map(|cell| &cell.caption);
        let texts = longest(layout.titles.iter().chain(captions)).min(CELL_LETTERS) * LETTER;
        let cell = wanted.max(texts).min(room(left, columns));
        let titles: Vec<_> =
            layout.titles.iter().map(|title| wrapped(std::slice::from_ref(title), cell / LETTER, MAX_LINES)).collect();
        let title_lines = titles.iter().map(Vec::len).max().unwrap_or(0) + usize::from(!layout.heading.is_empty());
        let top = GAP + title_lines * LINE;
        let height = room(top, rows);
        let captions = layout.cells.iter().flatten().flatten();
        let captions = captions.map(|of| wrapped(&of.caption, cell / LETTER, MAX_LINES).len()).max().unwrap_or(0);
        let captions = captions.min(height.saturating_sub(SMALLEST) / LINE);
        let side = wanted.min(cell).min(height.saturating_sub(captions * LINE));
        if side < SMALLEST {
            let (found, expected) = (format!("{rows} rows of {columns} images"), "fewer images on one sheet".into());
            return Err(Error::value("contact_sheet", found, expected));
        }
        let lines = (height / LINE).min(MAX_LINES);
        let labels: Vec<_> = layout.labels.iter().map(|label| wrapped(label, label_letters, lines)).collect();
        let label_lines = labels.iter().map(Vec::len).max().unwrap_or(0);
        let row = (side + captions * LINE).max(label_lines * LINE);
        Ok(Self { side, cell, left, top, row, titles, labels, captions })
    }
}

fn draw(layout: &Layout<'_>, wanted: usize) -> Result<Canvas> {
    // Small images have small cells.
    let mut largest = 2 * SMALLEST;
    for cell in layout.cells.iter().flatten().flatten().filter(|cell| matches!(cell.todo.state, State::Made(_))) {
        let (width, height) = size_of(&cell.todo.path)?;
        largest = largest.max(width).max(height);
    }
    let sizes = Sizes::of(layout, wanted.min(largest))?;
    let Sizes { side, left, top, captions, .. } = sizes;
    let (across, down) = (sizes.cell + GAP, sizes.row + GAP);
    let mut canvas = Canvas::new(left + layout.columns.max(1) * across, top + layout.cells.len().max(1) * down);
    canvas.text(&layout.heading, left, GAP);
    let heading = usize::from(!layout.heading.is_empty());
    for (column, title) in sizes.titles.iter().enumerate() {
        write(&mut canvas, title, (left + column * across, GAP + heading * LINE));
    }
    for (row, cells) in layout.cells.iter().enumerate() {
        let y = top + row * down;
        write(&mut canvas, sizes.labels.get(row).map_or(&[], Vec::as_slice), (GAP, y));
        for (column, cell) in cells.iter().enumerate() {
            let (Some(Cell { todo, caption }), x) = (cell, left + column * across) else { continue };
            match &todo.state {
                State::Made(_) => canvas.draw(&Thumbnail::read(&todo.path, side)?, x, y),
                State::Failed(_) => canvas.text("failed", x, y),
                State::Pending => {}
            }
            if captions > 0 {
                write(&mut canvas, &wrapped(caption, sizes.cell / LETTER, captions), (x, y + side));
            }
        }
    }
    Ok(canvas)
}

/// Writes lines below one another.
fn write(canvas: &mut Canvas, lines: &[String], (x, y): (usize, usize)) {
    for (i, line) in lines.iter().enumerate() {
        canvas.text(line, x, y + i * LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(titles: &[&str], labels: &[&[&str]]) -> Layout<'static> {
        let texts = |all: &[&str]| all.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let cells = labels.iter().map(|_| vec![None; titles.len()]).collect();
        let labels = labels.iter().map(|label| texts(label)).collect();
        Layout { columns: titles.len(), heading: "sampler".into(), titles: texts(titles), labels, cells }
    }

    /// Images of 64 pixels have room for nine letters; names of samplers are longer.
    #[test]
    fn labels_of_small_images_are_whole() {
        let two = layout(&["euler_a", "dpmpp_2m_sde"], &[&["lora ink:0.2"], &["a red apple", "lora ink"]]);
        let sizes = Sizes::of(&two, 64).unwrap();
        assert_eq!((sizes.side, sizes.cell), (64, 12 * LETTER));
        assert_eq!(sizes.titles, [["euler_a"], ["dpmpp_2m_sde"]]);
        assert_eq!(sizes.labels, [vec!["lora ink:0.2"], vec!["a red apple", "lora ink"]]);
        assert_eq!((sizes.left, sizes.top, sizes.row), (2 * GAP + 12 * LETTER, GAP + 2 * LINE, 64));
        // Texts that are longer than a cell have several lines, and rows are as high as their labels.
        let long = layout(
            &["a photograph of a red apple"],
            &[&["1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", "a", "b", "c"]],
        );
        let sizes = Sizes::of(&long, 48).unwrap();
        assert_eq!(sizes.titles, [["a photograph of a", "red apple"]]);
        assert_eq!((sizes.labels[0].len(), sizes.row), (5, 5 * LINE));
    }

    #[test]
    fn a_sheet_is_never_too_large() {
        let wide = vec!["a title of some letters"; 200];
        let sizes = Sizes::of(&layout(&wide, &[&["a"]]), 256).unwrap();
        assert!(sizes.left + 200 * (sizes.cell + GAP) <= MAX_SIDE && sizes.side >= SMALLEST, "{}", sizes.cell);
        let label: &[&str] = &["one line", "another line", "a third line"];
        let high = vec![label; 250];
        let sizes = Sizes::of(&layout(&["a"], &high), 256).unwrap();
        assert!(sizes.top + 250 * (sizes.row + GAP) <= MAX_SIDE && sizes.side >= SMALLEST, "{}", sizes.row);
        assert_eq!(sizes.labels[0].len(), 1, "there is room for one line");
        assert!(Sizes::of(&layout(&vec!["a"; 400], &[&["a"]]), 256).is_err());
    }
}
