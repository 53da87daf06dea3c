//! The borders that an input image is extended by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Pixels to add on each side of an input image: `top=128,left=64`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Extend {
    /// Rows above.
    pub top: usize,
    /// Columns on the left.
    pub left: usize,
    /// Rows below.
    pub bottom: usize,
    /// Columns on the right.
    pub right: usize,
}

/// The largest border.
const MAX_BORDER: usize = kiln_models::limits::MAX_SIDE;

impl Extend {
    fn sides(&mut self) -> [(&'static str, &mut usize); 4] {
        let Self { top, left, bottom, right } = self;
        [("top", top), ("left", left), ("bottom", bottom), ("right", right)]
    }
}

impl FromStr for Extend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected sides and pixels up to {MAX_BORDER}, as in top=128,left=64");
        let mut extend = Self::default();
        for part in text.split(',') {
            let (side, pixels) = part.split_once('=').ok_or_else(expected)?;
            let pixels: usize = pixels.trim().parse().ok().filter(|&n| n <= MAX_BORDER).ok_or_else(expected)?;
            let found = extend.sides().into_iter().find(|(name, _)| *name == side.trim()).map(|(_, value)| value);
            *found.ok_or_else(expected)? = pixels;
        }
        if extend == Self::default() {
            return Err(expected());
        }
        Ok(extend)
    }
}

impl TryFrom<String> for Extend {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Extend> for String {
    fn from(extend: Extend) -> Self {
        extend.to_string()
    }
}

impl fmt::Display for Extend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = *self;
        let sides: Vec<String> =
            copy.sides().into_iter().filter(|(_, n)| **n > 0).map(|(side, n)| format!("{side}={n}")).collect();
        f.write_str(&sides.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_read_and_written() {
        let extend: Extend = "left=64, top=128".parse().unwrap();
        assert_eq!(extend, Extend { top: 128, left: 64, ..Extend::default() });
        assert_eq!(extend.to_string(), "top=128,left=64");
        for wrong in ["", "top", "top=0", "up=8", "top=-1", "top=99999999", "top=8;left=8"] {
            assert!(wrong.parse::<Extend>().unwrap_err().contains("top=128,left=64"), "{wrong}");
        }
    }
}
