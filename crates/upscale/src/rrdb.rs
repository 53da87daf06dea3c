//! RRDBNet: the network of ESRGAN and Real-ESRGAN.

use std::ops::ControlFlow;

use kiln_nn::ops::Slope;
use kiln_nn::strips::{Convolved, Prepare, Stored, Strips, rows_of_strip};
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::config::RrdbConfig;
use crate::dense::{Block, SLOPE};
use crate::error::Result;
use crate::image;
use crate::strip_rows::StripRows;
use crate::watch::{Listener, Watch};

/// RRDBNet.
pub struct Rrdb {
    config: RrdbConfig,
    segments: Segments,
    conv_first: SegmentModule<Conv2d>,
    blocks: Vec<SegmentModule<Block>>,
    tail: SegmentModule<Tail>,
}

/// The last convolution at the small size, and all at larger ones.
struct Tail {
    conv_body: Conv2d,
    upsamples: Vec<Conv2d>,
    conv_hr: Conv2d,
    conv_last: Conv2d,
}

impl Rrdb {
    /// Declares the network that `config` describes, with the names of BasicSR.
    pub fn new(config: &RrdbConfig) -> Self {
        let &RrdbConfig { in_channels, out_channels, features, growth, blocks, upsamples, unshuffle } = config;
        let mut segments = Segments::default();
        let channels = in_channels * unshuffle * unshuffle;
        let conv_first = segments.add("conv_first", |p| Conv2d::new(&p.pp("conv_first"), channels, features, 3));
        let block = |i| {
            let name = format!("body.{i}");
            segments.add(&name, |p| Block::new(&p.pp(&name), features, growth))
        };
        let blocks = (0..blocks).map(block).collect();
        let tail = segments.add("conv_last", |p| {
            let conv = |name: &str, out_channels| Conv2d::new(&p.pp(name), features, out_channels, 3);
            Tail {
                conv_body: conv("conv_body", features),
                upsamples: (1..=upsamples).map(|i| conv(&format!("conv_up{i}"), features)).collect(),
                conv_hr: conv("conv_hr", features),
                conv_last: conv("conv_last", out_channels),
            }
        });
        Self { config: *config, segments, conv_first, blocks, tail }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `image` `(b, in_channels, h, w)` from 0 to 1 in the slabs' dtype, to `(b, out_channels, s h, s w)` from 0 to 1, `s`
    /// being [`RrdbConfig::scale`].
    ///
    /// # Errors
    /// [`crate::Error::Input`] where the image does not fit; what a layer reports, with the layer's path.
    pub fn forward<T: TensorLike>(&self, image: &T, strips: StripRows) -> Result<T> {
        self.forward_watched(image, strips, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`Self::forward`], with a listener.
    pub(crate) fn forward_watched<T: TensorLike>(
        &self,
        image: &T,
        strips: StripRows,
        listener: &mut Listener<'_>,
    ) -> Result<T> {
        let watch = Watch::new(listener);
        image::each(image, self.config.in_channels, &watch, |image| self.one(image, strips, &watch))
    }

    /// One image.
    fn one<T: TensorLike>(&self, image: &T, strips: StripRows, watch: &Watch<'_>) -> kiln_nn::Result<T> {
        let RrdbConfig { out_channels, unshuffle, .. } = self.config;
        let [_, _, image_height, image_width] = image.size4()?;
        let mut x = image::pad_to(&image.to_channels_last()?, self.config.padded([image_height, image_width]))?;
        if unshuffle > 1 {
            x = x.pixel_unshuffle(unshuffle)?;
        }
        let [_, height, width, _] = x.size4()?;
        let rows = strips.of(height);
        let shallow = T::run(&self.conv_first, |conv| conv.forward(&x))?;
        x = shallow.copy()?;
        let parts = (self.blocks.len() + 1) as f32; // what follows the blocks takes about as long as one or two
        for (i, block) in self.blocks.iter().enumerate() {
            T::run(block, |block| block.forward_in_place(&x, rows))?;
            if watch.report((i + 1) as f32 / parts) {
                return Ok(x);
            }
        }
        let before = self.blocks.len() as f32 / parts;
        // Strips of as many pixels in the result as there are in those of the blocks.
        let squares = 1 << (2 * self.config.upsamples);
        let rows = match strips {
            StripRows::Whole => rows,
            StripRows::Rows(_) => rows_of_strip(rows * width / squares, width),
        };
        let size = [out_channels, self.config.scale() * image_height, self.config.scale() * image_width];
        T::run(&self.tail, |tail| {
            let body = Convolved::new(Stored::new(&x, rows), Prepare::Keep, &tail.conv_body);
            let mut strips: Box<dyn Strips<T> + '_> = Box::new(body.plus(|rows| shallow.rows(rows)));
            for conv in &tail.upsamples {
                let wide = Convolved::new(strips, Prepare::Upsample, conv);
                strips = Box::new(wide.activated(Slope::Constant(SLOPE)));
            }
            let hr = Convolved::new(strips, Prepare::Keep, &tail.conv_hr).activated(Slope::Constant(SLOPE));
            image::collect(Convolved::new(hr, Prepare::Keep, &tail.conv_last), size, image, (watch, before))
        })
    }
}
