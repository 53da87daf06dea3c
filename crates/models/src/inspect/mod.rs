//! Inspection of a model folder, a checkpoint file or an image without reading weights.

mod file;
mod folder;
mod listing;
mod lora_notes;
mod summary;

use std::collections::BTreeMap;
use std::path::Path;

use kiln_weights::ParamInfo;
use serde::Serialize;

pub use file::{FileModel, FileReport};
pub use folder::{ComponentReport, FolderReport, SegmentReport};
pub(crate) use listing::{FolderContent, content_of_folder, is_weights};
pub use listing::{ListEntry, ListReport};
pub use lora_notes::LoraNotes;
pub(crate) use summary::count_files;

use crate::dtype::DTypeChoice;
use crate::error::{Error, Result};
use crate::model::{INDEX, ModelFolder};

/// The result of an inspection.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Inspected {
    /// A model folder.
    Folder(FolderReport),
    /// A checkpoint file, or a folder with one network in one file.
    File(Box<FileReport>),
    /// A folder of several models, networks or adapters, or a pipeline that Kiln does not run.
    List(ListReport),
}

/// The stored tensors of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// The type, as safetensors calls it.
    pub dtype: String,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of elements.
    pub parameters: usize,
    /// Their size in bytes.
    pub bytes: usize,
}

/// Inspects `path`. Segment sizes are for elements of `dtype`.
///
/// # Errors
/// An invalid path, configuration or checkpoint. Weights that do not match their network are not an error: see
/// [`ComponentReport::problems`].
pub fn inspect(path: &Path, dtype: DTypeChoice) -> Result<Inspected> {
    if !path.is_dir() {
        return Ok(Inspected::File(file::report(path)?.into()));
    }
    if path.join(INDEX).exists() {
        return match ModelFolder::open(path) {
            Ok(model) => Ok(Inspected::Folder(folder::report(&model, dtype)?)),
            Err(Error::Foreign { model, .. }) => Ok(Inspected::List(listing::report(path, Some(model))?)),
            Err(error) => Err(error),
        };
    }
    match listing::only_file(path) {
        Some(file) => Ok(Inspected::File(file::report(&file)?.into())),
        None => Ok(Inspected::List(listing::report(path, None)?)),
    }
}

/// Counts tensors by type, sorted by bytes in descending order.
pub(crate) fn stored(tensors: impl IntoIterator<Item = ParamInfo>) -> Vec<Stored> {
    let mut by_dtype: BTreeMap<String, Stored> = BTreeMap::new();
    for ParamInfo { shape, dtype } in tensors {
        let name = format!("{dtype:?}");
        let empty = Stored { dtype: name.clone(), tensors: 0, parameters: 0, bytes: 0 };
        let entry = by_dtype.entry(name).or_insert(empty);
        let parameters = shape.iter().product::<usize>();
        entry.tensors += 1;
        entry.parameters += parameters;
        entry.bytes += dtype.bytes(&shape).unwrap_or(0);
    }
    let mut stored: Vec<Stored> = by_dtype.into_values().collect();
    stored.sort_by_key(|stored| std::cmp::Reverse(stored.bytes));
    stored
}

#[cfg(test)]
mod tests {
    use kiln_testkit::{fixtures, repository, shared_data};

    use super::*;
    use crate::file_kind::FileKind;

    fn folder(name: &str, dtype: DTypeChoice) -> FolderReport {
        match inspect(&fixtures("models").join(name), dtype).unwrap() {
            Inspected::Folder(report) => report,
            other => panic!("{name} is a folder, not {other:?}"),
        }
    }

    #[test]
    fn a_folder_has_its_networks_and_their_segments() {
        let report = folder("sdxl", DTypeChoice::F32);
        assert_eq!(report.family, "Stable Diffusion XL");
        let names: Vec<&str> = report.components.iter().map(|component| component.name.as_str()).collect();
        assert_eq!(names, ["text_encoder", "text_encoder_2", "unet", "vae (decoder)", "vae (encoder)"]);
        for component in &report.components {
            assert!(component.problems.is_empty(), "{:?}", component.problems);
            let sum = |of: fn(&SegmentReport) -> usize| component.segments.iter().map(of).sum::<usize>();
            assert_eq!(sum(|segment| segment.bytes), component.bytes);
            assert_eq!(sum(|segment| segment.parameters), component.parameters);
            let stored: usize = component.stored.iter().map(|stored| stored.parameters).sum();
            assert_eq!(stored, component.parameters);
            assert!(
                component.bytes >= 4 * component.parameters && component.segments.iter().all(|s| s.bytes % 256 == 0)
            );
        }
        let half = folder("sdxl", DTypeChoice::F16);
        assert_eq!(half.parameters, report.parameters);
        assert!(half.bytes < report.bytes);
    }

    #[test]
    fn weights_of_another_model_are_problems_and_missing_weights_are_none() {
        let temporary = tempfile::tempdir().unwrap();
        let (from, to) = (fixtures("models/sd1"), temporary.path());
        for file in [
            "model_index.json",
            "scheduler/scheduler_config.json",
            "text_encoder/config.json",
            "unet/config.json",
            "vae/config.json",
        ] {
            std::fs::create_dir_all(to.join(file).parent().unwrap()).unwrap();
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        let weights = "diffusion_pytorch_model.safetensors";
        std::fs::copy(from.join("vae").join(weights), to.join("unet").join(weights)).unwrap();
        let Inspected::Folder(report) = inspect(to, DTypeChoice::Auto).unwrap() else { panic!("a folder") };
        let unet = report.components.iter().find(|component| component.name == "unet").unwrap();
        assert!(unet.problems[0].contains("is missing"), "{:?}", unet.problems);
        let text = &report.components[0];
        assert!(text.stored.is_empty() && text.problems.is_empty());
    }

    #[test]
    fn a_folder_of_files_is_listed_and_one_network_is_shown() {
        let Inspected::List(list) = inspect(&repository().join("models"), DTypeChoice::Auto).unwrap() else {
            panic!("a list")
        };
        let of = |name: &str| &list.entries.iter().find(|entry| entry.name == name).unwrap().what;
        assert_eq!(of("emoji/"), "a model folder: Stable Diffusion 1 or 2");
        assert_eq!(of("emoji-controlnet-edges/"), "a ControlNet");
        assert_eq!(of("emoji-lcm-lora/"), "a LoRA");
        assert_eq!(of("emoji-ip-adapter/"), "an IP-Adapter");
        assert!(list.entries.iter().all(|entry| entry.bytes > 0));
        let kind = |name: &str| match inspect(&repository().join("models").join(name), DTypeChoice::Auto).unwrap() {
            Inspected::File(report) => report.kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(kind("emoji-controlnet-edges"), FileKind::ControlNet);
        assert_eq!(kind("emoji-lcm-lora"), FileKind::Lora);
        let Inspected::List(list) = inspect(&repository().join("models/emoji-ip-adapter"), DTypeChoice::Auto).unwrap()
        else {
            panic!("an adapter and its image encoder")
        };
        let what: Vec<&str> = list.entries.iter().map(|entry| entry.what.as_str()).collect();
        assert_eq!(what, ["an IP-Adapter", "a CLIP image encoder"]);
        let empty = tempfile::tempdir().unwrap();
        assert!(
            inspect(empty.path(), DTypeChoice::Auto).unwrap_err().to_string().contains("looked for model_index.json")
        );
    }

    #[test]
    fn a_folder_has_files_defaults_and_a_sampler() {
        let Inspected::Folder(report) = inspect(&repository().join("models/emoji"), DTypeChoice::Auto).unwrap() else {
            panic!("a folder")
        };
        assert!(report.files.0 >= 10 && report.files.1 > 30_000_000, "{:?}", report.files);
        assert_eq!(report.sampler.as_deref(), Some("ddim"));
        assert!(report.steps > 0 && report.cfg_scale > 0.0);
        assert!(!report.stored().is_empty());
    }

    #[test]
    #[ignore = "needs ../shared/data"]
    fn shared_data_other_families_are_named() {
        let label = |name: &str| match inspect(&shared_data("families").join(name), DTypeChoice::Auto).unwrap() {
            Inspected::File(report) => report.kind.label(),
            other => panic!("{name}: {other:?}"),
        };
        for (name, expected) in [
            ("files/flux_dev_bfl.safetensors", "a FLUX.1 transformer"),
            ("files/flux_schnell-Q8_0.gguf", "a FLUX.1 transformer"),
            ("files/sd3_all_in_one.safetensors", "a whole model in one file"),
            ("models/flux_dev/transformer", "a FLUX.1 transformer"),
            ("models/flux_dev/text_encoder", "a CLIP text encoder"),
            ("models/flux_dev/text_encoder_2", "a T5 text encoder"),
            ("models/flux2_klein/transformer", "a FLUX.2 transformer"),
            ("models/flux2_klein/text_encoder", "a Qwen3 text encoder"),
            ("models/flux2_klein/vae", "an autoencoder (VAE)"),
            ("models/sd35_medium/transformer", "a Stable Diffusion 3 transformer"),
            ("models/zimage/transformer", "a Z-Image transformer"),
            ("controlnet/flux_dev", "a FLUX.1 ControlNet"),
            ("controlnet/sd3", "a Stable Diffusion 3 ControlNet"),
        ] {
            assert_eq!(label(name), expected, "{name}");
        }
    }

    #[test]
    fn a_file_is_counted_and_named() {
        let path = repository().join("models/emoji/unet/diffusion_pytorch_model.safetensors");
        let Inspected::File(report) = inspect(&path, DTypeChoice::Auto).unwrap() else { panic!("a file") };
        assert_eq!(report.kind, FileKind::Unet);
        assert_eq!(report.bytes, std::fs::metadata(&path).unwrap().len());
        assert!(report.tensors > 100 && report.stored.len() == 1);
    }

    #[test]
    #[ignore = "needs ../shared/data"]
    fn shared_data_real_files_are_distinguished() {
        let data = shared_data(".");
        for (file, kind) in [
            ("taesd/taesd_sd_fp8.safetensors", FileKind::Taesd),
            ("lora/catundchat_sd15.safetensors", FileKind::Lora),
            ("lora/cloneofsimo_analog_svd_rank4.safetensors", FileKind::Lora),
            ("lora/derived_kohya_catundchat_sd15.safetensors", FileKind::Lora),
            ("embeddings/invoke_test_embedding.safetensors", FileKind::TextualInversion),
            ("embeddings/fastai_learned_embeds.bin", FileKind::TextualInversion),
            ("esrgan/RealESRGAN_x4plus_anime_6B.fp16.safetensors", FileKind::Upscaler),
            ("esrgan/realesr-animevideov3-x4.safetensors", FileKind::Upscaler),
            ("valid_edge_safetensors/zero_tensors.safetensors", FileKind::Unknown),
        ] {
            let Inspected::File(report) = inspect(&data.join(file), DTypeChoice::Auto).unwrap() else {
                panic!("{file}")
            };
            assert_eq!(report.kind, kind, "{file}");
        }
        for entry in std::fs::read_dir(data.join("malformed_safetensors")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                let error = inspect(&path, DTypeChoice::Auto).expect_err(&path.display().to_string());
                assert!(!error.is_usage() && error.to_string().contains("safetensors"), "{error}");
            }
        }
    }
}
