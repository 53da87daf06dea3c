//! Models from the Hugging Face Hub, in the cache that other tools share.
//!
//! A [`Reference`] names a repository, [`Settings`] have the addresses of the Hub and the cache, and a [`Hub`] finds or downloads
//! the files that a model needs: one set of weights for each component, configurations and tokenizers. Every downloaded file is
//! checked against its checksum, and interrupted downloads are resumed. Servers are not trusted: names that lead out of the
//! cache, sizes that differ and redirects to other schemes are refused, and the token is sent to the Hub only.
//!
//! With the feature `xet`, files in the Hub's Xet storage come from there in parallel chunks.
//!
//! This crate knows no tensors and no file formats. Names, environment variables and folders are those of Hugging Face's own
//! tools.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use kiln_hub::{Hub, Reference, Settings, Wants};
//!
//! let hub = Hub::new(Settings::from_env(false)?)?;
//! let reference: Reference = "stabilityai/stable-diffusion-xl-base-1.0".parse()?;
//! let model = hub.pull(&reference, &Wants::default(), &mut |_| ControlFlow::Continue(()))?;
//! println!("{}", model.path.display());
//! # Ok::<(), kiln_hub::Error>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod api;
mod cache;
mod choose;
mod digest;
mod download;
mod error;
mod event;
mod files;
mod http;
mod hub;
mod min_speed;
mod official;
mod reference;
mod retry;
mod settings;
#[cfg_attr(not(feature = "xet"), path = "no_xet.rs")]
mod xet;

pub use cache::{CachedRepository, cached_name, cached_repositories};
pub use choose::{Folder, Folders, Precision};
pub use error::{Error, Result};
pub use event::{Event, Listener};
pub use hub::{Hub, Pulled, Wants};
pub use reference::Reference;
pub use settings::{Settings, Token};
