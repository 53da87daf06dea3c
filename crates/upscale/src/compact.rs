//! SRVGGNetCompact: the network of Real-ESRGAN's small models.

use std::ops::ControlFlow;

use kiln_nn::ops::Slope;
use kiln_nn::strips::{Convolved, Prepare, Stored, Strips, size};
use kiln_nn::{Conv2d, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder, SegmentModule, Segments};

use crate::config::{CompactActivation, CompactConfig};
use crate::error::Result;
use crate::image;
use crate::strip_rows::StripRows;
use crate::watch::{Listener, Watch};

/// The slope of LeakyReLU upstream.
const LEAKY_SLOPE: f32 = 0.1;

/// SRVGGNetCompact. It is one segment: upstream's largest model has 1.2 million parameters.
pub struct Compact {
    config: CompactConfig,
    segments: Segments,
    body: SegmentModule<Body>,
}

struct Body {
    /// All convolutions but the last, and the slopes of PReLU.
    convs: Vec<(Conv2d, Option<Param>)>,
    last: Conv2d,
}

impl Compact {
    /// Declares the network that `config` describes, with upstream's names.
    pub fn new(config: &CompactConfig) -> Self {
        let mut segments = Segments::default();
        let body = segments.add("body", |p| Body::new(&p.pp("body"), config));
        Self { config: *config, segments, body }
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// `image` `(b, c, h, w)` from 0 to 1 in the slabs' dtype, to `(b, c, s h, s w)` from 0 to 1, `s` being the scale.
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
        image::each(image, self.config.channels, &watch, |image| self.one(image, strips, &watch))
    }

    /// One image.
    fn one<T: TensorLike>(&self, image: &T, strips: StripRows, watch: &Watch<'_>) -> kiln_nn::Result<T> {
        let CompactConfig { channels, scale, activation, .. } = self.config;
        let [_, _, height, width] = image.size4()?;
        let x = image.to_channels_last()?;
        T::run(&self.body, |body| {
            let slopes = body.convs.iter().map(|(_, slopes)| x.optional_param(slopes.as_ref()));
            let slopes = slopes.collect::<kiln_nn::Result<Vec<_>>>()?;
            let mut hidden: Box<dyn Strips<T> + '_> = Box::new(Stored::new(&x, strips.of(height)));
            for ((conv, _), slopes) in body.convs.iter().zip(&slopes) {
                let slope = match (slopes, activation) {
                    (Some(slopes), _) => Slope::Channels(slopes),
                    (None, CompactActivation::LeakyRelu) => Slope::Constant(LEAKY_SLOPE),
                    (None, _) => Slope::Constant(0.0),
                };
                hidden = Box::new(Convolved::new(hidden, Prepare::Keep, conv).activated(slope));
            }
            let source = Convolved::new(hidden, Prepare::Keep, &body.last);
            image::collect(
                Shuffled { source, image: &x, scale, done: 0 },
                [channels, scale * height, scale * width],
                image,
                (watch, 0.0),
            )
        })
    }
}

impl Body {
    fn new(p: &ParamBuilder<'_>, config: &CompactConfig) -> Self {
        let &CompactConfig { channels, features, convolutions, scale, activation } = config;
        let conv = |i: usize| {
            let conv = Conv2d::new(&p.pp(2 * i), if i == 0 { channels } else { features }, features, 3);
            let has_slopes = activation == CompactActivation::PRelu;
            (conv, has_slopes.then(|| p.pp(2 * i + 1).param("weight", &[features], Packing::AsStored)))
        };
        let convs = (0..=convolutions).map(conv).collect();
        let last = Conv2d::new(&p.pp(2 * convolutions + 2), features, channels * scale * scale, 3);
        Self { convs, last }
    }
}

/// Strips of channels as pixels, with the enlarged image added.
struct Shuffled<'a, S, T> {
    source: S,
    image: &'a T,
    scale: usize,
    /// Rows of the source that were given.
    done: usize,
}

impl<T: TensorLike, S: Strips<T>> Strips<T> for Shuffled<'_, S, T> {
    fn shape(&self) -> [usize; 3] {
        let [h, w, c] = self.source.shape();
        [h * self.scale, w * self.scale, c / (self.scale * self.scale)]
    }

    fn next(&mut self) -> kiln_nn::Result<Option<T>> {
        let Some(strip) = self.source.next()? else { return Ok(None) };
        let [rows, width, _] = size(&strip);
        let base = self.image.rows(self.done..self.done + rows)?;
        let base = base.upsample_nearest((rows * self.scale, width * self.scale), None)?;
        self.done += rows;
        Ok(Some(strip.pixel_shuffle(self.scale)?.add(&base)?))
    }

    fn new_empty(&self, shape: [usize; 3]) -> kiln_nn::Result<T> {
        self.source.new_empty(shape)
    }
}
