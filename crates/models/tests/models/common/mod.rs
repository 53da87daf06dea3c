//! Files of models with random weights.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kiln_weights::{NewTensor, ParamSource, RandomSource, Segments, write_safetensors};

/// A safetensors file with random weights of these networks.
pub fn weights(networks: &[&Segments], seed: u64) -> Vec<u8> {
    let sources: Vec<RandomSource> = networks.iter().map(|segments| RandomSource::new(segments, seed)).collect();
    let mut tensors = Vec::new();
    for (segments, source) in networks.iter().zip(&sources) {
        for param in segments.iter().flat_map(|segment| segment.params()) {
            let info = source.info(&param.key).unwrap();
            let key = param.key.clone();
            let bytes = move || Ok(Cow::Owned(source.data(&key)?.unwrap().bytes.into_owned()));
            let (name, bytes) = (param.key.clone(), Box::new(bytes));
            tensors.push(NewTensor { name, shape: info.shape, dtype: info.dtype, bytes });
        }
    }
    let mut file = Vec::new();
    write_safetensors(&mut file, tensors, &BTreeMap::new()).unwrap();
    file
}

/// The elements of all tensors of a safetensors file.
pub fn data(file: &[u8]) -> Vec<u8> {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].to_vec()
}
