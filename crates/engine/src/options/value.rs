//! Values of options as text: as users type them, and as an infotext has them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_clip::Emphasis;
use kiln_clip::prompt::ChunkCut;
use kiln_scheduler::{Convention, InitialNoise, SamplerChoice, SigmaRange, SigmaSchedule, UniPcScale, number_text};

use crate::lora::LoraUse;
use crate::request::Rng;
use crate::settings::quoted;

/// The value of an option in a request, which may be that nothing is set.
pub trait OptionValue {
    /// Whether it is the default.
    fn is_default(&self) -> bool;

    /// Whether there is a value, and not `None`.
    fn is_set(&self) -> bool {
        true
    }

    /// Sets it to what a user typed.
    ///
    /// # Errors
    /// What was expected.
    fn read(&mut self, text: &str) -> Result<(), String>;

    /// The same for a path, which may be any bytes. Values that are no paths take paths that are UTF-8.
    ///
    /// # Errors
    /// What was expected.
    fn read_path(&mut self, path: &Path) -> Result<(), String> {
        self.read(path.to_str().ok_or("expected UTF-8")?)
    }

    /// As an infotext has it; `None` where nothing is set.
    fn infotext(&self) -> Option<String>;

    /// Sets it to what an infotext has. Returns `false`, and changes nothing, where the text is no such value.
    fn read_infotext(&mut self, text: &str) -> bool;

    /// The number that has to be in the row's range.
    fn number(&self) -> Option<f64> {
        None
    }

    /// As a message shows it.
    fn shown(&self) -> String {
        self.infotext().unwrap_or_default()
    }
}

/// A value that is set.
trait Scalar: Sized {
    fn parse(text: &str) -> Result<Self, String>;

    fn infotext(&self) -> String;

    fn parse_infotext(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }

    fn number(&self) -> Option<f64> {
        None
    }

    fn shown(&self) -> String {
        self.infotext()
    }
}

impl<T: Scalar> OptionValue for Option<T> {
    fn is_default(&self) -> bool {
        self.is_none()
    }

    fn is_set(&self) -> bool {
        self.is_some()
    }

    fn read(&mut self, text: &str) -> Result<(), String> {
        *self = Some(T::parse(text)?);
        Ok(())
    }

    fn infotext(&self) -> Option<String> {
        self.as_ref().map(T::infotext)
    }

    fn read_infotext(&mut self, text: &str) -> bool {
        T::parse_infotext(text).is_some_and(|value| {
            *self = Some(value);
            true
        })
    }

    fn number(&self) -> Option<f64> {
        self.as_ref().and_then(T::number)
    }

    fn shown(&self) -> String {
        self.as_ref().map(T::shown).unwrap_or_default()
    }
}

/// Values that are always set.
macro_rules! always_set {
    ($($kind:ty),*) => {$(
        impl OptionValue for $kind {
            fn is_default(&self) -> bool {
                *self == Self::default()
            }

            fn read(&mut self, text: &str) -> Result<(), String> {
                *self = Scalar::parse(text)?;
                Ok(())
            }

            fn infotext(&self) -> Option<String> {
                Some(Scalar::infotext(self))
            }

            fn read_infotext(&mut self, text: &str) -> bool {
                <Self as Scalar>::parse_infotext(text).is_some_and(|value| {
                    *self = value;
                    true
                })
            }
        }
    )*};
}

always_set!(String, bool, SigmaSchedule, Convention, Rng, Emphasis, ChunkCut);

/// A seed: in what a user types, a negative number stands for a random one.
impl OptionValue for Option<u64> {
    fn is_default(&self) -> bool {
        self.is_none()
    }

    fn is_set(&self) -> bool {
        self.is_some()
    }

    fn read(&mut self, text: &str) -> Result<(), String> {
        *self = match text.parse::<i128>() {
            Ok(seed) if seed < 0 => None,
            Ok(seed) if seed <= i128::from(u64::MAX) => Some(seed as u64),
            _ => return Err(format!("expected a number from 0 to {}, or -1 for a random one", u64::MAX)),
        };
        Ok(())
    }

    fn infotext(&self) -> Option<String> {
        self.map(|seed| seed.to_string())
    }

    fn read_infotext(&mut self, text: &str) -> bool {
        text.parse().is_ok_and(|seed| {
            *self = Some(seed);
            true
        })
    }
}

/// LoRAs: semicolons between them.
impl OptionValue for Vec<LoraUse> {
    fn is_default(&self) -> bool {
        self.is_empty()
    }

    fn read(&mut self, text: &str) -> Result<(), String> {
        *self =
            text.split(';').map(str::trim).filter(|text| !text.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// An infotext has them as tags in the prompt.
    fn infotext(&self) -> Option<String> {
        None
    }

    fn read_infotext(&mut self, _: &str) -> bool {
        false
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
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    fn infotext(&self) -> String {
        quoted(&self.to_string_lossy())
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

/// Noise levels; which ones are possible is the sampler's to check.
impl Scalar for Vec<f64> {
    fn parse(text: &str) -> Result<Self, String> {
        let levels: Result<_, _> = text.split(',').map(|level| level.trim().parse()).collect();
        levels.map_err(|_| "expected noise levels that fall, as in 14.6,6.5,2.7,1,0.4,0".into())
    }

    fn infotext(&self) -> String {
        quoted(&self.iter().map(|&level| number_text(level)).collect::<Vec<_>>().join(","))
    }
}

/// The schedule that a name may end in has an option of its own.
impl Scalar for SamplerChoice {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.kind.label().into()
    }
}

impl Scalar for SigmaSchedule {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.label().into()
    }
}

impl Scalar for Convention {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.to_string()
    }
}

impl Scalar for SigmaRange {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.to_string()
    }
}

impl Scalar for UniPcScale {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.to_string()
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

impl Scalar for ChunkCut {
    fn parse(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn infotext(&self) -> String {
        self.id().into()
    }
}

fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_whole_numbers() {
        let read = |text: &str| {
            let mut seed = Some(7);
            seed.read(text).map(|()| seed)
        };
        assert_eq!((read("42"), read("-1")), (Ok(Some(42)), Ok(None)));
        assert_eq!(read("18446744073709551615"), Ok(Some(u64::MAX)));
        assert!(read("18446744073709551616").is_err() && read("1.5").is_err());
    }

    #[test]
    fn what_is_no_value_changes_nothing() {
        let (mut steps, mut rng, mut sizes) = (Some(5usize), Rng::Cuda, Some((8usize, 16usize)));
        assert!(!steps.read_infotext("x") && !rng.read_infotext("cpu") && !sizes.read_infotext("8"));
        assert!(steps.read("-1").is_err() && rng.read("GPU").is_err());
        assert_eq!((steps, rng, sizes), (Some(5), Rng::Cuda, Some((8, 16))));
    }
}
