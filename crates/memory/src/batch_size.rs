//! The batch size: a number, or the fastest.

use std::str::FromStr;

/// How many images are generated at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    /// The batch size with the most images per second that fits: by the estimate of the plan (`Planner::batch_size`), and in
    /// a set of images by the times of its own batches.
    Auto,
    /// A given number.
    Of(usize),
}

impl BatchSize {
    /// The number, if one was given.
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
