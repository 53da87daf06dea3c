//! How similar images are: pairs of images, metrics with bounds, and a sheet of differences.
//!
//! [`psnr`], [`ssim`], [`Lpips`] and [`ClipScore`] are the metrics of images, each for itself. FID is one of sets: [`Inception`] gives
//! features, [`Moments`] their [`Statistics`], and [`frechet_distance`] compares those.
//!
//! A [`Comparison`] pairs the images of two folders, by name or by their settings, or takes them as sets, and makes a [`Report`]. It
//! fails closed: a pair without its other image, images of different sizes, and a metric that cannot be computed are failures, as a
//! missed bound is.
//!
//! Metrics compare 8-bit RGB. Transparent images are put on white first.
//!
//! ```
//! use kiln_compare::{psnr, ssim};
//! use kiln_media::Rgb8Image;
//!
//! let (gray, white) = (Rgb8Image::filled(16, 16, [128; 3])?, Rgb8Image::filled(16, 16, [255; 3])?);
//! assert!((psnr(gray.data(), white.data())? - 6.05).abs() < 0.01); // dB
//! assert!(psnr(gray.data(), gray.data())?.is_infinite());
//! assert_eq!(ssim(&gray, &gray)?, 1.0);
//! # Ok::<(), kiln_compare::Error>(())
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod clip_score;
mod comparison;
mod error;
mod fid;
mod lpips;
mod pairs;
mod pool;
mod psnr;
mod report;
mod settings;
mod sheet;
mod ssim;
mod summary;

pub use bounds::{Bounds, Metric};
pub use clip_score::ClipScore;
pub use comparison::{CompareOptions, Comparison};
pub use error::{Error, Result};
pub use fid::{FidReport, Inception, Moments, Statistics, frechet_distance};
pub use lpips::Lpips;
pub use pairs::{Pair, PairBy};
pub use psnr::{MOST_IN_MEAN, psnr};
pub use report::{PairReport, Report};
pub use settings::ImageSettings;
pub use ssim::ssim;
pub use summary::Summary;
