//! Files by name in a folder.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use kiln_models::cached;

use super::{LoraName, file_stem};
use crate::error::{Error, Result};

/// The maximum depth of searched folders: loops of links end there.
const MAX_DEPTH: usize = 8;
/// The maximum number of searched entries: a folder that leads to the whole disk fails instead of taking minutes.
const MAX_ENTRIES: usize = 200_000;

/// The extensions of LoRA files.
const ENDINGS: [&str; 4] = ["safetensors", "pt", "ckpt", "bin"];

/// All files of a folder and its subfolders with one of these extensions, sorted by path.
///
/// # Errors
/// [`Error::Files`] if the folder itself cannot be read; unreadable subfolders are skipped. [`Error::Models`] if there
/// are more than 200,000 files and folders.
pub fn weight_files(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    files_among(folder, endings, MAX_ENTRIES)
}

/// [`files`] with at most `most` entries. A folder with several links is searched once.
fn files_among(folder: &Path, endings: &[&str], most: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let (mut entries_seen, mut folders_seen) =
        (0, HashSet::from([folder.canonicalize().map_err(Error::read(folder))?]));
    let entries = std::fs::read_dir(folder).map_err(Error::read(folder))?;
    let mut waiting: Vec<(PathBuf, usize)> = entries.flatten().map(|entry| (entry.path(), 1)).collect();
    while let Some((path, depth)) = waiting.pop() {
        entries_seen += 1;
        if entries_seen > most {
            let problem =
                format!("has more than {most} files and folders in it; give the folder with the files itself");
            return Err(kiln_models::Error::model(folder, problem).into());
        }
        if path.is_dir() {
            if path.canonicalize().is_ok_and(|path| !folders_seen.insert(path)) {
                continue;
            }
            let below = std::fs::read_dir(&path).into_iter().flatten().flatten();
            waiting.extend(below.map(|entry| (entry.path(), depth + 1)).filter(|(_, depth)| *depth <= MAX_DEPTH));
        } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
        {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The LoRA files of a folder and its subfolders with the names that prompts have for them, sorted by path. No file is
/// opened.
///
/// # Errors
/// [`Error::Files`] if the folder cannot be read.
pub fn lora_files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    Ok(weight_files(folder, &ENDINGS)?.into_iter().map(|path| (file_stem(&path), path)).collect())
}

/// The file of a LoRA: a path, or a name in `folder`.
///
/// # Errors
/// [`Error::Files`] names the paths that were tried.
pub fn find_lora(name: &LoraName, folder: Option<&Path>) -> Result<PathBuf> {
    match name {
        LoraName::File(path) if path.is_file() => Ok(path.clone()),
        LoraName::File(path) => {
            if let Some(path) = cached(path)? {
                return Ok(path);
            }
            let looked_for = "`loras`, a .safetensors file, with strengths behind it as in FILE:0.8".into();
            Err(Error::not_found(path, looked_for))
        }
        LoraName::Named(name) => {
            let Some(folder) = folder else {
                let looked_for = format!("<lora:{name}>, in the folder of LoRAs; say which one it is with `lora_dir`");
                return Err(Error::not_found(name, looked_for));
            };
            let files = weight_files(folder, &ENDINGS)?;
            let same = |path: &&PathBuf| file_stem(path) == *name;
            let alike = |path: &&PathBuf| file_stem(path).eq_ignore_ascii_case(name);
            files.iter().find(same).or_else(|| files.iter().find(alike)).cloned().ok_or_else(|| {
                let looked_for = format!("{name}.safetensors in that folder or below, for <lora:{name}> in the prompt");
                Error::not_found(folder.join(name), looked_for)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_below_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("styles")).unwrap();
        for name in ["ink.safetensors", "styles/Wash.safetensors", "styles/notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let find = |name: &str| find_lora(&LoraName::Named(name.into()), Some(folder.path()));
        assert!(find("ink").unwrap().ends_with("ink.safetensors"));
        assert!(find("wash").unwrap().ends_with("styles/Wash.safetensors"));
        let message = find("oil").unwrap_err().to_string();
        assert!(message.contains("looked for oil.safetensors in that folder or below, for <lora:oil>"), "{message}");
        assert_eq!(weight_files(folder.path(), &["safetensors"]).unwrap().len(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn loops_of_links_and_large_folders_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for i in 0..10 {
            std::fs::create_dir(path.join(format!("f{i}"))).unwrap();
            std::os::unix::fs::symlink(path, path.join(format!("f{i}/up"))).unwrap();
        }
        std::fs::write(path.join("f0/ink.safetensors"), "").unwrap();
        assert_eq!(weight_files(path, &["safetensors"]).unwrap().len(), 1, "each folder is searched once");
        assert_eq!(files_among(path, &["safetensors"], 21).unwrap().len(), 1);
        let message = files_among(path, &["safetensors"], 20).unwrap_err().to_string();
        assert!(message.contains("has more than 20 files and folders in it"), "{message}");
    }

    #[test]
    fn a_name_without_a_folder_says_which_option_is_missing() {
        let message = find_lora(&LoraName::Named("ink".into()), None).unwrap_err().to_string();
        assert!(message.contains("`lora_dir`"), "{message}");
    }
}
