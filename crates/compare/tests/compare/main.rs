//! Metrics against other programs, pairs of folders, and whole comparisons.
#![forbid(unsafe_code)]

mod clip;
mod comparison;
mod fid;
mod images;
mod lpips;
mod metrics;
mod pairs;
