//! A source in which some weights are stored as several tensors: their codes, and scales under other names.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use super::factor_rows::{self, FactorRows};
use super::four_bits::{self, FourBits};
use super::layer_formats;
use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};

/// The contents of a file, or its problem.
pub(super) type Found<T> = std::result::Result<T, String>;

/// A source whose weights are one tensor each.
struct Packed {
    source: Box<dyn ParamSource>,
    layers: HashMap<String, Layer>,
}

/// How a weight is stored.
enum Layer {
    /// 8-bit numbers with factors.
    Rows(FactorRows),
    /// Codes of bitsandbytes.
    FourBits(FourBits),
}

/// `source`, the contents of `path`, with the weights of each layer as one tensor. Reads the scales of layers with few of them.
///
/// # Errors
/// [`Error::Format`] where a layer has a format that is not read, or lacks tensors of its format, or has wrong ones.
pub(crate) fn unpacked(
    source: Box<dyn ParamSource>,
    metadata: &BTreeMap<String, String>,
    path: &Path,
) -> Result<Box<dyn ParamSource>> {
    let layers = find(source.as_ref(), metadata);
    let layers = layers.map_err(|problem| Error::Format { path: path.to_path_buf(), problem })?;
    let is_packed = !layers.is_empty() || source.keys().iter().any(|key| is_added(key));
    Ok(if is_packed { Box::new(Packed { source, layers }) } else { source })
}

/// The layers that are stored as several tensors, by the names of their weights.
fn find(source: &dyn ParamSource, metadata: &BTreeMap<String, String>) -> Found<HashMap<String, Layer>> {
    let mut keys = source.keys();
    keys.sort_unstable(); // the same message each time
    let formats = layer_formats::read(source, &keys, metadata)?;
    let mut layers = HashMap::new();
    for key in keys {
        if let Some((weight, layer)) = FourBits::find(source, &key)? {
            layers.insert(weight, Layer::FourBits(layer));
        } else if let Some(layer) = FactorRows::find(source, &key, &formats)? {
            layers.insert(key, Layer::Rows(layer));
        }
    }
    Ok(layers)
}

/// Whether a tensor says how another one is stored.
fn is_added(key: &str) -> bool {
    factor_rows::is_added(key) || four_bits::is_added(key)
}

impl ParamSource for Packed {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        match self.layers.get(key) {
            Some(Layer::Rows(layer)) => Some(layer.info(self.source.info(key)?)),
            Some(Layer::FourBits(layer)) => Some(layer.info()),
            None => self.source.info(key),
        }
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        match self.layers.get(key) {
            None => self.source.data(key),
            Some(_) => self.rows(key, 0..self.info(key).and_then(|info| info.shape.first().copied()).unwrap_or(1)),
        }
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        match self.layers.get(key) {
            Some(Layer::Rows(layer)) => layer.rows(self.source.as_ref(), key, rows),
            Some(Layer::FourBits(layer)) => layer.rows(self.source.as_ref(), key, rows),
            None => self.source.rows(key, rows),
        }
    }

    fn release(&self, key: &str) {
        self.source.release(key);
        if let Some(Layer::FourBits(layer)) = self.layers.get(key) {
            self.source.release(layer.scales());
        }
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys().into_iter().filter(|key| !is_added(key)).collect()
    }
}

#[cfg(test)]
mod tests;
