//! Options with a few named values.

use crate::names::same;
use crate::{Convention, Error, InitialNoise, SigmaRange, UniPcScale};
use std::fmt;
use std::str::FromStr;

macro_rules! named {
    ($kind:ty, $option:literal, $(($value:path, $id:literal $(, $alias:literal)*)),+) => {
        impl $kind {
            /// The values that a user may choose, in the order in which they are listed.
            pub const CHOICES: &'static [(Self, &'static str)] = &[$(($value, $id)),+];
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let choice = Self::CHOICES.iter().find(|(value, _)| value == self);
                f.pad(choice.map_or("default", |(_, id)| id))
            }
        }

        impl FromStr for $kind {
            type Err = Error;

            fn from_str(name: &str) -> Result<Self, Error> {
                $(if [$id $(, $alias)*].iter().any(|known| same(known, name)) {
                    return Ok($value);
                })+
                let ids: Vec<_> = Self::CHOICES.iter().map(|(_, id)| *id).collect();
                Err(Error::Option { option: $option, value: name.into(), expected: ids.join(" or ") })
            }
        }
    };
}

named!(
    Convention,
    "convention",
    (Self::Diffusers, "diffusers"),
    (Self::Automatic1111, "a1111", "automatic1111"),
    (Self::ComfyUi, "comfyui", "comfy")
);
named!(SigmaRange, "sigma_range", (Self::Table, "table"), (Self::Spacing, "spacing"));
named!(InitialNoise, "initial_noise", (Self::Sigma, "sigma"), (Self::Variance, "variance"));
named!(UniPcScale, "unipc_variant", (Self::Bh1, "bh1"), (Self::Bh2, "bh2"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_errors_list_the_choices() {
        for &(convention, id) in Convention::CHOICES {
            assert_eq!((id.parse::<Convention>().unwrap(), convention.to_string()), (convention, id.into()));
        }
        assert_eq!("AUTOMATIC1111".parse::<Convention>().unwrap(), Convention::Automatic1111);
        let message = "all".parse::<SigmaRange>().unwrap_err().to_string();
        assert_eq!(message, "`sigma_range` is all, expected table or spacing");
    }
}
