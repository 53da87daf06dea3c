//! Blocks of a transformer, as an option names them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Blocks of a transformer by their numbers from 0 to 63, as `7,8,9`: one at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BlockSet(u64);

impl BlockSet {
    /// The bits of the blocks: bit `i` is set for block `i`.
    pub fn bits(self) -> u64 {
        self.0
    }
}

impl Default for BlockSet {
    /// The blocks that Stability AI's example for Stable Diffusion 3.5 medium leaves out.
    fn default() -> Self {
        Self(1 << 7 | 1 << 8 | 1 << 9)
    }
}

impl FromStr for BlockSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let block = |text: &str| text.trim().parse::<u32>().ok().filter(|&block| block < u64::BITS);
        let bits = text.split(',').map(block).try_fold(0, |bits, block| block.map(|block| bits | 1u64 << block));
        bits.map(Self).ok_or_else(|| "expected numbers of blocks from 0 to 63, as in 7,8,9".into())
    }
}

impl fmt::Display for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blocks = (0..u64::BITS).filter(|block| self.0 >> block & 1 == 1);
        blocks.next().map_or(Ok(()), |first| write!(f, "{first}"))?;
        blocks.try_for_each(|block| write!(f, ",{block}"))
    }
}

crate::network::as_text!(BlockSet);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbers_with_commas() {
        let read = |text: &str| text.parse::<BlockSet>().map(|set| set.to_string());
        assert_eq!(read("9, 7,8,7"), Ok("7,8,9".into()));
        assert_eq!(read("0,63"), Ok("0,63".into()));
        assert_eq!("0,2".parse::<BlockSet>().map(BlockSet::bits), Ok(0b101));
        assert_eq!(BlockSet::default().to_string(), "7,8,9");
        for text in ["", "64", "-1", "1,,2", "a"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
