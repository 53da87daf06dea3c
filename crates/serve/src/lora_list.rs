//! The LoRAs of the server's folder with their notes, and tags of LoRAs that the folder does not have.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use kiln_engine::{LoraName, LoraNotes, Request, find_lora, lora_files};
use parking_lot::Mutex;

use crate::error::Refused;

/// A LoRA of the folder.
pub(crate) struct ListedLora {
    /// Its name in tags and in the field `loras`.
    pub(crate) name: String,
    /// Its file.
    pub(crate) path: PathBuf,
    /// The metadata of the file; empty if it cannot be read.
    pub(crate) notes: Arc<LoraNotes>,
}

/// The notes of files that were listed before: a list of hundreds of files reads the headers of those that are new.
#[derive(Default)]
pub(crate) struct LoraList {
    known: Mutex<HashMap<PathBuf, (Stamp, Arc<LoraNotes>)>>,
}

/// The size of a file, and when it was changed.
type Stamp = (u64, Option<SystemTime>);

impl LoraList {
    /// The LoRAs of a folder, sorted by name.
    pub(crate) fn read(&self, folder: Option<&Path>) -> Vec<ListedLora> {
        let files = folder.and_then(|folder| lora_files(folder).ok()).unwrap_or_default();
        let mut known = std::mem::take(&mut *self.known.lock());
        let listed: Vec<ListedLora> = files
            .into_iter()
            .map(|(name, path)| {
                let stamp = path.metadata().map_or((0, None), |file| (file.len(), file.modified().ok()));
                let notes = match known.remove(&path) {
                    Some((before, notes)) if before == stamp => notes,
                    _ => Arc::new(LoraNotes::read(&path).unwrap_or_default()),
                };
                self.known.lock().insert(path.clone(), (stamp, notes.clone()));
                ListedLora { name, path, notes }
            })
            .collect();
        listed
    }
}

/// Takes the tags out of a request's prompts that name no LoRA of the folder; a sentence for each. For APIs whose clients cannot
/// list LoRAs.
pub(crate) fn drop_unknown_tags(request: &mut Request, folder: Option<&Path>) -> Vec<String> {
    if request.literal_prompt {
        return Vec::new();
    }
    let is_known = |name: &str| find_lora(&LoraName::Named(name.into()), folder).is_ok();
    let dropped = request.drop_lora_tags(&is_known).into_iter();
    dropped.map(|tag| format!("{tag} is left out of the prompt: the server has no LoRA of this name")).collect()
}

/// The refusal of a LoRA that is not in the folder. It names the tag if a prompt has one, else the field.
pub(crate) fn unknown(request: &Request, name: &str) -> Refused {
    let tags = request.clone().drop_lora_tags(&|known| known != name);
    match tags.first() {
        Some(tag) if !request.loras.iter().any(|lora| lora.name() == name) => {
            let message = format!("{tag} in the prompt names no LoRA of this server; GET /v1/capabilities lists them");
            Refused::invalid(message).at("prompt")
        }
        _ => Refused::value("loras", format!("{name:?}"), "the name of a file in the server's folder of LoRAs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tags_are_named_and_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
        let mut request = Request { prompt: "a <lora:ink:1> <lora:nope:0.5> b".into(), ..Request::default() };
        let refused = unknown(&request, "nope");
        assert!(refused.message.starts_with("<lora:nope:0.5> in the prompt names no LoRA"), "{}", refused.message);
        assert_eq!(refused.param.as_deref(), Some("prompt"));
        let warnings = drop_unknown_tags(&mut request, Some(folder.path()));
        assert_eq!(warnings, ["<lora:nope:0.5> is left out of the prompt: the server has no LoRA of this name"]);
        assert_eq!(request.prompt, "a <lora:ink:1>  b");
        request.loras = vec!["nope".parse().unwrap()];
        assert_eq!(unknown(&request, "nope").param.as_deref(), Some("loras"));
    }

    #[test]
    fn a_file_is_read_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ink.safetensors");
        let file = |base: &str| {
            let header = format!(
                r#"{{"__metadata__":{{"ss_base_model_version":"{base}"}},"a.lora_up.weight":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#
            );
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
            std::fs::write(&path, bytes).unwrap();
        };
        let list = LoraList::default();
        let base = || list.read(Some(folder.path())).first().and_then(|lora| lora.notes.base.clone());
        file("sd_v1");
        assert_eq!((base().as_deref(), base().as_deref()), (Some("sd_v1"), Some("sd_v1")));
        file("sdxl_base_v1-0");
        assert_eq!(base().as_deref(), Some("sdxl_base_v1-0"));
        std::fs::write(&path, "damaged").unwrap();
        assert_eq!(base(), None);
        assert_eq!(list.read(None).len(), 0);
    }
}
