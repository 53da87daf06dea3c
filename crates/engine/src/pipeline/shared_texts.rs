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
    /// The value of a key. A store reads no value that is larger than `most` bytes.
    fn get(&self, key: &str, most: usize) -> Option<Vec<u8>>;

    /// Puts a value in.
    fn put(&self, key: &str, value: &[u8]);

    /// Logs what is wrong with a value. A store that others write to may have many of them, and limits the lines.
    fn warn(&self, text: &str) {
        tracing::warn!("{text}");
    }
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
/// The most bytes of a value besides those of its tensors: the checksum and the header of a safetensors file.
const MOST_HEADER: usize = 1024;

/// The shape and the type that the encoders of a model give to a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextShape {
    /// Tokens, with those that fill the chunks up.
    pub(crate) tokens: usize,
    /// Channels of all encoders together.
    pub(crate) width: usize,
    /// Channels of the pooled vector.
    pub(crate) pooled: usize,
    pub(crate) dtype: DType,
}

impl TextShape {
    /// Whether a text has this shape and type, and finite numbers alone.
    fn fits(&self, found: &Encoded) -> bool {
        let Self { tokens, width, pooled, dtype } = *self;
        let has = |tensor: &Tensor, shape: &[usize]| tensor.dims() == shape && tensor.dtype() == dtype;
        has(&found.context, &[1, tokens, width])
            && has(&found.pooled, &[1, pooled])
            && is_finite(&found.context)
            && is_finite(&found.pooled)
    }

    /// The most bytes of a value.
    fn most_bytes(&self) -> usize {
        let numbers = self.tokens.saturating_mul(self.width).saturating_add(self.pooled);
        numbers.saturating_mul(self.dtype.size_in_bytes()).saturating_add(CHECKSUM + MOST_HEADER)
    }
}

fn is_finite(tensor: &Tensor) -> bool {
    let numbers = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
    numbers.is_ok_and(|numbers| numbers.iter().all(|number| number.is_finite()))
}

impl SharedTexts {
    /// The texts of `model`: the digest of its encoders, their types, and the device.
    pub(crate) fn new(store: Arc<dyn TextStore>, model: String) -> Self {
        Self { store, model }
    }

    fn key(&self, key: &Key) -> String {
        let text = format!("{} {} {key:?}", env!("CARGO_PKG_VERSION"), self.model);
        format!("kiln:text:{}", sha256(text.as_bytes()))
    }

    /// A text that some process has encoded, in the host's memory. A value of another shape or type, or with numbers that are not
    /// finite, is left alone: the text is encoded then, and the value is replaced.
    pub(crate) fn get(&self, key: &Key, shape: TextShape) -> Option<Encoded> {
        let value = self.store.get(&self.key(key), shape.most_bytes())?;
        let found = read(&value).filter(|found| shape.fits(found));
        if found.is_none() {
            self.store.warn("the store of encoded texts has a value that does not fit; the text is encoded again");
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
    Some(Encoded { context: tensors.remove(CONTEXT)?, pooled: tensors.remove(POOLED)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], dtype: DType) -> Tensor {
        let count = shape.iter().product::<usize>() as f32;
        Tensor::arange(0f32, count, &Device::Cpu).unwrap().reshape(shape).unwrap().to_dtype(dtype).unwrap()
    }

    #[test]
    fn a_value_is_read_as_it_was_written_or_not_at_all() {
        for dtype in [DType::F32, DType::BF16] {
            let encoded = Encoded { context: tensor(&[1, 4, 3], dtype), pooled: tensor(&[1, 3], dtype) };
            let value = write(&encoded).unwrap();
            let shape = TextShape { tokens: 4, width: 3, pooled: 3, dtype };
            assert!(value.len() <= shape.most_bytes());
            let found = read(&value).filter(|found| shape.fits(found)).unwrap();
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

    #[test]
    fn a_value_with_a_right_checksum_that_does_not_fit_is_left_alone() {
        let dtype = DType::BF16;
        let shape = TextShape { tokens: 4, width: 3, pooled: 2, dtype };
        let fits = |context: Tensor, pooled: Tensor| {
            let value = write(&Encoded { context, pooled }).unwrap();
            read(&value).is_some_and(|found| shape.fits(&found))
        };
        let filled = |number: f32| Tensor::full(number, (1, 4, 3), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        assert!(fits(filled(1.0), tensor(&[1, 2], dtype)));
        for wrong in [&[1, 4, 6][..], &[1, 8, 3], &[2, 4, 3], &[4, 3], &[1, 4, 0]] {
            assert!(!fits(tensor(wrong, dtype), tensor(&[1, 2], dtype)), "{wrong:?}");
        }
        for wrong in [&[1, 3][..], &[1, 0], &[2], &[2, 2]] {
            assert!(!fits(filled(1.0), tensor(wrong, dtype)), "{wrong:?}");
        }
        for other in [DType::F16, DType::F32, DType::F64, DType::U8] {
            assert!(!fits(tensor(&[1, 4, 3], other), tensor(&[1, 2], other)), "{other:?}");
        }
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!fits(filled(number), tensor(&[1, 2], dtype)), "{number}");
        }
    }
}
