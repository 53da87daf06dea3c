//! Input images of a request, by their headers: the cost of a request is known before anything is decoded.

use std::path::Path;

use kiln_engine::{ReferenceSize, Request};
use kiln_media::{DecodeOptions, ImageHeader, header, read_file};

use crate::error::Refused;
use crate::intake::image_bytes;
use crate::options::Limits;

/// Bytes for a pixel of the results while the input image is prepared, and afterwards: its values in f32, those of the mask,
/// both as bytes, and what is pasted around the result.
const PREPARED_PIXEL: usize = 64;
const KEPT_PIXEL: usize = 32;
/// Bytes that a job keeps for a pixel of a control image in the size of the results.
const CONTROL_PIXEL: usize = 8;

/// Bytes that a job keeps for a pixel of a reference image: its values as bytes and, while it is encoded, in f32.
const REFERENCE_PIXEL: usize = 16;
/// About the pixels of a reference image in a size of the model's rule.
const REFERENCE_PIXELS: usize = 1 << 20;

/// The memory of a request in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// While its input images are read.
    pub(crate) reading: usize,
    /// Until its job is done.
    pub(crate) kept: usize,
}

/// The header of an input image within the limits of the server.
///
/// # Errors
/// [`Refused`] with the field for other files.
pub(crate) fn checked(field: &str, bytes: &[u8], options: &DecodeOptions) -> Result<ImageHeader, Refused> {
    header(bytes, field, options).map_err(|error| Refused::unread(error).at(field))
}

/// Refuses a file that says that it is a larger image than the limits of the server allow; others may have no header.
///
/// # Errors
/// [`Refused`] for such a file.
pub(crate) fn not_too_large(field: &str, bytes: &[u8], options: &DecodeOptions) -> Result<(), Refused> {
    match header(bytes, field, options) {
        Err(error @ kiln_media::Error::TooLarge { .. }) => Err(Refused::unread(error).at(field)),
        _ => Ok(()),
    }
}

/// The cost of the input images of a request for a model whose sizes are multiples of `multiple`.
///
/// # Errors
/// [`Refused`] with the field for images, and for sizes that follow from them, beyond the limits.
pub(crate) fn cost(request: &Request, multiple: usize, limits: &Limits) -> Result<Cost, Refused> {
    let options = limits.input_images();
    let image =
        |field: &str, path: &Path| checked(field, &read_file(path, &options).map_err(Refused::unread)?, &options);
    let (mut cost, mut kept_masks) = (Cost::default(), 0usize);
    let mut add = |pixels: usize| cost.reading = cost.reading.saturating_add(image_bytes(pixels));
    let mut results = request.width.unwrap_or(0).saturating_mul(request.height.unwrap_or(0));
    let mut has_input = false;
    if let Some(path) = &request.init {
        add(image("init", path)?.pixels());
        has_input = true;
    }
    if let Some(path) = &request.mask {
        add(image("mask", path)?.pixels());
    }
    for control in &request.controls {
        if let Some(path) = &control.image {
            add(image("controls", path)?.pixels());
        }
    }
    for path in request.ip_adapters.iter().flat_map(|adapter| [&adapter.image, &adapter.mask]).flatten() {
        add(image("ip_adapters", path)?.pixels());
    }
    for path in request.regions.iter().filter_map(|region| region.mask.as_ref()) {
        let pixels = image("regions", path)?.pixels();
        add(pixels);
        kept_masks = kept_masks.saturating_add(pixels);
    }
    let mut kept_references = 0usize;
    for path in &request.references {
        let pixels = image("references", path)?.pixels();
        let own = request.reference_size == Some(ReferenceSize::Own);
        if own && pixels > limits.pixels {
            let expected =
                format!("at most {} pixels with `reference_size` own, the limit of this server", limits.pixels);
            return Err(Refused::value("references", format!("an image of {pixels} pixels"), expected));
        }
        add(pixels);
        kept_references = kept_references.saturating_add(if own { pixels } else { REFERENCE_PIXELS });
    }
    let mut pasted = 0;
    if let Some(size) = request.input_size(multiple)? {
        let (width, height) = size.extended;
        pasted = width.saturating_mul(height);
        if pasted > limits.input_pixels || width.max(height) > limits.input_side {
            let most = format!("at most {} pixels, {} a side", limits.input_pixels, limits.input_side);
            let field = if request.extend.is_some() { "extend" } else { "init" };
            return Err(Refused::value(field, format!("an image of {width}x{height}"), most));
        }
        if request.extend.is_some() {
            add(pasted);
        }
        results = size.results.0.saturating_mul(size.results.1);
        if results > limits.pixels {
            return Err(Refused::value(
                "width",
                results,
                format!("at most {}, the limit of this server", limits.pixels),
            ));
        }
    }
    if has_input {
        cost.reading = cost.reading.saturating_add(results.saturating_mul(PREPARED_PIXEL));
        cost.kept = cost.kept.saturating_add(results.saturating_mul(KEPT_PIXEL));
        if request.mask.is_some() || request.extend.is_some() {
            cost.kept = cost.kept.saturating_add(pasted.saturating_mul(4)); // the image and the mask
        }
    }
    let controls = request.controls.len().saturating_mul(CONTROL_PIXEL).saturating_mul(results.min(limits.pixels));
    cost.kept = cost.kept.saturating_add(kept_masks);
    cost.kept = cost.kept.saturating_add(controls).saturating_add(kept_references.saturating_mul(REFERENCE_PIXEL));
    Ok(cost)
}
