//! The control images of a request: read, checked and fitted when it is resolved.

use std::path::PathBuf;
use std::sync::Arc;

use kiln_media::{Gray8Image, Preprocessor, Rgb8Image, ValueRange, inpaint_condition};
use kiln_models::ModelFolder;
use kiln_scheduler::Convention;
use serde::Serialize;

use super::passes::ControlPasses;
use super::spec::{ControlUse, INPAINT};
use crate::error::{Error, Result};
use crate::input::{FittedControl, FittedInput, fit_control};
use crate::options::Request;
use crate::settings::InputFile;

/// A control network of a job, with its image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Control {
    /// The fields of the request without the image: images of one batch have their own.
    pub using: ControlUse,
    /// Red, green and blue in the size of the results.
    #[serde(skip)]
    pub image: Arc<Rgb8Image>,
    /// Its luminance, for networks that take gray images: of the image before it was fitted. `None` is that of `image`.
    #[serde(skip)]
    pub gray: Option<Arc<Gray8Image>>,
    /// Where the image has a hole, above one half: networks for inpainting get -1 there.
    #[serde(skip)]
    pub hole: Option<Arc<Gray8Image>>,
    /// The image's file without its folder, where the request names one.
    #[serde(skip)]
    pub file: Option<InputFile>,
}

impl Control {
    /// A network for `image`, which has the size of the job's images.
    pub fn new(using: ControlUse, image: Rgb8Image) -> Self {
        Self { using: ControlUse { image: None, ..using }, image: Arc::new(image), gray: None, hole: None, file: None }
    }

    /// The luminance, `(1, h, w)`: values from 0 to 1.
    pub fn luminance(&self) -> Vec<f32> {
        self.gray.as_ref().map_or_else(|| self.image.to_gray().to_unit(), |gray| gray.to_unit())
    }

    /// The image as networks take it, `(3, h, w)`: values from 0 to 1, and -1 in a hole.
    ///
    /// # Errors
    /// [`Error::Media`] where the hole has another size.
    pub fn planes(&self) -> Result<Vec<f32>> {
        match &self.hole {
            Some(hole) => Ok(inpaint_condition(&self.image, hole)?),
            None => Ok(self.image.to_planes(ValueRange::ZeroToOne)),
        }
    }

    /// The request that makes the image again, with files named without their folders.
    pub(crate) fn request(&self) -> ControlUse {
        let net = self.using.net.file_name().map_or_else(|| self.using.net.clone(), PathBuf::from);
        ControlUse { net, image: self.file.as_ref().map(|file| file.file.name.clone().into()), ..self.using.clone() }
    }
}

impl Request {
    /// Refuses controls that act in a part of the evaluations by a rule that the model does not have.
    ///
    /// # Errors
    /// [`Error::Value`] with the part.
    pub(crate) fn check_control_parts(&self, model: &ModelFolder) -> Result<()> {
        let of_part = self.controls.iter().find(|control| (control.start, control.end) != (0.0, 1.0));
        let (Some(control), None, Convention::ComfyUi) = (of_part, model.unet_config(), self.convention) else {
            return Ok(());
        };
        let found = format!("start={},end={}", control.start, control.end);
        let expected = "start=0,end=1: by ComfyUI's rules they are noise levels of a U-Net".into();
        Err(Error::Value { name: "controls", found, expected })
    }

    /// Reads the control images for results of `size`, width and height, and makes what preprocessors make of them in that
    /// size. `input` is the input image as the denoiser's encoder sees it.
    ///
    /// # Errors
    /// [`Error::Value`] for impossible values, and those of the files.
    pub(crate) fn prepare_controls(&self, size: (usize, usize), input: Option<&FittedInput>) -> Result<Vec<Control>> {
        let one = |(i, control): (usize, &ControlUse)| {
            let refuse = |found: String, expected: String| Error::Value { name: "controls", found, expected };
            if let Some((found, expected)) = control.problem() {
                return Err(refuse(found, expected));
            }
            if control.passes != ControlPasses::Both && !self.is_hires() {
                let found = format!("passes={}", control.passes.id());
                return Err(refuse(found, "`hires_scale` or `hires_size` too: there is one pass".into()));
            }
            let using = ControlUse { image: None, ..control.clone() };
            let (image, gray, hole, file) = match (&control.image, input) {
                (Some(path), _) => {
                    let FittedControl { image, gray, hole, file } = fit_control(path, i, control.resize, size, input)?;
                    (Arc::new(image), Some(Arc::new(gray)), hole.map(Arc::new), Some(file))
                }
                (None, Some(input)) => (input.image.clone(), None, input.mask.clone(), None),
                (None, None) => {
                    let expected = "an `image` too, or an input image to take in its place".into();
                    return Err(refuse(format!("net={}", control.net.display()), expected));
                }
            };
            if control.has_hole() {
                let Some(hole) = hole else {
                    let expected = "an image with transparent pixels, or an input image with a mask".into();
                    return Err(refuse(format!("preprocess={INPAINT}"), expected));
                };
                return Ok(Control { using, image, gray, hole: Some(hole), file });
            }
            Ok(match control.preprocess.as_deref().and_then(Preprocessor::find) {
                Some(preprocessor) => {
                    let image = Arc::new(preprocessor.run(&image, None)?);
                    Control { using, image, gray: None, hole: None, file }
                }
                None => Control { using, image, gray, hole: None, file },
            })
        };
        self.controls.iter().enumerate().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_noise_levels_are_those_of_u_nets() {
        let model = |path: std::path::PathBuf| ModelFolder::open(&path).unwrap();
        let sd1 = model(kiln_testkit::fixtures("models/sd1"));
        let sd3 = model(kiln_testkit::repository().join("models/emoji-sd3"));
        let request = |end, convention| {
            let controls = vec![ControlUse { end, ..ControlUse::new("a") }];
            Request { controls, convention, ..Request::default() }
        };
        let half = request(0.5, Convention::ComfyUi);
        assert!(half.check_control_parts(&sd1).is_ok());
        let error = half.check_control_parts(&sd3).unwrap_err().to_string();
        assert!(error.contains("start=0,end=0.5") && error.contains("noise levels of a U-Net"), "{error}");
        for fine in [request(1.0, Convention::ComfyUi), request(0.5, Convention::Diffusers)] {
            assert!(fine.check_control_parts(&sd3).is_ok());
        }
    }
}
