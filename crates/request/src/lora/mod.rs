//! LoRA files of a job: their paths, strengths and networks.
//!
//! A job names files by path (`Request::loras`) or by name (`<lora:name:0.8>` in the prompt, `Setup::lora_dir`). Segments
//! whose LoRAs differ from the job before are read again; all others stay.

mod locate;
mod tag;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use locate::{find_lora, lora_files, weight_files};
pub(crate) use tag::{beside_tags, left_out_of_tags, tagged, with_tags};

/// A LoRA in a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraUse {
    /// The file.
    pub lora: LoraName,
    /// The strength for the text encoders; 1 is the trained strength, 0 has no effect.
    pub text: f32,
    /// The strength for the denoiser.
    pub unet: f32,
}

/// The reference to a LoRA.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoraName {
    /// A file.
    File(PathBuf),
    /// The name of a file in the folder of LoRAs or a subfolder, without its extension.
    Named(String),
}

impl LoraUse {
    /// Its name in tags and image settings.
    pub fn name(&self) -> String {
        match &self.lora {
            LoraName::File(path) => file_stem(path),
            LoraName::Named(name) => name.clone(),
        }
    }
}

/// `FILE`, `FILE:0.8` for both, or `FILE:0.8:0.5` for the text encoders and the denoiser.
impl FromStr for LoraUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<f32>().ok().filter(|number| number.is_finite());
        let mut file = text;
        let mut strengths = Vec::new();
        while let Some((rest, last)) = file.rsplit_once(':').filter(|_| strengths.len() < 2)
            && let Some(strength) = number(last)
        {
            strengths.insert(0, strength);
            file = rest;
        }
        if file.is_empty() {
            return Err("expected a file, as in FILE:0.8 or FILE:0.8:0.5 (text encoders, denoiser)".into());
        }
        let text = strengths.first().copied().unwrap_or(1.0);
        let unet = strengths.get(1).copied().unwrap_or(text);
        Ok(Self { lora: LoraName::File(file.into()), text, unet })
    }
}

/// A file name without its extension.
pub fn file_stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_follow_the_file() {
        let read = |text: &str| text.parse::<LoraUse>().map(|lora| (lora.name(), lora.text, lora.unet));
        assert_eq!(read("a/ink.safetensors"), Ok(("ink".into(), 1.0, 1.0)));
        assert_eq!(read("ink.v2.safetensors:0.8"), Ok(("ink.v2".into(), 0.8, 0.8)));
        assert_eq!(read("ink.safetensors:0:-1.5"), Ok(("ink".into(), 0.0, -1.5)));
        let long: LoraUse = "a:1:2:3".parse().unwrap();
        assert_eq!((long.lora, long.text, long.unet), (LoraName::File("a:1".into()), 2.0, 3.0));
        assert!(read(":0.8").is_err() && read("").is_err());
        assert_eq!(read("ink:nan").unwrap().1, 1.0); // not a valid strength, so part of the name
    }

    #[test]
    fn the_colon_of_a_drive_is_no_strength() {
        for (text, file, strengths) in [
            (r"C:\models\x.safetensors", r"C:\models\x.safetensors", (1.0, 1.0)),
            (r"C:\models\x.safetensors:0.8", r"C:\models\x.safetensors", (0.8, 0.8)),
            ("D:/Meine LoRAs/Öl.safetensors:0.8:0.5", "D:/Meine LoRAs/Öl.safetensors", (0.8, 0.5)),
            (r"\\?\C:\x.safetensors:1", r"\\?\C:\x.safetensors", (1.0, 1.0)),
            (r"\\server\share\x.safetensors", r"\\server\share\x.safetensors", (1.0, 1.0)),
        ] {
            let lora: LoraUse = text.parse().unwrap();
            assert_eq!((lora.lora, (lora.text, lora.unet)), (LoraName::File(file.into()), strengths), "{text}");
        }
    }
}
