//! A second device for an engine.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::setup::DeviceChoice;

/// How the devices of a list work on one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// Two devices compute the two halves of a guided step (classifier-free guidance).
    Cfg,
}

impl FromStr for Parallel {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "cfg" => Ok(Self::Cfg),
            _ => Err("expected cfg: the two halves of a guided step on two devices".into()),
        }
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cfg => f.write_str("cfg"),
        }
    }
}

/// The device that computes the unconditional half of guided steps. The text encoders, the autoencoder, guidance and the sampler run
/// on the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondDevice {
    /// The device, of the kind of the first.
    pub device: DeviceChoice,
    /// CPU threads of its part, on the CPU; `None` means the threads of the process.
    pub threads: Option<usize>,
}
