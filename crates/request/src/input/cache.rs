//! Input images of many jobs: those of equal requests are shared, and read late where they would not all fit into memory.

use std::collections::VecDeque;
use std::sync::Arc;

use super::prepare::{Input, Prepared};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::options::{OPTIONS, OptionGroup, Request};

/// Input images that stay in the cache.
const KEPT: usize = 4;

/// The input images that were prepared last. Requests with the same files and the same options of input images share them.
#[derive(Debug, Default)]
pub struct InputCache {
    known: VecDeque<(Source, Prepared)>,
}

/// The files and options that an input image is prepared from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Source {
    /// The request's options of input images, its size and its rule.
    request: Request,
    /// Of what the sizes are multiples.
    multiple: usize,
}

impl Source {
    pub(crate) fn of(request: &Request, multiple: usize) -> Self {
        let Request { width, height, rule, .. } = *request;
        let mut only = Request { width, height, rule, ..Request::default() };
        for row in OPTIONS.iter().filter(|row| row.group == OptionGroup::Input) {
            row.copy(request, &mut only);
        }
        Self { request: only, multiple }
    }
}

impl InputCache {
    /// The input images of `request`; `None` if it has none.
    ///
    /// # Errors
    /// See [`Request::prepare_input`].
    pub(crate) fn prepare(&mut self, request: &Request, multiple: usize) -> Result<Option<Prepared>> {
        if request.init.is_none() {
            return request.prepare_input(multiple);
        }
        self.prepare_source(Source::of(request, multiple))
    }

    fn prepare_source(&mut self, source: Source) -> Result<Option<Prepared>> {
        if let Some((_, prepared)) = self.known.iter().find(|(known, _)| *known == source) {
            return Ok(Some(prepared.clone()));
        }
        let prepared = source.request.prepare_input(source.multiple)?;
        if let Some(prepared) = &prepared {
            self.known.truncate(KEPT - 1);
            self.known.push_front((source, prepared.clone()));
        }
        Ok(prepared)
    }
}

impl Job {
    /// Drops the pixels of the input images, which [`Self::with_pixels`] reads again: a set of many jobs need not hold them
    /// all. Sizes, plans and settings stay. A job whose images no request named is returned unchanged.
    #[must_use]
    pub fn without_pixels(self) -> Self {
        match &self.input {
            Some(input) if !input.lacks_pixels => {
                let input = Input { paste_back: None, lacks_pixels: true, ..input.clone() };
                let init = self.init.without_pixels();
                Self { init, input: Some(input), ..self }
            }
            _ => self,
        }
    }

    /// Whether the pixels of the input images have to be read before the job runs.
    pub fn lacks_pixels(&self) -> bool {
        self.input.as_ref().is_some_and(|input| input.lacks_pixels)
    }

    /// The job with its input images, read again if [`Self::without_pixels`] dropped them.
    ///
    /// # Errors
    /// Errors of the files, and [`Error::Value`] if a file has changed.
    pub fn with_pixels(self: &Arc<Self>, cache: &mut InputCache) -> Result<Arc<Self>> {
        let Some(input) = self.input.as_ref().filter(|input| input.lacks_pixels) else {
            return Ok(self.clone());
        };
        let Some(prepared) = cache.prepare_source(input.source.clone())? else {
            return Ok(self.clone());
        };
        for (then, now) in input.files.iter().zip(&prepared.input.files) {
            if then != now {
                let name = if then.option == "init" { "init" } else { "mask" };
                let (found, expected) =
                    (format!("{}, which has changed", now.file.name), "the file that was checked".into());
                return Err(Error::Value { name, found, expected });
            }
        }
        Ok(Arc::new(Self { init: prepared.init, input: Some(prepared.input), ..Self::clone(self) }))
    }
}

#[cfg(test)]
mod tests {
    use kiln_models::ModelFolder;
    use kiln_testkit::fixtures;

    use super::*;

    fn request() -> Request {
        let file = |name: &str| Some(fixtures(&format!("inpaint/{name}.png")));
        Request { init: file("image"), mask: file("mask"), ..Request::default() }
    }

    #[test]
    fn equal_inputs_are_shared_and_others_are_not() {
        let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
        let mut cache = InputCache::default();
        let mut init = |request: Request| request.resolve_with(&model, &mut cache).unwrap().init;
        let first = init(request());
        let same = init(Request { prompt: "another".into(), seed: Some(9), steps: Some(3), ..request() });
        assert_eq!(first, same); // the same tensors
        for other in [
            Request { strength: Some(0.5), ..request() },
            Request { mask_invert: true, ..request() },
            Request { width: Some(64), ..request() },
            Request { mask: None, ..request() },
        ] {
            assert_ne!(init(other.clone()), first);
        }
        assert_eq!(cache.known.len(), KEPT);
    }

    #[test]
    fn pixels_are_read_again_and_changes_are_noticed() {
        let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.png");
        std::fs::copy(fixtures("inpaint/image.png"), &path).unwrap();
        let job = Request { init: Some(path.clone()), ..request() }.resolve(&model).unwrap();
        let light = Arc::new(job.clone().without_pixels());
        assert!(light.lacks_pixels() && !job.lacks_pixels());
        assert_eq!((light.width, light.height, light.shared().init.is_masked()), (job.width, job.height, true));
        assert_eq!(serde_json::to_string(&light.shared()).unwrap(), serde_json::to_string(&job.shared()).unwrap());
        let tensor = light.init.image().unwrap().pixels();
        assert!(tensor.dims() == [1, 3, 80, 96] && !tensor.is_contiguous());
        let mut cache = InputCache::default();
        let [one, two] = [0; 2].map(|_| light.with_pixels(&mut cache).unwrap());
        assert!(one.init == two.init && !one.lacks_pixels());
        let values = |job: &Job| job.init.image().unwrap().pixels().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&one), values(&job));
        assert_eq!(one.input.as_ref().unwrap().paste_back, job.input.as_ref().unwrap().paste_back);
        std::fs::copy(fixtures("inpaint/mask.png"), &path).unwrap();
        let changed = light.with_pixels(&mut InputCache::default()).unwrap_err().to_string();
        assert!(changed.contains("`init` is image.png, which has changed"), "{changed}");
        std::fs::remove_file(&path).unwrap();
        assert!(light.with_pixels(&mut InputCache::default()).is_err());
    }
}
