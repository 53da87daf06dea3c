//! The begin of a sampler: empty latents, an image, or the enlarged result of another sampler.

use kiln_media::NodeAt;

use super::Named;
use super::graph_image::{GraphImage, MaskImage};
use super::problem::{Problem, Result, named};
use super::reader::Reader;
use crate::hires::{HiresUpscaler, LatentFilter};

/// The latents that a sampler begins with.
pub(super) enum Latent<'a> {
    /// None: the sampler begins with noise.
    Empty { at: NodeAt<'a>, size: (usize, usize), batch: u64 },
    /// An image.
    Image { start: Start, vae: NodeAt<'a> },
    /// The latents of a sampler, enlarged.
    Enlarged { at: NodeAt<'a>, sampler: NodeAt<'a>, by: Enlarging },
}

/// The image that a run begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// The image.
    pub graph_image: GraphImage,
    /// The part that is generated again.
    pub mask: Option<StartMask>,
    /// The node that encodes it.
    pub node: String,
}

/// The part of an image that is generated again.
#[derive(Debug, Clone, PartialEq)]
pub struct StartMask {
    /// The mask.
    pub mask: MaskImage,
    /// How it is used.
    pub how: Masking,
}

/// How a mask is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masking {
    /// `SetLatentNoiseMask`: the masked latents are generated again.
    Latents,
    /// `InpaintModelConditioning`: the same, and an inpainting model sees the rest of the image.
    Model,
    /// `VAEEncodeForInpaint`: the masked part of the image becomes gray, and the mask grows by so many pixels.
    Erased {
        /// The pixels.
        grow: usize,
    },
}

/// How latents are enlarged.
pub(super) struct Enlarging {
    pub(super) filter: HiresUpscaler,
    pub(super) size: EnlargedSize,
}

/// The size of enlarged latents.
pub(super) enum EnlargedSize {
    /// In pixels. A side of 0 follows from the other one.
    Pixels(usize, usize),
    /// A factor of both sides in latents.
    Factor(f64),
}

/// Pixels that ComfyUI counts for a latent.
const CELL: usize = 8;
/// The least side of `LatentUpscale`.
const LEAST_SIDE: usize = 64;

impl EnlargedSize {
    /// Width and height in pixels, from those before.
    pub(super) fn of(&self, (width, height): (usize, usize)) -> (usize, usize) {
        // Python rounds half to even.
        let rounded = |number: f64| number.round_ties_even() as usize;
        let side = |latents: usize, factor: f64| rounded(latents as f64 * factor) * CELL;
        let (across, down) = ((width / CELL) as f64, (height / CELL) as f64);
        match *self {
            Self::Factor(factor) => (side(width / CELL, factor), side(height / CELL, factor)),
            Self::Pixels(0, 0) => (width, height),
            Self::Pixels(0, tall) => {
                let tall = tall.max(LEAST_SIDE);
                (rounded(across * tall as f64 / down.max(1.0)).max(LEAST_SIDE) / CELL * CELL, tall / CELL * CELL)
            }
            Self::Pixels(wide, 0) => {
                let wide = wide.max(LEAST_SIDE);
                (wide / CELL * CELL, rounded(down * wide as f64 / across.max(1.0)).max(LEAST_SIDE) / CELL * CELL)
            }
            Self::Pixels(wide, tall) => (wide.max(LEAST_SIDE) / CELL * CELL, tall.max(LEAST_SIDE) / CELL * CELL),
        }
    }
}

impl<'a> Reader<'a> {
    /// The latents behind an input.
    pub(super) fn latent(&self, from: NodeAt<'a>, input: &str) -> Result<Latent<'a>> {
        let (at, slot) = self.slot(from, input)?;
        match at.1.class_type.as_str() {
            "EmptyLatentImage" | "EmptySD3LatentImage" | "EmptyFlux2LatentImage" => Ok(Latent::Empty {
                at,
                size: (self.count(at, "width")?, self.count(at, "height")?),
                batch: self.whole(at, "batch_size")?,
            }),
            _ if !self.has_images => Err(Problem::not_understood(at)),
            "VAEEncode" => self.encoded(at, None),
            "VAEEncodeForInpaint" => {
                let grow = self.count(at, "grow_mask_by")?;
                self.encoded(at, Some(StartMask { mask: self.mask(at, "mask")?, how: Masking::Erased { grow } }))
            }
            "InpaintModelConditioning" if slot == 2 => {
                let uses = at.1.inputs.get("noise_mask").and_then(serde_json::Value::as_bool).unwrap_or(true);
                if !uses {
                    let message = format!("noise_mask of node {} is false, expected true", named(at));
                    return Err(Problem::of_input(at, "noise_mask", message));
                }
                self.encoded(at, Some(StartMask { mask: self.mask(at, "mask")?, how: Masking::Model }))
            }
            "SetLatentNoiseMask" => {
                let encoder = self.link(at, "samples")?;
                if encoder.1.class_type != "VAEEncode" {
                    return Err(Problem::not_understood(encoder));
                }
                self.encoded(encoder, Some(StartMask { mask: self.mask(at, "mask")?, how: Masking::Latents }))
            }
            "LatentUpscale" => {
                let wanted = [self.count(at, "width")?, self.count(at, "height")?];
                self.enlarged(at, EnlargedSize::Pixels(wanted[0], wanted[1]))
            }
            "LatentUpscaleBy" => self.enlarged(at, EnlargedSize::Factor(self.number(at, "scale_by")?)),
            _ => Err(Problem::not_understood(at)),
        }
    }

    fn encoded(&self, at: NodeAt<'a>, mask: Option<StartMask>) -> Result<Latent<'a>> {
        let start = Start { graph_image: self.graph_image(at, "pixels")?, mask, node: at.0.into() };
        Ok(Latent::Image { start, vae: self.link(at, "vae")? })
    }

    fn enlarged(&self, at: NodeAt<'a>, size: EnlargedSize) -> Result<Latent<'a>> {
        let filter = match self.name(at, "upscale_method")? {
            "nearest-exact" => LatentFilter::NearestExact,
            "bilinear" => LatentFilter::Bilinear,
            "bicubic" => LatentFilter::Bicubic,
            _ => {
                let found = self.value(at, "upscale_method")?;
                return Err(Self::wrong(at, "upscale_method", found, "nearest-exact, bilinear or bicubic"));
            }
        };
        let sampler = self.link(at, "samples")?;
        Ok(Latent::Enlarged { at, sampler, by: Enlarging { filter: HiresUpscaler::Latents(filter), size } })
    }

    /// Refuses a VAE other than the model's own or a file of its own; the file's name if it is one.
    pub(super) fn vae(&self, vae: NodeAt<'a>, checkpoint: &str) -> Result<Option<Named>> {
        match vae.1.class_type.as_str() {
            "VAELoader" => self.file_name(vae, "vae_name").map(Some),
            _ if vae.0 == checkpoint => Ok(None),
            _ => Err(Problem::not_understood(vae)),
        }
    }
}
