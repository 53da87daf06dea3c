//! The Fréchet distance of two normal distributions: `|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2))` (Dowson and Landau, "The
//! Fréchet distance between multivariate normal distributions", 1982).
//!
//! The trace of the root is the sum of the roots of the eigenvalues of `C_a C_b`. With `C_a = L L^T` these are the eigenvalues of the
//! symmetric matrix `L^T C_b L`, and zeros. `L` is a Cholesky factor with pivots, which has as many columns as `C_a` has ranks. So a
//! singular covariance, that of fewer images than features, needs nothing on its diagonal.

use nalgebra::DMatrix;

use super::statistics::Statistics;
use crate::error::{Error, Result};

/// The Fréchet distance of two sets by their statistics.
///
/// # Errors
/// [`Error::Features`] for different numbers of features, [`Error::NotANumber`] if numbers are too large.
pub fn frechet_distance(a: &Statistics, b: &Statistics) -> Result<f64> {
    if a.features() != b.features() {
        return Err(Error::Features { found: b.features(), expected: a.features() });
    }
    let factor = factor(&a.covariance);
    let product = factor.transpose() * (&b.covariance * &factor);
    if !product.iter().all(|value| value.is_finite()) {
        return Err(Error::NotANumber("FID"));
    }
    let product = (&product + product.transpose()) * 0.5;
    // An empty matrix has no eigenvalues, and nalgebra takes none.
    let eigenvalues = if product.is_empty() { Vec::new() } else { product.symmetric_eigenvalues().data.into() };
    let root: f64 = eigenvalues.iter().map(|value| value.max(0.0).sqrt()).sum();
    let means = (&a.mean - &b.mean).norm_squared();
    let distance = means + a.covariance.trace() + b.covariance.trace() - 2.0 * root;
    // Rounding makes the distance of equal sets a little negative.
    if distance.is_finite() { Ok(distance.max(0.0)) } else { Err(Error::NotANumber("FID")) }
}

/// A matrix `L` with `L L^T = covariance`, and as many columns as the covariance has ranks (Higham, "Analysis of the Cholesky
/// decomposition of a semi-definite matrix", 1990). What remains on the diagonal is rounding.
fn factor(covariance: &DMatrix<f64>) -> DMatrix<f64> {
    let n = covariance.nrows();
    let mut rest: Vec<f64> = covariance.diagonal().iter().copied().collect();
    let largest = |rest: &[f64]| (0..n).max_by(|&i, &j| rest[i].total_cmp(&rest[j])).map(|i| (i, rest[i]));
    let least = largest(&rest).map_or(0.0, |(_, value)| value) * n as f64 * f64::EPSILON;
    let mut factor = DMatrix::zeros(n, n);
    let mut rank = 0;
    while let Some((pivot, value)) = largest(&rest).filter(|&(_, value)| rank < n && value > least) {
        let mut column = covariance.column(pivot).into_owned();
        let row = factor.row(pivot).columns(0, rank).transpose();
        column.gemv(-1.0, &factor.columns(0, rank), &row, 1.0);
        column /= value.sqrt();
        rest.iter_mut().zip(&column).for_each(|(rest, value)| *rest -= value * value);
        rest[pivot] = 0.0;
        factor.set_column(rank, &column);
        rank += 1;
    }
    factor.resize_horizontally(rank, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(mean: &[f64], covariance: &[f64]) -> Statistics {
        Statistics::new(mean.to_vec(), covariance.to_vec()).unwrap()
    }

    #[test]
    fn diagonal_covariances_have_the_distance_of_the_formula() {
        let a = statistics(&[1.0, 2.0], &[4.0, 0.0, 0.0, 9.0]);
        let b = statistics(&[1.0, 5.0], &[1.0, 0.0, 0.0, 16.0]);
        // |m|^2 = 9, (2 - 1)^2 = 1, (3 - 4)^2 = 1
        assert!((frechet_distance(&a, &b).unwrap() - 11.0).abs() < 1e-12);
        assert_eq!(frechet_distance(&a, &a).unwrap(), 0.0);
        let none = statistics(&[1.0, 2.0], &[0.0; 4]);
        assert_eq!(frechet_distance(&none, &a).unwrap(), 13.0);
        assert_eq!(frechet_distance(&a, &none).unwrap(), 13.0);
    }

    #[test]
    fn a_factor_has_a_column_for_each_rank() {
        let of = |columns: usize| DMatrix::from_fn(7, columns, |i, j| ((3 * i + 5 * j * j) % 7) as f64 - 2.5);
        for (columns, rank) in [(1, 1), (3, 3), (7, 7), (0, 0)] {
            let covariance = &of(columns) * of(columns).transpose();
            let found = factor(&covariance);
            assert!(found.ncols() <= rank, "{columns}: {}", found.ncols());
            assert!((&found * found.transpose() - &covariance).amax() < 1e-12, "{columns}");
        }
    }

    #[test]
    fn other_features_are_refused() {
        let (a, b) = (statistics(&[1.0], &[1.0]), statistics(&[1.0, 2.0], &[1.0, 0.0, 0.0, 1.0]));
        assert!(matches!(frechet_distance(&a, &b), Err(Error::Features { found: 2, expected: 1 })));
        let huge = statistics(&[0.0], &[f64::MAX]);
        assert!(matches!(frechet_distance(&huge, &huge), Err(Error::NotANumber("FID"))));
    }
}
