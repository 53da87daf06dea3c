//! Floor 1: models from the Hugging Face Hub, in the cache that other tools share.
//!
//! A [`Reference`] names a repository, [`Settings`] say where the Hub and the cache are, a [`Hub`] finds or fetches
//! what a model needs of it: one set of weights for each part, configurations and tokenizers. Everything that is
//! fetched is held to its checksum, what was cut goes on where it ended. Servers are strangers: names that lead out of
//! the cache, sizes that differ, redirects to other schemes are refused, and the token goes to the Hub alone.
//!
//! This crate knows no tensor and no format of a file. Its names, environment variables and folders are those of
//! Hugging Face's own tools.
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

mod api;
mod cache;
mod choose;
mod digest;
mod error;
mod event;
mod fetch;
mod files;
mod http;
mod hub;
mod official;
mod patience;
mod reference;
mod settings;
mod trickle;

pub use cache::cached_name;
pub use choose::Precision;
pub use error::{Error, Result};
pub use event::{Event, Listener};
pub use hub::{Hub, Pulled, Wants};
pub use reference::Reference;
pub use settings::{Settings, Token};
