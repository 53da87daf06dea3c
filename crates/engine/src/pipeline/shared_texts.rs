//! Encoded texts that processes share through a store.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_files::sha256;
use safetensors::tensor::serialize;

use crate::error::Result;
use crate::pipeline::text_cache::{Encoded, Key};

/// A store of bytes by keys, which other processes may use too. A store that fails gives nothing and takes nothing: texts are
/// encoded then.
pub trait TextStore: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &str) -> Option<Vec<u8>>;

    /// Puts a value in.
    fn put(&self, key: &str, value: &[u8]);
}

/// The texts of one model in a store.
pub(crate) struct SharedTexts {
    store: Arc<dyn TextStore>,
    /// All that decides on the bits but a text's [`Key`].
    model: String,
}

/// Names of the tensors in a value.
const CONTEXT: &str = "context";
const POOLED: &str = "pooled";
/// Digits of the checksum before a value.
const CHECKSUM: usize = 64;

impl SharedTexts {
    /// The texts of `model`: the digest of its encoders, their types, and the device.
    pub(crate) fn new(store: Arc<dyn TextStore>, model: String) -> Self {
        Self { store, model }
    }

    fn key(&self, key: &Key) -> String {
        let text = format!("{} {} {key:?}", env!("CARGO_PKG_VERSION"), self.model);
        format!("kiln:text:{}", sha256(text.as_bytes()))
    }

    /// A text that some process has encoded: `length` tokens, in the host's memory.
    pub(crate) fn get(&self, key: &Key, length: usize) -> Option<Encoded> {
        let value = self.store.get(&self.key(key))?;
        let found = read(&value).filter(|found| found.context.dims3().is_ok_and(|(_, tokens, _)| tokens == length));
        if found.is_none() {
            tracing::warn!("the store of encoded texts has a value that is none; the text is encoded again");
        }
        found
    }

    /// Gives others a text.
    pub(crate) fn put(&self, key: &Key, encoded: &Encoded) {
        match write(encoded) {
            Ok(value) => self.store.put(&self.key(key), &value),
            Err(error) => tracing::warn!("an encoded text is not shared: {error}"),
        }
    }
}

/// A checksum in hexadecimal digits, then the tensors as a safetensors file.
fn write(encoded: &Encoded) -> Result<Vec<u8>> {
    let encoded = encoded.on(&Device::Cpu)?;
    let tensors = [(CONTEXT, encoded.context.contiguous()?), (POOLED, encoded.pooled.contiguous()?)];
    let bytes = serialize(tensors, None).map_err(candle_core::Error::wrap)?;
    Ok([sha256(&bytes).as_bytes(), &bytes].concat())
}

fn read(value: &[u8]) -> Option<Encoded> {
    let (checksum, bytes) = value.split_at_checked(CHECKSUM)?;
    if sha256(bytes).as_bytes() != checksum {
        return None;
    }
    let mut tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu).ok()?;
    let (context, pooled) = (tensors.remove(CONTEXT)?, tensors.remove(POOLED)?);
    let is_one = |dims: &[usize], rank: usize| dims.len() == rank && dims.first() == Some(&1);
    let is_float = |tensor: &Tensor| matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let fits = is_one(context.dims(), 3) && is_one(pooled.dims(), 2) && is_float(&context) && is_float(&pooled);
    fits.then_some(Encoded { context, pooled })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_or_not_at_all() {
        let tensor = |shape: &[usize], dtype| {
            let count = shape.iter().product::<usize>() as f32;
            Tensor::arange(0f32, count, &Device::Cpu).unwrap().reshape(shape).unwrap().to_dtype(dtype).unwrap()
        };
        for dtype in [DType::F32, DType::BF16] {
            let encoded = Encoded { context: tensor(&[1, 4, 3], dtype), pooled: tensor(&[1, 3], dtype) };
            let value = write(&encoded).unwrap();
            let found = read(&value).unwrap();
            let numbers =
                |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(found.context.dtype(), dtype);
            assert_eq!(numbers(&found.context), numbers(&encoded.context));
            assert_eq!(numbers(&found.pooled), numbers(&encoded.pooled));
            let mut broken = value.clone();
            *broken.last_mut().unwrap() ^= 1;
            for wrong in [&broken[..], &value[..value.len() - 1], &value[..CHECKSUM], b"", b"kiln"] {
                assert!(read(wrong).is_none());
            }
        }
    }
}
