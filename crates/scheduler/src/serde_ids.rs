//! Serialization of samplers and sigma schedules as their command-line ids.

use crate::{Convention, InitialNoise, NoisePart, SamplerChoice, SamplerKind, SigmaRange, SigmaSchedule, UniPcScale};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;

macro_rules! by_id {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

by_id!(SamplerKind, SamplerChoice, SigmaSchedule, Convention, SigmaRange, InitialNoise, NoisePart, UniPcScale);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for kind in SamplerKind::ALL {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<SamplerKind>(&json).unwrap(), kind);
        }
        assert_eq!(
            serde_json::to_string(&"DPM++ 2M Karras".parse::<SamplerChoice>().unwrap()).unwrap(),
            "\"DPM++ 2M Karras\""
        );
        assert!(serde_json::from_str::<SigmaSchedule>("\"karas\"").is_err());
    }
}
