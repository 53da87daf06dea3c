//! A comparison: its options, and the run over all pairs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_files::PlannedFile;
use kiln_media::{AlphaRule, DecodeOptions, Rgb8Image, open};

use crate::bounds::{Bounds, Metric};
use crate::clip_score::ClipScore;
use crate::error::{Error, Result};
use crate::lpips::Lpips;
use crate::pairs::{Pair, PairBy, Pairing};
use crate::psnr::psnr;
use crate::report::{PairReport, Report};
use crate::settings::prompt_of;
use crate::sheet;
use crate::ssim::{check_sizes, ssim};

/// The options of a comparison.
#[derive(Debug, Clone, Default)]
pub struct CompareOptions {
    /// The first image, or a folder of images.
    pub a: PathBuf,
    /// The second image, or a folder of images.
    pub b: PathBuf,
    /// How the images of folders are paired.
    pub pair_by: PairBy,
    /// The file with the networks of LPIPS, which is computed if it is given.
    pub lpips: Option<PathBuf>,
    /// The folder of a CLIP model, for scores of the images with their prompts.
    pub clip: Option<PathBuf>,
    /// The bounds that each pair must keep.
    pub bounds: Bounds,
    /// The PNG file with the images and their differences.
    pub sheet: Option<PathBuf>,
}

/// A comparison that can begin.
pub struct Comparison {
    pairing: Pairing,
    metrics: Vec<Metric>,
    lpips: Option<Lpips>,
    clip: Option<ClipScore>,
    bounds: Bounds,
    sheet: Option<PlannedFile>,
}

impl Comparison {
    /// Checks the options, pairs the images and reads the networks. Images are not read.
    ///
    /// # Errors
    /// [`Error::Files`] for impossible options and what does not exist, [`Error::Kinds`]; those of [`Lpips::open`] and
    /// [`ClipScore::open`].
    pub fn plan(options: &CompareOptions) -> Result<Self> {
        let CompareOptions { a, b, pair_by, lpips, clip, bounds, sheet } = options;
        bounds.check(lpips.is_some())?;
        let pairing = Pairing::of(a, b, *pair_by)?;
        let sheet = sheet.as_ref().map(|path| sheet::plan(path, [a, b])).transpose()?;
        let lpips = lpips.as_ref().map(|path| Lpips::open(path)).transpose()?;
        let clip = clip.as_ref().map(|path| ClipScore::open(path)).transpose()?;
        let mut metrics = vec![Metric::Psnr, Metric::Ssim];
        metrics.extend(lpips.is_some().then_some(Metric::Lpips));
        metrics.extend(clip.iter().flat_map(|_| [Metric::ClipA, Metric::ClipB]));
        Ok(Self { pairing, metrics, lpips, clip, bounds: *bounds, sheet })
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.pairing.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairing.pairs.is_empty()
    }

    /// Compares all pairs and writes the sheet. `watch` gets the number of pairs that are done, and may stop the run. A pair that
    /// fails ends nothing: the report has the reason.
    ///
    /// # Errors
    /// [`Error::Interrupted`], and [`Error::Files`] if the sheet cannot be written.
    pub fn run(&self, watch: &mut dyn FnMut(usize) -> ControlFlow<()>) -> Result<Report> {
        let proceed = |flow: ControlFlow<()>| if flow.is_break() { Err(Error::Interrupted) } else { Ok(()) };
        let mut pairs = Vec::new();
        for (done, pair) in self.pairing.pairs.iter().enumerate() {
            proceed(watch(done))?;
            pairs.push(self.compare(pair));
        }
        proceed(watch(pairs.len()))?;
        let report = Report { metrics: self.metrics.clone(), pairs, problems: self.pairing.problems.clone() };
        if let Some(file) = &self.sheet {
            sheet::write(file, &report)?;
        }
        Ok(report)
    }

    /// The values of a pair. Whatever cannot be computed is a problem.
    fn compare(&self, pair: &Pair) -> PairReport {
        let mut report = PairReport { pair: pair.clone(), size: None, values: BTreeMap::new(), problems: Vec::new() };
        let images = [&pair.a, &pair.b].map(|path| match read(path) {
            Ok(image) => Some(image),
            Err(error) => {
                report.problems.push(error.to_string());
                None
            }
        });
        let [Some(a), Some(b)] = images else { return report };
        if let Err(error) = check_sizes(&a, &b) {
            report.problems.push(error.to_string());
            return report;
        }
        report.size = Some([a.width(), a.height()]);
        for &metric in &self.metrics {
            match self.value(metric, pair, [&a, &b]) {
                Ok(value) => {
                    report.values.insert(metric, value);
                }
                Err(error) => report.problems.push(format!("{} cannot be computed: {error}", metric.label())),
            }
        }
        report.problems.extend(self.bounds.missed(&report.values));
        report
    }

    fn value(&self, metric: Metric, pair: &Pair, [a, b]: [&Rgb8Image; 2]) -> Result<f64> {
        let clip = |path: &Path, image| match &self.clip {
            Some(clip) => clip.score(image, &prompt_of(path)?),
            None => Err(Error::NotANumber("the CLIP score")),
        };
        match metric {
            Metric::Psnr => psnr(a.data(), b.data()),
            Metric::Ssim => ssim(a, b),
            Metric::Lpips => self.lpips.as_ref().map_or(Err(Error::NotANumber("LPIPS")), |lpips| lpips.distance(a, b)),
            Metric::ClipA => clip(&pair.a, a),
            Metric::ClipB => clip(&pair.b, b),
        }
    }
}

/// Reads an image as it is seen: transparent pixels are put on white.
pub(crate) fn read(path: &Path) -> Result<Rgb8Image> {
    Ok(open(path, &DecodeOptions::default())?.into_rgb(AlphaRule::FlattenOnWhite))
}
