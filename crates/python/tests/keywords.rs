//! What of the Python module needs no Python: the tables, and the types of keywords that are made from them.

#[path = "../src/engine_options.rs"]
mod engine_options;
#[path = "../src/python_types.rs"]
mod python_types;

use std::fmt::Write;

use engine_options::ENGINE_OPTIONS;
use kiln_engine::{OPTIONS, OptionGroup};
use python_types::python_type;

/// A class of keywords. Each field is a name, a type and what it does; all may be left out.
fn class(text: &mut String, head: &str, about: &str, fields: impl Iterator<Item = (String, String, String)>) {
    let _ = write!(text, "\n\nclass {head}, total=False):\n    \"\"\"{about}\"\"\"\n");
    for (name, python, help) in fields {
        let help = help.replace('\\', "\\\\");
        let _ = write!(text, "\n    {name}: {python}\n    \"\"\"{help}\"\"\"\n");
    }
}

/// The file with the types of keywords.
fn types() -> String {
    let mut text = String::from(
        "\"\"\"The keywords of an engine and of its calls.\n\n\
         Made from the tables of options (crates/request/src/options/table.rs, crates/python/src/engine_options.rs):\n\
         KILN_UPDATE_DOCS=1 cargo test --release -p kiln-python\n\"\"\"\n\n\
         from __future__ import annotations\n\n\
         from collections.abc import Mapping, Sequence\n\
         from typing import Any, Literal, TypedDict\n\n\
         from kiln.image import ImageLike, StrPath\n",
    );
    let of_engine = ENGINE_OPTIONS
        .iter()
        .map(|option| (option.name.to_string(), format!("{} | None", option.python), option.help()));
    class(&mut text, "EngineOptions(TypedDict", "The keywords of `Engine`.", of_engine);
    let of_request = OPTIONS
        .iter()
        .filter(|row| row.group != OptionGroup::Internal && !["prompt", "init"].contains(&row.name))
        .map(|row| (row.name.to_string(), format!("{} | None", python_type(row)), row.help()));
    class(&mut text, "RequestOptions(TypedDict", "The fields of a request, besides `prompt` and `init`.", of_request);
    text
}

/// `KILN_UPDATE_DOCS=1 cargo test --release -p kiln-python` writes the file.
#[test]
fn the_committed_types_are_the_tables() {
    let (path, new) = (format!("{}/python/kiln/_options.py", env!("CARGO_MANIFEST_DIR")), types());
    if std::env::var_os("KILN_UPDATE_DOCS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &new).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default().replace('\r', "");
    assert!(committed == new, "_options.py is not up to date; set KILN_UPDATE_DOCS=1 and run this test again");
}

#[test]
fn every_option_is_a_keyword() {
    let types = types();
    let of_request = OPTIONS.iter().filter(|row| row.group != OptionGroup::Internal).map(|row| row.name);
    for name in
        of_request.filter(|name| !["prompt", "init"].contains(name)).chain(ENGINE_OPTIONS.iter().map(|row| row.name))
    {
        assert_eq!(types.matches(&format!("\n    {name}: ")).count(), 1, "{name}");
    }
}
