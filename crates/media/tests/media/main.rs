//! Image files and operations on pixels.

mod files;
mod hostile;
mod operations;
mod preprocess;
mod support;
