//! The values of all pairs in four numbers.

use crate::bounds::Metric;
use crate::psnr::MOST_IN_MEAN;

/// The least, mean, median and largest of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The least value.
    pub least: f64,
    /// The mean. Of a PSNR, values above 100 dB count with 100, unless all pairs are equal.
    pub mean: f64,
    /// The median; of an even number of values the mean of the two in the middle.
    pub median: f64,
    /// The largest value.
    pub most: f64,
}

impl Summary {
    /// Of values, if there are any.
    pub fn of(metric: Metric, values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let upper = sorted[middle];
        let median = if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + upper) / 2.0 } else { upper };
        let counted = |&value: &f64| match metric {
            Metric::Psnr if least.is_finite() => value.min(MOST_IN_MEAN),
            _ => value,
        };
        let mean = sorted.iter().map(counted).sum::<f64>() / sorted.len() as f64;
        Some(Self { least, mean, median, most })
    }

    /// The four values with their names.
    pub fn rows(&self) -> [(&'static str, f64); 4] {
        [("least", self.least), ("mean", self.mean), ("median", self.median), ("most", self.most)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_four_values() {
        let of = |metric, values: &[f64]| Summary::of(metric, values.iter().copied());
        let found = of(Metric::Ssim, &[0.5, 1.0, 0.25, 0.75]).unwrap();
        assert_eq!(found, Summary { least: 0.25, mean: 0.625, median: 0.625, most: 1.0 });
        assert_eq!(of(Metric::Lpips, &[0.5, 0.1, 0.2]).unwrap().median, 0.2);
        assert_eq!(of(Metric::Ssim, &[]), None);
        let some = of(Metric::Psnr, &[f64::INFINITY, 20.0]).unwrap();
        assert_eq!((some.least, some.mean, some.most), (20.0, 60.0, f64::INFINITY));
        assert!(of(Metric::Psnr, &[f64::INFINITY; 2]).unwrap().mean.is_infinite());
    }
}
