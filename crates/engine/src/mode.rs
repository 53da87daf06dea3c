//! How much of a model is in the device's memory at once.

use std::fmt;

use serde::Serialize;

use crate::memory::ModeChoice;

/// What of a model's weights is in the device's memory (the processor's, where that is the device). The picture is the
/// same in all modes, bit by bit: only where weights wait differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All networks, from the first picture to the last. On the processor the text encoders go once a prompt is
    /// encoded: a denoiser that runs for minutes gets their memory, and reading them again takes a fraction of a second.
    #[default]
    Full,
    /// The network that runs, whole.
    Medvram,
    /// Of the network that runs, the segments that run next; they are copied while others run.
    Lowvram {
        /// Bytes of the U-Net's segments that stay in memory.
        resident_bytes: usize,
    },
}

impl Mode {
    /// The mode without what it keeps: `full`, `medvram` or `lowvram`.
    pub fn id(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Medvram => "medvram",
            Self::Lowvram { .. } => "lowvram",
        }
    }

    /// The mode that was asked for; where none was, [`Mode::Full`].
    pub(crate) fn asked(choice: ModeChoice) -> Self {
        match choice {
            ModeChoice::Auto | ModeChoice::Full => Self::Full,
            ModeChoice::Medvram => Self::Medvram,
            ModeChoice::Lowvram => Self::Lowvram { resident_bytes: 0 },
        }
    }

    /// Whether the weights of networks that do not run at the moment stay.
    pub fn keeps_networks(self) -> bool {
        self == Self::Full
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())?;
        match self {
            Self::Lowvram { resident_bytes } if *resident_bytes > 0 => {
                write!(f, " ({} MiB of the U-Net stay)", resident_bytes >> 20)
            }
            _ => Ok(()),
        }
    }
}
