//! An upscaler of whatever kind a file holds.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, TensorLike};
use kiln_weights::{Checkpoint, LoadReport, MapSource, ParamSource, Placement, Segments, StoredType, load};

use crate::compact::Compact;
use crate::config::{CompactActivation, NetworkConfig};
use crate::error::Result;
use crate::names::Renamed;
use crate::recognize::{check, recognize};
use crate::rrdb::Rrdb;
use crate::strip_rows::StripRows;
use crate::watch::Listener;

/// A network that enlarges images, and the file that has its weights.
///
/// Opening one reads names and shapes alone. Weights come by [`Upscaler::load`], or by a [`kiln_weights::Stream`] over
/// [`Upscaler::segments`] and [`Upscaler::source`].
pub struct Upscaler {
    config: NetworkConfig,
    network: Network,
    source: Arc<dyn ParamSource>,
    stored: Option<StoredType>,
}

enum Network {
    Rrdb(Box<Rrdb>),
    Compact(Box<Compact>),
}

impl Network {
    fn new(config: &NetworkConfig) -> Self {
        match config {
            NetworkConfig::Rrdb(config) => Self::Rrdb(Box::new(Rrdb::new(config))),
            NetworkConfig::Compact(config) => Self::Compact(Box::new(Compact::new(config))),
        }
    }
}

impl Upscaler {
    /// Opens a checkpoint: `.safetensors`, `.pth` or another format that [`Checkpoint`] reads.
    ///
    /// # Errors
    /// [`crate::Error::NotAnUpscaler`] and others where the tensors are not those of a network of this crate, and what
    /// the reader reports.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_source(Checkpoint::open(path)?, None)
    }

    /// A network without weights, to know the memory of its runs.
    pub fn without_weights(config: NetworkConfig) -> Self {
        let source: Arc<dyn ParamSource> = Arc::new(std::iter::empty().collect::<MapSource>());
        Self { network: Network::new(&config), config, source, stored: None }
    }

    /// The network of a source's tensors. `activation` is that of SRVGGNetCompact without the slopes of PReLU, for which
    /// the tensors do not say it.
    ///
    /// # Errors
    /// See [`Upscaler::open`].
    pub fn from_source(source: impl ParamSource + 'static, activation: Option<CompactActivation>) -> Result<Self> {
        let (config, names) = recognize(&source, activation)?;
        let network = Network::new(&config);
        let segments = match &network {
            Network::Rrdb(network) => network.segments(),
            Network::Compact(network) => network.segments(),
        };
        check(&source, segments, &config, names)?;
        let keys: Vec<String> = segments.iter().flat_map(|segment| segment.params()).map(|p| p.key.clone()).collect();
        let stored = keys.first().and_then(|key| source.info(&names.of(key))).map(|info| info.dtype);
        Ok(Self { config, network, source: Arc::new(Renamed { source, names, keys }), stored })
    }

    /// The network's configuration. Its text is a line for users.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// How much larger the result is than the image, in each direction.
    pub fn scale(&self) -> usize {
        self.config.scale()
    }

    /// The type in which the file has the first convolution's weights.
    pub fn stored(&self) -> Option<StoredType> {
        self.stored
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        match &self.network {
            Network::Rrdb(network) => network.segments(),
            Network::Compact(network) => network.segments(),
        }
    }

    /// The weights, under the names that the segments declare.
    pub fn source(&self) -> Arc<dyn ParamSource> {
        self.source.clone()
    }

    /// Reads all weights.
    ///
    /// # Errors
    /// See [`kiln_weights::load`].
    pub fn load(&self, placement: &Placement) -> Result<LoadReport> {
        Ok(load(self.segments(), self.source.as_ref(), placement)?)
    }

    /// `image` `(b, c, h, w)` from 0 to 1 in the slabs' dtype, to `(b, c_out, s h, s w)` limited to 0..=1, `s` being
    /// [`Upscaler::scale`]. Images are computed one after another, in strips. On the CPU neither the batch nor the strips
    /// change a bit. NaN stays NaN.
    ///
    /// # Errors
    /// [`crate::Error::Input`] where the image does not fit; what a layer reports, with the layer's path.
    pub fn forward<T: TensorLike>(&self, image: &T, strips: StripRows) -> Result<T> {
        match &self.network {
            Network::Rrdb(network) => network.forward(image, strips),
            Network::Compact(network) => network.forward(image, strips),
        }
    }

    /// [`Upscaler::forward`] with a `listener` that gets the completed part after each block or strip, and may stop the run.
    ///
    /// # Errors
    /// See [`Upscaler::forward`]; also [`crate::Error::Interrupted`].
    pub fn forward_watched<T: TensorLike>(
        &self,
        image: &T,
        strips: StripRows,
        listener: &mut Listener<'_>,
    ) -> Result<T> {
        match &self.network {
            Network::Rrdb(network) => network.forward_watched(image, strips, listener),
            Network::Compact(network) => network.forward_watched(image, strips, listener),
        }
    }

    /// Height and width of the map on which most of the network works, for an image of this size.
    pub fn map_size(&self, [h, w]: [usize; 2]) -> [usize; 2] {
        match &self.config {
            NetworkConfig::Rrdb(config) => config.padded([h, w]).map(|size| size / config.unshuffle.max(1)),
            NetworkConfig::Compact(_) => [h, w],
        }
    }

    /// All strips for an image of this size, from the fastest to those that take the least memory.
    pub fn all_strips(&self, image: [usize; 2], target: Target) -> impl Iterator<Item = StripRows> {
        StripRows::all(target, self.map_size(image))
    }

    /// The strips with which an image of this size is fastest.
    pub fn fastest(&self, image: [usize; 2], target: Target) -> StripRows {
        StripRows::fastest(target, self.map_size(image)[1])
    }

    /// The most bytes that images `(b, h, w)` in `dtype` take at once besides the weights, images and results counted.
    ///
    /// # Errors
    /// See [`Upscaler::forward`].
    pub fn footprint(&self, [b, h, w]: [usize; 3], dtype: DType, target: Target, strips: StripRows) -> Result<usize> {
        let device = MetaDevice::new(target, dtype);
        let [channels, _] = self.config.channels();
        drop(self.forward(&device.tensor(&[b, channels, h, w], dtype), strips)?);
        Ok(device.ledger().peak())
    }

    /// The fastest strips whose [`Upscaler::footprint`] is at most `bytes`; `None` if none are.
    ///
    /// # Errors
    /// See [`Upscaler::forward`].
    pub fn fitting(
        &self,
        image @ [_, h, w]: [usize; 3],
        dtype: DType,
        target: Target,
        bytes: usize,
    ) -> Result<Option<StripRows>> {
        for strips in StripRows::all(target, self.map_size([h, w])) {
            if self.footprint(image, dtype, target, strips)? <= bytes {
                return Ok(Some(strips));
            }
        }
        Ok(None)
    }
}
