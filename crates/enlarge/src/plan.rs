//! Checks of an upscaling run before weights are read.

use std::path::PathBuf;

use kiln_files::PlannedFile;
use kiln_request::{ImageSource, OpenUpscaler, UpscalerChoice};

use super::input::Input;
use super::names;
use super::strips::TileRows;

use kiln_setup::error::{Error, Result};
use kiln_setup::setup::Setup;

/// Which images are upscaled, and how.
#[derive(Debug, Clone, Default)]
pub struct UpscaleOptions {
    /// The images.
    pub images: Vec<ImageSource>,
    /// The upscaler.
    pub upscaler: UpscalerChoice,
    /// Where files of upscalers are that are named without a path.
    pub folder: Option<PathBuf>,
    /// How much larger the results are, 0.05 to 64; `None` is the network's own scale, and 2 for filters.
    pub scale: Option<f64>,
    /// The rows that a network computes at once.
    pub tile: TileRows,
    /// A folder that exists, or a path whose last part may have `{stem}`, `{scale}` and `{index}`; `None` is the current
    /// folder. In a folder names are `{stem}-x{scale}.png`.
    pub output: Option<PathBuf>,
    /// Whether files that exist are replaced.
    pub overwrite: bool,
    /// Where a network runs. Of the memory options the budget counts.
    pub setup: Setup,
}

/// Images that can be upscaled, and an upscaler without its weights.
pub struct UpscaleRun {
    pub(super) upscaler: OpenUpscaler,
    pub(super) jobs: Vec<UpscaleJob>,
    pub(super) scale: f64,
    pub(super) tile: TileRows,
    pub(super) setup: Setup,
}

/// An image, and the file for its result.
pub(super) struct UpscaleJob {
    pub(super) input: Input,
    /// Width and height of the result.
    pub(super) target: [usize; 2],
    pub(super) output: PlannedFile,
}

impl UpscaleRun {
    /// Checks everything that can be checked without weights: the upscaler's file, the scale, the names of the results,
    /// and all images, each of which is decoded.
    ///
    /// # Errors
    /// [`Error::Request`] for values, [`Error::Files`] for names, [`Error::Upscale`] for the upscaler's file,
    /// [`Error::Media`] for an image that cannot be read or whose result is too large.
    pub fn plan(options: UpscaleOptions) -> Result<Self> {
        let UpscaleOptions { images, upscaler, folder, scale, tile, output, overwrite, setup } = options;
        setup.check()?;
        if images.is_empty() || images.iter().filter(|image| **image == ImageSource::StandardInput).count() > 1 {
            let expected = "one or more images, among them the standard input once at most";
            return Err(Error::value("the number of images", images.len(), expected));
        }
        let upscaler = OpenUpscaler::open(&upscaler, folder.as_deref())?;
        let scale = upscaler.scale(scale)?;
        let outputs = names::plan(output.as_deref(), overwrite, scale, &images)?;
        let mut jobs = Vec::with_capacity(images.len());
        for (source, output) in images.into_iter().zip(outputs) {
            let input = Input::check(source)?;
            let target = OpenUpscaler::scaled(input.size, scale);
            if let Err(problem) = upscaler.passes(input.size, target) {
                let problem = format!("{problem}; choose a smaller scale or a smaller image");
                return Err(kiln_media::Error::Read { name: input.source.name(), problem }.into());
            }
            jobs.push(UpscaleJob { input, target, output });
        }
        Ok(Self { upscaler, jobs, scale, tile, setup })
    }

    /// The upscaler.
    pub fn upscaler(&self) -> &OpenUpscaler {
        &self.upscaler
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there are none, which [`UpscaleRun::plan`] refuses.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How much larger the results are.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Whether the result is written to the standard output, which then has room for nothing else.
    pub fn is_standard_output(&self) -> bool {
        self.jobs.iter().any(|job| job.output.is_standard_output())
    }
}
