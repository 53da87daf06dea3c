//! The files of `models/emoji`.

use crate::file::ModelFile;

/// A file that is small enough to be compared byte by byte.
macro_rules! small {
    ($name:literal) => {
        ModelFile { name: $name, bytes: include_bytes!(concat!("../../../models/emoji/", $name)), crc: None }
    };
}

/// A file with weights, and its CRC-32.
macro_rules! weights {
    ($name:literal, $crc:literal) => {
        ModelFile { crc: Some($crc), ..small!($name) }
    };
}

/// All files. The index is the last one: a folder without it is no model.
pub(crate) static FILES: &[ModelFile] = &[
    small!("LICENSE"),
    small!("README.md"),
    small!("kiln.json"),
    small!("scheduler/scheduler_config.json"),
    small!("text_encoder/config.json"),
    weights!("text_encoder/model.safetensors", 0x0a22_c0fa),
    small!("tokenizer/merges.txt"),
    small!("tokenizer/special_tokens_map.json"),
    small!("tokenizer/tokenizer_config.json"),
    small!("tokenizer/vocab.json"),
    small!("unet/config.json"),
    weights!("unet/diffusion_pytorch_model.safetensors", 0xc7fe_481f),
    small!("vae/config.json"),
    weights!("vae/diffusion_pytorch_model.safetensors", 0xd5fd_cc9b),
    small!("model_index.json"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use kiln_testkit::repository;

    use super::*;

    /// The paths of all files below `folder`, with slashes.
    fn below(folder: &Path, before: &str, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{before}{}", entry.file_name().into_string().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => below(&entry.path(), &format!("{name}/"), names),
                false => drop(names.insert(name)),
            }
        }
    }

    #[test]
    fn the_program_contains_every_file_of_the_folder() {
        let (folder, mut names) = (repository().join("models/emoji"), BTreeSet::new());
        below(&folder, "", &mut names);
        assert_eq!(names, FILES.iter().map(|file| file.name.to_string()).collect());
        for file in FILES {
            assert!(file.is_copied(&folder.join(file.name)), "{}: the CRC-32 in this table is another one", file.name);
            assert!(file.crc.is_some() || file.bytes.len() < 1 << 20, "{} needs a CRC-32", file.name);
        }
    }
}
