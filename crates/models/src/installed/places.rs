//! The folders in which models are usual.

use std::path::{Path, PathBuf};

use crate::locate::{folders, variable_folder};

/// A folder to search.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) title: String,
    pub(super) path: PathBuf,
    /// How many folders deep its subfolders are searched.
    pub(super) depth: usize,
}

/// Where AUTOMATIC1111's web UI, Forge and ComfyUI have models and denoisers, in their folders of models.
const OF_PROGRAMS: [&str; 4] = ["Stable-diffusion", "checkpoints", "diffusion_models", "unet"];
/// Their usual places in the home folder.
const IN_HOME: [&str; 6] = [
    "stable-diffusion-webui",
    "stable-diffusion-webui-forge",
    "ComfyUI",
    "Documents/ComfyUI",
    "comfy/ComfyUI",
    "StabilityMatrix/Data/Models",
];
/// The depth in folders of programs, whose users sort models into subfolders.
const DEEP: usize = 4;
/// The depth in other folders.
const FLAT: usize = 2;

/// All of them, those in which Kiln looks for names first.
pub(super) fn usual() -> Vec<Place> {
    let mut places = Vec::new();
    if let Some(folder) = variable_folder() {
        places.extend(of_folder("KILN_MODELS", &folder));
    }
    places.extend(of_folder("the current folder's models", Path::new("models")));
    for folder in folders() {
        places.extend(of_folder("the program's models", &folder));
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    for name in IN_HOME.iter().filter(|_| home.is_some()) {
        let root = home.iter().map(|home| home.join(name)).find(|root| root.is_dir());
        places.extend(root.iter().flat_map(|root| in_program(root)));
    }
    places
}

/// A folder of models, or the folder of a program that has such.
pub(super) fn of_folder(title: &str, folder: &Path) -> Vec<Place> {
    let of_program = in_program(folder);
    if !of_program.is_empty() {
        return of_program;
    }
    match folder.is_dir() {
        true => vec![Place { title: title.into(), path: folder.to_path_buf(), depth: FLAT }],
        false => Vec::new(),
    }
}

/// The folders of models in a program's folder or in its folder `models`. Their names differ in case between the programs, which some
/// file systems do not distinguish: those count once.
fn in_program(root: &Path) -> Vec<Place> {
    let both = [root.join("models"), root.to_path_buf()];
    let found = |models: &PathBuf| -> Vec<Place> {
        // A folder of diffusers has a U-Net in `unet`.
        let is_model = models.join(crate::model::INDEX).exists();
        let folders = OF_PROGRAMS.iter().map(|name| models.join(name)).filter(|path| !is_model && path.is_dir());
        let title = format!("models of {}", root.display());
        folders.map(|path| Place { title: title.clone(), path, depth: DEEP }).collect()
    };
    both.iter().map(found).find(|places| !places.is_empty()).unwrap_or_default()
}
