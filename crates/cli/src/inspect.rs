//! `kiln inspect`: shows the contents of a model folder, a checkpoint file or an image.

use kiln_engine::{
    ComponentReport, FileKind, FileModel, FileReport, FolderReport, ImageReport, ImageText, Inspection, ListReport,
    LoraNotes, NamedFile, OwnSettings, Prediction, Result, Stored, inspect, locate_input, number_text,
};

use crate::args::InspectArgs;
use crate::output::{print, print_json};
use crate::table::{size, table, thousands};
use crate::terminal::is_shown;

/// The maximum number of shown notes of a file, and their maximum length.
const NOTES: usize = 20;
const NOTE_LENGTH: usize = 80;

/// Runs the command, with the segments of a model folder if `is_verbose`. A folder with mismatched weights, or of a family that
/// Kiln does not run, is shown and then reported as an error.
pub fn run(args: &InspectArgs, is_verbose: bool) -> Result<()> {
    let found = inspect(&locate_input(&args.path)?, args.dtype)?;
    if args.json {
        print_json(&serde_json::json!(found));
    } else {
        print(&match &found {
            Inspection::Folder(report) if is_verbose => format!("{}\n{}", summary(report), folder(report)),
            Inspection::Folder(report) => summary(report),
            Inspection::File(report) => file(report),
            Inspection::List(report) => list(report),
            Inspection::Image(report) => image(report),
        });
    }
    match found {
        Inspection::Folder(report) => check(report),
        Inspection::List(ListReport { path, pipeline: Some(model), .. }) => {
            Err(kiln_models::Error::Foreign { path, model, held: Vec::new() }.into())
        }
        Inspection::File(_) | Inspection::List(_) | Inspection::Image(_) => Ok(()),
    }
}

/// An error if a component cannot be loaded.
fn check(report: FolderReport) -> Result<()> {
    let bad = report.components.into_iter().find(|component| !component.problems.is_empty());
    bad.map_or(Ok(()), |component| {
        let (count, first) = (component.problems.len(), &component.problems[0]);
        let problem = format!("{} cannot be loaded, {count} tensors do not match, the first: {first}", component.name);
        Err(kiln_models::Error::Model { path: report.path, problem }.into())
    })
}

/// A model folder in a few lines.
fn summary(report: &FolderReport) -> String {
    let (width, height) = report.size;
    let (files, bytes) = report.files;
    let part = |component: &ComponentReport| format!("{} {}", component.name, millions(component.parameters));
    let parts: Vec<String> = report.components.iter().map(part).collect();
    let sampler = report.sampler.as_ref().map(|sampler| format!(" of {sampler}")).unwrap_or_default();
    let mut text = format!("{}: {}, {width}x{height}\n", report.name, report.family);
    text += &format!("parameters: {} ({})\n", millions(report.parameters), parts.join(", "));
    text += &format!("stored as: {}\n", stored(&report.stored()));
    text += &format!("files: {}, {}\n", thousands(files), size(bytes));
    text += &format!("defaults: {} steps{sampler}, guidance {}\n", report.steps, number_text(report.cfg_scale));
    text += &format!("license: {}\n", report.license.as_deref().map_or("not named in README.md".into(), plain));
    for component in &report.components {
        for problem in component.problems.iter().take(NOTES) {
            text += &format!("problem in {}: {}\n", component.name, plain(problem));
        }
    }
    text
}

/// A number of parameters: `859.5 M`.
fn millions(number: usize) -> String {
    match number {
        0..1_000_000 => thousands(number),
        _ => format!("{:.1} M", number as f64 / 1e6),
    }
}

/// The networks of a folder that is no model, one a line.
fn list(report: &ListReport) -> String {
    let row = |entry: &kiln_engine::ListEntry| vec![plain(&entry.name), size(entry.bytes), lines(&entry.what)];
    let rows: Vec<Vec<String>> = report.entries.iter().map(row).collect();
    let widths = [0, 1].map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        text += &format!("{:a$}  {:>b$}  {}\n", row[0], row[1], row[2], a = widths[0], b = widths[1]);
    }
    if report.left_out > 0 {
        text += &format!("and {} more\n", thousands(report.left_out));
    }
    text
}

/// The metadata of a LoRA.
fn lora(notes: &LoraNotes) -> String {
    let mut text = String::new();
    let base = notes.unsupported.as_deref().or(notes.base.as_deref()).map_or("not named in the file".into(), plain);
    text += &format!("base model: {base}\n");
    if let Some(trigger) = &notes.trigger {
        text += &format!("trigger words: {}\n", plain(trigger));
    }
    let word = |(word, count): &(String, u64)| format!("{} ({count})", plain(word));
    if !notes.words.is_empty() {
        text += &format!("most frequent tags: {}\n", notes.words.iter().map(word).collect::<Vec<_>>().join(", "));
    }
    text + &notes.rank.as_deref().map(|rank| format!("rank: {}\n", plain(rank))).unwrap_or_default()
}

/// The segments of all networks of a model folder.
fn folder(report: &FolderReport) -> String {
    let mut text = String::new();
    for component in &report.components {
        text += &one(component, &report.dtype);
    }
    let mut rows = vec![["", "parameters", report.dtype.as_str(), "segments", "largest"].map(String::from).to_vec()];
    for component in &report.components {
        let largest = component.segments.iter().map(|segment| segment.bytes).max().unwrap_or(0);
        rows.push(vec![
            component.name.clone(),
            thousands(component.parameters),
            size(component.bytes as u64),
            component.segments.len().to_string(),
            size(largest as u64),
        ]);
    }
    let segments: usize = report.components.iter().map(|component| component.segments.len()).sum();
    let total = [thousands(report.parameters), size(report.bytes as u64), segments.to_string()];
    rows.push([vec!["all".to_string()], total.to_vec()].concat());
    text.trim_start().to_string() + "\n" + &table(&rows, 1)
}

/// A component with its segments.
fn one(component: &ComponentReport, dtype: &str) -> String {
    let bytes = format!("bytes as {dtype}");
    let mut rows = vec![["segment", "parameters", bytes.as_str(), ""].map(String::from).to_vec()];
    for segment in &component.segments {
        let place = match (segment.in_file, segment.on_host) {
            (true, _) => "in the file",
            (_, true) => "on the host",
            _ => "",
        };
        let numbers = [thousands(segment.parameters), thousands(segment.bytes)];
        rows.push([vec![segment.name.clone()], numbers.to_vec(), vec![place.to_string()]].concat());
    }
    let mut text = format!("\n{}, stored as {}\n", component.name, stored(&component.stored));
    text += &table(&rows, 1);
    for problem in &component.problems {
        text += &format!("problem: {problem}\n");
    }
    text
}

fn file(report: &FileReport) -> String {
    let what = match report.kind {
        FileKind::Foreign(model) => model.sentence(&report.held),
        kind => kind.label().into(),
    };
    let mut text = format!("{}: {what}\n", report.path.display());
    text += &report.lora.as_ref().map(lora).unwrap_or_default();
    text += &report.model.as_ref().map(model).unwrap_or_default();
    text += &format!(
        "{}, {} tensors, {} parameters, {} ({} bytes)\nstored as {}\n",
        report.format,
        thousands(report.tensors),
        thousands(report.parameters),
        size(report.bytes),
        thousands(report.bytes as usize),
        stored(&report.stored),
    );
    if !report.kept.is_empty() {
        text += &format!("stored in the file: {}\n", report.kept.join(", "));
    }
    for (key, value) in report.metadata.iter().take(NOTES) {
        let more = if value.chars().count() > NOTE_LENGTH { " .." } else { "" };
        text += &format!("note {}: {}{more}\n", plain(key), plain(value));
    }
    if report.metadata.len() > NOTES {
        text += &format!("and {} more notes; --json has all\n", report.metadata.len() - NOTES);
    }
    text
}

fn image(report: &ImageReport) -> String {
    let mut text = format!("{}: {}", report.path.display(), report.format);
    if let Some((width, height)) = report.size {
        text += &format!(", {width}x{height}");
    }
    text.push('\n');
    if let Some(own) = &report.kiln {
        text += &own_settings(own);
        for name in &report.unknown {
            text += &format!("{}: unknown to this version of Kiln\n", plain(name));
        }
    } else if let (Some(found), Some(place)) = (&report.parameters, &report.place) {
        text += &format!("settings ({})\n", plain(place));
        text += &prompt("prompt", &found.prompt);
        text += &prompt("negative prompt", &found.negative_prompt);
        for (name, value) in &found.fields {
            text += &format!("{}: {}\n", plain(name), lines(value));
        }
    }
    for other in &report.others {
        text += &format!("settings of {} ({})\n", other.program, plain(&other.key));
        for (name, value) in &other.facts {
            text += &format!("{}: {}\n", plain(name), lines(value));
        }
    }
    let is_shown = report.kiln.is_some() || report.parameters.is_some() || !report.others.is_empty();
    if !is_shown {
        text += "no settings\n";
        for ImageText { place, key, text: said } in report.texts.iter().take(NOTES) {
            text += &format!("text {} ({}): {}\n", plain(key), plain(place), plain(said));
        }
    }
    text
}

/// Kiln's own settings: the request and the files.
fn own_settings(own: &OwnSettings) -> String {
    let mut text = format!("settings (Kiln {}; kiln txt2img --like generates the image again)\n", plain(&own.kiln));
    text += &prompt("prompt", &own.request.prompt);
    text += &prompt("negative prompt", own.request.negative_prompt.as_deref().unwrap_or_default());
    let file = |file: &NamedFile| {
        let hash = file.sha256.as_ref().and_then(|hash| hash.get(..10));
        format!("{}{}", plain(&file.name), hash.map(|hash| format!(" (hash {})", plain(hash))).unwrap_or_default())
    };
    text += &format!("model: {}\n", file(&own.model));
    for part in &own.files {
        text += &format!("{}: {}\n", part.component.id().replace('_', "-"), file(&part.file));
    }
    for lora in &own.loras {
        text += &format!("LoRA: {}\n", file(lora));
    }
    if !own.embeddings.is_empty() {
        text += &format!("embeddings: {}\n", plain(&own.embeddings.join(", ")));
    }
    // All other values, in the format of a job file, except defaults.
    let [request, defaults] = [serde_json::json!(own.request), serde_json::json!(kiln_engine::Request::default())];
    for (name, value) in request.as_object().into_iter().flatten() {
        let is_shown = ["prompt", "negative_prompt", "loras"].contains(&name.as_str()) || name.starts_with("literal");
        if !is_shown && defaults.get(name) != Some(value) {
            let value = value.as_str().map_or_else(|| value.to_string(), String::from);
            text += &format!("{}: {}\n", name.replace('_', " "), plain(&value));
        }
    }
    let matrices = own.weight_type.as_ref().map(|kind| format!(", linear layers in {}", plain(kind)));
    let compute = own.compute.as_ref().map(|kind| format!(", computed in {}", plain(kind))).unwrap_or_default();
    text + &format!("type: {}{}{compute}, on {}\n", plain(&own.dtype), matrices.unwrap_or_default(), plain(&own.device))
}

/// A prompt, if it exists, with indented lines.
fn prompt(title: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{title}: {}\n", lines(text)) }
}

/// A text from a file, which is shown completely unless it is too long to read.
fn lines(text: &str) -> String {
    const LENGTH: usize = 10_000;
    let shown: String = text.chars().take(LENGTH).filter(|&c| is_shown(c)).collect();
    let more = if text.chars().count() > LENGTH { " .. (--json has all)" } else { "" };
    shown.replace('\n', "\n    ") + more
}

/// The model in a file.
fn model(model: &FileModel) -> String {
    let mut what = vec![model.kind.label().to_string()];
    what.extend(model.input.label().map(String::from));
    what.push(match model.prediction {
        Prediction::Epsilon => "predicts noise (epsilon)".into(),
        Prediction::V => "predicts velocity (v)".into(),
        Prediction::Flow => "predicts the velocity of a flow".into(),
    });
    what.extend(model.distilled.map(|name| format!("distilled ({name}), by its name")));
    let mut text = format!("{}\nparts: {}\n", what.join(", "), model.parts.join(", "));
    for (title, names) in [("problem", &model.problems), ("unexpected tensor", &model.unexpected)] {
        for name in names.iter().take(NOTES) {
            text += &format!("{title}: {}\n", plain(name));
        }
        if names.len() > NOTES {
            text += &format!("and {} more; --json has all\n", names.len() - NOTES);
        }
    }
    text
}

/// A short text from a file on one line, without terminal control characters.
fn plain(text: &str) -> String {
    text.chars().take(NOTE_LENGTH).filter(|&c| c != '\n' && c != '\t' && is_shown(c)).collect()
}

/// The types with their tensor counts.
fn stored(stored: &[Stored]) -> String {
    let one = |stored: &Stored| {
        format!("{} ({} tensors, {})", stored.dtype, thousands(stored.tensors), size(stored.bytes as u64))
    };
    match stored {
        [] => "nothing: no weights found".into(),
        stored => stored.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}
