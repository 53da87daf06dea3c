//! Initial latents: noise, an image, or a masked image.

use candle_core::{DType, Device, Tensor};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The initial latents of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Init {
    /// Noise alone.
    #[default]
    Noise,
    /// An image with noise on it, as diffusers' image-to-image pipelines have it.
    Image {
        /// The image.
        image: InitImage,
        /// The part of the steps that is made, from the end, more than 0 and at most 1. Less keeps more of the image.
        strength: f64,
    },
    /// An image of which a mask keeps a part: between two steps the latents of that part are the image's, with the noise
    /// of that step. That is how diffusers' inpainting pipelines run networks without channels for a mask. Strength 1
    /// begins with noise alone.
    Masked {
        /// The image.
        image: InitImage,
        /// Where the image is generated again.
        mask: Mask,
        /// The part of the steps that is made, from the end, more than 0 and at most 1.
        strength: f64,
    },
    /// The results of the pass before, enlarged, with noise on them: what the second pass of hires fix begins with.
    FirstPass {
        /// The part of the steps that is made, more than 0 and at most 1; by AUTOMATIC1111's and ComfyUI's rules the part of
        /// the noise, with all steps made.
        strength: f64,
        /// The steps of prompts' schedules in the pass before where they are counted on from them, as AUTOMATIC1111 does.
        steps: Option<usize>,
    },
}

/// An image to begin with.
#[derive(Debug, Clone)]
pub struct InitImage {
    pixels: Tensor,
    latents: InitLatents,
}

/// Which latents an image has, of those that the encoder holds possible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitLatents {
    /// A random sample, with each image's own generator: diffusers' choice.
    #[default]
    Sample,
    /// The most probable ones. Nothing is drawn.
    Mean,
}

impl InitImage {
    /// From red, green and blue between -1 and 1, `(1, 3, h, w)`.
    ///
    /// # Errors
    /// [`Error::Value`] for another shape, and for values that are not finite.
    pub fn new(pixels: &Tensor, latents: InitLatents) -> Result<Self> {
        Ok(Self { pixels: plain("the initial image", 3, pixels)?, latents })
    }

    /// The pixels, `(1, 3, h, w)` in f32 in the host's memory.
    pub fn pixels(&self) -> &Tensor {
        &self.pixels
    }

    /// Replaces the pixels by others of the same shape; the choice of latents stays.
    pub fn with_pixels(&self, pixels: Tensor) -> Self {
        Self { pixels, latents: self.latents }
    }

    /// Which latents are wanted.
    pub fn latents(&self) -> InitLatents {
        self.latents
    }
}

/// Two images are one where they share their pixels.
impl PartialEq for InitImage {
    fn eq(&self, other: &Self) -> bool {
        self.pixels.id() == other.pixels.id() && self.latents == other.latents
    }
}

/// Where an image is generated again.
#[derive(Debug, Clone)]
pub struct Mask {
    pixels: Tensor,
    /// The masks of another program than diffusers.
    latents: Option<LatentMasks>,
}

/// Masks in the size of the latents, `(1, 1, h, w)`.
#[derive(Debug, Clone)]
struct LatentMasks {
    kept: Tensor,
    network: Tensor,
}

impl Mask {
    /// A mask from values of 0 (the image stays) to 1 (it is generated again), `(1, 1, h, w)` for an image of `h` by `w`
    /// pixels. A latent has the value of its upper left pixel. diffusers has nothing between 0 and 1: it takes 0.5 and more
    /// for 1.
    ///
    /// # Errors
    /// [`Error::Value`] for another shape, and for values out of range.
    pub fn new(pixels: &Tensor) -> Result<Self> {
        let pixels = plain("the mask", 1, pixels)?;
        let values = pixels.flatten_all()?.to_vec1::<f32>()?;
        match values.iter().find(|value| !(0.0..=1.0).contains(*value)) {
            None => Ok(Self { pixels, latents: None }),
            Some(value) => {
                Err(Error::Value { name: "the mask", found: value.to_string(), expected: "values from 0 to 1".into() })
            }
        }
    }

    /// Adds the masks that another program than diffusers makes, `(1, 1, h, w)` for latents of `h` by `w`: `kept` is 1 where
    /// latents are generated again and 0 where they stay, and `network` is the input of a network with a channel for a mask.
    /// Between 0 and 1 the pixels themselves are then a part of the masked image's.
    ///
    /// # Errors
    /// [`Error::Value`] for another shape, and for values out of range.
    pub fn with_latents(self, kept: &Tensor, network: &Tensor) -> Result<Self> {
        let (kept, network) = (Self::new(kept)?.pixels, Self::new(network)?.pixels);
        if kept.dims() != network.dims() {
            let (found, expected) = (format!("{:?}", network.dims()), format!("{:?}", kept.dims()));
            return Err(Error::Value { name: "the mask", found, expected });
        }
        Ok(Self { latents: Some(LatentMasks { kept, network }), ..self })
    }

    /// Whether the masks of the latents are another program's.
    pub fn has_latents(&self) -> bool {
        self.latents.is_some()
    }

    /// The values, `(1, 1, h, w)` in f32 in the host's memory.
    pub fn pixels(&self) -> &Tensor {
        &self.pixels
    }

    /// The mask of latents `(c, h, w)` that each cover `f` by `f` pixels, `(1, c, h, w)` in f32.
    pub fn of_latents(&self, (c, h, w): (usize, usize, usize), f: usize) -> Result<Tensor> {
        match &self.latents {
            Some(masks) => Self::broadcast(&masks.kept, (c, h, w)),
            None => self.corners((c, h, w), f),
        }
    }

    /// The mask that a network with a channel for it gets, `(1, 1, h, w)` in f32.
    pub fn of_network(&self, (h, w): (usize, usize), f: usize) -> Result<Tensor> {
        match &self.latents {
            Some(masks) => Self::broadcast(&masks.network, (1, h, w)),
            None => self.corners((1, h, w), f),
        }
    }

    /// The mask that a network with a channel for each pixel of a latent gets, `(1, f * f, h, w)` in f32: channel `f * dy + dx` is
    /// that of the pixel `(dy, dx)` (`prepare_mask_latents` of diffusers' `FluxFillPipeline`). By the rules of other programs it
    /// has the pixels that they keep of the image.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn of_pixels(&self, (h, w): (usize, usize), f: usize) -> Result<Tensor> {
        let cells = self.pixels.reshape((h, f, w, f))?;
        Ok(cells.permute((1, 3, 0, 2))?.contiguous()?.reshape((1, f * f, h, w))?)
    }

    fn broadcast(mask: &Tensor, (c, h, w): (usize, usize, usize)) -> Result<Tensor> {
        Ok(mask.broadcast_as((1, c, h, w))?.contiguous()?)
    }

    fn corners(&self, (c, h, w): (usize, usize, usize), f: usize) -> Result<Tensor> {
        let width = w * f;
        let values = self.pixels.flatten_all()?.to_vec1::<f32>()?;
        let corner = |i: usize| values.get(i / w * f * width + i % w * f).copied().unwrap_or(0.0);
        let one: Vec<f32> = (0..h * w).map(corner).collect();
        Self::broadcast(&Tensor::from_vec(one, (1, 1, h, w), &Device::Cpu)?, (c, h, w))
    }
}

/// Two masks are one where they share their pixels.
impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        self.pixels.id() == other.pixels.id()
    }
}

/// A tensor of this shape with one element.
fn without_values(like: &Tensor) -> Tensor {
    let one = Tensor::zeros((1, 1, 1, 1), DType::F32, &Device::Cpu).and_then(|one| one.broadcast_as(like.shape()));
    one.unwrap_or_else(|_| like.clone()) // a shape of four dimensions
}

/// A tensor `(1, channels, h, w)` in f32 in the host's memory, of finite values.
fn plain(name: &'static str, channels: usize, pixels: &Tensor) -> Result<Tensor> {
    let wrong = |found: String, expected: String| Error::Value { name, found, expected };
    if !matches!(*pixels.dims(), [1, c, h, w] if c == channels && h * w > 0) {
        return Err(wrong(format!("a tensor {:?}", pixels.dims()), format!("a tensor (1, {channels}, h, w)")));
    }
    let pixels = pixels.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?;
    let values = pixels.flatten_all()?.to_vec1::<f32>()?;
    match values.iter().filter(|value| !value.is_finite()).count() {
        0 => Ok(pixels),
        count => Err(wrong(format!("{count} values that are not finite"), "finite values".into())),
    }
}

impl Init {
    /// The image that is encoded, if there is one.
    pub fn image(&self) -> Option<&InitImage> {
        match self {
            Self::Noise | Self::FirstPass { .. } => None,
            Self::Image { image, .. } | Self::Masked { image, .. } => Some(image),
        }
    }

    /// The mask, if there is one.
    pub fn mask(&self) -> Option<&Mask> {
        match self {
            Self::Masked { mask, .. } => Some(mask),
            _ => None,
        }
    }

    /// Drops the values: all share one element, so that only sizes are left.
    pub(crate) fn without_pixels(&self) -> Self {
        let image = |image: &InitImage| image.with_pixels(without_values(&image.pixels));
        match self {
            Self::Noise | Self::FirstPass { .. } => self.clone(),
            Self::Image { image: of, strength } => Self::Image { image: image(of), strength: *strength },
            Self::Masked { image: of, mask, strength } => {
                let mask = Mask { pixels: without_values(&mask.pixels), latents: None };
                Self::Masked { image: image(of), mask, strength: *strength }
            }
        }
    }

    /// Whether a mask keeps a part.
    pub fn is_masked(&self) -> bool {
        self.mask().is_some()
    }

    /// The part of the steps that is made; `None` is all of them.
    pub fn strength(&self) -> Option<f64> {
        match self {
            Self::Noise => None,
            Self::Image { strength, .. } | Self::Masked { strength, .. } | Self::FirstPass { strength, .. } => {
                Some(*strength)
            }
        }
    }

    /// Refuses what does not fit images of this width and height.
    pub fn check(&self, width: usize, height: usize) -> Result<()> {
        let sized = |name: &'static str, pixels: Option<&Tensor>| match pixels.map(Tensor::dims) {
            Some(&[_, _, h, w]) if (w, h) != (width, height) => {
                let expected = format!("{width}x{height}, the size of the job's images");
                Err(Error::Value { name, found: format!("{w}x{h}"), expected })
            }
            _ => Ok(()),
        };
        sized("the initial image", self.image().map(|image| &image.pixels))?;
        sized("the mask", self.mask().map(|mask| &mask.pixels))?;
        match self.strength() {
            Some(strength) if !(strength > 0.0 && strength <= 1.0) => {
                let (name, found) = ("the strength", format!("{strength:?}"));
                Err(Error::Value { name, found, expected: "more than 0 and at most 1".into() })
            }
            _ => Ok(()),
        }
    }
}

/// Serialized are the parts that images of one batch share: the kind, the strength, and which latents an image has. Each image
/// has its own pixels.
impl Serialize for Init {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let kind = match self {
            Self::Noise => "noise",
            Self::Image { .. } => "image",
            Self::Masked { .. } => "masked",
            Self::FirstPass { .. } => "first pass",
        };
        let mut init = serializer.serialize_struct("Init", 3)?;
        init.serialize_field("kind", kind)?;
        init.serialize_field("strength", &self.strength())?;
        init.serialize_field("mean", &self.image().map(|image| image.latents == InitLatents::Mean))?;
        init.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: Vec<f32>, shape: (usize, usize, usize, usize)) -> Tensor {
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_latent_has_the_mask_of_its_upper_left_pixel() {
        let mut pixels = vec![0.0; 4 * 6];
        (pixels[2], pixels[6 * 2 + 4], pixels[1]) = (1.0, 0.5, 1.0);
        let mask = Mask::new(&tensor(pixels, (1, 1, 4, 6))).unwrap();
        let found = mask.of_latents((2, 2, 3), 2).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(found, [[0.0, 1.0, 0.0, 0.0, 0.0, 0.5]; 2].concat());
    }

    #[test]
    fn a_latent_has_a_channel_for_each_pixel_of_the_mask() {
        let pixels = (0..4 * 6).map(|i| i as f32 / 32.0).collect();
        let mask = Mask::new(&tensor(pixels, (1, 1, 4, 6))).unwrap();
        let found = mask.of_pixels((2, 3), 2).unwrap();
        assert_eq!(found.dims(), [1, 4, 2, 3]);
        let found = found.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let upper_left = [0, 2, 4, 12, 14, 16];
        let expected = [0, 1, 6, 7].iter().flat_map(|pixel| upper_left.map(|first| (first + pixel) as f32 / 32.0));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn images_that_do_not_fit_are_refused() {
        let image = |shape| InitImage::new(&tensor(vec![0.5; 3 * 4 * 6], shape), InitLatents::Sample);
        let message = image((1, 4, 3, 6)).unwrap_err().to_string();
        assert!(message.contains("the initial image") && message.contains("(1, 3, h, w)"), "{message}");
        let nan = InitImage::new(&tensor(vec![f32::NAN; 3], (1, 3, 1, 1)), InitLatents::Mean).unwrap_err();
        assert!(nan.to_string().contains("3 values that are not finite"), "{nan}");
        assert!(Mask::new(&tensor(vec![2.0], (1, 1, 1, 1))).unwrap_err().to_string().contains("from 0 to 1"));
        let init = |strength| Init::Image { image: image((1, 3, 4, 6)).unwrap(), strength };
        init(0.5).check(6, 4).unwrap();
        assert!(init(0.5).check(4, 6).unwrap_err().to_string().contains("6x4"));
        for strength in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(init(strength).check(6, 4).unwrap_err().to_string().contains("the strength"));
        }
    }
}
