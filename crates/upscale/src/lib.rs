//! Super-resolution networks.
//!
//! [`Upscaler`] is a network that enlarges images: an [`Rrdb`] (ESRGAN and Real-ESRGAN) or a [`Compact`]
//! (SRVGGNetCompact). What a checkpoint holds follows from the names and shapes of its tensors. Images are `(b, c, h, w)`
//! from 0 to 1; inside everything is channels-last.
//!
//! The networks compute strips of rows: each layer gets the rows that it reads from the layer before and keeps the few
//! that its next strip needs. So few maps are ever whole, an image has no seams, and on the CPU it has the same bits with
//! strips of any size.
//!
//! This crate knows no image files and no resizing to other scales than the network's.
//!
//! The kind of a file and its sizes follow from the names and shapes of its tensors (`recognize.rs`); a file with a
//! tensor more or less than the network is refused. RRDBNet's layers see 350 pixels in each direction, so tiles with
//! the bits of the whole image would mostly be overlap. The network computes strips instead (`nn::strips`): a layer
//! gets rows from the layer before as they are computed, and keeps those that its next strip reads.
//!
//! - A block of RRDBNet is a segment. Its three dense blocks are one `Cascade`: 15 convolutions, each one or two rows
//!   behind the one before. The result overwrites the block's input, so the body holds two maps, the block's and the
//!   first convolution's.
//! - Everything after the blocks is one chain of strips to the rows of the image. No map at a larger size is ever
//!   whole.
//! - Strips are also faster: the maps of a strip stay in the cache. `StripRows::fastest` selects their size.
//!
//! `ops::fused_conv2d` reads several maps as if they were concatenated, and scales, adds and activates its sums before
//! they are rounded. CPUs have a kernel; GPUs run the composition of the operators.
//!
//! TAESD's encoder is a chain of strips too, and one segment for that reason.
//!
//! ```
//! use candle_core::DType;
//! use kiln_upscale::{Rrdb, RrdbConfig};
//!
//! let config = RrdbConfig { in_channels: 3, out_channels: 3, features: 64, growth: 32, blocks: 23, upsamples: 2, unshuffle: 1 };
//! assert_eq!(config.scale(), 4);
//! assert_eq!(Rrdb::new(&config).segments().parameters(), 16_697_987);
//! ```
#![forbid(unsafe_code)]

mod compact;
mod config;
mod dense;
mod error;
mod image;
mod names;
mod recognize;
mod rrdb;
mod strip_rows;
mod upscaler;
mod watch;

pub use compact::Compact;
pub use config::{CompactActivation, CompactConfig, NetworkConfig, RrdbConfig};
pub use error::{Error, Result};
pub use kiln_nn::ops::Target;
pub use rrdb::Rrdb;
pub use strip_rows::StripRows;
pub use upscaler::Upscaler;
pub use watch::Listener;
