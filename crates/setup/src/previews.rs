//! How previews of running images are made.

use std::path::PathBuf;
use std::str::FromStr;

/// The way from latents to a preview. The names are ComfyUI's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PreviewMethod {
    /// By TAESD if its file is given and fits the model, else by factors.
    #[default]
    Auto,
    /// By factors from latents to colors, one pixel for each latent.
    Latent2Rgb,
    /// By TAESD.
    Taesd,
    /// Not at all.
    None,
}

impl PreviewMethod {
    /// The methods by their names.
    pub const IDS: [(&str, Self); 4] =
        [("auto", Self::Auto), ("latent2rgb", Self::Latent2Rgb), ("taesd", Self::Taesd), ("none", Self::None)];
}

impl FromStr for PreviewMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::IDS.iter().find(|(id, _)| *id == text).map(|(_, method)| *method);
        found.ok_or_else(|| format!("expected one of {}", Self::IDS.map(|(id, _)| id).join(", ")))
    }
}

/// The previews of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreviewOptions {
    /// The method.
    pub method: PreviewMethod,
    /// A file or a folder with TAESD's decoder for previews alone. Without it, [`PreviewMethod::Taesd`] takes the decoder that
    /// replaces the model's autoencoder, if there is one.
    pub taesd: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_names() {
        for (id, method) in PreviewMethod::IDS {
            assert_eq!(id.parse(), Ok(method));
        }
        assert!("rgb".parse::<PreviewMethod>().unwrap_err().ends_with("auto, latent2rgb, taesd, none"));
    }
}
