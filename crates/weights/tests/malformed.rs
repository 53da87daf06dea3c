//! Files that are no checkpoints: refused with a message, without a panic or a large allocation.

use std::path::{Path, PathBuf};

use kiln_testkit::shared_data;
use kiln_weights::{ParamSource, SafetensorsFile};

fn safetensors_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ext| ext == "safetensors")).collect()
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_malformed_files_are_refused() {
    let folder = shared_data("malformed_safetensors");
    let files = safetensors_in(&folder);
    assert_eq!(files.len(), 22);
    for path in files {
        let error = SafetensorsFile::open(&path).err().unwrap_or_else(|| panic!("{} was accepted", path.display()));
        let message = error.to_string();
        assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
        println!("{message}");
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_valid_corner_cases_are_read() {
    let folder = shared_data("valid_edge_safetensors");
    let files = safetensors_in(&folder);
    assert!(!files.is_empty(), "{} has no files", folder.display());
    for path in files {
        let file = SafetensorsFile::open(&path).unwrap();
        for key in file.keys() {
            let data = file.data(&key).unwrap().unwrap();
            assert_eq!(Some(data.bytes.len()), data.info.dtype.bytes(&data.info.shape), "{key}");
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = SafetensorsFile::open(Path::new("no/such/model.safetensors")).err().unwrap();
    assert!(error.to_string().starts_with("no/such/model.safetensors: "), "{error}");
}
