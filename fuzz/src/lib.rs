//! Functions that the targets share.

use std::path::Path;

use kiln_weights::{ParamSource, Result};

/// Opens `data` as a file, and reads every tensor if it opens. There may be no panic, and no tensor may have more bytes
/// than the file.
pub fn open_and_read<S: ParamSource>(data: &[u8], open: impl Fn(&Path) -> Result<S>) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for files");
    let path = folder.path().join("model");
    std::fs::write(&path, data).expect("a file");
    let Ok(file) = open(&path) else { return };
    for key in file.keys() {
        let info = file.info(&key).expect("every key has a shape");
        if let Ok(Some(read)) = file.data(&key) {
            assert_eq!(read.info, info);
            assert!(read.bytes.len() <= data.len());
            let _ = read.to_f32();
            file.release(&key);
        }
    }
}
