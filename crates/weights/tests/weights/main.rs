//! Weight files: formats, names, streaming, and files that are damaged.

mod formats;
mod keymaps;
mod loading;
mod malformed;
mod streaming;
mod transformers;
