//! The metadata of an image, and the request from its settings.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use kiln_engine::{ImageReport, Like, ModelFolder, Setup};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for files"));
static MODEL: LazyLock<ModelFolder> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/emoji");
    ModelFolder::open(Path::new(folder)).expect("a model")
});

fuzz_target!(|data: &[u8]| {
    let path = FOLDER.path().join("image");
    std::fs::write(&path, data).expect("a file");
    let Ok(report) = ImageReport::read(&path) else { return };
    serde_json::to_string(&report).expect("a report is JSON");
    let Ok(mut like) = Like::read(&path) else { return };
    let _ = like.check_names(false, false);
    let mut request = like.request(&MODEL, &Setup::default());
    let _ = (like.take_warnings(), request.drop_unfit());
    let _ = request.resolve(&MODEL);
});
