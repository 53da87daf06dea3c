//! Two images as one: `ImageStitch`.

use kiln_media::NodeAt;
use serde_json::Value;

use super::graph_image::{Change, GraphImage, Pixels};
use super::problem::{Problem, Result, named};
use super::reader::Reader;

/// The node's class.
pub(super) const STITCH: &str = "ImageStitch";
/// The most nodes of this class behind one image: each may have another one at both of its inputs.
pub(super) const MAX_STITCHES: usize = 16;

/// How an image is joined with another one (`ImageStitch` of comfy_extras/nodes_images.py).
#[derive(Debug, Clone, PartialEq)]
pub struct Stitch {
    /// The other image, which the graph loads.
    pub other: GraphImage,
    /// Whether the other image is the first one.
    pub other_is_first: bool,
    /// The side of the first image at which the second one is.
    pub side: StitchSide,
    /// Whether the second image gets the height or the width of the first. Else the smaller one gets borders.
    pub matches: bool,
    /// Pixels between the images.
    pub spacing: usize,
    /// The color between them.
    pub color: [u8; 3],
    /// The color of borders.
    pub border: [u8; 3],
}

/// A side of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StitchSide {
    /// `right`
    Right,
    /// `down`
    Down,
    /// `left`
    Left,
    /// `up`
    Up,
}

impl StitchSide {
    /// Whether the images are next to each other.
    pub fn is_horizontal(self) -> bool {
        matches!(self, Self::Right | Self::Left)
    }

    /// Whether the second image is left of the first, or above it.
    pub fn is_before(self) -> bool {
        matches!(self, Self::Left | Self::Up)
    }
}

impl<'a> Reader<'a> {
    /// The change that a node makes of an image at one of its inputs, and that input. The image at the other input is loaded: the second
    /// one, or, for the change of a result, either. `None` for the change if there is no second image. `left` is the number of
    /// such nodes that may still come.
    pub(super) fn stitch(
        &self,
        at: NodeAt<'a>,
        left: &mut usize,
        of_result: bool,
    ) -> Result<(Option<Change>, &'static str)> {
        if self.graph.linked(at, "image2").is_none() {
            return Ok((None, "image1"));
        }
        if *left == 0 {
            let message = format!("node {} is one of more than {MAX_STITCHES} that join images", named(at));
            return Err(Problem::of_node(at, message));
        }
        *left -= 1;
        let (other, other_is_first) = match self.graph_image_within(at, "image2", left) {
            Ok(second) => (second, false),
            Err(problem) if of_result => (self.graph_image_within(at, "image1", left).map_err(|_| problem)?, true),
            Err(problem) => return Err(problem),
        };
        let side = match self.name(at, "direction")? {
            "right" => StitchSide::Right,
            "down" => StitchSide::Down,
            "left" => StitchSide::Left,
            "up" => StitchSide::Up,
            other => return Err(Self::wrong(at, "direction", &Value::from(other), "right, down, left or up")),
        };
        let matches = self.value(at, "match_image_size")?;
        let matches = matches.as_bool().ok_or_else(|| Self::wrong(at, "match_image_size", matches, "true or false"))?;
        let (color, border) = match self.name(at, "spacing_color")? {
            "white" => ([u8::MAX; 3], [u8::MAX; 3]),
            "black" => ([0; 3], [0; 3]),
            // Borders are black there if the color is not gray.
            "red" => ([u8::MAX, 0, 0], [0; 3]),
            "green" => ([0, u8::MAX, 0], [0; 3]),
            "blue" => ([0, 0, u8::MAX], [0; 3]),
            other => {
                return Err(Self::wrong(at, "spacing_color", &Value::from(other), "white, black, red, green or blue"));
            }
        };
        let spacing = self.count(at, "spacing_width")?;
        let spacing = spacing.saturating_add(spacing % 2);
        let how = Stitch { other, other_is_first, side, matches, spacing, color, border };
        let change = Change { node: at.0.into(), class: at.1.class_type.clone(), how: Pixels::Stitch(Box::new(how)) };
        Ok((Some(change), if other_is_first { "image2" } else { "image1" }))
    }
}
