//! How ComfyUI_IPAdapter_plus divides the weight of an image prompt among the blocks of the U-Net (`weight_type`).

use crate::image_prompt::{PromptBlock, PromptBlocks};

/// Transformers of the U-Nets of Stable Diffusion 1 and of XL, in the order in which they run.
const SMALL: usize = 16;
const LARGE: usize = 11;
/// The factor of a part that is called weak.
const WEAK: f64 = 0.2;
/// The least factor of a slope, and its height.
const SLOPE: (f64, f64) = (0.05, 0.95);
/// The factor of the fifth transformer of Stable Diffusion 1 for composition.
const QUARTER: f64 = 0.25;

/// A kind of weights. Only the kinds that multiply what a transformer adds are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptWeights {
    /// The weight itself.
    Linear,
    /// Less from transformer to transformer.
    EaseIn,
    /// More from transformer to transformer.
    EaseOut,
    /// The most in the middle.
    EaseInOut,
    /// The least in the middle.
    ReverseInOut,
    /// Less on the way down.
    WeakInput,
    /// Less on the way up.
    WeakOutput,
    /// Less in the middle.
    WeakMiddle,
    /// Less on both ways.
    StrongMiddle,
    /// Only the transformers of style.
    Style,
    /// Only the transformers of composition.
    Composition,
    /// All but those of composition.
    StrongStyle,
    /// The transformers of style with the weight, and those of composition with the weight 1.
    StyleAndComposition,
}

/// The names in graphs. The last three are those of the node `IPAdapter`.
const NAMES: [(&str, PromptWeights); 15] = [
    ("linear", PromptWeights::Linear),
    ("ease in", PromptWeights::EaseIn),
    ("ease out", PromptWeights::EaseOut),
    ("ease in-out", PromptWeights::EaseInOut),
    ("reverse in-out", PromptWeights::ReverseInOut),
    ("weak input", PromptWeights::WeakInput),
    ("weak output", PromptWeights::WeakOutput),
    ("weak middle", PromptWeights::WeakMiddle),
    ("strong middle", PromptWeights::StrongMiddle),
    ("style transfer", PromptWeights::Style),
    ("composition", PromptWeights::Composition),
    ("strong style transfer", PromptWeights::StrongStyle),
    ("style and composition", PromptWeights::StyleAndComposition),
    ("standard", PromptWeights::Linear),
    ("prompt is more important", PromptWeights::EaseOut),
];

impl PromptWeights {
    /// The kind of this name.
    pub(super) fn find(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// The weight of an image prompt, and the factors of blocks, for a U-Net with the transformers `places` in the order in which they
    /// run. `None` if the kind is not defined for a U-Net with as many.
    pub fn of(self, weight: f64, places: &[PromptBlock]) -> Option<(f64, PromptBlocks)> {
        if self == Self::Linear {
            return Some((weight, PromptBlocks::default()));
        }
        if ![SMALL, LARGE].contains(&places.len()) {
            return None;
        }
        let is_xl = places.len() == LARGE;
        let mut blocks = PromptBlocks::default();
        for (i, place) in places.iter().enumerate() {
            let factor = match self {
                Self::StyleAndComposition => {
                    Self::Style.factor(i, *place, is_xl) * weight + Self::Composition.factor(i, *place, is_xl)
                }
                other => other.factor(i, *place, is_xl),
            };
            if factor != 0.0 {
                blocks = blocks.with(*place, factor);
            }
        }
        Some((if self == Self::StyleAndComposition { 1.0 } else { weight }, blocks))
    }

    /// The factor of transformer `i` (`ipadapter_attention` of CrossAttentionPatch.py, `ipadapter_execute` of IPAdapterPlus.py).
    fn factor(self, i: usize, place: PromptBlock, is_xl: bool) -> f64 {
        let layers = if is_xl { LARGE } else { SMALL } as f64;
        let (part, half) = (i as f64, layers / 2.0);
        let slope = |height: f64| SLOPE.0 + SLOPE.1 * height;
        let from_middle = (part - half).abs() / half;
        let weak = |is_weak: bool| if is_weak { WEAK } else { 1.0 };
        let only = |is_in: bool| if is_in { 1.0 } else { 0.0 };
        let is_composition = if is_xl { i == 3 } else { [4, 5].contains(&i) };
        match self {
            Self::Linear => 1.0,
            Self::EaseIn => slope(1.0 - part / layers),
            Self::EaseOut => slope(part / layers),
            Self::EaseInOut => slope(1.0 - from_middle),
            Self::ReverseInOut => slope(from_middle),
            Self::WeakInput => weak(matches!(place, PromptBlock::Down(..))),
            Self::WeakOutput => weak(matches!(place, PromptBlock::Up(..))),
            Self::WeakMiddle => weak(place == PromptBlock::Mid),
            Self::StrongMiddle => weak(place != PromptBlock::Mid),
            Self::Style if is_xl => only(i == 6),
            Self::Style => only(!(4..=8).contains(&i)),
            Self::Composition if !is_xl && i == 4 => QUARTER,
            Self::Composition => only(is_composition),
            Self::StrongStyle => only(!is_composition),
            // Both kinds, which `of` adds.
            Self::StyleAndComposition => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(down: &[(usize, usize)], up: &[(usize, usize)]) -> Vec<PromptBlock> {
        let all = |list: &[(usize, usize)], of: fn(usize, Option<usize>) -> PromptBlock| {
            list.iter().flat_map(|(block, n)| (0..*n).map(move |i| of(*block, Some(i)))).collect::<Vec<_>>()
        };
        [all(down, PromptBlock::Down), vec![PromptBlock::Mid], all(up, PromptBlock::Up)].concat()
    }

    fn small() -> Vec<PromptBlock> {
        places(&[(0, 2), (1, 2), (2, 2)], &[(1, 3), (2, 3), (3, 3)])
    }

    fn large() -> Vec<PromptBlock> {
        places(&[(1, 2), (2, 2)], &[(0, 3), (1, 3)])
    }

    fn factors(kind: &str, weight: f64, places: &[PromptBlock]) -> Vec<f64> {
        let (weight, blocks) = PromptWeights::find(kind).unwrap().of(weight, places).unwrap();
        places.iter().map(|place| weight * blocks.factor(*place)).collect()
    }

    /// The dictionaries and formulas of ComfyUI_IPAdapter_plus, by transformers.
    #[test]
    fn weights_are_those_of_the_nodes() {
        assert_eq!(factors("linear", 0.5, &small()), [0.5; 16]);
        let style = factors("style transfer", 0.5, &large());
        assert_eq!(style, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(PromptWeights::Style.of(1.0, &large()).unwrap().1.to_string(), "up.0.1");
        assert_eq!(PromptWeights::Composition.of(1.0, &large()).unwrap().1.to_string(), "down.2.1");
        let style = factors("style transfer", 1.0, &small());
        assert_eq!(style, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let composition = factors("composition", 2.0, &small());
        assert_eq!((composition[4], composition[5], composition.iter().sum::<f64>()), (0.5, 2.0, 2.5));
        let both = factors("style and composition", 0.5, &large());
        assert_eq!((both[3], both[6], both.iter().sum::<f64>()), (1.0, 0.5, 1.5));
        let strong = factors("strong style transfer", 1.0, &small());
        assert_eq!((strong[4], strong[5], strong.iter().sum::<f64>()), (0.0, 0.0, 14.0));
        let ease = factors("ease in", 1.0, &small());
        assert_eq!((ease[0], ease[8]), (1.0, 0.05 + 0.95 * 0.5));
        assert_eq!(factors("prompt is more important", 1.0, &small())[8], 0.05 + 0.95 * 0.5);
        assert_eq!(factors("ease in-out", 1.0, &small())[8], 1.0);
        assert_eq!(factors("reverse in-out", 1.0, &small())[0], 1.0);
        assert_eq!(factors("weak input", 1.0, &large())[..5], [WEAK, WEAK, WEAK, WEAK, 1.0]);
        assert_eq!(factors("weak middle", 1.0, &large())[3..6], [1.0, WEAK, 1.0]);
        assert_eq!(factors("strong middle", 1.0, &large())[3..6], [WEAK, 1.0, WEAK]);
        assert_eq!(factors("weak output", 1.0, &large())[3..6], [1.0, 1.0, WEAK]);
    }

    #[test]
    fn kinds_without_a_factor_and_other_networks_have_none() {
        assert_eq!(PromptWeights::find("style transfer precise"), None);
        assert_eq!(PromptWeights::find("composition precise"), None);
        assert_eq!(PromptWeights::Style.of(1.0, &[PromptBlock::Mid]), None);
        assert!(PromptWeights::Linear.of(1.0, &[PromptBlock::Mid]).is_some());
    }
}
