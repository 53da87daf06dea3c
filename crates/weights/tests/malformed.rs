//! Files that are no checkpoints: refused with a message, without a panic or a large allocation.

use std::path::{Path, PathBuf};

use kiln_weights::{ParamSource, SafetensorsFile};

fn shared(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(folder);
    if !path.is_dir() {
        println!("skipped: {folder} is not beside the checkout");
        return None;
    }
    Some(path)
}

fn safetensors_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ext| ext == "safetensors")).collect()
}

#[test]
fn malformed_files_are_refused() {
    let Some(folder) = shared("malformed_safetensors") else { return };
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
fn valid_corner_cases_are_read() {
    let Some(folder) = shared("valid_edge_safetensors") else { return };
    for path in safetensors_in(&folder) {
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
