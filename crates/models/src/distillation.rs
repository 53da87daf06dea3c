//! Models and LoRAs that were distilled to run in few steps.
//!
//! A distillation has the tensors of its original, except latent consistency models with the guidance inside. So a name says
//! what a file is. The limits are those that the authors give: SD-Turbo and SDXL-Turbo (1 to 4 steps), LCM and LCM-LoRA
//! (2 to 8; arXiv 2311.05556), SDXL-Lightning (1 to 8; arXiv 2402.13929), Hyper-SD (1 to 8, and 12 for the files that keep
//! the guidance; arXiv 2404.13686), DMD2 (1 to 4; arXiv 2405.14867).

use std::fmt::{self, Display, Formatter};

/// A way in which a model was distilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distillation {
    /// Adversarial diffusion distillation: SD-Turbo, SDXL-Turbo.
    Turbo,
    /// Latent consistency.
    Lcm,
    /// Progressive adversarial distillation: SDXL-Lightning.
    Lightning,
    /// Trajectory-segmented consistency: Hyper-SD.
    Hyper,
    /// Distribution matching.
    Dmd,
}

/// The guidance scale up to which an image of a distilled model keeps its colors: the authors say none at all (1 in Kiln), those of
/// LCM-LoRA from 1 to 2.
const MOST_GUIDANCE: f64 = 2.0;

impl Distillation {
    const ALL: [Self; 5] = [Self::Turbo, Self::Lcm, Self::Lightning, Self::Hyper, Self::Dmd];

    /// The distillation that a name or a title contains as a word, perhaps with a version, and the number of steps that it was
    /// made for, where the name says it: `sdxl_lightning_4step`, `Hyper-SD15-8steps-lora`.
    pub fn in_name(name: &str) -> Option<(Self, Option<usize>)> {
        let name = name.to_lowercase();
        let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let of_word = |word: &&str| {
            let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
            Self::ALL.into_iter().find(|kind| word == kind.id())
        };
        let kind = words.iter().find_map(of_word)?;
        let steps = words.iter().enumerate().find_map(|(i, word)| {
            let before = word.strip_suffix("steps").or_else(|| word.strip_suffix("step"))?;
            let before = if before.is_empty() { words.get(i.checked_sub(1)?)? } else { before };
            before.parse().ok().filter(|&steps| steps > 0)
        });
        Some((kind, steps))
    }

    /// Its name in lower case, as in the names of files.
    pub fn id(self) -> &'static str {
        match self {
            Self::Turbo => "turbo",
            Self::Lcm => "lcm",
            Self::Lightning => "lightning",
            Self::Hyper => "hyper",
            Self::Dmd => "dmd",
        }
    }

    /// The number of steps from which on images get no better, or worse.
    pub fn most_steps(self) -> usize {
        match self {
            Self::Turbo | Self::Dmd => 4,
            Self::Lcm | Self::Lightning => 8,
            Self::Hyper => 12,
        }
    }

    /// The largest guidance scale that suits it, without one inside the network. `None` where some of its files keep the
    /// guidance of the original.
    pub fn most_guidance(self) -> Option<f64> {
        (self != Self::Hyper).then_some(MOST_GUIDANCE)
    }
}

impl Display for Distillation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Turbo => "Turbo",
            Self::Lcm => "LCM",
            Self::Lightning => "Lightning",
            Self::Hyper => "Hyper",
            Self::Dmd => "DMD",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_kind_and_the_steps() {
        let of = Distillation::in_name;
        assert_eq!(of("sd-turbo"), Some((Distillation::Turbo, None)));
        assert_eq!(of("DreamShaperXL_Turbo_v2"), Some((Distillation::Turbo, None)));
        assert_eq!(of("lcm-lora-sdv1-5"), Some((Distillation::Lcm, None)));
        assert_eq!(of("sdxl_lightning_4step"), Some((Distillation::Lightning, Some(4))));
        assert_eq!(of("Hyper-SD15-8steps-CFG-lora"), Some((Distillation::Hyper, Some(8))));
        assert_eq!(of("a Lightning model, 2 steps"), Some((Distillation::Lightning, Some(2))));
        assert_eq!(of("dmd2_sdxl_4step"), Some((Distillation::Dmd, Some(4))));
        for name in ["stable-diffusion-v1-5", "hyperrealism", "turbocharged", "steps", ""] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
