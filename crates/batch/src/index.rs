//! `index.jsonl`: the images of a set, for programs.

use std::path::Path;

use kiln_files::{FileRules, PlannedFile};
use serde_json::{Value, json};

use super::todos::{State, Todo};
use crate::error::Result;

/// Writes one object per line in the set's order: the image's number, the line of its job, the request with all seeds,
/// and its file with the times, or the error. The file is replaced atomically.
pub(crate) fn write_index(path: &Path, todos: &[Todo]) -> Result<()> {
    let rules = FileRules { field: "output", what: "the index", extensions: &["jsonl"], overwrite: true };
    let mut text = String::new();
    for todo in todos {
        text += &row(todo).to_string();
        text.push('\n');
    }
    Ok(PlannedFile::named(path, rules)?.write(|to| to.write_all(text.as_bytes()))?)
}

fn row(todo: &Todo) -> Value {
    let Todo { task, planned, state, .. } = todo;
    let mut row = json!({
        "number": task.number,
        "line": task.line,
        "key": task.key,
        "file": planned.file,
        "seed": planned.seed,
        "model": task.model,
        "request": task.request.changed_fields(),
    });
    match state {
        State::Made(made) => {
            row["state"] = "made".into();
            row["seconds"] = json!(made.seconds);
            row["bytes"] = made.bytes.into();
        }
        State::Failed(error) => {
            row["state"] = "failed".into();
            row["error"] = (&**error).into();
        }
        State::Pending => row["state"] = "pending".into(),
    }
    row
}
