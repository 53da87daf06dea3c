//! Places of the parts of a prompt: rectangles and masks, and blends of texts.

mod map;
mod spec;

use std::path::PathBuf;
use std::sync::Arc;

use kiln_media::{AlphaRule, Gray8Image};
use kiln_models::ModelFolder;
use kiln_prompt::PromptSchedule;
use serde::Serialize;

pub use map::{LatentArea, RegionMap};
pub use spec::{BlendText, RegionUse};

use crate::error::{Error, Result};
use crate::input::read_region_mask;
use crate::job::Job;
use crate::options::Request;
use crate::settings::InputFile;

/// The option's name.
const NAME: &str = "regions";
/// The most regions of a prompt.
const MAX_REGIONS: usize = 32;

/// A region of a job, with its mask.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Region {
    /// The fields of the request without the mask.
    pub using: RegionUse,
    /// The mask in the size of its file: 255 where the part acts.
    #[serde(skip)]
    pub mask: Option<Arc<Gray8Image>>,
    /// The mask's file without its folder, if the request names it.
    #[serde(skip)]
    pub file: Option<InputFile>,
}

impl Region {
    /// A region without a mask.
    pub fn new(using: RegionUse) -> Self {
        Self { using: RegionUse { mask: None, ..using }, mask: None, file: None }
    }

    /// Whether the part acts on a part of the image alone.
    pub fn is_placed(&self) -> bool {
        self.using.has_area() || self.mask.is_some()
    }

    /// The request that makes the region again, with its mask named without a folder.
    pub(crate) fn request(&self) -> RegionUse {
        let mask = self.file.as_ref().map(|file| PathBuf::from(file.file.name.clone()));
        RegionUse { mask, ..self.using.clone() }
    }
}

impl Request {
    /// Reads the masks of its regions.
    ///
    /// # Errors
    /// [`Error::Value`] for impossible values, and errors of the files.
    pub(crate) fn prepare_regions(&self) -> Result<Vec<Region>> {
        if self.regions.len() > MAX_REGIONS {
            return Err(problem(self.regions.len().to_string(), format!("at most {MAX_REGIONS} regions")));
        }
        let one = |(i, region): (usize, &RegionUse)| {
            if let Some((found, expected)) = region.problem() {
                return Err(problem(found, expected));
            }
            let mut made = Region::new(region.clone());
            if let Some(path) = &region.mask {
                let (read, file) = read_region_mask(path, format!("{NAME}[{i}].mask"))?;
                made.mask = Some(Arc::new(read.into_rgb(AlphaRule::Drop).to_gray()));
                made.file = Some(file);
            }
            Ok(made)
        };
        self.regions.iter().enumerate().map(one).collect()
    }
}

impl Job {
    /// Whether some part of the prompt is computed for a rectangle alone.
    pub fn has_areas(&self) -> bool {
        self.regions.iter().any(|region| region.using.has_area())
    }

    /// Refuses regions that do not fit the prompt, the size of the images, or other options.
    ///
    /// # Errors
    /// [`Error::Value`] names the option and the possible value.
    pub(crate) fn check_regions(&self, model: &ModelFolder) -> Result<()> {
        if self.regions.is_empty() {
            return Ok(());
        }
        let prompts = self.prompts(0);
        let (parts, regions) = (prompts.parts.len(), self.regions.len());
        if regions > parts {
            return Err(problem(
                format!("{regions} regions"),
                format!("at most {parts}, one for each part that AND separates in the prompt"),
            ));
        }
        if let Some(part) = prompts.parts.iter().find(|part| part.weight < 0.0) {
            let expected = "weights of at least 0 in the prompt, which are strengths with regions";
            return Err(problem(format!("a part of weight {}", part.weight), expected.into()));
        }
        let blended = self.regions.iter().flat_map(|region| &region.using.blend);
        let is_scheduled = |text: &&BlendText| PromptSchedule::new(&text.text, self.steps).ranges().len() > 1;
        if let Some(text) = blended.into_iter().find(is_scheduled) {
            return Err(problem(format!("blend={}", text.text), "a text that does not change on the way".into()));
        }
        self.check_areas(model)?;
        let f = model.vae_config().downscale();
        let size = (self.height / f, self.width / f);
        let mut sums = vec![0.0; size.0 * size.1];
        for (number, part) in prompts.parts.iter().enumerate() {
            let whole = Region::new(RegionUse::default());
            let region = self.regions.get(number).unwrap_or(&whole);
            let map = region.map(size, f).ok_or_else(|| {
                let place = format!("the rectangle of region {number}, which begins outside of the image");
                problem(place, format!("one within {}x{} pixels", self.width, self.height))
            })?;
            let area = map.area.unwrap_or(LatentArea::whole(size));
            let multiple = (model.size_multiple() / f).max(1);
            if !area.height.is_multiple_of(multiple) || !area.width.is_multiple_of(multiple) {
                let found = format!("a rectangle of {}x{} pixels", area.width * f, area.height * f);
                return Err(problem(found, format!("sides that are multiples of {}", multiple * f)));
            }
            let strengths: Vec<f32> = map.strengths.iter().map(|strength| part.weight as f32 * strength).collect();
            area.add(&mut sums, size.1, &strengths);
        }
        if let Some(place) = sums.iter().position(|sum| *sum <= 0.0) {
            let (x, y) = (place % size.1 * f, place / size.1 * f);
            let expected = "a part of the prompt for every place, such as one for the whole image";
            return Err(problem(format!("regions without a part at pixel {x}, {y}"), expected.into()));
        }
        Ok(())
    }

    /// Refuses options that act on the whole image with parts that are computed for rectangles alone.
    fn check_areas(&self, model: &ModelFolder) -> Result<()> {
        if !self.has_areas() {
            return Ok(());
        }
        let named = [
            (!self.controls.is_empty(), "controls"),
            (!self.ip_adapters.is_empty(), "ip_adapters"),
            (!self.token_references().is_empty(), "references"),
            (self.guidance.slg_scale != 0.0, "slg_scale"),
        ];
        let named = named.into_iter().find(|(is_on, _)| *is_on).map(|(_, name)| name);
        if let Some(name) = named.or_else(|| self.network.first_change()) {
            let found = "a rectangle for a part of the prompt".into();
            return Err(problem(
                found,
                format!("masks alone with `{name}`, which acts on the whole image of {}", model.name()),
            ));
        }
        Ok(())
    }
}

/// The error of a region.
fn problem(found: String, expected: String) -> Error {
    Error::Value { name: NAME, found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(prompt: &str, regions: &[&str], more: impl FnOnce(&mut Request)) -> Option<String> {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let regions = regions.iter().map(|text| text.parse().unwrap()).collect();
        let mut request =
            Request { prompt: prompt.into(), regions, width: Some(64), height: Some(64), ..Request::default() };
        more(&mut request);
        request.resolve(&model).err().map(|error| error.to_string())
    }

    #[test]
    fn regions_that_do_not_fit_are_refused() {
        let left = "pixels=32x64+0+0";
        assert_eq!(message("a AND b", &["whole", left], |_| {}), None);
        assert_eq!(message("a AND b", &[left, "pixels=32x64+32+0"], |_| {}), None);
        for (prompt, regions, expected) in [
            ("a", &["whole", left][..], "at most 1"),
            ("a AND b :-1", &["whole", left], "weights of at least 0"),
            ("a AND b", &["pixels=8x8+64+0", "whole"], "begins outside of the image"),
            ("a", &[left], "regions without a part at pixel 32, 0"),
            ("a", &["blend=[b:c:3]"], "does not change on the way"),
        ] {
            let found = message(prompt, regions, |_| {}).unwrap();
            assert!(found.starts_with("`regions` is") && found.contains(expected), "{found}");
        }
        let with_cache = |request: &mut Request| request.cache = Some("deepcache:3".parse().unwrap());
        assert!(message("a AND b", &["whole", left], with_cache).unwrap().contains("masks alone with `cache`"));
        let in_second = |request: &mut Request| {
            request.hires_scale = Some(2.0);
            request.hires_prompt = Some("c".into());
        };
        assert!(message("a AND b", &["whole", left], in_second).unwrap().contains("at most 1"));
    }
}
