//! Memory modes: the part of a model that is in device memory at a time.

use std::fmt;

use kiln_files::ByteSize;
use serde::Serialize;

use crate::memory::ModeChoice;

/// The placement of weights during a run, from the fastest to the smallest. The image is the same in all modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All networks stay resident. On the CPU the text encoders are dropped after encoding.
    #[default]
    Full,
    /// One of text encoders, U-Net and VAE at a time.
    Medvram,
    /// One network at a time, whose segments stream through a ring buffer.
    Lowvram {
        /// Resident bytes of the U-Net's weights; the rest is streamed.
        resident: usize,
    },
}

impl Mode {
    /// The smallest mode.
    pub const LOWVRAM: Self = Self::Lowvram { resident: 0 };

    /// The requested mode, or [`Mode::Full`] by default.
    pub fn asked(choice: ModeChoice) -> Self {
        match choice {
            ModeChoice::Auto | ModeChoice::Full => Self::Full,
            ModeChoice::Medvram => Self::Medvram,
            ModeChoice::Lowvram => Self::LOWVRAM,
        }
    }

    /// The name of its flag; `full` has none.
    pub fn id(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Medvram => "medvram",
            Self::Lowvram { .. } => "lowvram",
        }
    }

    /// The next smaller mode, for a U-Net with weights of `unet_bytes`.
    pub fn smaller(self, unet_bytes: usize) -> Option<Self> {
        match self {
            Self::Full => Some(Self::Medvram),
            Self::Medvram => Some(Self::Lowvram { resident: unet_bytes / 2 }),
            Self::Lowvram { resident } if resident > 0 => Some(Self::LOWVRAM),
            Self::Lowvram { .. } => None,
        }
    }

    /// Whether networks stream.
    pub fn streams(self) -> bool {
        matches!(self, Self::Lowvram { .. })
    }

    /// Whether several networks are in memory at the same time.
    pub fn is_fully_resident(self) -> bool {
        self == Self::Full
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lowvram { resident } if *resident > 0 => {
                write!(f, "lowvram, {} of the denoiser resident", ByteSize(*resident))
            }
            other => f.write_str(other.id()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_ends_at_the_smallest() {
        let modes: Vec<Mode> = std::iter::successors(Some(Mode::Full), |mode| mode.smaller(100)).collect();
        assert_eq!(modes, [Mode::Full, Mode::Medvram, Mode::Lowvram { resident: 50 }, Mode::LOWVRAM]);
    }

    #[test]
    fn a_mode_displays_its_resident_bytes() {
        assert_eq!(Mode::LOWVRAM.to_string(), "lowvram");
        assert_eq!(Mode::Lowvram { resident: 512 << 20 }.to_string(), "lowvram, 512.0 MiB of the denoiser resident");
    }
}
