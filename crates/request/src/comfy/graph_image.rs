//! Images and masks that a graph loads, and what it does with their pixels.

use kiln_media::NodeAt;
use kiln_models::KONTEXT_SIZES;
use serde_json::Value;

use super::Named;
use super::problem::{Problem, Result, named};
use super::reader::{MAX_CHAIN, Reader};
use super::stitch::{MAX_STITCHES, STITCH, Stitch};

/// An image that a graph loads, with the changes of its size, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphImage {
    /// The file's name.
    pub file: Named,
    /// The changes.
    pub changes: Vec<Change>,
}

/// A change of an image's pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The node's id.
    pub node: String,
    /// The node's class.
    pub class: String,
    /// The change itself.
    pub how: Pixels,
}

/// A way to change pixels.
#[derive(Debug, Clone, PartialEq)]
pub enum Pixels {
    /// `ImageScale`: a new size. A side of 0 follows from the other one.
    Size {
        /// The interpolation.
        filter: ImageFilter,
        /// Width and height.
        size: (usize, usize),
        /// Whether the middle is cut out first, so that the shape is kept.
        crop: bool,
    },
    /// `ImageScaleBy`: a factor of both sides.
    Factor {
        /// The interpolation.
        filter: ImageFilter,
        /// The factor.
        factor: f64,
    },
    /// `ImageScaleToTotalPixels`: a number of pixels in the image's shape.
    Total {
        /// The interpolation.
        filter: ImageFilter,
        /// Units of 1024 x 1024 pixels.
        megapixels: f64,
        /// Sides are multiples of this.
        multiple: usize,
    },
    /// `FluxKontextImageScale`: the middle, in the size `[width, height]` of these whose ratio is nearest to the image's.
    Nearest(&'static [[usize; 2]]),
    /// `ImageUpscaleWithModel`: a network.
    Network(Named),
    /// `ImageStitch`: another image next to it.
    Stitch(Box<Stitch>),
}

impl Pixels {
    /// The interpolation; that of a network is its own.
    pub fn filter(&self) -> ImageFilter {
        match self {
            Self::Size { filter, .. } | Self::Factor { filter, .. } | Self::Total { filter, .. } => *filter,
            Self::Nearest(_) | Self::Network(_) | Self::Stitch(_) => ImageFilter::Lanczos,
        }
    }
}

/// The interpolations of ComfyUI that are those of Pillow. Its others are PyTorch's without antialiasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFilter {
    /// `nearest-exact`.
    Nearest,
    /// `lanczos`.
    Lanczos,
}

/// A mask: 1 is generated again.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskImage {
    /// The file's name.
    pub file: Named,
    /// The channel of the file. The alpha channel is inverted, as there.
    pub channel: Channel,
    /// Whether it is inverted.
    pub inverted: bool,
}

/// A channel of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Transparency.
    Alpha,
    /// Red, green or blue, by its number.
    Color(usize),
}

impl<'a> Reader<'a> {
    /// The image behind an input.
    pub(super) fn graph_image(&self, from: NodeAt<'a>, input: &str) -> Result<GraphImage> {
        let mut stitches = MAX_STITCHES;
        self.graph_image_within(from, input, &mut stitches)
    }

    /// The image behind an input, with at most `stitches` nodes that join images.
    pub(super) fn graph_image_within(&self, from: NodeAt<'a>, input: &str, stitches: &mut usize) -> Result<GraphImage> {
        let (mut changes, (mut at, mut slot)) = (Vec::new(), self.slot(from, input)?);
        for _ in 0..MAX_CHAIN {
            if at.1.class_type == "LoadImage" && slot == 0 {
                changes.reverse();
                return Ok(GraphImage { file: self.file_name(at, "image")?, changes });
            }
            let (change, input) = self.change(at, stitches, false)?.ok_or_else(|| Problem::not_understood(at))?;
            // A network enlarges results only: it takes a turn between the steps of jobs.
            if change.as_ref().is_some_and(|change| matches!(change.how, Pixels::Network(_))) {
                return Err(Problem::not_understood(at));
            }
            changes.extend(change);
            (at, slot) = self.slot(at, input)?;
        }
        Err(Problem::of_node(from, format!("the nodes after {} do not end", named(from))))
    }

    /// The change of pixels that a node makes, if it makes one, and the input with the image; `None` for other nodes. `of_result` is for
    /// nodes after a sampler.
    pub(super) fn change(
        &self,
        at: NodeAt<'a>,
        stitches: &mut usize,
        of_result: bool,
    ) -> Result<Option<(Option<Change>, &'static str)>> {
        let how = match at.1.class_type.as_str() {
            STITCH => return self.stitch(at, stitches, of_result).map(Some),
            "ImageScale" => Pixels::Size {
                filter: self.image_filter(at)?,
                size: (self.count(at, "width")?, self.count(at, "height")?),
                crop: match self.name(at, "crop")? {
                    "disabled" => false,
                    "center" => true,
                    _ => return Err(Self::wrong(at, "crop", self.value(at, "crop")?, "disabled or center")),
                },
            },
            "ImageScaleBy" => Pixels::Factor { filter: self.image_filter(at)?, factor: self.number(at, "scale_by")? },
            "ImageScaleToTotalPixels" => Pixels::Total {
                filter: self.image_filter(at)?,
                megapixels: self.number(at, "megapixels")?,
                multiple: self.count_or(at, "resolution_steps", 1)?,
            },
            "FluxKontextImageScale" => Pixels::Nearest(&KONTEXT_SIZES),
            "ImageUpscaleWithModel" => {
                let loader = self.link(at, "upscale_model")?;
                if loader.1.class_type != "UpscaleModelLoader" {
                    return Err(Problem::not_understood(loader));
                }
                Pixels::Network(self.file_name(loader, "model_name")?)
            }
            _ => return Ok(None),
        };
        let change = Change { node: at.0.into(), class: at.1.class_type.clone(), how };
        Ok(Some((Some(change), "image")))
    }

    fn image_filter(&self, at: NodeAt<'a>) -> Result<ImageFilter> {
        match self.name(at, "upscale_method")? {
            "nearest-exact" => Ok(ImageFilter::Nearest),
            "lanczos" => Ok(ImageFilter::Lanczos),
            other => {
                let other = Value::from(other);
                Err(Self::wrong(
                    at,
                    "upscale_method",
                    &other,
                    "nearest-exact or lanczos: Kiln has no others of ComfyUI",
                ))
            }
        }
    }

    /// The mask behind an input.
    pub(super) fn mask(&self, from: NodeAt<'a>, input: &str) -> Result<MaskImage> {
        let (mut inverted, (mut at, slot)) = (false, self.slot(from, input)?);
        let mut slot = slot;
        for _ in 0..MAX_CHAIN {
            let channel = match at.1.class_type.as_str() {
                "InvertMask" => {
                    inverted = !inverted;
                    (at, slot) = self.slot(at, "mask")?;
                    continue;
                }
                "LoadImage" if slot == 1 => Channel::Alpha,
                "LoadImageMask" => match self.name(at, "channel")? {
                    "alpha" => Channel::Alpha,
                    "red" => Channel::Color(0),
                    "green" => Channel::Color(1),
                    "blue" => Channel::Color(2),
                    _ => {
                        return Err(Self::wrong(
                            at,
                            "channel",
                            self.value(at, "channel")?,
                            "alpha, red, green or blue",
                        ));
                    }
                },
                _ => return Err(Problem::not_understood(at)),
            };
            return Ok(MaskImage { file: self.file_name(at, "image")?, channel, inverted });
        }
        Err(Problem::of_node(from, format!("the nodes after {} do not end", named(from))))
    }
}
