//! How strongly, and in which part of the steps, a control network or an image prompt acts.

/// The largest weight, in both directions.
pub(crate) const MAX_WEIGHT: f64 = 100.0;

/// The usual weight and `end`.
pub(crate) fn one() -> f64 {
    1.0
}

/// Whether a weight or an `end` is the usual one.
pub(crate) fn is_one(value: &f64) -> bool {
    *value == one()
}

/// Whether a `start` is the usual one.
pub(crate) fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// The first invalid value of a weight and a part of the steps from `start` to `end`, and the expected one; `None` if all are
/// valid.
pub(crate) fn problem(weight: f64, start: f64, end: f64) -> Option<(String, String)> {
    let part = |value: f64| (0.0..=1.0).contains(&value);
    if weight.is_nan() || weight.abs() > MAX_WEIGHT {
        return Some((format!("weight={weight:?}"), format!("a weight from -{MAX_WEIGHT} to {MAX_WEIGHT}")));
    }
    let found = || format!("start={start:?},end={end:?}");
    if !part(start) || !part(end) {
        return Some((found(), "`start` and `end` from 0 to 1".into()));
    }
    (start >= end).then(|| (found(), "`start` less than `end`".into()))
}
