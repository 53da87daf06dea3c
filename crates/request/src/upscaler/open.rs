//! An upscaler before its weights are read, and the sizes that it makes.

use std::path::{Path, PathBuf};

use kiln_media::{Filter, MAX_PIXELS};
use kiln_upscale::{NetworkConfig, Upscaler};

use super::choice::{UpscalerChoice, filter_name, locate};
use crate::error::{Error, Result};

/// How often a network runs over its own result, while that is smaller than what is wanted (AUTOMATIC1111's
/// `modules/upscaler.py`).
const PASSES: usize = 3;
/// The default scale of filters, which have none of their own.
const FILTER_SCALE: f64 = 2.0;
/// The scales that can be asked for.
const SCALES: std::ops::RangeInclusive<f64> = 0.05..=64.0;

/// An upscaler whose file is known to be one. Of a network names and shapes were read, no weights.
pub struct OpenUpscaler {
    kind: Kind,
}

enum Kind {
    Filter(Filter),
    Network { network: Box<Upscaler>, path: PathBuf },
}

impl OpenUpscaler {
    /// Opens an upscaler. `folder` is where files are that are named without a path.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Upscale`] with the contents of the file if it is no
    /// upscaler.
    pub fn open(choice: &UpscalerChoice, folder: Option<&Path>) -> Result<Self> {
        let kind = match choice {
            UpscalerChoice::Filter(filter) => Kind::Filter(*filter),
            UpscalerChoice::File(path) => {
                let path = locate(path, folder)?;
                if path.is_dir() {
                    let problem = "is a folder, expected an upscaler's file (.safetensors or .pth)";
                    return Err(Error::read(&path)(std::io::Error::new(std::io::ErrorKind::IsADirectory, problem)));
                }
                let network = Box::new(Upscaler::open(&path)?);
                if !matches!(network.config().channels(), [1, 1] | [3, 3]) {
                    let [from, to] = network.config().channels();
                    let problem = format!("the network has {from} channels in and {to} out, expected 3 or 1 in both");
                    return Err(Error::model(&path, problem));
                }
                Kind::Network { network, path }
            }
        };
        Ok(Self { kind })
    }

    /// A network without weights, to know the sizes and the memory of its runs.
    pub fn without_weights(config: NetworkConfig) -> Self {
        let network = Box::new(Upscaler::without_weights(config));
        Self { kind: Kind::Network { network, path: PathBuf::new() } }
    }

    /// A network that is open, as if from the file at `path`.
    pub fn of_network(network: Upscaler, path: PathBuf) -> Self {
        Self { kind: Kind::Network { network: Box::new(network), path } }
    }

    /// The size of an image that is enlarged by `scale`: sides are rounded down, as in AUTOMATIC1111, and 1 at least.
    pub fn scaled(size: [usize; 2], scale: f64) -> [usize; 2] {
        size.map(|side| ((side as f64 * scale) as usize).max(1))
    }

    /// The filter, if it is one.
    pub fn filter(&self) -> Option<Filter> {
        match &self.kind {
            Kind::Filter(filter) => Some(*filter),
            Kind::Network { .. } => None,
        }
    }

    /// The network, if it is one.
    pub fn upscaler(&self) -> Option<&Upscaler> {
        match &self.kind {
            Kind::Filter(_) => None,
            Kind::Network { network, .. } => Some(network),
        }
    }

    /// The name in settings of images: a filter's, or a file's without its ending.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Filter(filter) => filter_name(*filter).into(),
            Kind::Network { path, .. } => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// The file of a network.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Filter(_) => None,
            Kind::Network { path, .. } => Some(path),
        }
    }

    /// A description in one line, for users.
    pub fn description(&self) -> String {
        match &self.kind {
            Kind::Filter(_) => format!("{}, a filter", self.name()),
            Kind::Network { network, .. } => format!("{}, {}", self.name(), network.config()),
        }
    }

    /// Whether it is a network, which has weights and may run on a GPU.
    pub fn is_network(&self) -> bool {
        matches!(self.kind, Kind::Network { .. })
    }

    /// The default scale: the network's own, and 2 for filters.
    pub fn default_scale(&self) -> f64 {
        match &self.kind {
            Kind::Filter(_) => FILTER_SCALE,
            Kind::Network { network, .. } => network.scale() as f64,
        }
    }

    /// Checks a scale, or gives the default.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn scale(&self, asked: Option<f64>) -> Result<f64> {
        let scale = asked.unwrap_or_else(|| self.default_scale());
        if SCALES.contains(&scale) {
            return Ok(scale);
        }
        let expected = format!("a number from {} to {}", SCALES.start(), SCALES.end());
        Err(Error::Value { name: "scale", found: kiln_scheduler::number_text(scale), expected })
    }

    /// The images between an image of `size` (width and height) and one of `target`: the network's result after each
    /// pass, none for a filter. The last one is then resized if it has another size.
    ///
    /// # Errors
    /// A sentence about the value that is too large.
    pub fn passes(&self, size: [usize; 2], target: [usize; 2]) -> std::result::Result<Vec<[usize; 2]>, String> {
        let check = |[w, h]: [usize; 2], what: &str| match w.checked_mul(h) {
            Some(pixels) if pixels <= MAX_PIXELS => Ok(()),
            _ => Err(format!("{what} has {w}x{h} pixels, and the limit is {MAX_PIXELS}")),
        };
        check(target, "the result")?;
        let Kind::Network { network, .. } = &self.kind else { return Ok(Vec::new()) };
        let mut passes = Vec::new();
        let mut now = size;
        for pass in 1..=PASSES {
            let next = now.map(|side| side.saturating_mul(network.scale()));
            check(next, &format!("the network's result of pass {pass}"))?;
            passes.push(next);
            let is_enough = next.iter().zip(&target).all(|(side, wanted)| side >= wanted);
            if is_enough || next == now {
                break;
            }
            now = next;
        }
        Ok(passes)
    }
}

#[cfg(test)]
mod tests {
    use kiln_testkit::fixtures;

    use super::*;

    fn scaled(size: [usize; 2], scale: f64) -> [usize; 2] {
        OpenUpscaler::scaled(size, scale)
    }

    fn network(name: &str) -> OpenUpscaler {
        OpenUpscaler::open(&UpscalerChoice::File(fixtures("upscale").join(name)), None).unwrap()
    }

    #[test]
    fn a_network_runs_until_its_result_is_large_enough() {
        let passes = |name, size, scale| network(name).passes(size, scaled(size, scale)).unwrap();
        assert_eq!(passes("compact_x2.pth", [10, 20], 2.0), [[20, 40]]);
        assert_eq!(passes("compact_x2.pth", [10, 20], 1.5), [[20, 40]]);
        assert_eq!(passes("compact_x2.pth", [10, 20], 3.0), [[20, 40], [40, 80]]);
        assert_eq!(passes("compact_x2.pth", [10, 20], 30.0), [[20, 40], [40, 80], [80, 160]]);
        assert_eq!(passes("original_x1.safetensors", [10, 20], 4.0), [[10, 20]], "another pass changes no size");
        let filter = OpenUpscaler::open(&UpscalerChoice::default(), None).unwrap();
        assert_eq!(filter.passes([10, 20], [40, 80]), Ok(Vec::new()));
    }

    #[test]
    fn sizes_are_rounded_down() {
        assert_eq!(scaled([101, 3], 1.5), [151, 4]);
        assert_eq!(scaled([3, 1], 0.05), [1, 1]);
    }

    #[test]
    fn results_that_are_too_large_are_refused() {
        let upscaler = network("compact_x4.safetensors");
        let passes = |size, scale| upscaler.passes(size, scaled(size, scale)).unwrap_err();
        assert!(passes([8000, 8000], 4.0).starts_with("the result has 32000x32000 pixels, and the limit is 268435456"));
        assert!(passes([4000, 4000], 4.1).starts_with("the result has 16400x16400"), "one pass would fit");
        assert!(passes([2000, 2000], 5.0).starts_with("the network's result of pass 2 has 32000x32000"));
        assert!(passes([usize::MAX, 1], 4.0).contains("pixels"));
    }

    #[test]
    fn scales_are_checked() {
        let upscaler = network("compact_x3_gray.safetensors");
        assert_eq!((upscaler.scale(None).unwrap(), upscaler.scale(Some(1.5)).unwrap()), (3.0, 1.5));
        assert_eq!(upscaler.name(), "compact_x3_gray");
        for scale in [0.0, -2.0, 64.5, f64::NAN, f64::INFINITY] {
            let message = upscaler.scale(Some(scale)).unwrap_err().to_string();
            assert!(message.contains("expected a number from 0.05 to 64"), "{message}");
        }
    }
}
