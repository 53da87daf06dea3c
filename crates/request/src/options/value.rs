//! Values of options as text: as users type them, and as an infotext has them.

use std::path::Path;
use std::str::FromStr;

use kiln_prompt::{ChunkCut, Emphasis};
use kiln_scheduler::{Convention, SigmaSchedule};

use super::scalar::Scalar;
use crate::request::Rng;

/// The value of an option in a request, which may be that nothing is set.
pub trait OptionValue {
    /// Whether it is the default.
    fn is_default(&self) -> bool;

    /// Whether there is a value, and not `None`.
    fn is_set(&self) -> bool {
        true
    }

    /// Parses a value that a user typed.
    ///
    /// # Errors
    /// The expected values.
    fn read(&mut self, text: &str) -> Result<(), String>;

    /// Parses a path, which may be any bytes. Other values accept paths in UTF-8.
    ///
    /// # Errors
    /// The expected values.
    fn read_path(&mut self, path: &Path) -> Result<(), String> {
        self.read(path.to_str().ok_or("expected UTF-8")?)
    }

    /// Its text in an infotext; `None` if nothing is set.
    fn infotext(&self) -> Option<String>;

    /// Sets it to what an infotext has. Returns `false`, and changes nothing, where the text is no such value.
    fn read_infotext(&mut self, text: &str) -> bool;

    /// The number that has to be in the row's range.
    fn number(&self) -> Option<f64> {
        None
    }

    /// Its text in a message.
    fn shown(&self) -> String {
        self.infotext().unwrap_or_default()
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

    fn read_path(&mut self, path: &Path) -> Result<(), String> {
        *self = Some(T::of_path(path)?);
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
            _ => return Err(format!("expected a number from 0 to {}, or -1 for a random seed", u64::MAX)),
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

/// A list, which users type with semicolons between its items. An infotext has none of these lists as one value: LoRAs are tags in
/// its prompt, control networks have keys of their own, and no program reads other images from there.
impl<T: FromStr<Err: ToString>> OptionValue for Vec<T> {
    fn is_default(&self) -> bool {
        self.is_empty()
    }

    fn read(&mut self, text: &str) -> Result<(), String> {
        let items = text.split(';').map(str::trim).filter(|text| !text.is_empty());
        let items = items.map(|item| item.parse().map_err(|error: T::Err| error.to_string()));
        *self = items.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn infotext(&self) -> Option<String> {
        None
    }

    fn read_infotext(&mut self, _: &str) -> bool {
        false
    }

    fn shown(&self) -> String {
        self.len().to_string()
    }
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

    #[cfg(unix)]
    #[test]
    fn folders_are_any_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"\xff"));
        let (mut folder, mut steps) = (None::<std::path::PathBuf>, None::<usize>);
        folder.read_path(path).unwrap();
        assert_eq!(folder.as_deref(), Some(path));
        assert_eq!(steps.read_path(path), Err("expected UTF-8".into()));
    }

    #[test]
    fn what_is_no_value_changes_nothing() {
        let (mut steps, mut rng, mut sizes) = (Some(5usize), Rng::Cuda, Some((8usize, 16usize)));
        assert!(!steps.read_infotext("x") && !rng.read_infotext("cpu") && !sizes.read_infotext("8"));
        assert!(steps.read("-1").is_err() && rng.read("GPU").is_err());
        assert_eq!((steps, rng, sizes), (Some(5), Rng::Cuda, Some((8, 16))));
    }
}
