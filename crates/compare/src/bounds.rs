//! Metrics, and bounds that pairs must keep.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// A number for a pair of images, or for two sets of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// The peak signal-to-noise ratio in dB.
    Psnr,
    /// The structural similarity.
    Ssim,
    /// The perceptual distance.
    Lpips,
    /// The CLIP score of the first image with its prompt.
    ClipA,
    /// The CLIP score of the second image with its prompt.
    ClipB,
    /// The distance of two sets. Pairs have none.
    Fid,
}

impl Metric {
    /// The name in JSON.
    pub fn id(self) -> &'static str {
        match self {
            Self::Psnr => "psnr",
            Self::Ssim => "ssim",
            Self::Lpips => "lpips",
            Self::ClipA => "clip_a",
            Self::ClipB => "clip_b",
            Self::Fid => "fid",
        }
    }

    /// The name in tables and messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Psnr => "PSNR",
            Self::Ssim => "SSIM",
            Self::Lpips => "LPIPS",
            Self::ClipA => "CLIP A",
            Self::ClipB => "CLIP B",
            Self::Fid => "FID",
        }
    }

    /// A value as a text.
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::Psnr | Self::ClipA | Self::ClipB => format!("{value:.2}"),
            Self::Ssim | Self::Lpips | Self::Fid => format!("{value:.5}"),
        }
    }
}

/// The bounds that each pair must keep, and that of both sets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bounds {
    /// The least PSNR in dB; infinite for equal images alone.
    pub min_psnr: Option<f64>,
    /// The least SSIM.
    pub min_ssim: Option<f64>,
    /// The largest LPIPS.
    pub max_lpips: Option<f64>,
    /// The largest FID of both sets.
    pub max_fid: Option<f64>,
}

impl Bounds {
    /// Refuses bounds that every pair or no pair keeps by mistake.
    ///
    /// # Errors
    /// [`Error::Files`] with the option.
    pub(crate) fn check(&self, has_lpips: bool, has_fid: bool) -> Result<()> {
        let number = |field, value: Option<f64>, expected: &str, is_good: &dyn Fn(f64) -> bool| match value {
            Some(value) if !is_good(value) => Err(Error::value(field, value, expected)),
            _ => Ok(()),
        };
        number("min_psnr", self.min_psnr, "a number of dB from 0 on, or inf", &|value| value >= 0.0)?;
        number("min_ssim", self.min_ssim, "a number from -1 to 1", &|value| (-1.0..=1.0).contains(&value))?;
        number("max_lpips", self.max_lpips, "a number from 0 on", &|value| value >= 0.0 && value.is_finite())?;
        number("max_fid", self.max_fid, "a number from 0 on", &|value| value >= 0.0 && value.is_finite())?;
        let lacking = [
            ("max_lpips", self.max_lpips.filter(|_| !has_lpips), "`lpips` too, the file with its networks"),
            ("max_fid", self.max_fid.filter(|_| !has_fid), "`fid` too, the file with its network"),
        ];
        match lacking.into_iter().find_map(|(field, value, expected)| Some((field, value?, expected))) {
            Some((field, value, expected)) => Err(Error::value(field, value, expected)),
            None => Ok(()),
        }
    }

    /// Whether there is one for pairs.
    pub(crate) fn are_of_pairs(&self) -> bool {
        [self.min_psnr, self.min_ssim, self.max_lpips].iter().any(Option::is_some)
    }

    /// The bounds that these values miss, a clause each. A value that is missing has its own problem.
    pub(crate) fn missed(&self, values: &BTreeMap<Metric, f64>) -> Vec<String> {
        let bounds = [
            (Metric::Psnr, self.min_psnr, true),
            (Metric::Ssim, self.min_ssim, true),
            (Metric::Lpips, self.max_lpips, false),
            (Metric::Fid, self.max_fid, false),
        ];
        let missed = |(metric, bound, is_least): (Metric, Option<f64>, bool)| {
            let (&value, bound) = (values.get(&metric)?, bound?);
            let keeps = if is_least { value >= bound } else { value <= bound };
            let side = if is_least { "least" } else { "most" };
            (!keeps)
                .then(|| format!("{} is {}, expected at {side} {bound}", metric.label(), exact(metric, value, bound)))
        };
        bounds.into_iter().filter_map(missed).collect()
    }
}

/// A value that misses a bound, with so many digits that it differs from the bound.
fn exact(metric: Metric, value: f64, bound: f64) -> String {
    let short = metric.shown(value);
    if short.parse() == Ok(bound) { value.to_string() } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_kept_or_missed() {
        let bounds = Bounds { min_psnr: Some(30.0), min_ssim: Some(0.9), max_lpips: Some(0.1), max_fid: Some(24.0) };
        let missed = |psnr, ssim, lpips| {
            bounds.missed(&BTreeMap::from([(Metric::Psnr, psnr), (Metric::Ssim, ssim), (Metric::Lpips, lpips)]))
        };
        assert!(missed(30.0, 0.9, 0.1).is_empty() && missed(f64::INFINITY, 1.0, 0.0).is_empty());
        assert_eq!(
            missed(29.999, 0.8, 0.25),
            [
                "PSNR is 29.999, expected at least 30",
                "SSIM is 0.80000, expected at least 0.9",
                "LPIPS is 0.25000, expected at most 0.1"
            ]
        );
        assert_eq!(missed(f64::NAN, f64::NAN, f64::NAN).len(), 3, "what is no number fails");
        let of_sets = |fid| bounds.missed(&BTreeMap::from([(Metric::Fid, fid)]));
        assert!(of_sets(24.0).is_empty());
        assert_eq!(of_sets(24.000001), ["FID is 24.000001, expected at most 24"]);
        let equal = Bounds { min_psnr: Some(f64::INFINITY), ..Bounds::default() };
        assert!(equal.missed(&BTreeMap::from([(Metric::Psnr, f64::INFINITY)])).is_empty());
        assert_eq!(equal.missed(&BTreeMap::from([(Metric::Psnr, 90.0)])).len(), 1);
    }

    #[test]
    fn impossible_bounds_are_refused() {
        let message = |bounds: Bounds| bounds.check(false, false).unwrap_err().to_string();
        let (nan, none) = (Some(f64::NAN), Bounds::default());
        assert!(message(Bounds { min_psnr: nan, ..none }).starts_with("`min_psnr` is NaN"));
        assert!(message(Bounds { min_ssim: Some(2.0), ..none }).contains("from -1 to 1"));
        assert!(message(Bounds { max_lpips: Some(-1.0), ..none }).contains("from 0 on"));
        assert!(message(Bounds { max_lpips: Some(0.1), ..none }).contains("`lpips` too"));
        assert!(message(Bounds { max_fid: Some(f64::INFINITY), ..none }).contains("from 0 on"));
        assert!(message(Bounds { max_fid: Some(24.0), ..none }).contains("`fid` too"));
        assert!(Bounds { max_lpips: Some(0.1), ..none }.check(true, false).is_ok() && none.check(false, false).is_ok());
        assert!(Bounds { max_fid: Some(24.0), ..none }.check(false, true).is_ok());
    }
}
