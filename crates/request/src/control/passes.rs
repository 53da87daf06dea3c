//! The passes of hires fix in which a control network acts.

use serde::{Deserialize, Serialize};

/// The passes in which a control network acts (`HiResFixOption` of AUTOMATIC1111's ControlNet extension).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlPasses {
    /// Both, or the only one.
    #[default]
    Both,
    /// The first one.
    First,
    /// The second one, in the larger size.
    Second,
}

/// Every value with its name here and in an infotext of AUTOMATIC1111's extension.
const ALL: [(ControlPasses, &str, &str); 3] = [
    (ControlPasses::Both, "both", "Both"),
    (ControlPasses::First, "first", "Low res only"),
    (ControlPasses::Second, "second", "High res only"),
];

impl ControlPasses {
    /// All names, as users type them.
    pub const IDS: [&str; 3] = [ALL[0].1, ALL[1].1, ALL[2].1];

    /// The value of a name, of those that users type and of AUTOMATIC1111's.
    pub fn find(text: &str) -> Option<Self> {
        let is_named =
            |(_, id, label): &&(Self, &str, &str)| [id, label].iter().any(|name| name.eq_ignore_ascii_case(text));
        ALL.iter().find(is_named).map(|(passes, ..)| *passes)
    }

    /// The name that users type.
    pub fn id(self) -> &'static str {
        ALL[self as usize].1
    }

    /// The name in an infotext.
    pub(crate) fn label(self) -> &'static str {
        ALL[self as usize].2
    }

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
        assert_eq!(ControlPasses::IDS.map(ControlPasses::find), ALL.map(|(passes, ..)| Some(passes)));
        assert_eq!(ControlPasses::find("Low res only"), Some(ControlPasses::First));
        assert_eq!(ALL.map(|(passes, ..)| (passes, passes.id(), passes.label())), ALL);
        assert_eq!(ControlPasses::find("third"), None);
        let in_passes = |passes: ControlPasses| [passes.acts(false), passes.acts(true)];
        assert_eq!(ALL.map(|(passes, ..)| in_passes(passes)), [[true, true], [true, false], [false, true]]);
    }
}
