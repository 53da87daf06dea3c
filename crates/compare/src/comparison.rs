//! A comparison: its options, and the run over all pairs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_files::PlannedFile;
use kiln_media::{AlphaRule, DecodeOptions, Rgb8Image, open};

use crate::bounds::{Bounds, Metric};
use crate::clip_score::ClipScore;
use crate::error::{Error, Result};
use crate::fid::{Fid, FidReport};
use crate::lpips::Lpips;
use crate::pairs::{Pair, PairBy, Pairing, check_found};
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
    /// The second image, or a folder of images. For FID it may be an `.npz` archive with statistics.
    pub b: PathBuf,
    /// How the images of folders are paired: by name if nothing is given. With `fid` they are not paired then, unless another option
    /// is one of pairs: `lpips`, `sheet`, and bounds of pairs.
    pub pair_by: Option<PairBy>,
    /// The file with the networks of LPIPS, which is computed if it is given.
    pub lpips: Option<PathBuf>,
    /// The folder of a CLIP model, for scores of the images with their prompts.
    pub clip: Option<PathBuf>,
    /// The file with the network of FID, which is computed of both folders as sets if it is given.
    pub fid: Option<PathBuf>,
    /// The bounds that each pair and both sets must keep.
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
    fid: Option<Fid>,
    bounds: Bounds,
    sheet: Option<PlannedFile>,
}

impl CompareOptions {
    /// Whether images are compared in pairs. With `fid` they are if an option needs it, since sets have no pairs as a rule.
    fn is_paired(&self) -> bool {
        let Self { pair_by, lpips, bounds, sheet, .. } = self;
        let needs_pairs = pair_by.is_some() || lpips.is_some() || sheet.is_some() || bounds.are_of_pairs();
        self.fid.is_none() || needs_pairs
    }

    /// The pairs, or the images of the first folder alone if each of them has a value.
    fn pairing(&self) -> Result<Pairing> {
        let Self { a, b, pair_by, clip, .. } = self;
        match (self.is_paired(), clip) {
            (true, _) => Pairing::of(a, b, pair_by.unwrap_or_default()),
            (false, Some(_)) => Pairing::alone(a),
            (false, None) => Ok(Pairing::default()),
        }
    }
}

impl Comparison {
    /// Checks the options, pairs the images and reads the networks. Images are not read.
    ///
    /// # Errors
    /// [`Error::Files`] for impossible options and what does not exist, [`Error::Kinds`]; those of [`Lpips::open`],
    /// [`ClipScore::open`] and [`crate::Inception::open`], and of [`crate::Statistics::read`].
    pub fn plan(options: &CompareOptions) -> Result<Self> {
        let CompareOptions { a, b, pair_by: _, lpips, clip, fid, bounds, sheet } = options;
        bounds.check(lpips.is_some(), fid.is_some())?;
        check_found(a, b)?;
        let fid = fid.as_ref().map(|network| Fid::plan(network, a, b, options.is_paired())).transpose()?;
        let pairing = options.pairing()?;
        let sheet = sheet.as_ref().map(|path| sheet::plan(path, [a, b])).transpose()?;
        let lpips = lpips.as_ref().map(|path| Lpips::open(path)).transpose()?;
        let clip = clip.as_ref().map(|path| ClipScore::open(path)).transpose()?;
        let is_paired = options.is_paired();
        let asked = [
            (Metric::Psnr, is_paired),
            (Metric::Ssim, is_paired),
            (Metric::Lpips, lpips.is_some()),
            (Metric::ClipA, clip.is_some()),
            (Metric::ClipB, clip.is_some() && is_paired),
        ];
        let metrics = asked.into_iter().filter_map(|(metric, is_asked)| is_asked.then_some(metric)).collect();
        Ok(Self { pairing, metrics, lpips, clip, fid, bounds: *bounds, sheet })
    }

    /// The number of steps that [`Comparison::run`] counts: one for each pair, and one for each image of FID.
    pub fn steps(&self) -> usize {
        self.pairing.pairs.len() + self.fid.as_ref().map_or(0, Fid::len)
    }

    /// Compares all pairs and both sets, and writes the sheet. `watch` gets the number of steps that are done, and may stop the run. A
    /// pair that fails ends nothing: the report has the reason.
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
        let fid = self.fid.as_ref().map(|fid| fid.run(&mut |done| proceed(watch(pairs.len() + done))));
        let fid = fid.transpose()?.map(|report| self.bounded(report));
        proceed(watch(self.steps()))?;
        let report = Report { metrics: self.metrics.clone(), pairs, fid, problems: self.pairing.problems.clone() };
        if let Some(file) = &self.sheet {
            sheet::write(file, &report)?;
        }
        Ok(report)
    }

    /// The distance of both sets with the bound that it misses.
    fn bounded(&self, mut report: FidReport) -> FidReport {
        let values = report.value.map(|value| (Metric::Fid, value)).into_iter().collect();
        report.problems.extend(self.bounds.missed(&values));
        report
    }

    /// The values of a pair, or of an image alone. Whatever cannot be computed is a problem.
    fn compare(&self, pair: &Pair) -> PairReport {
        let mut report = PairReport { pair: pair.clone(), size: None, values: BTreeMap::new(), problems: Vec::new() };
        let mut images = Vec::new();
        for path in std::iter::once(&pair.a).chain(&pair.b) {
            match read(path) {
                Ok(image) => images.push((path.as_path(), image)),
                Err(error) => report.problems.push(error.to_string()),
            }
        }
        if let [(_, a), (_, b)] = images.as_slice()
            && let Err(error) = check_sizes(a, b)
        {
            report.problems.push(error.to_string());
        }
        if !report.problems.is_empty() {
            return report;
        }
        report.size = images.first().map(|(_, image)| [image.width(), image.height()]);
        for &metric in &self.metrics {
            match self.value(metric, &images) {
                Ok(value) => {
                    report.values.insert(metric, value);
                }
                Err(error) => report.problems.push(format!("{} cannot be computed: {error}", metric.label())),
            }
        }
        report.problems.extend(self.bounds.missed(&report.values));
        report
    }

    /// A value of one or two images.
    fn value(&self, metric: Metric, images: &[(&Path, Rgb8Image)]) -> Result<f64> {
        let clip = |(path, image): &(&Path, Rgb8Image)| match &self.clip {
            Some(clip) => clip.score(image, &prompt_of(path)?),
            None => Err(Error::NotANumber("the CLIP score")),
        };
        match (metric, images) {
            (Metric::ClipA, [first, ..]) | (Metric::ClipB, [_, first]) => clip(first),
            (Metric::Psnr, [(_, a), (_, b)]) => psnr(a.data(), b.data()),
            (Metric::Ssim, [(_, a), (_, b)]) => ssim(a, b),
            (Metric::Lpips, [(_, a), (_, b)]) => {
                self.lpips.as_ref().map_or(Err(Error::NotANumber("LPIPS")), |lpips| lpips.distance(a, b))
            }
            _ => Err(Error::NotANumber(metric.label())),
        }
    }
}

/// Reads an image as it is seen: transparent pixels are put on white.
pub(crate) fn read(path: &Path) -> Result<Rgb8Image> {
    Ok(open(path, &DecodeOptions::default())?.into_rgb(AlphaRule::FlattenOnWhite))
}
