//! Which layers of a network a part changes.

use std::fmt;
use std::str::FromStr;

use super::{BlockId, LayerId};
use crate::config::UnetConfig;

/// Patterns of a selection at most.
const MOST: usize = 8;

/// The begin of the names of transformer layers, such as `mid`, `up_blocks.1` or `up_blocks.1.attentions.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LayerPattern {
    half: Half,
    /// The numbers of the block, of the transformer in it, and of the layer in that; `None` is any. The middle block is 0.
    numbers: [Option<u16>; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Down,
    Mid,
    Up,
}

/// Bits of a number of a pattern in a constant: that of `None`, and of every `u16`.
const NUMBER_BITS: u32 = 17;

impl LayerPattern {
    /// The pattern as a number.
    fn constant(self) -> u64 {
        let number = |number: Option<u16>| number.map_or(0, |number| u64::from(number) + 1);
        self.numbers.into_iter().fold(self.half as u64 + 1, |all, next| (all << NUMBER_BITS) | number(next))
    }

    /// The pattern of such a number.
    fn of_constant(constant: u64) -> Option<Self> {
        let part = |place: u32| (constant >> (place * NUMBER_BITS)) & ((1 << NUMBER_BITS) - 1);
        let half = [Half::Down, Half::Mid, Half::Up].into_iter().find(|half| *half as u64 + 1 == part(3))?;
        Some(Self { half, numbers: [2, 1, 0].map(|place| part(place).checked_sub(1).map(|number| number as u16)) })
    }

    fn matches(&self, LayerId { block, transformer, layer }: LayerId) -> bool {
        let (half, block) = match block {
            BlockId::Down(block) => (Half::Down, block),
            BlockId::Mid => (Half::Mid, 0),
            BlockId::Up(block) => (Half::Up, block),
        };
        let fits = |(wanted, found): (&Option<u16>, usize)| wanted.is_none_or(|wanted| usize::from(wanted) == found);
        self.half == half && self.numbers.iter().zip([block, transformer, layer]).all(fits)
    }
}

impl FromStr for LayerPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || format!("{text:?} is no layer: mid, down_blocks.1, up_blocks.1.attentions.0 and the like are");
        let mut parts = text.split('.');
        let half = match parts.next() {
            Some("down" | "down_blocks") => Half::Down,
            Some("mid" | "mid_block") => Half::Mid,
            Some("up" | "up_blocks") => Half::Up,
            _ => return Err(fail()),
        };
        let mut numbers = [None; 3];
        // The middle block has no number.
        let names = [None, Some("attentions"), Some("transformer_blocks")];
        for (name, number) in names.into_iter().zip(&mut numbers).skip(usize::from(half == Half::Mid)) {
            let Some(part) = parts.next() else { break };
            let part = match name {
                Some(name) if part == name => parts.next().ok_or_else(fail)?,
                Some(_) => return Err(fail()),
                None => part,
            };
            *number = Some(part.parse().map_err(|_| fail())?);
        }
        if parts.next().is_some_and(|rest| rest != "attn1") || parts.next().is_some() {
            return Err(fail());
        }
        Ok(Self { half, numbers })
    }
}

impl fmt::Display for LayerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [block, transformer, layer] = self.numbers;
        f.write_str(match self.half {
            Half::Down => "down_blocks",
            Half::Mid => "mid",
            Half::Up => "up_blocks",
        })?;
        for (name, number) in [("", block), ("attentions.", transformer), ("transformer_blocks.", layer)] {
            if let Some(number) = number {
                write!(f, ".{name}{number}")?;
            }
        }
        Ok(())
    }
}

/// A list of begins of names of transformer layers, as `mid,up_blocks.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSelection {
    patterns: [Option<LayerPattern>; MOST],
}

impl LayerSelection {
    /// All transformers of the middle block.
    pub const MID: Self = {
        let mut patterns = [None; MOST];
        patterns[0] = Some(LayerPattern { half: Half::Mid, numbers: [None; 3] });
        Self { patterns }
    };

    /// Whether a layer is one of them.
    pub fn has(&self, id: LayerId) -> bool {
        self.patterns.iter().flatten().any(|pattern| pattern.matches(id))
    }

    /// The first name that no layer of a network has.
    pub fn missing_in(&self, config: &UnetConfig) -> Option<String> {
        let layers = config.transformer_layers();
        let is_missing = |pattern: &&LayerPattern| !layers.iter().any(|&id| pattern.matches(id));
        self.patterns.iter().flatten().find(is_missing).map(ToString::to_string)
    }

    /// Its names as constants of a call, one for each: equal selections have equal ones.
    pub(crate) fn constants(&self) -> impl Iterator<Item = u64> {
        self.patterns.into_iter().flatten().map(|pattern| pattern.constant())
    }

    /// The names of such constants.
    pub(crate) fn of_constants(constants: impl Iterator<Item = u64>) -> Self {
        let mut patterns = [None; MOST];
        for (place, constant) in patterns.iter_mut().zip(constants) {
            *place = LayerPattern::of_constant(constant);
        }
        Self { patterns }
    }
}

impl FromStr for LayerSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut patterns = [None; MOST];
        let mut places = patterns.iter_mut();
        for name in text.split(',').map(str::trim) {
            let place = places.next().ok_or_else(|| format!("expected at most {MOST} names"))?;
            *place = Some(name.parse()?);
        }
        Ok(Self { patterns })
    }
}

impl fmt::Display for LayerSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pattern) in self.patterns.iter().flatten().enumerate() {
            write!(f, "{}{pattern}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in
            ["mid", "mid,up_blocks.1", "down_blocks.0.attentions.1", "up_blocks.0.attentions.2.transformer_blocks.9"]
        {
            assert_eq!(text.parse::<LayerSelection>().unwrap().to_string(), text);
        }
        assert_eq!(
            "mid_block.attentions.0.transformer_blocks.1.attn1".parse::<LayerSelection>().unwrap().to_string(),
            "mid.attentions.0.transformer_blocks.1"
        );
        assert_eq!("mid".parse::<LayerSelection>().unwrap(), LayerSelection::MID);
        for text in [
            "",
            "middle",
            "mid.0",
            "up_blocks.x",
            "up_blocks.1.0",
            "mid,",
            "mid.attentions",
            "mid.attentions.0.ff",
            "up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q",
            "mid,mid,mid,mid,mid,mid,mid,mid,mid",
        ] {
            assert!(text.parse::<LayerSelection>().is_err(), "{text}");
        }
    }

    #[test]
    fn begins_of_names_match() {
        let id = |block, transformer, layer| LayerId { block, transformer, layer };
        let selection: LayerSelection = "mid,up_blocks.1.attentions.0".parse().unwrap();
        assert!(selection.has(id(BlockId::Mid, 0, 3)) && selection.has(id(BlockId::Up(1), 0, 1)));
        assert!(!selection.has(id(BlockId::Up(1), 1, 0)) && !selection.has(id(BlockId::Down(1), 0, 0)));
        let constants = |text: &str| text.parse::<LayerSelection>().unwrap().constants().collect::<Vec<_>>();
        assert_ne!(constants("up_blocks.1"), constants("down_blocks.1"));
        assert_ne!(constants("up_blocks.1"), constants("up_blocks.1.attentions.0"));
        for text in ["mid", "down_blocks.65535,up_blocks.0.attentions.2.transformer_blocks.9"] {
            let selection: LayerSelection = text.parse().unwrap();
            assert_eq!(LayerSelection::of_constants(selection.constants()), selection);
        }
    }
}
