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
    /// A blurred image.
    Blur,
    /// A gray image, which gets colors.
    Gray,
    /// An image of low quality, which gets details.
    LowQuality,
}

/// Every type with other names of it: first those of SDXL's Union networks in their order, then those of FLUX.1's alone.
const ALL: [(ControlType, &[&str]); 11] = [
    (ControlType::OpenPose, &["pose"]),
    (ControlType::Depth, &[]),
    (ControlType::SoftEdge, &["hed", "pidi", "scribble", "ted"]),
    (ControlType::Canny, &["lineart", "anime_lineart", "mlsd", "edges"]),
    (ControlType::Normal, &[]),
    (ControlType::Segment, &["seg"]),
    (ControlType::Tile, &[]),
    (ControlType::Inpaint, &["repaint"]),
    (ControlType::Blur, &[]),
    (ControlType::Gray, &["grayscale", "recolor"]),
    (ControlType::LowQuality, &["lq", "low_quality", "low-quality"]),
];

impl ControlType {
    /// All names, as users type them.
    pub const IDS: [&str; 11] = [
        "openpose",
        "depth",
        "softedge",
        "canny",
        "normal",
        "segment",
        "tile",
        "inpaint",
        "blur",
        "gray",
        "lowquality",
    ];

    /// The name that users type.
    pub fn id(self) -> &'static str {
        Self::IDS[self.place()]
    }

    /// The type that a network has for such images if it has none of this type.
    pub fn wider(self) -> Option<Self> {
        (self == Self::Blur).then_some(Self::Tile)
    }

    /// Its place in the list of all.
    fn place(self) -> usize {
        ALL.iter().position(|(kind, _)| *kind == self).unwrap_or(0)
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
    fn every_type_has_its_name() {
        for (i, id) in ControlType::IDS.into_iter().enumerate() {
            let kind = ControlType::find(id).unwrap();
            assert_eq!((kind.place(), kind.id()), (i, id));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{id}\""));
        }
        assert_eq!(ControlType::find("HED"), Some(ControlType::SoftEdge));
        assert_eq!(ControlType::find("lineart"), Some(ControlType::Canny));
        assert_eq!(ControlType::find("blur").and_then(ControlType::wider), Some(ControlType::Tile));
        assert_eq!(ControlType::find("style"), None);
    }
}
