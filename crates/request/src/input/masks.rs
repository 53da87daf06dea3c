//! Masks of each program's rules, from a mask of the size of the results.

use candle_core::{Device, Tensor};
use kiln_media::{Filter, Gray8Image};

use super::Rule;
use crate::error::Result;
use crate::init::Mask;
use crate::options::ImageOptions;

/// Pixels a latent covers in each direction.
const CELL: usize = 8;

/// The masks of pixels and latents by the rule of `options`.
pub(super) fn of_rule(mask: &Gray8Image, options: &ImageOptions) -> Result<Mask> {
    match options.rule {
        Rule::Diffusers => Mask::new(&tensor(mask.threshold(127).to_unit(), mask.size())?),
        Rule::Automatic1111 => automatic(mask, options.soft_inpainting),
        Rule::Comfy => comfy(mask),
    }
}

/// AUTOMATIC1111's (`init` of `StableDiffusionProcessingImg2Img` and `inpainting_image_conditioning`, `modules/processing.py`):
/// the mask of the latents is resized with Pillow's bicubic filter; a network gets the upper left pixel of each latent. Both are
/// rounded half to even, unless soft inpainting keeps them as they are.
fn automatic(mask: &Gray8Image, is_soft: bool) -> Result<Mask> {
    let (width, height) = mask.size();
    let rounded = |mask: Gray8Image| if is_soft { mask } else { mask.threshold(127) };
    let kept = rounded(mask.resize(width / CELL, height / CELL, Filter::Bicubic)?);
    let pixels = rounded(mask.clone());
    let corners = (0..height / CELL)
        .flat_map(|y| pixels.row(y * CELL).iter().step_by(CELL).take(width / CELL))
        .map(|&v| f32::from(v) / 255.0);
    let network = tensor(corners.collect(), kept.size())?;
    Mask::new(&tensor(pixels.to_unit(), pixels.size())?)?.with_latents(&tensor(kept.to_unit(), kept.size())?, &network)
}

/// ComfyUI's: PyTorch's bilinear interpolation without antialiasing, which is the mean of the four pixels in the middle of a latent
/// (`reshape_mask` of `comfy/utils.py`). A network gets it rounded half to even (`concat_cond` of `comfy/model_base.py`), and the
/// masked image is that of the rounded mask (`InpaintModelConditioning` of `nodes.py`).
fn comfy(mask: &Gray8Image) -> Result<Mask> {
    let (width, height) = mask.size();
    let (w, h) = (width / CELL, height / CELL);
    let values = mask.to_unit();
    let at = |x: usize, y: usize| values.get(y * width + x).copied().unwrap_or(0.0);
    let middle = |i: usize| {
        let (x, y) = (i % w * CELL + CELL / 2 - 1, i / w * CELL + CELL / 2 - 1);
        0.5 * (0.5 * at(x, y) + 0.5 * at(x + 1, y)) + 0.5 * (0.5 * at(x, y + 1) + 0.5 * at(x + 1, y + 1))
    };
    let kept: Vec<f32> = (0..w * h).map(middle).collect();
    let network = kept.iter().map(|v| v.round_ties_even()).collect();
    let pixels = values.iter().map(|v| v.round_ties_even()).collect();
    Mask::new(&tensor(pixels, mask.size())?)?.with_latents(&tensor(kept, (w, h))?, &tensor(network, (w, h))?)
}

/// Values as `(1, 1, h, w)`.
fn tensor(values: Vec<f32>, (width, height): (usize, usize)) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, (1, 1, height, width), &Device::Cpu)?)
}
