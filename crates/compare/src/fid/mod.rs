//! FID: the Fréchet distance between two sets of images (Heusel et al., "GANs trained by a two time-scale update rule converge to a local
//! Nash equilibrium", 2017).
//!
//! Both sets are described by the mean and the covariance of their images' features, the 2048 channels of an Inception network before
//! its classes. Numbers are those of pytorch-fid and of MLPerf: images are resized to 299 by 299 pixels without antialiasing.

mod blocks;
mod folded;
mod frechet;
mod inception;
mod input;
mod npz;
mod statistics;

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::comparison::read;
use crate::error::{Error, Result};
use crate::pairs::images;
pub use frechet::frechet_distance;
pub use inception::Inception;
use input::input;
pub use statistics::{Moments, Statistics};

/// Images that run through the network together. It bounds the memory: eight decoded images, and about 200 MiB of features.
const TOGETHER: usize = 8;

/// The second set: images, or their statistics alone.
enum Reference {
    Images(Vec<PathBuf>),
    Statistics(Statistics),
}

/// The distance of two sets, ready to be computed.
pub(crate) struct Fid {
    network: Inception,
    folder: PathBuf,
    images: Vec<PathBuf>,
    other: PathBuf,
    reference: Reference,
}

/// The distance of two sets of images.
#[derive(Debug, Clone)]
pub struct FidReport {
    /// The distance, if it was computed.
    pub value: Option<f64>,
    /// The images of the first folder.
    pub images_a: usize,
    /// The images of the second folder; none if it is a file with statistics.
    pub images_b: Option<usize>,
    /// Why it fails, a sentence each; none if it passes.
    pub problems: Vec<String>,
}

impl Fid {
    /// Opens the network, lists the images of both folders, and reads the statistics if `b` is an `.npz` archive with them. Statistics
    /// have no images for pairs.
    ///
    /// # Errors
    /// [`Error::Files`] if `a` or `b` is something else; those of [`Inception::open`] and [`Statistics::read`].
    pub(crate) fn plan(network: &Path, a: &Path, b: &Path, is_paired: bool) -> Result<Self> {
        let refused = |expected: &str| Err(Error::value("fid", format!("'{}'", network.display()), expected));
        if !a.is_dir() || !(b.is_dir() || is_statistics(b)) {
            return refused("two folders of images as A and B, or a folder and an .npz file with statistics");
        }
        if is_paired && is_statistics(b) {
            return refused(
                "a folder of images as B: statistics have no pairs for `pair`, `lpips`, `sheet`, `min_psnr` and `min_ssim`",
            );
        }
        let listed = images(a)?;
        let reference = match is_statistics(b) {
            true => Reference::Statistics(statistics_of(b)?),
            false => Reference::Images(images(b)?),
        };
        Ok(Self { network: Inception::open(network)?, folder: a.into(), images: listed, other: b.into(), reference })
    }

    /// The number of images.
    pub(crate) fn len(&self) -> usize {
        let Reference::Images(others) = &self.reference else { return self.images.len() };
        self.images.len() + others.len()
    }

    /// Computes the distance. `watch` gets the number of images that are done, and may stop it.
    ///
    /// # Errors
    /// The errors of `watch`. Everything else is a problem of the report.
    pub(crate) fn run(&self, watch: &mut dyn FnMut(usize) -> Result<()>) -> Result<FidReport> {
        let mut problems = Vec::new();
        let of_a = self.of_images(&self.folder, &self.images, 0, watch, &mut problems)?;
        let (of_b, images_b) = match &self.reference {
            Reference::Statistics(statistics) => (Some(statistics.clone()), None),
            Reference::Images(others) => {
                (self.of_images(&self.other, others, self.images.len(), watch, &mut problems)?, Some(others.len()))
            }
        };
        let distance = of_a.zip(of_b).map(|(a, b)| frechet_distance(&a, &b));
        let value = match distance.transpose() {
            Ok(value) => value,
            Err(error) => {
                problems.push(format!("FID cannot be computed: {error}"));
                None
            }
        };
        Ok(FidReport { value, images_a: self.images.len(), images_b, problems })
    }

    /// The statistics of the images in a folder, or none and the reasons.
    fn of_images(
        &self,
        folder: &Path,
        paths: &[PathBuf],
        before: usize,
        watch: &mut dyn FnMut(usize) -> Result<()>,
        problems: &mut Vec<String>,
    ) -> Result<Option<Statistics>> {
        let mut moments = Moments::new(Inception::FEATURES);
        let known = problems.len();
        for (i, some) in paths.chunks(TOGETHER).enumerate() {
            watch(before + i * TOGETHER)?;
            let inputs: Vec<Result<Vec<f32>>> = some.par_iter().map(|path| Ok(input(&read(path)?))).collect();
            let inputs =
                inputs.into_iter().filter_map(|input| input.map_err(|error| problems.push(error.to_string())).ok());
            let inputs: Vec<Vec<f32>> = inputs.collect();
            // Without one of its images a set has no distance. The others are read, so that the report names all that fail.
            if problems.len() == known
                && let Err(error) = self.add(inputs, &mut moments)
            {
                problems.push(format!("FID cannot be computed: {}: {error}", folder.display()));
                return Ok(None);
            }
        }
        if problems.len() > known {
            let (unread, all) = (problems.len() - known, paths.len());
            problems
                .push(format!("FID cannot be computed: {}: {unread} of {all} images cannot be read", folder.display()));
            return Ok(None);
        }
        let finished = moments.finish();
        Ok(finished
            .map_err(|error| problems.push(format!("FID cannot be computed: {}: {error}", folder.display())))
            .ok())
    }

    fn add(&self, inputs: Vec<Vec<f32>>, moments: &mut Moments) -> Result<()> {
        self.network.of_inputs(inputs)?.iter().try_for_each(|features| moments.add(features))
    }
}

/// Whether a path is that of statistics: a file with the ending of numpy's archives.
fn is_statistics(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz"))
}

/// Statistics of the network's features.
fn statistics_of(path: &Path) -> Result<Statistics> {
    let statistics = Statistics::read(path)?;
    if statistics.features() == Inception::FEATURES {
        return Ok(statistics);
    }
    let problem = format!("has {} features, expected {}", statistics.features(), Inception::FEATURES);
    Err(Error::Network { path: path.into(), problem })
}
