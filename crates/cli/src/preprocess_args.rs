//! The arguments of `kiln preprocess`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use kiln_media::Preprocessor;

use crate::values::{parse_count, parse_number};

/// The preprocessor that marks the masked part of an image.
pub const INPAINT: &str = "inpaint";

/// The names of the preprocessors.
fn names() -> PossibleValuesParser {
    let names = Preprocessor::NAMES.map(|(name, about)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(
        names.into_iter().chain([PossibleValue::new(INPAINT).help("the image, transparent under a mask")]),
    )
}

/// `kiln preprocess`.
#[derive(Debug, Args)]
pub struct PreprocessArgs {
    /// The preprocessor.
    #[arg(value_name = "NAME", value_parser = names())]
    pub name: String,
    /// The image: PNG, JPEG, WebP, BMP, TIFF or GIF. - is the standard input.
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// The map, a PNG file.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// canny: pixels above the lower threshold are edges if they touch one. Default: 100.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_number)]
    pub low: Option<f64>,
    /// canny: pixels above the upper threshold are edges. Default: 200.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_number)]
    pub high: Option<f64>,
    /// scribble: how different a stroke is from its surroundings, 0 to 255. Default: 32. threshold: the level above which all
    /// channels of a white pixel are, 0 to 255. Default: 127.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_number)]
    pub threshold: Option<f64>,
    /// blur: the standard deviation in pixels. Default: 9.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    pub sigma: Option<f64>,
    /// tile: how much smaller the map is. Default: 1.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    pub factor: Option<f64>,
    /// Resizes the image before, so that its shorter side has this many pixels. Not for tile, invert and inpaint. Default: the image as
    /// it is.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub resolution: Option<usize>,
    /// inpaint: the part to regenerate, white, or opaque where the file has transparency.
    #[arg(long, value_name = "FILE")]
    pub mask: Option<PathBuf>,
    /// Replaces a file that exists.
    #[arg(long)]
    pub overwrite: bool,
}
