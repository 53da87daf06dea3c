//! The types of values, as users type them and as an infotext has them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_prompt::{ChunkCut, Emphasis};
use kiln_scheduler::{
    Convention, InitialNoise, NoisePart, SamplerChoice, SigmaRange, SigmaSchedule, UniPcScale, number_text,
};

use crate::block_set::BlockSet;
use crate::hires::HiresUpscaler;
use crate::init::InitLatents;
use crate::input::{Extend, InpaintArea, MaskContent, ResizeChoice, Rule, SwitchBy};
use crate::network::{CacheUse, FreeuFactors, FreeuVersion, PagLayers};
use crate::reference::ReferenceSize;
use crate::request::Rng;
use crate::size_conditions::Crop;
use kiln_media::quoted;

/// A value that is set.
pub(super) trait Scalar: Sized {
    /// Reads what a user typed, or says what was expected.
    fn parse(text: &str) -> Result<Self, String>;

    /// Parses a path, which may be any bytes.
    fn of_path(path: &Path) -> Result<Self, String> {
        Self::parse(path.to_str().ok_or("expected UTF-8")?)
    }

    /// Its text in an infotext.
    fn infotext(&self) -> String;

    /// Reads what an infotext has.
    fn parse_infotext(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }

    /// The number that has to be in the row's range.
    fn number(&self) -> Option<f64> {
        None
    }

    /// Its text in a message.
    fn shown(&self) -> String {
        self.infotext()
    }
}

impl Scalar for f64 {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "expected a number".into())
    }

    fn infotext(&self) -> String {
        number_text(*self)
    }

    fn number(&self) -> Option<f64> {
        Some(*self)
    }

    fn shown(&self) -> String {
        format!("{self:?}") // 1e300, not 300 zeros
    }
}

impl Scalar for usize {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "expected a whole number, not negative".into())
    }

    fn infotext(&self) -> String {
        self.to_string()
    }

    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Scalar for i64 {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "expected a whole number".into())
    }

    fn infotext(&self) -> String {
        self.to_string()
    }
}

impl Scalar for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "on" | "true" => Ok(true),
            "off" | "false" => Ok(false),
            _ => Err("expected on or off (or true, false)".into()),
        }
    }

    /// Python's words, which AUTOMATIC1111 writes.
    fn infotext(&self) -> String {
        if *self { "True" } else { "False" }.into()
    }

    fn parse_infotext(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }
}

impl Scalar for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    fn infotext(&self) -> String {
        quoted(self)
    }
}

impl Scalar for PathBuf {
    fn of_path(path: &Path) -> Result<Self, String> {
        Ok(path.into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    fn infotext(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

impl Scalar for HiresUpscaler {
    fn parse(text: &str) -> Result<Self, String> {
        Self::of_path(Path::new(text))
    }

    fn of_path(path: &Path) -> Result<Self, String> {
        Ok(path.to_path_buf().into())
    }

    fn infotext(&self) -> String {
        quoted(&self.label())
    }

    fn parse_infotext(text: &str) -> Option<Self> {
        Some(Self::of_label(text))
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Width and height: `512x768`.
impl Scalar for (usize, usize) {
    fn parse(text: &str) -> Result<Self, String> {
        let size = text.split_once('x').and_then(|(w, h)| Some((w.trim().parse().ok()?, h.trim().parse().ok()?)));
        size.ok_or_else(|| "expected width and height in pixels, as in 512x768".into())
    }

    fn infotext(&self) -> String {
        format!("{}x{}", self.0, self.1)
    }
}

/// Noise levels and other numbers; which ones are possible is checked where they are used.
impl Scalar for Vec<f64> {
    fn parse(text: &str) -> Result<Self, String> {
        let levels: Result<_, _> = text.split(',').map(|level| level.trim().parse()).collect();
        levels.map_err(|_| {
            "expected numbers, as in 9,7,5; for `sigmas` noise levels that fall, as in 14.6,6.5,2.7,1,0.4,0".into()
        })
    }

    fn infotext(&self) -> String {
        quoted(&self.iter().map(|&level| number_text(level)).collect::<Vec<_>>().join(","))
    }
}

/// AUTOMATIC1111 writes whether it is the multiplier of Stability's code, `sqrt(sigma^2 + 1)`.
impl Scalar for InitialNoise {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        Scalar::infotext(&(*self == Self::Variance))
    }

    fn parse_infotext(text: &str) -> Option<Self> {
        bool::parse_infotext(text).map(|is_variance| if is_variance { Self::Variance } else { Self::Sigma })
    }
}

/// AUTOMATIC1111 names its generators CPU, GPU and NV; the last two draw the same numbers.
impl Scalar for Rng {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => Err("expected cpu or cuda".into()),
        }
    }

    fn infotext(&self) -> String {
        match self {
            Self::Cpu => "CPU",
            Self::Cuda => "NV",
        }
        .into()
    }

    fn parse_infotext(text: &str) -> Option<Self> {
        match text {
            "CPU" => Some(Self::Cpu),
            "NV" | "GPU" => Some(Self::Cuda),
            _ => None,
        }
    }
}

impl Scalar for Emphasis {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.label().into()
    }

    fn parse_infotext(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|emphasis| emphasis.label().eq_ignore_ascii_case(text))
    }
}

/// Types that are parsed by their `FromStr`, with their texts in an infotext.
macro_rules! from_str {
    ($($kind:ty: $infotext:expr),* $(,)?) => {$(
        impl Scalar for $kind {
            fn parse(text: &str) -> Result<Self, String> {
                parsed(text)
            }

            fn infotext(&self) -> String {
                let infotext: fn(&Self) -> String = $infotext;
                infotext(self)
            }
        }
    )*};
}

from_str! {
    SamplerChoice: |sampler| sampler.kind.label().into(), // the schedule in its name has an option of its own
    SigmaSchedule: |schedule| schedule.label().into(),
    ChunkCut: |cut| cut.id().into(),
    Convention: Self::to_string,
    SigmaRange: Self::to_string,
    UniPcScale: Self::to_string,
    NoisePart: Self::to_string,
    Extend: |extend| quoted(&extend.to_string()),
    PagLayers: |layers| quoted(&layers.to_string()),
    BlockSet: |blocks| quoted(&blocks.to_string()),
    CacheUse: |cache| quoted(&cache.to_string()),
    FreeuFactors: |factors| quoted(&factors.to_string()),
    Crop: |crop| quoted(&crop.to_string()),
}

/// Names of one of the enumerations of input images.
macro_rules! choices {
    ($($kind:ty),*) => {$(
        impl Scalar for $kind {
            fn parse(text: &str) -> Result<Self, String> {
                Self::find(text).ok_or_else(|| format!("expected one of {}", Self::IDS.join(", ")))
            }

            fn infotext(&self) -> String {
                self.label().into()
            }

            fn shown(&self) -> String {
                self.id().into()
            }
        }
    )*};
}

choices!(Rule, SwitchBy, ResizeChoice, MaskContent, InpaintArea, InitLatents, FreeuVersion, ReferenceSize);

fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}
