//! The models in a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::InstalledPlace;
use super::describe::{Found, describe_file, describe_folder};
use super::places::Place;
use crate::inspect::is_weights;
use crate::model::INDEX;

/// The most models and files with weights that are opened in a place.
const MOST: usize = 2000;

/// The models in a place; those in `seen` were found in another one.
pub(super) fn scan(place: &Place, seen: &mut BTreeSet<PathBuf>) -> InstalledPlace {
    let (mut paths, mut is_cut) = (Vec::new(), false);
    collect(&place.path, place.depth, &mut paths, &mut is_cut);
    let (mut models, mut others) = (Vec::new(), 0);
    for path in paths {
        if !path.canonicalize().is_ok_and(|whole| seen.insert(whole)) {
            continue;
        }
        match if path.is_dir() { describe_folder(&path) } else { describe_file(&path) } {
            Found::Model(model) => models.push(*model),
            Found::Other => others += 1,
        }
    }
    InstalledPlace { title: place.title.clone(), path: place.path.clone(), models, others, is_cut }
}

/// The model folders and the files with weights below `folder`, sorted. Hidden ones are left out.
fn collect(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>, is_cut: &mut bool) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        if paths.len() >= MOST {
            *is_cut = true;
            return;
        }
        if path.join(INDEX).is_file() || is_weights(&path) {
            paths.push(path);
        } else if depth > 0 && path.is_dir() {
            collect(&path, depth - 1, paths, is_cut);
        }
    }
}
