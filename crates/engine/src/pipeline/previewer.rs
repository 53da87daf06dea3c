//! The way from latents to previews: factors, or TAESD.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::Tensor;
use kiln_media::Rgb8Image;
use kiln_models::{LatentRgb, ModelFolder};
use kiln_ops::ByteRounding;
use kiln_setup::{PreviewMethod, PreviewOptions, Setup};
use kiln_vae::Tiling;
use kiln_weights::Placement;

use crate::component::{ComponentOptions, WeightResidency};
use crate::error::{Error, Result};
use crate::generated_image::pixels;
use crate::pipeline::decoder::Decoder;
use crate::pipeline::preview::images;

/// Latents of the longer side of a preview by TAESD; larger images are reduced first, which bounds its time and memory.
const MOST_SIDE: usize = 64;

/// Makes previews of a model's latents.
pub(crate) struct Previewer {
    colors: Option<LatentRgb>,
    /// TAESD's decoder, until it fails.
    decoder: Mutex<Option<Decoder>>,
    has_decoder: bool,
}

impl Previewer {
    /// The previews of `model` by the options of `setup`. No weights are read.
    ///
    /// # Errors
    /// [`Error::Request`] for TAESD without a file, and errors of a file; with [`PreviewMethod::Auto`] a file that does not fit the
    /// model is left out.
    pub(crate) fn open(
        model: &ModelFolder,
        setup: &Setup,
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Result<Self> {
        let PreviewOptions { method, taesd } = &setup.previews;
        let colors = || model.latent_rgb().cloned();
        let open = |path: &Path| Decoder::open(model, Some(path), placement, options);
        let (colors, decoder) = match (method, taesd.as_deref()) {
            (PreviewMethod::None, _) => (None, None),
            (PreviewMethod::Latent2Rgb, _) | (PreviewMethod::Auto, None) => (colors(), None),
            (PreviewMethod::Auto, Some(path)) => match open(path) {
                Ok(decoder) => (colors(), Some(decoder)),
                Err(error) => {
                    tracing::warn!(model = %model.name(), "previews are made without TAESD: {error}");
                    (colors(), None)
                }
            },
            (PreviewMethod::Taesd, path) => {
                let missing =
                    || Error::value("preview_method", "taesd", "`preview_taesd` too, a file of TAESD's decoder");
                let path = path.or(setup.taesd.as_deref()).ok_or_else(missing)?;
                (colors(), Some(open(path)?))
            }
        };
        Ok(Self { colors, has_decoder: decoder.is_some(), decoder: Mutex::new(decoder) })
    }

    /// Whether there are previews.
    pub(crate) fn is_on(&self) -> bool {
        self.colors.is_some() || self.has_decoder
    }

    /// Previews of clean latents `(n, c, h, w)` in f32. A TAESD that fails, as for lack of memory, is not tried again.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub(crate) fn images(&self, latents: &Tensor) -> Result<Vec<Rgb8Image>> {
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = decoder.as_mut() {
            match decoded(network, latents) {
                Ok(images) => return Ok(images),
                Err(error) => {
                    tracing::warn!("previews go on without TAESD: {error}");
                    *decoder = None;
                }
            }
        }
        self.colors.as_ref().map_or(Ok(Vec::new()), |colors| images(latents, colors))
    }
}

/// The images that TAESD makes of latents, one by one.
fn decoded(decoder: &mut Decoder, latents: &Tensor) -> Result<Vec<Rgb8Image>> {
    let (n, _, h, w) = latents.dims4()?;
    let reduction = h.max(w).div_ceil(MOST_SIDE).min(h.min(w)).max(1);
    let small = if reduction == 1 { latents.clone() } else { latents.contiguous()?.avg_pool2d(reduction)? };
    let image = |i: usize| {
        let one = small.narrow(0, i, 1)?.contiguous()?;
        let how = (Tiling::Whole, ByteRounding::Nearest);
        pixels(&decoder.decode(&one, &WeightResidency::Whole, how, &mut |_| Ok(()))?)
    };
    (0..n).map(image).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use kiln_testkit::{Fixture, fixtures};

    use super::*;

    fn open(method: PreviewMethod, taesd: Option<&str>) -> Result<Previewer> {
        let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
        let previews = PreviewOptions { method, taesd: taesd.map(fixtures) };
        let setup = Setup { previews, ..Setup::default() };
        Previewer::open(&model, &setup, &Placement::new(Device::Cpu, DType::F32), &ComponentOptions::default())
    }

    /// The images of diffusers' `AutoencoderTiny`, within a level of each color.
    #[test]
    fn previews_by_taesd_are_those_of_the_reference() {
        let fixture = Fixture::open("taesd/default.safetensors");
        let previewer = open(PreviewMethod::Auto, Some("taesd/default")).unwrap();
        for case in ["d0", "d1"] {
            let expected = fixture.tensor(&format!("{case}.image"));
            let found = previewer.images(&fixture.tensor(&format!("{case}.latents"))).unwrap();
            assert_eq!(found.len(), expected.dim(0).unwrap());
            for (i, image) in found.iter().enumerate() {
                let expected = kiln_ops::image_bytes(&expected.narrow(0, i, 1).unwrap(), ByteRounding::Nearest);
                let expected = expected.unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap();
                let worst = image.data().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
                assert!(worst.is_some_and(|worst| worst <= 1), "{case}: {worst:?}");
            }
        }
    }

    #[test]
    fn large_images_have_small_previews() {
        let previewer = open(PreviewMethod::Taesd, Some("taesd/default")).unwrap();
        let found = previewer.images(&Tensor::zeros((1, 4, 130, 70), DType::F32, &Device::Cpu).unwrap()).unwrap();
        assert_eq!(found[0].size(), (23 * 8, 43 * 8), "a third of each side");
    }

    #[test]
    fn methods_choose_the_way() {
        let latents = Tensor::zeros((1, 4, 8, 6), DType::F32, &Device::Cpu).unwrap();
        let size = |previewer: Previewer| previewer.images(&latents).unwrap().first().map(Rgb8Image::size);
        assert_eq!(size(open(PreviewMethod::Auto, None).unwrap()), Some((6, 8)));
        assert_eq!(size(open(PreviewMethod::Latent2Rgb, Some("taesd/default")).unwrap()), Some((6, 8)));
        assert_eq!(size(open(PreviewMethod::Auto, Some("taesd/odd")).unwrap()), Some((6, 8)), "it does not fit");
        let none = open(PreviewMethod::None, Some("taesd/default")).unwrap();
        assert!(!none.is_on() && size(none).is_none());
        let message = |taesd| open(PreviewMethod::Taesd, taesd).err().unwrap().to_string();
        assert!(message(None).contains("`preview_taesd` too"));
        assert!(message(Some("taesd/odd")).contains("take a TAESD that was made for this model"));
    }

    /// A decoder that fails once is not tried again.
    #[test]
    fn a_taesd_that_fails_leaves_factors() {
        let previewer = open(PreviewMethod::Auto, Some("taesd/default")).unwrap();
        let wrong = Tensor::full(f32::NAN, (1, 4, 2, 2), &Device::Cpu).unwrap();
        assert_eq!(previewer.images(&wrong).unwrap()[0].size(), (2, 2));
        assert_eq!(previewer.images(&wrong.zeros_like().unwrap()).unwrap()[0].size(), (2, 2));
    }
}
