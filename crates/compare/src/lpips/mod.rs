//! LPIPS: the perceptual distance of Zhang et al., "The unreasonable effectiveness of deep features as a perceptual metric", 2018,
//! version 0.1 of its networks.
//!
//! The features of both images after five stages of a network are compared. At each place the features are scaled to the length 1,
//! and the squares of their differences are weighted by a linear head. The mean over the places, summed over the stages, is the
//! distance: 0 for equal images.

mod backbone;

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use kiln_files::ByteSize;
use kiln_media::Rgb8Image;
use kiln_mempool::SystemMemory;
use kiln_nn::TensorLike;
use kiln_weights::{
    KeyRule, Packing, Param, ParamSource, Placement, Renamed, SafetensorsFile, SegmentModule, Segments, load,
};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::ssim::check_sizes;
use backbone::{Backbone, STAGES, Stage};

/// The mean and the standard deviation of the training images' colors, red first, for values from -1 to 1.
const SHIFT: [f32; 3] = [-0.030, -0.088, -0.188];
const SCALE: [f32; 3] = [0.458, 0.448, 0.450];
/// Keeps the features of places without any from a division by 0.
const EPSILON: f64 = 1e-10;
/// The names of `lpips`, and those of torchvision's network with heads next to it.
const NAMES: &[KeyRule] = &[
    KeyRule { canonical: "net.slice1.", alternative: "features." },
    KeyRule { canonical: "net.slice2.", alternative: "features." },
    KeyRule { canonical: "net.slice3.", alternative: "features." },
    KeyRule { canonical: "net.slice4.", alternative: "features." },
    KeyRule { canonical: "net.slice5.", alternative: "features." },
];

/// A network with its linear heads.
pub struct Lpips {
    backbone: Backbone,
    stages: Vec<SegmentModule<Stage>>,
    heads: Vec<Vec<f32>>,
}

impl Lpips {
    /// Opens a safetensors file with the state dict of PyPI's `lpips.LPIPS(net="alex")` or `net="vgg"`; the network's tensors may
    /// have the names that torchvision gives them (`features.0.weight`).
    ///
    /// # Errors
    /// [`Error::Network`] for a file with another network, [`Error::Weights`] for a damaged one and one that lacks a tensor.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_file() {
            let looked_for = "`lpips`, a safetensors file with the networks of LPIPS".into();
            return Err(kiln_files::Error::NotFound { path: path.to_path_buf(), looked_for }.into());
        }
        let source = Renamed::new(SafetensorsFile::open(path)?, NAMES);
        let first = source.info("net.slice1.0.weight").map(|info| info.shape);
        let backbone = Backbone::of(first.as_deref()).ok_or_else(|| no_lpips(path, first.as_deref()))?;
        let mut segments = Segments::default();
        let stages = (0..STAGES)
            .map(|i| segments.add(format!("slice{}", i + 1), |p| Stage::new(&p.pp("net"), backbone, i)))
            .collect();
        let heads = segments.add("heads", |p| {
            let head = |(i, &channels): (usize, &usize)| {
                p.pp(format!("lin{i}")).pp("model.1").param("weight", &[1, channels, 1, 1], Packing::AsStored)
            };
            backbone.channels().iter().enumerate().map(head).collect::<Vec<Param>>()
        });
        load(&segments, &source, &Placement::new(Device::Cpu, candle_core::DType::F32))?;
        let heads =
            heads.enter()?.iter().map(|head| Ok(head.tensor()?.flatten_all()?.to_vec1()?)).collect::<Result<_>>()?;
        Ok(Self { backbone, stages, heads })
    }

    /// The name of the network.
    pub fn network(&self) -> &'static str {
        self.backbone.name()
    }

    /// The distance of two images.
    ///
    /// # Errors
    /// [`Error::Sizes`] for different sizes, [`Error::TooSmall`], [`Error::Memory`] before anything is computed.
    pub fn distance(&self, a: &Rgb8Image, b: &Rgb8Image) -> Result<f64> {
        check_sizes(a, b)?;
        let (width, height) = a.size();
        let least = self.backbone.least_side();
        if width.min(height) < least {
            return Err(Error::TooSmall { metric: "LPIPS", least, width, height });
        }
        let needed = ByteSize(self.backbone.bytes_per_pixel().saturating_mul(width * height));
        if let Some(memory) = SystemMemory::now().filter(|memory| memory.available < needed.0 as u64) {
            let what = format!("LPIPS of images of {width}x{height}");
            return Err(Error::Memory { what, needed, available: ByteSize(memory.available as usize) });
        }
        let [mut a, mut b] = [input(a)?, input(b)?];
        let mut distance = 0.0;
        for (stage, head) in self.stages.iter().zip(&self.heads) {
            a = Tensor::run(stage, |stage| stage.forward(&a))?;
            b = Tensor::run(stage, |stage| stage.forward(&b))?;
            distance += difference(&a, &b, head)?;
        }
        if distance.is_finite() { Ok(distance) } else { Err(Error::NotANumber("LPIPS")) }
    }
}

/// The error for a file with other tensors.
fn no_lpips(path: &Path, first: Option<&[usize]>) -> Error {
    let found = match first {
        Some(shape) => format!("`net.slice1.0.weight` has the shape {shape:?}"),
        None => "there is no tensor `net.slice1.0.weight`".into(),
    };
    let problem = format!("{found}, expected the state dict of lpips.LPIPS with net=\"alex\" or net=\"vgg\"");
    Error::Network { path: PathBuf::from(path), problem }
}

/// An image as the networks take it, `(1, h, w, 3)`.
fn input(image: &Rgb8Image) -> Result<Tensor> {
    let (width, height) = image.size();
    let value = |(i, &value): (usize, &u8)| ((f32::from(value) / 127.5 - 1.0) - SHIFT[i % 3]) / SCALE[i % 3];
    let values: Vec<f32> = image.data().iter().enumerate().map(value).collect();
    Ok(Tensor::from_vec(values, (1, height, width, 3), &Device::Cpu)?)
}

/// The mean over all places of the weighted squares of differences, for features `(1, h, w, c)`.
fn difference(a: &Tensor, b: &Tensor, head: &[f32]) -> Result<f64> {
    let [a, b] = [a, b].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
    let (a, b, channels) = (a?, b?, head.len());
    let length = |x: &[f32]| x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt() + EPSILON;
    let place = |(a, b): (&[f32], &[f32])| {
        let (of_a, of_b) = (length(a), length(b));
        let square = |(&a, &b): (&f32, &f32)| (f64::from(a) / of_a - f64::from(b) / of_b).powi(2);
        a.iter().zip(b).map(square).zip(head).map(|(square, &weight)| square * f64::from(weight)).sum::<f64>()
    };
    let places: Vec<f64> = a.par_chunks(channels).zip(b.par_chunks(channels)).map(place).collect();
    Ok(places.iter().sum::<f64>() / places.len().max(1) as f64)
}
