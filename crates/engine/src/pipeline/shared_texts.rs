//! Encoded texts that processes share through a store.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_files::sha256;
use kiln_network::text::{LENGTH, PromptText, TextTensors};
use safetensors::SafeTensors;
use safetensors::tensor::serialize;

use crate::error::Result;
use crate::pipeline::text_stage::on_device;

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
    /// All that decides on the bits but a text and its options.
    model: String,
}

/// The version of the format, in the metadata of a value. Values without it have the first version.
const VERSION: (&str, &str) = ("version", "1");
/// Digits of the checksum before a value.
const CHECKSUM: usize = 64;
/// The most bytes of a value besides those of its tensors: the checksum and the header of a safetensors file.
const MOST_HEADER: usize = 1024;

/// The tensors that the text encoders of a model make of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextShape {
    /// Their names and shapes.
    pub(crate) tensors: Vec<(&'static str, Vec<usize>)>,
    pub(crate) dtype: DType,
}

impl TextShape {
    /// The text of a value; `None` if a tensor is missing, has another shape or type, or numbers that are not finite.
    fn take(&self, mut found: HashMap<String, Tensor>) -> Option<TextTensors> {
        let mut text = TextTensors::default();
        for (name, shape) in &self.tensors {
            let tensor = found.remove(*name)?;
            let dtype = if *name == LENGTH { DType::F32 } else { self.dtype };
            let fits = tensor.dims() == shape
                && tensor.dtype() == dtype
                && kiln_ops::count_not_finite(&tensor).is_ok_and(|count| count == 0);
            text = text.with(name, fits.then_some(tensor)?);
        }
        Some(text)
    }

    /// The most bytes of a value.
    fn most_bytes(&self) -> usize {
        let elements = |(_, shape): &(_, Vec<usize>)| shape.iter().fold(1usize, |all, &dim| all.saturating_mul(dim));
        let numbers = self.tensors.iter().map(elements).fold(0usize, usize::saturating_add);
        numbers.saturating_mul(self.dtype.size_in_bytes()).saturating_add(CHECKSUM + MOST_HEADER)
    }
}

impl SharedTexts {
    /// The texts of `model`: the digest of its encoders, their types, and the device.
    pub(crate) fn new(store: Arc<dyn TextStore>, model: String) -> Self {
        Self { store, model }
    }

    fn key(&self, PromptText { text, options, images }: &PromptText) -> String {
        let images: String = images.iter().map(|image| format!(" {}", image.digest())).collect();
        let text = format!("{} {} {text:?} {options:?}{images}", env!("CARGO_PKG_VERSION"), self.model);
        format!("kiln:text:{}", sha256(text.as_bytes()))
    }

    /// A text that some process has encoded, in the host's memory. A value of another shape or type, or with numbers that are not
    /// finite, is left alone: the text is encoded then, and the value is replaced.
    pub(crate) fn get(&self, key: &PromptText, shape: &TextShape) -> Option<TextTensors> {
        let value = self.store.get(&self.key(key), shape.most_bytes())?;
        let found = read(&value).and_then(|found| shape.take(found));
        if found.is_none() {
            self.store.warn("the store of encoded texts has a value that does not fit; the text is encoded again");
        }
        found
    }

    /// Gives others a text.
    pub(crate) fn put(&self, key: &PromptText, encoded: &TextTensors) {
        match write(encoded) {
            Ok(value) => self.store.put(&self.key(key), &value),
            Err(error) => tracing::warn!("an encoded text is not shared: {error}"),
        }
    }
}

/// A checksum in hexadecimal digits, then the tensors as a safetensors file.
fn write(encoded: &TextTensors) -> Result<Vec<u8>> {
    let encoded = on_device(encoded, &Device::Cpu)?.map(Tensor::contiguous)?;
    let version = HashMap::from([(VERSION.0.to_string(), VERSION.1.to_string())]);
    let bytes = serialize(encoded.iter(), Some(version)).map_err(candle_core::Error::wrap)?;
    Ok([sha256(&bytes).as_bytes(), &bytes].concat())
}

/// The tensors of a value by name; `None` for a value that is damaged or has a later version.
fn read(value: &[u8]) -> Option<HashMap<String, Tensor>> {
    let (checksum, bytes) = value.split_at_checked(CHECKSUM)?;
    if sha256(bytes).as_bytes() != checksum {
        return None;
    }
    let (_, header) = SafeTensors::read_metadata(bytes).ok()?;
    let version = header.metadata().as_ref().and_then(|metadata| metadata.get(VERSION.0));
    if version.is_some_and(|version| version != VERSION.1) {
        return None;
    }
    candle_core::safetensors::load_buffer(bytes, &Device::Cpu).ok()
}

#[cfg(test)]
mod tests {
    use kiln_network::text::{CONTEXT, POOLED};

    use super::*;

    fn tensor(shape: &[usize], dtype: DType) -> Tensor {
        let count = shape.iter().product::<usize>() as f32;
        Tensor::arange(0f32, count, &Device::Cpu).unwrap().reshape(shape).unwrap().to_dtype(dtype).unwrap()
    }

    fn text(context: Tensor, pooled: Tensor) -> TextTensors {
        TextTensors::default().with(CONTEXT, context).with(POOLED, pooled)
    }

    fn shape(dtype: DType, pooled: usize) -> TextShape {
        TextShape { tensors: vec![(CONTEXT, vec![1, 4, 3]), (POOLED, vec![1, pooled])], dtype }
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    }

    #[test]
    fn a_value_is_read_as_it_was_written_or_not_at_all() {
        for dtype in [DType::F32, DType::BF16] {
            let encoded = text(tensor(&[1, 4, 3], dtype), tensor(&[1, 3], dtype));
            let (value, shape) = (write(&encoded).unwrap(), shape(dtype, 3));
            assert!(value.len() <= shape.most_bytes());
            let found = read(&value).and_then(|found| shape.take(found)).unwrap();
            for (name, tensor) in encoded.iter() {
                let found = found.get(name).unwrap();
                assert_eq!((found.dtype(), numbers(found)), (dtype, numbers(tensor)));
            }
            let mut broken = value.clone();
            *broken.last_mut().unwrap() ^= 1;
            for wrong in [&broken[..], &value[..value.len() - 1], &value[..CHECKSUM], b"", b"kiln"] {
                assert!(read(wrong).is_none());
            }
        }
    }

    /// Earlier releases wrote no version.
    #[test]
    fn values_of_earlier_versions_are_read_and_those_of_later_ones_are_not() {
        let (context, pooled) = (tensor(&[1, 4, 3], DType::F32), tensor(&[1, 2], DType::F32));
        let value = |version: Option<&str>| {
            let metadata = version.map(|version| HashMap::from([("version".to_string(), version.to_string())]));
            let tensors = [(CONTEXT, context.clone()), (POOLED, pooled.clone())];
            let bytes = serialize(tensors, metadata).unwrap();
            [sha256(&bytes).as_bytes(), &bytes].concat()
        };
        for version in [None, Some("1")] {
            let found = read(&value(version)).and_then(|found| shape(DType::F32, 2).take(found)).unwrap();
            assert_eq!(numbers(found.get(CONTEXT).unwrap()), numbers(&context), "{version:?}");
        }
        assert_eq!(value(Some("1")), write(&text(context.clone(), pooled.clone())).unwrap());
        assert!(read(&value(Some("2"))).is_none());
    }

    #[test]
    fn a_value_with_a_right_checksum_that_does_not_fit_is_left_alone() {
        let dtype = DType::BF16;
        let fits = |context: Tensor, pooled: Tensor| {
            let value = write(&text(context, pooled)).unwrap();
            read(&value).and_then(|found| shape(dtype, 2).take(found)).is_some()
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
