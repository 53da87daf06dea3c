//! The models in the cache of the Hugging Face Hub.

use std::path::{Path, PathBuf};

use kiln_hub::{CachedRepository, Settings, cached_repositories};

use super::describe::{Found, describe_file, describe_folder};
use super::{InstalledModel, InstalledPlace};
use crate::inspect::is_weights;
use crate::model::INDEX;

/// The models in the cache, if there is one: folders of diffusers, and files. Language models and others are not listed.
pub(super) fn models() -> Option<InstalledPlace> {
    let path = Settings::from_env(true).ok()?.cache;
    let mut place = InstalledPlace {
        title: "the Hub's cache".into(),
        path: path.clone(),
        models: Vec::new(),
        others: 0,
        is_cut: false,
    };
    for CachedRepository { name, snapshot } in cached_repositories(&path) {
        if snapshot.join(INDEX).is_file() {
            place.add(describe_folder(&snapshot), format!("hf:{name}"));
            continue;
        }
        for file in files(&snapshot) {
            let of_repository = format!("hf:{name}/{}", file.file_name().unwrap_or_default().to_string_lossy());
            place.add(describe_file(&file), of_repository);
        }
    }
    place.models.sort_by(|a, b| a.argument.cmp(&b.argument));
    Some(place)
}

impl InstalledPlace {
    fn add(&mut self, found: Found, argument: String) {
        match found {
            Found::Model(model) => self.models.push(InstalledModel { argument, ..*model }),
            Found::Other => self.others += 1,
        }
    }
}

/// The files with weights at the top of a repository. Weights of language models and others have names of their libraries, and those
/// are not opened.
fn files(snapshot: &Path) -> Vec<PathBuf> {
    let is_of_library = |name: &str| {
        ["model.", "model-", "pytorch_model", "adapter_", "diffusion_pytorch_model"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let entries = std::fs::read_dir(snapshot).into_iter().flatten().flatten();
    let is_model = |path: &PathBuf| {
        is_weights(path) && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !is_of_library(name))
    };
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_model).collect();
    files.sort();
    files
}
