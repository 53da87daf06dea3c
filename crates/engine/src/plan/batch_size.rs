//! How many pictures at once: a number, or as many as are fastest.

use std::str::FromStr;

/// How many images are generated at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    /// The batch with the most pictures a second that fits ([`super::Planner::batch_size`]).
    Auto,
    /// So many.
    Of(usize),
}

impl BatchSize {
    /// The number, where one was given.
    pub fn number(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Of(number) => Some(number),
        }
    }
}

impl FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Of).map_err(|_| "expected auto or a whole number, not negative".into()),
        }
    }
}
