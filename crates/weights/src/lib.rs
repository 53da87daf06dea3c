//! Checkpoint files, key rules, and the slabs that store a network's parameters.
//!
//! A network is a list of [`Segment`]s in the order in which they run. It is built from its configuration alone.
//! Building *declares* the parameters ([`ParamBuilder`]) and their exact sizes; [`load`] fills the segments from a
//! [`ParamSource`]. So the sizes of a network are known before a byte is read, and the network's code does not depend
//! on the location of a segment's slab.
//!
//! This crate knows no network and no operator's arithmetic, only the memory layouts of weights that operators need.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kiln_weights::{MapSource, Packing, Placement, Segments, load};
//!
//! let mut segments = Segments::default();
//! let block = segments.add("block", |p| p.pp("proj").param("weight", &[2, 3], Packing::AsStored));
//! assert_eq!(segments.bytes(DType::F32), 256); // 24 bytes, aligned
//!
//! let weight = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
//! let source = MapSource::from_iter([("proj.weight".to_string(), weight)]);
//! load(&segments, &source, &Placement::new(Device::Cpu, DType::F32))?;
//! assert_eq!(block.enter()?.tensor()?.to_vec2::<f32>()?, [[1., 2., 3.], [4., 5., 6.]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)] // allowed in mmap.rs only

mod eight_bits;
mod element;
mod error;
mod folder;
mod formats;
mod header;
mod kept;
mod keys;
pub mod ldm;
mod limits;
mod load;
mod lora;
mod low_rank;
mod mmap;
mod observe;
mod param_spec;
mod random;
mod replica;
mod rows;
mod safetensors_file;
mod segment;
mod shared;
mod slab_cache;
mod slab_layout;
mod source;
mod stored_type;
mod stream;
mod sum;
mod table;
mod textual_inversion;
mod upload;

pub use eight_bits::EightBitLayers;
pub use error::{Error, Result};
pub use folder::{component_files, open_component};
pub use formats::{
    Checkpoint, FileFormat, GgufFile, NewTensor, TorchFile, encode, gguf_has, write_gguf, write_safetensors,
};
pub use keys::{KeyRule, Renamed};
pub use kiln_files::{MAX_CONFIG_BYTES, open_regular, read_small, read_small_text};
pub use kiln_ops::{BlockType, ByteNumber, EightBits, InputObserver, Int8Input, MatrixType, Packing, Rotation, Weight};
pub use load::{LoadReport, Placement, load, load_open, mismatches};
pub use lora::{
    Lora, Network, NetworkKind, OriginalNames, Patch, Patched, Targets, Unused, UnusedReason, flux_names, flux2_names,
    qwen_image_names, sd3_names, unet_names, z_image_names,
};
pub use low_rank::LowRank;
pub use param_spec::{ParamSpec, SlabType, StoredRows};
pub use random::RandomSource;
pub use replica::replicate;
pub use safetensors_file::SafetensorsFile;
pub use segment::{Active, Param, ParamBuilder, Segment, SegmentModule, Segments, StackedParam};
pub use shared::SharedSlabs;
pub use slab_cache::SlabCache;
pub use source::{MapSource, ParamData, ParamInfo, ParamSource};
pub use stored_type::StoredType;
pub use stream::{
    CopyTimes, Estimate, Residency, SegmentTimes, SimulatedStep, Stream, StreamConfig, StreamReport, simulate,
};
pub use sum::Sum;
pub use textual_inversion::TextualInversion;
