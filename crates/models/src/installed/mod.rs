//! The models on this machine: in the folders in which names are looked for, in those of other programs, and in the cache of the
//! Hub. Only headers and configurations are read.

mod describe;
mod in_cache;
mod places;
mod scan;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};

/// A folder with models, or the Hub's cache.
#[derive(Debug, Clone, Serialize)]
pub struct InstalledPlace {
    /// The kind of folder: a variable, or a program's folder.
    pub title: String,
    /// The folder.
    pub path: PathBuf,
    /// The models in it, by path. Folders of LoRAs, autoencoders and other parts are not models.
    pub models: Vec<InstalledModel>,
    /// The number of files with weights that are no models.
    pub others: usize,
    /// Whether there are more files than are opened.
    pub is_cut: bool,
}

/// A model folder, a model in one file, or a denoiser in one file.
#[derive(Debug, Clone, Serialize)]
pub struct InstalledModel {
    /// The family and kind.
    pub what: String,
    /// The stored type of most of the denoiser's bytes, as safetensors or GGUF name it.
    pub dtype: Option<String>,
    /// The bytes of the files.
    pub bytes: u64,
    /// The option that takes it: `model`, or `unet` for a denoiser alone; `None` if Kiln does not run it.
    pub option: Option<&'static str>,
    /// The value of the option from the current folder.
    pub argument: String,
    /// The folder or file.
    pub path: PathBuf,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// The models in `folder`, or without one those in all folders in which models are usual. Places without a model are left out.
///
/// # Errors
/// [`Error::Files`] if `folder` is no folder. Everything else is a [`InstalledModel::problem`].
pub fn installed(folder: Option<&Path>) -> Result<Vec<InstalledPlace>> {
    let places = match folder {
        Some(folder) if folder.is_dir() => places::of_folder("the folder", folder),
        Some(folder) => return Err(Error::not_found(folder.to_path_buf(), "a folder with models".into())),
        None => places::usual(),
    };
    let mut seen = BTreeSet::new();
    let mut found: Vec<InstalledPlace> = places.iter().map(|place| scan::scan(place, &mut seen)).collect();
    if folder.is_none() {
        found.extend(in_cache::models());
    }
    found.retain(|place| !place.models.is_empty());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use kiln_testkit::{fixtures, repository};

    use super::*;

    fn file(root: &Path, name: &str, content: &[u8]) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    #[test]
    fn folders_of_models_are_listed_with_family_and_type() {
        let places = installed(Some(&repository().join("models"))).unwrap();
        let [place] = places.as_slice() else { panic!("{places:?}") };
        let of = |name: &str| place.models.iter().find(|model| model.path.ends_with(name)).unwrap();
        let emoji = of("emoji");
        assert_eq!(
            (emoji.what.as_str(), emoji.dtype.as_deref(), emoji.option),
            ("Stable Diffusion 1 or 2", Some("F16"), Some("model"))
        );
        assert!(emoji.bytes > 30_000_000 && emoji.problem.is_none(), "{emoji:?}");
        assert_eq!(of("emoji-sd3").what, "Stable Diffusion 3");
        // The LoRA, the ControlNet, the IP-Adapter and its image encoder.
        assert_eq!((place.models.len(), place.others), (2, 4), "{places:?}");
    }

    #[test]
    fn folders_of_other_programs_are_searched_where_they_have_models() {
        let root = tempfile::tempdir().unwrap();
        let lora = std::fs::read(repository().join("models/emoji-lcm-lora/emoji-lcm-lora.safetensors")).unwrap();
        file(root.path(), "models/Stable-diffusion/anime/broken.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}");
        file(root.path(), "models/checkpoints/cut.ckpt", b"PK\x03\x04");
        file(root.path(), "models/Lora/a.safetensors", &lora);
        file(root.path(), "models/checkpoints/wrong place.safetensors", &lora);
        let places = installed(Some(root.path())).unwrap();
        let names = |place: &InstalledPlace| place.path.strip_prefix(root.path()).unwrap().display().to_string();
        assert_eq!(places.iter().map(names).collect::<Vec<_>>(), ["models/Stable-diffusion", "models/checkpoints"]);
        for place in &places {
            let [model] = place.models.as_slice() else { panic!("{place:?}") };
            assert!(model.problem.is_some() && model.option.is_none(), "{model:?}");
        }
        assert_eq!(places[1].others, 1);
    }

    #[test]
    fn a_folder_whose_configuration_is_damaged_has_a_problem() {
        let root = tempfile::tempdir().unwrap();
        file(root.path(), "bad/model_index.json", b"{");
        let unet = fixtures("models/sd1/unet/diffusion_pytorch_model.safetensors");
        file(root.path(), "unet.safetensors", &std::fs::read(unet).unwrap());
        let places = installed(Some(root.path())).unwrap();
        let [bad, unet] = places[0].models.as_slice() else { panic!("{places:?}") };
        assert!(bad.problem.as_ref().is_some_and(|problem| problem.contains("model_index.json")), "{bad:?}");
        assert_eq!((unet.option, unet.problem.as_deref()), (Some("unet"), None));
        assert!(unet.argument.ends_with("unet.safetensors"));
        assert!(installed(Some(&root.path().join("missing"))).is_err());
    }
}
