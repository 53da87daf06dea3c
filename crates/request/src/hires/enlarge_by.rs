//! Upscalers of hires fix.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::upscaler::{UpscalerChoice, filter_name};

/// How latents are interpolated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LatentFilter {
    /// The nearest value to the left and above.
    #[serde(rename = "latent-nearest")]
    Nearest,
    /// The nearest value to the middle of a pixel.
    #[serde(rename = "latent-nearest-exact")]
    NearestExact,
    /// Linear in both directions.
    #[default]
    #[serde(rename = "latent")]
    Bilinear,
    /// Linear, with weights that sum to 1 at the edges.
    #[serde(rename = "latent-antialiased")]
    BilinearAntialiased,
    /// Cubic in both directions.
    #[serde(rename = "latent-bicubic")]
    Bicubic,
    /// Cubic with the coefficient of antialiased filters, -0.5.
    #[serde(rename = "latent-bicubic-antialiased")]
    BicubicAntialiased,
}

impl LatentFilter {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Bilinear,
        Self::BilinearAntialiased,
        Self::Bicubic,
        Self::BicubicAntialiased,
        Self::Nearest,
        Self::NearestExact,
    ];

    /// The name that users type.
    pub fn id(self) -> &'static str {
        match self {
            Self::Nearest => "latent-nearest",
            Self::NearestExact => "latent-nearest-exact",
            Self::Bilinear => "latent",
            Self::BilinearAntialiased => "latent-antialiased",
            Self::Bicubic => "latent-bicubic",
            Self::BicubicAntialiased => "latent-bicubic-antialiased",
        }
    }

    /// AUTOMATIC1111's name (`latent_upscale_modes` of `modules/shared_items.py`, v1.10).
    pub fn label(self) -> &'static str {
        match self {
            Self::Nearest => "Latent (nearest)",
            Self::NearestExact => "Latent (nearest-exact)",
            Self::Bilinear => "Latent",
            Self::BilinearAntialiased => "Latent (antialiased)",
            Self::Bicubic => "Latent (bicubic)",
            Self::BicubicAntialiased => "Latent (bicubic antialiased)",
        }
    }
}

/// The upscaler of hires fix: latents are interpolated, or pixels are enlarged by a filter or a network and encoded again.
///
/// As text it is a name ([`HiresUpscaler::names`]) or a file; `./latent` is a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HiresUpscaler {
    /// Latents.
    Latents(LatentFilter),
    /// Pixels.
    Pixels(UpscalerChoice),
}

/// AUTOMATIC1111's names of networks whose files have other names (`get_realesrgan_models` of
/// `modules/realesrgan_model.py`, v1.10).
const NETWORKS: [(&str, &str); 6] = [
    ("R-ESRGAN General 4xV3", "realesr-general-x4v3"),
    ("R-ESRGAN General WDN 4xV3", "realesr-general-wdn-x4v3"),
    ("R-ESRGAN AnimeVideo", "realesr-animevideov3"),
    ("R-ESRGAN 4x+", "RealESRGAN_x4plus"),
    ("R-ESRGAN 4x+ Anime6B", "RealESRGAN_x4plus_anime_6B"),
    ("R-ESRGAN 2x+", "RealESRGAN_x2plus"),
];

impl HiresUpscaler {
    /// The names that are no files.
    pub fn names() -> Vec<&'static str> {
        LatentFilter::ALL
            .into_iter()
            .map(LatentFilter::id)
            .chain(["lanczos", "bicubic", "bilinear", "nearest"])
            .collect()
    }

    /// The name in an infotext, as AUTOMATIC1111 shows it: that of a file is without folder and ending.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Latents(filter) => filter.label().into(),
            Self::Pixels(UpscalerChoice::Filter(filter)) => filter_name(*filter).into(),
            Self::Pixels(UpscalerChoice::File(path)) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                NETWORKS
                    .iter()
                    .find(|(_, file)| *file == stem)
                    .map_or_else(|| stem.into_owned(), |(name, _)| (*name).into())
            }
        }
    }

    /// The upscaler of AUTOMATIC1111's name, as in an infotext.
    pub fn of_label(text: &str) -> Self {
        let is = |name: &str| name.eq_ignore_ascii_case(text.trim());
        if is("None") {
            return Self::Pixels(UpscalerChoice::default()); // `resize_image` of its modules/images.py
        }
        if let Some(filter) = LatentFilter::ALL.into_iter().find(|filter| is(filter.label())) {
            return Self::Latents(filter);
        }
        match NETWORKS.iter().find(|(name, _)| is(name)) {
            Some((_, file)) => Self::Pixels(UpscalerChoice::File((*file).into())),
            None => Self::from(PathBuf::from(text.trim())),
        }
    }

    /// The file of a network.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Pixels(UpscalerChoice::File(path)) => Some(path),
            _ => None,
        }
    }

    /// Removes the folder of a file, since the metadata of images names no folder.
    pub(crate) fn without_folder(&self) -> Self {
        match self.file().and_then(Path::file_name) {
            Some(name) => Self::Pixels(UpscalerChoice::File(name.into())),
            None => self.clone(),
        }
    }
}

impl Default for HiresUpscaler {
    fn default() -> Self {
        Self::Latents(LatentFilter::default())
    }
}

impl From<PathBuf> for HiresUpscaler {
    fn from(path: PathBuf) -> Self {
        let filter = LatentFilter::ALL.into_iter().find(|filter| path.as_os_str().eq_ignore_ascii_case(filter.id()));
        filter.map_or_else(|| Self::Pixels(path.into()), Self::Latents)
    }
}

impl FromStr for HiresUpscaler {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(PathBuf::from(text).into())
    }
}

impl fmt::Display for HiresUpscaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latents(filter) => f.write_str(filter.id()),
            Self::Pixels(UpscalerChoice::Filter(filter)) => f.write_str(&filter_name(*filter).to_ascii_lowercase()),
            Self::Pixels(UpscalerChoice::File(path)) => write!(f, "{}", path.display()),
        }
    }
}

impl Serialize for HiresUpscaler {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HiresUpscaler {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(PathBuf::deserialize(deserializer)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> HiresUpscaler {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_filters_or_files() {
        for name in HiresUpscaler::names() {
            assert_eq!(of(name).to_string(), name);
            assert!(of(name).file().is_none(), "{name}");
            assert_eq!(serde_json::to_value(of(name)).unwrap(), name);
        }
        assert_eq!(of("LATENT"), HiresUpscaler::default());
        for file in ["./latent", "models/4x.pth", "latent (bicubic)"] {
            assert_eq!(of(file).file(), Some(Path::new(file)));
            assert_eq!(of(file).to_string(), file);
        }
        assert_eq!(of("models/4x.pth").without_folder(), of("4x.pth"));
    }

    #[test]
    fn infotexts_have_automatic1111s_names() {
        for (label, name) in [
            ("Latent", "latent"),
            ("Latent (nearest)", "latent-nearest"),
            ("Latent (nearest-exact)", "latent-nearest-exact"),
            ("Latent (antialiased)", "latent-antialiased"),
            ("Latent (bicubic)", "latent-bicubic"),
            ("Latent (bicubic antialiased)", "latent-bicubic-antialiased"),
            ("Lanczos", "lanczos"),
            ("Nearest", "nearest"),
            ("4x-UltraSharp", "4x-UltraSharp"),
            ("R-ESRGAN 4x+ Anime6B", "RealESRGAN_x4plus_anime_6B"),
        ] {
            assert_eq!(HiresUpscaler::of_label(label), of(name));
            assert_eq!(of(name).label(), label);
        }
        assert_eq!(HiresUpscaler::of_label("None"), of("lanczos"));
        assert_eq!(of("a/RealESRGAN_x4plus.pth").label(), "R-ESRGAN 4x+");
    }
}
