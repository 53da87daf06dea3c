//! Which blocks of the U-Net an image prompt acts in, and how strongly.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Factors of blocks by name, `style+down.2.1:0.5`; other blocks have none. The empty list is all blocks with the factor 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PromptBlocks(Vec<(PromptBlock, f64)>);

/// A block, or one transformer in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptBlock {
    /// `down.2`, or `down.2.1` for one of its transformers.
    Down(usize, Option<usize>),
    /// `mid`.
    Mid,
    /// `up.0`, or `up.0.1`.
    Up(usize, Option<usize>),
    /// `style`: the block of SDXL that carries colors and manner, `up.0.1` (InstantStyle, arXiv 2404.02733).
    Style,
    /// `layout`: the block of SDXL that carries composition, `down.2.1`.
    Layout,
}

impl PromptBlock {
    /// The block that a name stands for.
    pub fn place(self) -> Self {
        match self {
            Self::Style => Self::Up(0, Some(1)),
            Self::Layout => Self::Down(2, Some(1)),
            other => other,
        }
    }

    /// Whether the name is for SDXL alone.
    pub fn is_of_xl(self) -> bool {
        matches!(self, Self::Style | Self::Layout)
    }
}

impl fmt::Display for PromptBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(block, None) => write!(f, "down.{block}"),
            Self::Down(block, Some(transformer)) => write!(f, "down.{block}.{transformer}"),
            Self::Mid => f.write_str("mid"),
            Self::Up(block, None) => write!(f, "up.{block}"),
            Self::Up(block, Some(transformer)) => write!(f, "up.{block}.{transformer}"),
            Self::Style => f.write_str("style"),
            Self::Layout => f.write_str("layout"),
        }
    }
}

impl FromStr for PromptBlock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}` is no block, expected style, layout, mid, down.2, up.0.1 and the like");
        let number = |text: &str| text.parse::<usize>().map_err(|_| expected());
        match text.split('.').collect::<Vec<_>>().as_slice() {
            ["style"] => Ok(Self::Style),
            ["layout"] => Ok(Self::Layout),
            ["mid"] => Ok(Self::Mid),
            ["down", block] => Ok(Self::Down(number(block)?, None)),
            ["down", block, transformer] => Ok(Self::Down(number(block)?, Some(number(transformer)?))),
            ["up", block] => Ok(Self::Up(number(block)?, None)),
            ["up", block, transformer] => Ok(Self::Up(number(block)?, Some(number(transformer)?))),
            _ => Err(expected()),
        }
    }
}

impl PromptBlocks {
    /// Whether all blocks have the factor 1.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The blocks and their factors.
    pub fn all(&self) -> &[(PromptBlock, f64)] {
        &self.0
    }

    /// These blocks and one more.
    #[must_use]
    pub fn with(&self, block: PromptBlock, factor: f64) -> Self {
        Self(self.0.iter().copied().chain([(block, factor)]).collect())
    }

    /// The factor of the transformer `of`, a [`PromptBlock::Down`] or [`PromptBlock::Up`] with a transformer, or
    /// [`PromptBlock::Mid`]: that of the last name that covers it.
    pub fn factor(&self, of: PromptBlock) -> f64 {
        let covers = |block: PromptBlock| match (block.place(), of) {
            (PromptBlock::Down(a, None), PromptBlock::Down(b, _)) => a == b,
            (PromptBlock::Up(a, None), PromptBlock::Up(b, _)) => a == b,
            (place, of) => place == of,
        };
        if self.is_all() {
            return 1.0;
        }
        self.0.iter().rev().find(|(block, _)| covers(*block)).map_or(0.0, |(_, factor)| *factor)
    }
}

impl FromStr for PromptBlocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |text: &str| {
            let (name, factor) = text.split_once(':').unwrap_or((text, "1"));
            let factor = factor.trim().parse::<f64>().ok().filter(|factor| factor.is_finite());
            let factor = factor.ok_or_else(|| format!("`{text}` has no factor, expected a number after the colon"))?;
            Ok((name.trim().to_ascii_lowercase().parse::<PromptBlock>()?, factor))
        };
        text.split('+').map(str::trim).filter(|text| !text.is_empty()).map(one).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for PromptBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (block, factor)) in self.0.iter().enumerate() {
            let plus = if i > 0 { "+" } else { "" };
            write!(f, "{plus}{block}")?;
            if *factor != 1.0 {
                write!(f, ":{factor}")?;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for PromptBlocks {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PromptBlocks> for String {
    fn from(blocks: PromptBlocks) -> Self {
        blocks.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_blocks_have_factors_and_others_have_none() {
        let blocks: PromptBlocks = "Style + down.2.1:0.5+up.1".parse().unwrap();
        assert_eq!(blocks.to_string(), "style+down.2.1:0.5+up.1");
        let factor = |block| blocks.factor(block);
        assert_eq!(factor(PromptBlock::Up(0, Some(1))), 1.0);
        assert_eq!(factor(PromptBlock::Up(0, Some(0))), 0.0);
        assert_eq!(factor(PromptBlock::Down(2, Some(1))), 0.5);
        assert_eq!((factor(PromptBlock::Up(1, Some(2))), factor(PromptBlock::Mid)), (1.0, 0.0));
        let all: PromptBlocks = "".parse().unwrap();
        assert!(all.is_all() && all.factor(PromptBlock::Mid) == 1.0);
    }

    #[test]
    fn what_is_no_block_is_named() {
        let message = |text: &str| text.parse::<PromptBlocks>().unwrap_err();
        assert!(message("colors").contains("`colors` is no block"));
        assert!(message("down.x").contains("`down.x` is no block"));
        assert!(message("mid:much").contains("`mid:much` has no factor"));
        assert!(message("mid:nan").contains("has no factor"));
    }
}
