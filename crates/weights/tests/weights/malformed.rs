//! Files that are not checkpoints are refused with a message, without a panic or a large allocation.

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

/// A zip archive with one uncompressed entry, in the layout of `torch.save`. Checksums are not verified.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let name = b"archive/data.pkl";
    let size = u32::try_from(pickle.len()).unwrap().to_le_bytes();
    let sizes_and_name = |file: &mut Vec<u8>| {
        file.extend_from_slice(&[0; 4]); // checksum
        file.extend_from_slice(&size);
        file.extend_from_slice(&size);
        file.extend_from_slice(&[u8::try_from(name.len()).unwrap(), 0, 0, 0]);
    };
    let mut file = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0".to_vec();
    sizes_and_name(&mut file);
    file.extend_from_slice(name);
    file.extend_from_slice(pickle);
    let directory = u32::try_from(file.len()).unwrap().to_le_bytes();
    file.extend_from_slice(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0");
    sizes_and_name(&mut file);
    file.extend_from_slice(&[0; 14]); // comment, disk, attributes, offset
    file.extend_from_slice(name);
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0\0\0\0\0");
    file.extend_from_slice(&directory);
    file.extend_from_slice(&[0; 2]);
    file
}

fn refused(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ckpt");
    std::fs::write(&path, bytes).unwrap();
    kiln_weights::Checkpoint::open(&path).err().expect("the file was accepted").to_string()
}

/// Five levels of dictionaries, each of which contains the one below under 400 names: 400^4 names in about 12 KB.
#[test]
fn nested_dictionaries_that_expand_are_refused() {
    let mut pickle = vec![0x80, 2, b'}'];
    for level in 0..5u8 {
        pickle.extend([b'q', level, b'}', b'(']); // memoize the dictionary; then a new one with its entries
        for i in 0..400 {
            let key = format!("k{i}");
            pickle.extend([b'X', u8::try_from(key.len()).unwrap(), 0, 0, 0]);
            pickle.extend(key.bytes());
            pickle.extend([b'h', level]);
        }
        pickle.push(b'u');
    }
    pickle.push(b'.');
    assert!(pickle.len() < 25_000);
    let message = refused(&archive(&pickle));
    assert!(message.contains("more than 65536 entries"), "{message}");
}

#[test]
fn marks_count_as_values() {
    let mut pickle = vec![b'('; 1 << 20];
    pickle.splice(..0, [0x80, 2]);
    let message = refused(&archive(&pickle));
    assert!(message.contains("creates more than 524288 values"), "{message}");
}

#[cfg(unix)]
#[test]
fn special_files_are_not_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let message = kiln_weights::Checkpoint::open(&path).err().unwrap().to_string();
    assert!(message.ends_with("model.safetensors: is a device, expected a regular file"), "{message}");
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::rename(&path, index).unwrap();
    let message = kiln_weights::open_component(folder.path()).err().unwrap().to_string();
    assert!(message.ends_with("index.json: is a device, expected a regular file"), "{message}");
}

/// Another program truncates a file that is open: the result is an error, where a read would end the process.
#[test]
fn a_file_that_shrinks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["fp8.safetensors", "comfy.gguf", "views.pt"] {
        let path = folder.path().join(name);
        std::fs::copy(kiln_testkit::fixtures("single").join(name), &path).unwrap();
        let file = kiln_weights::Checkpoint::open(&path).unwrap();
        let key = file.keys().into_iter().max_by_key(|key| file.info(key).unwrap().shape.iter().product::<usize>());
        let key = key.unwrap();
        assert!(file.data(&key).unwrap().is_some());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(16).unwrap();
        let message = file.data(&key).err().unwrap_or_else(|| panic!("{name} was read")).to_string();
        assert!(message.contains(name) && message.contains("has 16 bytes, but had "), "{message}");
    }
}
