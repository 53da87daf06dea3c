//! Downloads from a server that behaves like the Hub, and from one that does not. No test leaves this machine.

mod access;
mod cache;
mod hostile;
mod models;
mod resume;
mod world;
#[cfg(feature = "xet")]
mod xet;
