//! What of the Python module needs no Python: the tables, and the type stub that is made from them.

#[path = "../src/engine_options.rs"]
mod engine_options;
#[path = "../src/python_types.rs"]
mod python_types;

use std::fmt::Write;

use engine_options::ENGINE_OPTIONS;
use kiln_engine::{OPTIONS, OptionGroup, OptionRow};
use python_types::python_type;

/// The rows that a method takes as keywords, without those that it names itself.
fn keywords(skipped: &[&str]) -> impl Iterator<Item = &'static OptionRow> {
    OPTIONS.iter().filter(move |row| row.group != OptionGroup::Internal && !skipped.contains(&row.name))
}

/// A method that makes images.
fn method(stub: &mut String, head: &str, first: &str, skipped: &[&str], result: &str) {
    let _ = write!(stub, "\n    {head}(\n        self,\n        prompt: str,\n{first}        *,\n");
    for name in ["on_step: Callable[[int, int], object]", "on_preview: Callable[[int, int, Array], object]"] {
        let _ = writeln!(stub, "        {name} | None = ...,");
    }
    let _ = writeln!(stub, "        preview_every: int = ...,");
    for row in keywords(skipped) {
        let _ = writeln!(stub, "        {}: {} | None = ...,", row.name, python_type(row));
    }
    let _ = writeln!(stub, "    ) -> {result}: ...");
}

/// The stub.
fn stub() -> String {
    let mut stub = String::from(
        "# Made from the tables of options (crates/request/src/options/table.rs, crates/python/src/engine_options.rs):\n\
         # KILN_UPDATE_DOCS=1 cargo test --release -p kiln-python\n\
         from collections.abc import Callable, Iterable, Mapping, Sequence\n\
         from types import TracebackType\n\
         from typing import Any, Literal\n\n\
         from kiln.image import Array, Image, ImageLike, StrPath\n\n\
         class Engine:\n    def __init__(\n        self,\n        model: StrPath | None = ...,\n        *,\n",
    );
    for option in ENGINE_OPTIONS {
        let _ = writeln!(stub, "        {}: {} | None = ...,", option.name, option.python);
    }
    stub += "    ) -> None: ...\n";
    for (name, kind) in [("name", "str"), ("path", "str"), ("defaults", "dict[str, Any]")] {
        let _ = write!(stub, "    @property\n    def {name}(self) -> {kind}: ...\n");
    }
    let init = "        init: ImageLike,\n";
    for (head, result) in [("def ", "list[Image]"), ("async def a", "list[Image]")] {
        method(&mut stub, &format!("{head}txt2img"), "", &["prompt", "init"], result);
        method(&mut stub, &format!("{head}img2img"), init, &["prompt", "init"], result);
    }
    for head in ["def ", "async def a"] {
        let _ = write!(
            stub,
            "\n    {head}upscale(\n        self,\n        image: ImageLike,\n        scale: float | None = ...,\n        *,\n        \
             upscaler: StrPath = ...,\n        upscaler_dir: StrPath | None = ...,\n    ) -> Image: ...\n"
        );
        let _ = write!(
            stub,
            "\n    {head}batch(\n        self,\n        jobs: StrPath | Iterable[str | Mapping[str, Any]] | None,\n        \
             output: StrPath,\n        *,\n        on_event: Callable[[dict[str, Any]], object] | None = ...,\n        \
             format: Literal[\"jsonl\", \"csv\", \"text\"] | None = ...,\n        set: Mapping[str, Any] | Sequence[str] | None = ...,\n        \
             grid: Mapping[str, Any] | Sequence[str] | None = ...,\n        shard: str | None = ...,\n        retry: bool = ...,\n        \
             overwrite: bool = ...,\n        batch_size: int | Literal[\"auto\"] = ...,\n        deterministic: bool = ...,\n        \
             contact_sheet: StrPath | None = ...,\n        thumbnail: int | None = ...,\n    ) -> dict[str, Any]: ...\n"
        );
    }
    for (head, result) in [("def plan", "dict[str, Any]"), ("def timesteps", "list[float]")] {
        let _ = write!(stub, "\n    {head}(\n        self,\n        prompt: str = ...,\n        *,\n");
        for row in keywords(&["prompt"]) {
            let _ = writeln!(stub, "        {}: {} | None = ...,", row.name, python_type(row));
        }
        let _ = writeln!(stub, "    ) -> {result}: ...");
    }
    stub += "\n    def close(self) -> None: ...\n    def __enter__(self) -> Engine: ...\n    def __exit__(\n        self,\n        \
             kind: type[BaseException] | None,\n        error: BaseException | None,\n        trace: TracebackType | None,\n    \
             ) -> None: ...\n";
    stub
}

/// `KILN_UPDATE_DOCS=1 cargo test --release -p kiln-python` writes the stub.
#[test]
fn the_committed_stub_is_the_tables() {
    let (path, new) = (format!("{}/python/kiln/engine.pyi", env!("CARGO_MANIFEST_DIR")), stub());
    if std::env::var_os("KILN_UPDATE_DOCS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &new).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default().replace('\r', "");
    assert!(committed == new, "engine.pyi is not up to date; set KILN_UPDATE_DOCS=1 and run this test again");
}

#[test]
fn every_option_is_a_keyword() {
    let stub = stub();
    for row in OPTIONS.iter().filter(|row| row.group != OptionGroup::Internal) {
        assert!(stub.contains(&format!("        {}: ", row.name)), "{}", row.name);
    }
}
