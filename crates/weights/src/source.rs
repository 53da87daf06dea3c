//! Sources of parameters.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use candle_core::{DType, Tensor};
use safetensors::Dtype;

use crate::element::Stored;
use crate::error::Result;
use crate::shared::SharedSlabs;
use crate::slab_cache::SlabCache;
use crate::stored_type::StoredType;

/// The properties of a stored tensor that are known before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// The shape in the checkpoint's own order.
    pub shape: Vec<usize>,
    /// The stored type.
    pub dtype: StoredType,
}

impl ParamInfo {
    /// The shape and type of some rows, with the range of their bytes in the whole tensor. `None` if the tensor has no such
    /// rows, or they do not begin and end between blocks.
    pub(crate) fn rows(&self, rows: &Range<usize>) -> Option<(Self, Range<usize>)> {
        let all = *self.shape.first()?;
        let of = |count: usize| -> Vec<usize> { [&[count], self.shape.get(1..).unwrap_or_default()].concat() };
        if rows.start > rows.end || rows.end > all {
            return None;
        }
        let bytes = self.dtype.bytes(&of(rows.start))?..self.dtype.bytes(&of(rows.end))?;
        Some((Self { shape: of(rows.len()), dtype: self.dtype }, bytes))
    }
}

/// A stored tensor: its shape and type, and its elements, little-endian and row-major.
pub struct ParamData<'a> {
    /// Shape and type.
    pub info: ParamInfo,
    /// The elements' bytes: `shape` times the type's size.
    pub bytes: Cow<'a, [u8]>,
}

impl ParamData<'_> {
    /// Some rows of the tensor. `None` if it has no such rows, or they do not begin and end between blocks.
    pub fn rows(self, rows: &Range<usize>) -> Option<Self> {
        let (info, range) = self.info.rows(rows)?;
        let bytes = match self.bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes.get(range)?),
            Cow::Owned(bytes) => Cow::Owned(bytes.get(range)?.to_vec()),
        };
        Some(Self { info, bytes })
    }

    /// The elements as f32. `None` if the type is not a weight type.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let mut values = vec![0f32; self.info.shape.iter().product()];
        Stored::new(self.info.dtype, &self.bytes, values.len())?.read(0, &mut values);
        Some(values)
    }
}

/// A source of tensors by name: a checkpoint file, a folder of them, a map in a test.
pub trait ParamSource: Send + Sync {
    /// The tensor's shape and type, or `None` if there is no such tensor. Reads no elements.
    fn info(&self, key: &str) -> Option<ParamInfo>;

    /// The tensor, or `None` if there is no such tensor.
    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>>;

    /// Some rows of the tensor, or `None` if there are no such rows. Sources that compute elements override it, so that the
    /// parts of a fused projection are not computed several times.
    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        Ok(self.data(key)?.and_then(|data| data.rows(&rows)))
    }

    /// Called when the tensor was read and is not needed soon: memory that only caches it may be freed. Another read
    /// returns the same elements.
    fn release(&self, _key: &str) {}

    /// The location of `key` for an error message, whether it exists or not: a path.
    fn origin(&self, key: &str) -> String;

    /// All names, in no particular order.
    fn keys(&self) -> Vec<String>;

    /// Shared slabs for this source, and the name of the network among those of the files. `None` if nothing is shared.
    fn shared(&self) -> Option<(&SharedSlabs, &str)> {
        None
    }

    /// The folder of packed slabs from earlier runs. `None` if there is none.
    fn slab_cache(&self) -> Option<&SlabCache> {
        None
    }

    /// Whether an element of the tensor is not the file's.
    fn is_changed(&self, _key: &str) -> bool {
        false
    }
}

/// Tensors in a map, for tests and for generated weights.
#[derive(Debug, Default)]
pub struct MapSource(HashMap<String, Tensor>);

impl FromIterator<(String, Tensor)> for MapSource {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> Self {
        Self(tensors.into_iter().collect())
    }
}

impl ParamSource for MapSource {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.0.get(key).map(|tensor| ParamInfo { shape: tensor.dims().to_vec(), dtype: Dtype::F32.into() })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let (Some(info), Some(tensor)) = (self.info(key), self.0.get(key)) else { return Ok(None) };
        let values: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Some(ParamData { info, bytes: Cow::Owned(bytes) }))
    }

    fn origin(&self, _key: &str) -> String {
        "tensors in memory".into()
    }

    fn keys(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}
