//! Options of a request and the values of a job that follow from them.

use super::table::Request;

/// The job's values of a group of options.
pub(crate) trait OptionSet {
    /// The values of a request, with defaults.
    fn of(request: &Request) -> Self;

    /// Writes into a request what is not a default.
    fn write(&self, request: &mut Request);
}

/// An optional field of a request and the job's value of it.
pub(super) trait Resolved<F>: Sized {
    /// The job's value, with `default` if nothing is set.
    fn of(field: F, default: Self) -> Self;

    /// The field of a request that resolves to the value.
    fn said(self, default: Self) -> F;
}

impl<T: PartialEq> Resolved<Option<T>> for T {
    fn of(field: Option<T>, default: Self) -> Self {
        field.unwrap_or(default)
    }

    fn said(self, default: Self) -> Option<T> {
        (self != default).then_some(self)
    }
}

/// A field without a default of its own.
impl<T> Resolved<Option<T>> for Option<T> {
    fn of(field: Option<T>, _: Self) -> Self {
        field
    }

    fn said(self, _: Self) -> Option<T> {
        self
    }
}

/// A switch that is off by default.
impl Resolved<bool> for bool {
    fn of(field: bool, default: Self) -> Self {
        field || default
    }

    fn said(self, _: Self) -> bool {
        self
    }
}
