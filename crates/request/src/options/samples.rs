//! Requests with one option, for tests that hold for all rows.

use super::row::OptionRow;
use super::table::Request;

/// A request with this option alone.
pub(crate) fn request(row: &OptionRow, text: &str) -> Request {
    let mut request = Request::default();
    row.value_mut(&mut request).read(text).unwrap_or_else(|problem| panic!("{}: {text}: {problem}", row.name));
    request
}
