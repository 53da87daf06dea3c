//! Limits of a checkpoint file's contents. Every limit is far above real models. They exist because an entry takes more
//! memory than its bytes in a file.

/// Tensors in a file, and metadata entries. Stable Diffusion XL has 2,515 tensors, a large LoRA a few thousand.
pub(crate) const MAX_TENSORS: usize = 1 << 16;
/// Dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 16;
/// Bytes of all tensors' names in a pickle, where one string may be part of many names. Real files have about 200 KB.
pub(crate) const MAX_NAME_BYTES: usize = 16 << 20;
/// Bytes of an index of weight files. The index of a model with 10,000 tensors has about 1 MB.
pub(crate) const MAX_INDEX_BYTES: u64 = 16 << 20;
/// Files in an index.
pub(crate) const MAX_SHARDS: usize = 1 << 10;
