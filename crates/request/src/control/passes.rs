//! The passes of hires fix in which a control network acts.

use serde::{Deserialize, Serialize};

use crate::input::{choice, named};

choice! {
    /// The passes in which a control network acts (`HiResFixOption` of AUTOMATIC1111's ControlNet extension).
    ControlPasses {
        /// Both, or the only one.
        #[default]
        Both = "both", "Both";
        /// The first one.
        First = "first", "Low res only";
        /// The second one, in the larger size.
        Second = "second", "High res only";
    }
}

impl ControlPasses {
    /// Whether it acts in a pass: the second one, or else the first.
    pub fn acts(self, in_second: bool) -> bool {
        self != if in_second { Self::First } else { Self::Second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_both_programs() {
        let all = [ControlPasses::Both, ControlPasses::First, ControlPasses::Second];
        for (passes, id) in all.into_iter().zip(ControlPasses::IDS) {
            assert_eq!([ControlPasses::find(id), ControlPasses::find(passes.label())], [Some(passes); 2]);
            assert_eq!(serde_json::to_string(&passes).unwrap(), format!("\"{id}\""));
        }
        assert_eq!(ControlPasses::find("Low res only"), Some(ControlPasses::First));
        assert_eq!(ControlPasses::find("third"), None);
        let in_passes = |passes: ControlPasses| [passes.acts(false), passes.acts(true)];
        assert_eq!(all.map(in_passes), [[true, true], [true, false], [false, true]]);
    }
}
