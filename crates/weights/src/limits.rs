//! How much a checkpoint file may describe. Every limit is far above real models; it exists because what is kept of an
//! entry takes more memory than the entry's bytes in a file.

/// Tensors in a file, and notes. Stable Diffusion XL has 2,515 tensors, a large LoRA some thousand.
pub(crate) const MAX_TENSORS: usize = 1 << 16;
/// Dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 16;
/// Bytes of all tensors' names in a pickle, where one word may be part of many names. Real files have some 200 KB.
pub(crate) const MAX_NAME_BYTES: usize = 16 << 20;
/// Bytes of an index of weight files. That of a model of 10,000 tensors has about 1 MB.
pub(crate) const MAX_INDEX_BYTES: u64 = 16 << 20;
/// Files that an index may name.
pub(crate) const MAX_SHARDS: usize = 1 << 10;
