//! The network whose features FID compares: Inception V3 as TensorFlow had it in 2015, in the port that pytorch-fid and torch-fidelity
//! share (`pt_inception-2015-12-05`).

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_nn::TensorLike;
use kiln_weights::{
    KeyRule, ParamBuilder, ParamSource, Placement, Renamed, SafetensorsFile, SegmentModule, Segments, load,
};

use super::blocks::{Block, Kernel};
use super::folded::Folded;
use super::input::{SIDE, input};
use crate::error::{Error, Result};
use crate::pool::{Pool, Reduce};

/// The first convolution's weights, and the last layer's, which is not used but by which networks differ.
const FIRST: (&str, [usize; 4]) = ("Conv2d_1a_3x3.conv.weight", [32, 3, 3, 3]);
const CLASSES: (&str, usize) = ("fc.weight", 1000);

/// The names of `pytorch_fid.inception.InceptionV3`, and those of torchmetrics. Torchvision's are canonical.
const NAMES: &[KeyRule] = &[
    KeyRule { canonical: "Conv2d_1a_3x3.", alternative: "blocks.0.0." },
    KeyRule { canonical: "Conv2d_2a_3x3.", alternative: "blocks.0.1." },
    KeyRule { canonical: "Conv2d_2b_3x3.", alternative: "blocks.0.2." },
    KeyRule { canonical: "Conv2d_3b_1x1.", alternative: "blocks.1.0." },
    KeyRule { canonical: "Conv2d_4a_3x3.", alternative: "blocks.1.1." },
    KeyRule { canonical: "Mixed_5b.", alternative: "blocks.2.0." },
    KeyRule { canonical: "Mixed_5c.", alternative: "blocks.2.1." },
    KeyRule { canonical: "Mixed_5d.", alternative: "blocks.2.2." },
    KeyRule { canonical: "Mixed_6a.", alternative: "blocks.2.3." },
    KeyRule { canonical: "Mixed_6b.", alternative: "blocks.2.4." },
    KeyRule { canonical: "Mixed_6c.", alternative: "blocks.2.5." },
    KeyRule { canonical: "Mixed_6d.", alternative: "blocks.2.6." },
    KeyRule { canonical: "Mixed_6e.", alternative: "blocks.2.7." },
    KeyRule { canonical: "Mixed_7a.", alternative: "blocks.3.0." },
    KeyRule { canonical: "Mixed_7b.", alternative: "blocks.3.1." },
    KeyRule { canonical: "Mixed_7c.", alternative: "blocks.3.2." },
    KeyRule { canonical: "", alternative: "inception." },
];

/// The network up to its features.
pub struct Inception {
    blocks: Vec<SegmentModule<Block>>,
}

impl Inception {
    /// The number of features.
    pub const FEATURES: usize = 2048;

    /// Opens a safetensors file with the state dict of pytorch-fid's `fid_inception_v3()` or `InceptionV3()`, of torch-fidelity's
    /// extractor, or of torchmetrics' metric.
    ///
    /// # Errors
    /// [`Error::Network`] for a file with another network, [`Error::Weights`] for a damaged one and one that lacks a tensor.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_file() {
            let looked_for = "`fid`, a safetensors file with the Inception network of FID".into();
            return Err(kiln_files::Error::NotFound { path: path.to_path_buf(), looked_for }.into());
        }
        let source = Folded(Renamed::new(SafetensorsFile::open(path)?, NAMES));
        check(path, &source)?;
        let mut segments = Segments::default();
        let blocks = declare(&mut segments);
        load(&segments, &source, &Placement::new(Device::Cpu, DType::F32))?;
        Ok(Self { blocks })
    }

    /// The features of each image, which are resized to 299 by 299 pixels.
    ///
    /// # Errors
    /// [`Error::Nn`].
    pub fn features(&self, images: &[Rgb8Image]) -> Result<Vec<Vec<f32>>> {
        self.of_inputs(images.iter().map(input).collect())
    }

    /// The features of images that [`input`] has prepared.
    pub(super) fn of_inputs(&self, inputs: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        let shape = (inputs.len(), SIDE, SIDE, 3);
        let mut x = Tensor::from_vec(inputs.concat(), shape, &Device::Cpu)?;
        drop(inputs);
        for block in &self.blocks {
            x = Tensor::run(block, |block| block.forward(&x))?;
        }
        let (b, h, w, c) = x.dims4()?;
        let values: Vec<f32> = x.flatten_all()?.to_vec1()?;
        let mean = |image: &[f32]| {
            let mut sums = vec![0.0f64; c];
            image
                .chunks(c)
                .for_each(|pixel| sums.iter_mut().zip(pixel).for_each(|(sum, &value)| *sum += f64::from(value)));
            sums.into_iter().map(|sum| (sum / (h * w) as f64) as f32).collect()
        };
        Ok(values.chunks(values.len() / b.max(1)).map(mean).collect())
    }
}

/// Declares the layers under torchvision's names.
fn declare(segments: &mut Segments) -> Vec<SegmentModule<Block>> {
    use Kernel::{Inside, Same};
    let mut all = Vec::new();
    let mut add =
        |name: &str, block: &dyn Fn(&ParamBuilder<'_>) -> Block| all.push(segments.add(name.to_string(), block));
    add("Conv2d_1a_3x3", &|p| Block::conv(p, "Conv2d_1a_3x3", 3, 32, Inside(3, 2)));
    add("Conv2d_2a_3x3", &|p| Block::conv(p, "Conv2d_2a_3x3", 32, 32, Inside(3, 1)));
    add("Conv2d_2b_3x3", &|p| Block::conv(p, "Conv2d_2b_3x3", 32, 64, Same(3, 3)));
    add("pool_1", &|_| Block::pool(Pool::max(3, 2)));
    add("Conv2d_3b_1x1", &|p| Block::conv(p, "Conv2d_3b_1x1", 64, 80, Same(1, 1)));
    add("Conv2d_4a_3x3", &|p| Block::conv(p, "Conv2d_4a_3x3", 80, 192, Inside(3, 1)));
    add("pool_2", &|_| Block::pool(Pool::max(3, 2)));
    for (name, inputs, pooled) in [("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)] {
        add(name, &|p| Block::a(&p.pp(name), inputs, pooled));
    }
    add("Mixed_6a", &|p| Block::b(&p.pp("Mixed_6a")));
    for (name, inner) in [("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)] {
        add(name, &|p| Block::c(&p.pp(name), inner));
    }
    add("Mixed_7a", &|p| Block::d(&p.pp("Mixed_7a")));
    add("Mixed_7b", &|p| Block::e(&p.pp("Mixed_7b"), 1280, Reduce::Mean));
    add("Mixed_7c", &|p| Block::e(&p.pp("Mixed_7c"), Inception::FEATURES, Reduce::Max));
    all
}

/// Refuses other networks. Torchvision's own one has the same layers with other weights, and other distances.
fn check(path: &Path, source: &impl ParamSource) -> Result<()> {
    let shape = |key: &str| source.info(key).map(|info| info.shape);
    let first = shape(FIRST.0);
    let found = match &first {
        Some(shape) if *shape != FIRST.1 => format!("`{}` has the shape {shape:?}", FIRST.0),
        None => format!("there is no tensor `{}`", FIRST.0),
        _ if shape(CLASSES.0).is_some_and(|shape| shape.first() == Some(&CLASSES.1)) => {
            format!("`{}` has {} classes, which is torchvision's own Inception", CLASSES.0, CLASSES.1)
        }
        _ => return Ok(()),
    };
    let problem = format!("{found}, expected the state dict of pytorch-fid's fid_inception_v3()");
    Err(Error::Network { path: PathBuf::from(path), problem })
}
