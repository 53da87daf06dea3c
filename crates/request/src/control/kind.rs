//! The types of control images that Union networks know.

use serde::{Deserialize, Serialize};

/// A type of control images: what a network for several of them takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlType {
    /// A skeleton of OpenPose.
    OpenPose,
    /// Depth.
    Depth,
    /// Soft edges: HED, PiDiNet, scribbles.
    SoftEdge,
    /// Hard edges: canny, line art, MLSD.
    Canny,
    /// Normals of surfaces.
    Normal,
    /// A segmentation.
    Segment,
    /// A smaller or blurred image.
    Tile,
    /// An image with a hole.
    Inpaint,
}

/// Every type in the order of the networks (`control_mode` of diffusers), with other names of it.
const ALL: [(ControlType, &[&str]); 8] = [
    (ControlType::OpenPose, &["pose"]),
    (ControlType::Depth, &[]),
    (ControlType::SoftEdge, &["hed", "pidi", "scribble", "ted"]),
    (ControlType::Canny, &["lineart", "anime_lineart", "mlsd", "edges"]),
    (ControlType::Normal, &[]),
    (ControlType::Segment, &["seg"]),
    (ControlType::Tile, &["blur"]),
    (ControlType::Inpaint, &["repaint"]),
];

impl ControlType {
    /// All names, as users type them, in the order of the networks.
    pub const IDS: [&str; 8] = ["openpose", "depth", "softedge", "canny", "normal", "segment", "tile", "inpaint"];

    /// The number that networks know it by.
    pub fn number(self) -> usize {
        ALL.iter().position(|(kind, _)| *kind == self).unwrap_or(0)
    }

    /// The name that users type.
    pub fn id(self) -> &'static str {
        Self::IDS[self.number()]
    }

    /// The type of a name; those of preprocessors that make such images are names too.
    pub fn find(text: &str) -> Option<Self> {
        let name = text.trim().to_ascii_lowercase();
        let is_named = |(kind, others): &&(Self, &[&str])| kind.id() == name || others.contains(&name.as_str());
        ALL.iter().find(is_named).map(|(kind, _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_networks() {
        for (i, id) in ControlType::IDS.into_iter().enumerate() {
            let kind = ControlType::find(id).unwrap();
            assert_eq!((kind.number(), kind.id()), (i, id));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{id}\""));
        }
        assert_eq!(ControlType::find("HED"), Some(ControlType::SoftEdge));
        assert_eq!(ControlType::find("lineart").map(ControlType::number), Some(3));
        assert_eq!(ControlType::find("style"), None);
    }
}
