//! The quantiles of a symmetric beta distribution.
//!
//! Newton's method does not converge at both ends, where the density is infinite. Bisection does, and is fast enough
//! for a few dozen values.

/// The quantile `p` of the beta distribution with both parameters `shape`.
pub(super) fn beta_quantile(p: f64, shape: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 {
        return p.clamp(0.0, 1.0);
    }
    if p >= 0.5 {
        // The lower half is computed with full precision, and the middle is exact.
        return if p == 0.5 { 0.5 } else { 1.0 - beta_quantile(1.0 - p, shape) };
    }
    let whole = 2.0 * below(0.5, shape);
    let (mut low, mut high) = (0.0, 0.5);
    // A double has 52 bits of mantissa; values near 0 need some more halvings.
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if below(middle, shape) < p * whole { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The integral of `(t (1 - t))^(a - 1)` from 0 to `x`, for `x` up to a half: the series
/// `x^a sum_k (1 - a)_k / k! x^k / (a + k)`, whose terms fall by half each.
fn below(x: f64, a: f64) -> f64 {
    let (mut sum, mut term) = (0.0, 1.0);
    for k in 0..60 {
        let k = f64::from(k);
        sum += term / (a + k);
        term *= (k + 1.0 - a) / (k + 1.0) * x;
    }
    x.powf(a) * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scipy.stats.beta.ppf(p, 0.6, 0.6)`, SciPy 1.17.1.
    #[test]
    fn quantiles_are_scipys() {
        for (p, expected) in QUANTILES {
            let found = beta_quantile(p, 0.6);
            assert!((found - expected).abs() < 1e-12, "{p}: {found} for {expected}");
        }
        assert_eq!((beta_quantile(0.0, 0.6), beta_quantile(1.0, 0.6)), (0.0, 1.0));
    }

    const QUANTILES: [(f64, f64); 6] = [
        (0.001, 0.000018558738517),
        (0.05, 0.012554456873611),
        (0.3, 0.234017003875236),
        (0.5, 0.500000000000000),
        (0.75, 0.824319621347305),
        (0.95, 0.987445543126389),
    ];
}
