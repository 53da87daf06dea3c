//! A view of a source with other names.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::piece::exchanged;
use super::{Names, Piece};
use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::stored_type::StoredType;

/// The tensors of a source whose names begin with a prefix, without it.
pub struct Subset<S> {
    source: S,
    prefix: String,
}

impl<S: ParamSource> Subset<S> {
    /// The tensors of `source` whose names begin with `prefix`; all of them if it is empty.
    pub fn new(source: S, prefix: impl Into<String>) -> Self {
        Self { source, prefix: prefix.into() }
    }

    fn whole(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl<S: ParamSource> ParamSource for Subset<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.source.info(&self.whole(key))
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.source.data(&self.whole(key))
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        self.source.rows(&self.whole(key), rows)
    }

    fn release(&self, key: &str) {
        self.source.release(&self.whole(key));
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(&self.whole(key))
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys().iter().filter_map(|key| key.strip_prefix(&self.prefix)).map(String::from).collect()
    }
}

/// The tensors of a source under the names that networks declare.
pub struct Named<S> {
    source: S,
    names: Arc<Names>,
}

impl<S: ParamSource> Named<S> {
    /// Reads `source`, whose tensors have the stored names of `names`.
    pub fn new(source: S, names: impl Into<Arc<Names>>) -> Self {
        Self { source, names: names.into() }
    }

    /// The stored tensors that are not part of the network.
    pub fn unknown(&self) -> Vec<String> {
        self.source.keys().into_iter().filter(|name| self.names.declared(name).is_empty()).collect()
    }

    /// The stored name of `key`, or `key` itself if the table has no such tensor, which no source contains then.
    fn stored(&self, key: &str) -> String {
        self.names.place(key).map_or_else(|| key.to_string(), |place| place.name)
    }
}

impl<S: ParamSource> ParamSource for Named<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.names.info(&self.source, key)
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(place) = self.names.place(key) else { return Ok(None) };
        if place.piece.is_rows() {
            let stored = self.source.info(&place.name).and_then(|info| info.shape.first().copied());
            let rows = stored.and_then(|rows| place.piece.rows(rows));
            return rows.map_or(Ok(None), |rows| self.source.rows(&place.name, rows));
        }
        let Some(data) = self.source.data(&place.name)? else { return Ok(None) };
        let Some(info) = place.piece.info(data.info.clone()) else { return Ok(None) };
        let bytes = match place.piece {
            Piece::Whole | Piece::Pointwise | Piece::Rows { .. } => data.bytes,
            Piece::Exchanged => Cow::Owned(exchanged(&data.bytes)),
            Piece::Transposed => match transposed(&data, &info) {
                Some(bytes) => Cow::Owned(bytes),
                None => {
                    let (origin, key) = (self.source.origin(&place.name), place.name);
                    return Err(Error::StoredDType { origin, key, found: format!("{:?}", data.info.dtype) });
                }
            },
        };
        Ok(Some(ParamData { info, bytes }))
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        match self.names.place(key) {
            Some(place) if matches!(place.piece, Piece::Whole) => self.source.rows(&place.name, rows),
            _ => Ok(self.data(key)?.and_then(|data| data.rows(&rows))),
        }
    }

    fn release(&self, key: &str) {
        self.source.release(&self.stored(key));
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(&self.stored(key))
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys().iter().flat_map(|name| self.names.declared(name)).map(|(key, _)| key).collect()
    }
}

/// The elements of a matrix in column-major order. `None` if its type is not a weight type.
fn transposed(stored: &ParamData<'_>, info: &ParamInfo) -> Option<Vec<u8>> {
    let decoded: Vec<u8>;
    let bytes = match stored.info.dtype {
        StoredType::Plain(_) => &*stored.bytes,
        StoredType::Blocks(_) | StoredType::Rows(_) => {
            decoded = stored.to_f32()?.iter().flat_map(|value| value.to_le_bytes()).collect();
            &decoded
        }
    };
    let [columns, rows] = info.shape[..] else { return None };
    Some(transpose(bytes, rows, columns))
}

/// Transposes a row-major matrix with elements of any size.
pub(super) fn transpose(bytes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let size = bytes.len().checked_div(rows * columns).unwrap_or(0);
    let mut out = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * size;
            out.extend_from_slice(&bytes[at..at + size]); // within rows * columns * size, so within the bytes
        }
    }
    out
}
