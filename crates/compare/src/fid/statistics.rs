//! The mean and the covariance of the features of a set of images.

use nalgebra::{DMatrix, DVector};

use crate::error::{Error, Result};

/// Features that are summed in one product.
const ROWS: usize = 64;
/// How much the two halves of a covariance may differ, as a part of its largest value. In f32 they differ by rounding.
const ASYMMETRY: f64 = 1e-4;

/// Mean and covariance of features, as numpy's `mean` and `cov` give them: the sums of squares are divided by the number of images
/// less 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    pub(super) mean: DVector<f64>,
    pub(super) covariance: DMatrix<f64>,
}

impl Statistics {
    /// Of `n` means and a covariance of `n` rows, row by row.
    ///
    /// # Errors
    /// A clause: other sizes, values that are not finite, and a covariance that is not symmetric or has a negative diagonal.
    pub fn new(mean: Vec<f64>, covariance: Vec<f64>) -> Result<Self, String> {
        let n = mean.len();
        if n == 0 || covariance.len() != n * n {
            return Err(format!("{n} means and {} covariances, expected {n} times {n}", covariance.len()));
        }
        if !mean.iter().chain(&covariance).all(|value| value.is_finite()) {
            return Err("a value is not a finite number".into());
        }
        let rows = DMatrix::from_row_slice(n, n, &covariance);
        let columns = rows.transpose();
        if (&rows - &columns).amax() > ASYMMETRY * rows.amax() {
            return Err("the covariance is not symmetric".into());
        }
        if let Some(value) = rows.diagonal().iter().find(|&&value| value < 0.0) {
            return Err(format!("the covariance has {value} on its diagonal, expected a number from 0 on"));
        }
        Ok(Self { mean: DVector::from_vec(mean), covariance: (rows + columns) * 0.5 })
    }

    /// The number of features.
    pub fn features(&self) -> usize {
        self.mean.len()
    }
}

/// Running sums of features, whose memory does not depend on the number of images.
///
/// Sums are of differences from the first image, so that large means take no digits from small variances.
#[derive(Debug)]
pub struct Moments {
    origin: DVector<f64>,
    count: usize,
    sum: DVector<f64>,
    products: DMatrix<f64>,
    /// Differences that are not in `products` yet, column by column.
    pending: Vec<f64>,
}

impl Moments {
    /// Without an image, for so many features.
    pub fn new(features: usize) -> Self {
        let zeros = DVector::zeros(features);
        let products = DMatrix::zeros(features, features);
        Self { origin: zeros.clone(), count: 0, sum: zeros, products, pending: Vec::new() }
    }

    /// Adds an image.
    ///
    /// # Errors
    /// [`Error::Features`] for another number of features, [`Error::NotANumber`] for values that are not finite.
    pub fn add(&mut self, features: &[f32]) -> Result<()> {
        if features.len() != self.origin.len() {
            return Err(Error::Features { found: features.len(), expected: self.origin.len() });
        }
        if !features.iter().all(|value| value.is_finite()) {
            return Err(Error::NotANumber("a feature of FID"));
        }
        let features = DVector::from_iterator(features.len(), features.iter().copied().map(f64::from));
        if self.count == 0 {
            self.origin.copy_from(&features);
        }
        let difference = features - &self.origin;
        self.count += 1;
        self.sum += &difference;
        self.pending.extend(difference.iter());
        if self.pending.len() >= ROWS * self.origin.len() {
            self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) {
        let n = self.origin.len().max(1);
        let rows = DMatrix::from_column_slice(n, self.pending.len() / n, &self.pending);
        self.products.gemm(1.0, &rows, &rows.transpose(), 1.0);
        self.pending.clear();
    }

    /// Mean and covariance.
    ///
    /// # Errors
    /// [`Error::TooFew`] for fewer than two images.
    pub fn finish(mut self) -> Result<Statistics> {
        if self.count < 2 {
            return Err(Error::TooFew { found: self.count, least: 2 });
        }
        self.flush();
        let (count, mut covariance) = (self.count as f64, self.products);
        covariance.ger(-1.0 / count, &self.sum, &self.sum, 1.0);
        covariance /= count - 1.0;
        Ok(Statistics { mean: self.origin + self.sum / count, covariance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition in two passes, with more images than a product takes and means that are large.
    #[test]
    fn running_sums_give_mean_and_covariance() {
        let images: Vec<[f32; 3]> =
            (0..150).map(|i| [1e4 + (i % 7) as f32, i as f32 / 8.0, ((i * i) % 11) as f32]).collect();
        let mut moments = Moments::new(3);
        images.iter().for_each(|image| moments.add(image).unwrap());
        let found = moments.finish().unwrap();
        let mean = |c: usize| images.iter().map(|image| f64::from(image[c])).sum::<f64>() / 150.0;
        for i in 0..3 {
            assert!((found.mean[i] - mean(i)).abs() < 1e-9);
            for j in 0..3 {
                let product = |image: &[f32; 3]| (f64::from(image[i]) - mean(i)) * (f64::from(image[j]) - mean(j));
                let expected = images.iter().map(product).sum::<f64>() / 149.0;
                assert!((found.covariance[(i, j)] - expected).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn equal_images_have_no_covariance() {
        let mut moments = Moments::new(2);
        (0..100).for_each(|_| moments.add(&[0.1, 0.7]).unwrap());
        assert_eq!(moments.finish().unwrap().covariance.amax(), 0.0);
    }

    #[test]
    fn what_is_no_set_is_refused() {
        let mut moments = Moments::new(2);
        assert!(matches!(moments.add(&[1.0]), Err(Error::Features { found: 1, expected: 2 })));
        assert!(matches!(moments.add(&[1.0, f32::NAN]), Err(Error::NotANumber(_))));
        moments.add(&[1.0, 2.0]).unwrap();
        assert!(matches!(moments.finish(), Err(Error::TooFew { found: 1, least: 2 })));
        let message =
            |mean: &[f64], covariance: &[f64]| Statistics::new(mean.to_vec(), covariance.to_vec()).unwrap_err();
        assert_eq!(message(&[1.0, 2.0], &[1.0]), "2 means and 1 covariances, expected 2 times 2");
        assert!(message(&[f64::NAN], &[1.0]).contains("finite"));
        assert!(message(&[0.0; 2], &[1.0, 0.5, 0.4, 1.0]).contains("not symmetric"));
        assert!(message(&[0.0], &[-1.0]).contains("-1 on its diagonal"));
    }
}
