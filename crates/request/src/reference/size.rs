//! The size of reference images.

use kiln_media::ResizeMode;
use kiln_models::{ReferenceSizes, area_size, nearest_size};
use serde::{Deserialize, Serialize};

use crate::input::{choice, named};

choice! {
    /// The size in which the denoiser sees a reference image.
    ReferenceSize {
        /// The model's rule.
        #[default]
        Model = "model", "model";
        /// The image's own, rounded down to multiples of the model.
        Own = "own", "own";
    }
}

/// How an image gets its size `[width, height]`: first it is made smaller, then it is fitted to multiples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fitted {
    pub(super) resized: [usize; 2],
    pub(super) result: [usize; 2],
    pub(super) mode: ResizeMode,
}

/// The size of an image of `width` by `height` pixels, in multiples of `multiple`. Sources: diffusers'
/// `FluxKontextPipeline.__call__`, `Flux2KleinPipeline.__call__` with `Flux2ImageProcessor`, and `QwenImageEditPlusPipeline.__call__`.
pub(super) fn fitted_size(
    sizes: ReferenceSizes,
    choice: ReferenceSize,
    (width, height): (usize, usize),
    multiple: usize,
) -> Fitted {
    let (own, multiple) = ([width, height], multiple.max(1));
    let down = |size: [usize; 2]| size.map(|side| (side / multiple * multiple).max(multiple));
    let stretched = |size: [usize; 2]| Fitted { resized: own, result: down(size), mode: ResizeMode::Stretch };
    let cropped = |resized: [usize; 2]| Fitted { resized, result: down(resized), mode: ResizeMode::Crop };
    match (sizes, choice) {
        (ReferenceSizes::Nearest(_) | ReferenceSizes::Area(_), ReferenceSize::Own) => stretched(own),
        (ReferenceSizes::Area(pixels), ReferenceSize::Model) => stretched(area_size(pixels, own)),
        (ReferenceSizes::Nearest(all), ReferenceSize::Model) => stretched(nearest_size(all, own).unwrap_or(own)),
        (ReferenceSizes::AtMost(_), ReferenceSize::Own) => cropped(own),
        (ReferenceSizes::AtMost(most), ReferenceSize::Model) => {
            let pixels = width.saturating_mul(height).max(1);
            let factor = if pixels > most { (most as f64 / pixels as f64).sqrt() } else { 1.0 };
            cropped(own.map(|side| ((side as f64 * factor) as usize).max(1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_pipelines() {
        const SIZES: [[usize; 2]; 3] = [[672, 1568], [1024, 1024], [1568, 672]];
        let result = |sizes, choice, size| fitted_size(sizes, choice, size, 16).result;
        let kontext = |choice, size| result(ReferenceSizes::Nearest(&SIZES), choice, size);
        assert_eq!(kontext(ReferenceSize::Own, (131, 94)), [128, 80]);
        assert_eq!(kontext(ReferenceSize::Own, (5, 40)), [16, 32]);
        assert_eq!(kontext(ReferenceSize::Model, (300, 290)), [1024, 1024]);
        assert_eq!(kontext(ReferenceSize::Model, (30, 100)), [672, 1568]);
        assert_eq!(kontext(ReferenceSize::Model, (4000, 1000)), [1568, 672]);
        let klein = |choice, size| result(ReferenceSizes::AtMost(1 << 20), choice, size);
        assert_eq!(klein(ReferenceSize::Model, (131, 94)), [128, 80]);
        assert_eq!(klein(ReferenceSize::Model, (4096, 1024)), [2048, 512]);
        assert_eq!(klein(ReferenceSize::Own, (4096, 1030)), [4096, 1024]);
        let qwen = |choice, size| result(ReferenceSizes::Area(1 << 20), choice, size);
        assert_eq!(qwen(ReferenceSize::Model, (131, 94)), [1216, 864]);
        assert_eq!(qwen(ReferenceSize::Own, (131, 94)), [128, 80]);
    }
}
