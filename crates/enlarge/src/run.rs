//! Upscaling image after image.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use kiln_media::{EncodingError, ImageText, write_png};
use kiln_mempool::mark_stage;

use super::enlarger::{Enlarged, Enlarger, EnlargerEvent};
use super::input::postprocessing;
use super::plan::{UpscaleJob, UpscaleRun};
use kiln_setup::error::{Error, Result, proceed};

/// News of a run.
#[derive(Debug)]
pub enum UpscaleEvent<'a> {
    /// The weights are about to be read.
    Load,
    /// The weights are there: on what the network runs, and in which type.
    Loaded(&'a str),
    /// An image begins.
    Begin {
        /// Its number, from 1.
        number: usize,
        /// Its file.
        name: &'a str,
        /// Its width and height.
        from: [usize; 2],
        /// Width and height of the result.
        to: [usize; 2],
    },
    /// News of the network.
    Enlarger(EnlargerEvent),
    /// A result is written.
    Saved {
        /// The number of the image, from 1.
        number: usize,
        /// The file.
        path: &'a Path,
        /// Width and height.
        size: [usize; 2],
    },
    /// An image could not be upscaled. The others go on.
    Failed {
        /// The number of the image, from 1.
        number: usize,
        /// Its file.
        name: &'a str,
        /// Why.
        error: &'a Error,
    },
}

/// Hears [`UpscaleEvent`]s and says whether to go on.
type Watch<'a> = dyn FnMut(UpscaleEvent<'_>) -> ControlFlow<()> + 'a;

/// The result of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpscaleReport {
    /// Images that were upscaled.
    pub done: usize,
    /// Images that failed.
    pub failed: usize,
    /// Reading weights.
    pub load: Duration,
    /// Decoding images and enlarging them.
    pub upscale: Duration,
    /// Compressing and writing results.
    pub save: Duration,
}

impl UpscaleRun {
    /// Reads the weights and upscales all images. An image that fails does not stop the others; a single one's error is the
    /// run's.
    ///
    /// # Errors
    /// Errors of the device and of the weights, [`Error::Interrupted`] where `watch` stopped the run, and
    /// [`Error::ImagesFailed`].
    pub fn run(self, watch: &mut Watch<'_>) -> Result<UpscaleReport> {
        let Self { upscaler, jobs, scale, tile, setup } = self;
        let start = Instant::now();
        if upscaler.is_network() {
            mark_stage("load");
            proceed(watch(UpscaleEvent::Load))?;
        }
        let mut enlarger = Enlarger::load(upscaler, &setup, tile)?;
        if let Some(place) = enlarger.place() {
            proceed(watch(UpscaleEvent::Loaded(&place)))?;
        }
        let mut report = UpscaleReport { load: start.elapsed(), ..UpscaleReport::default() };
        mark_stage("upscale");
        let texts = postprocessing(scale, &enlarger.upscaler().name());
        let all = jobs.len();
        for (number, mut job) in (1..).zip(jobs) {
            let name = job.input.source.name();
            proceed(watch(UpscaleEvent::Begin { number, name: &name, from: job.input.size, to: job.target }))?;
            let start = Instant::now();
            let mut hear = |event| watch(UpscaleEvent::Enlarger(event));
            let enlarged = job.enlarge(&mut enlarger, &mut hear);
            report.upscale += start.elapsed();
            let start = Instant::now();
            let saved = enlarged.and_then(|(image, kept)| job.save(&image, &kept, &texts));
            report.save += start.elapsed();
            match saved {
                Ok(()) => {
                    report.done += 1;
                    proceed(watch(UpscaleEvent::Saved { number, path: job.output.path(), size: job.target }))?;
                }
                Err(error) if matches!(error, Error::Interrupted) || all == 1 => return Err(error),
                Err(error) => {
                    report.failed += 1;
                    proceed(watch(UpscaleEvent::Failed { number, name: &name, error: &error }))?;
                }
            }
        }
        match report.failed {
            0 => Ok(report),
            failed => Err(Error::ImagesFailed { failed, all }),
        }
    }
}

impl UpscaleJob {
    fn enlarge(
        &mut self,
        enlarger: &mut Enlarger,
        watch: &mut dyn FnMut(EnlargerEvent) -> ControlFlow<()>,
    ) -> Result<(Enlarged, Vec<ImageText>)> {
        let (image, texts) = self.input.open()?;
        Ok((enlarger.enlarge_decoded(&image, self.target, watch)?, texts))
    }

    /// Writes the result with the texts of the image, and with those that say how it was upscaled.
    fn save(&self, image: &Enlarged, kept: &[ImageText], texts: &[(&str, String)]) -> Result<()> {
        let kept = kept.iter().map(|text| (&*text.key, &*text.text));
        let texts: Vec<(&str, &str)> = kept.chain(texts.iter().map(|(key, text)| (*key, &**text))).collect();
        Ok(self.output.write(|to| {
            let written = match image {
                Enlarged::Rgb(image) => write_png(to, image, &texts),
                Enlarged::Rgba(image) => write_png(to, image, &texts),
            };
            written.map_err(|error| match error {
                EncodingError::IoError(error) => error,
                error => std::io::Error::other(error),
            })
        })?)
    }
}
