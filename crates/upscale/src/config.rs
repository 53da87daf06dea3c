//! The configurations of upscalers.

use std::fmt;

/// RRDBNet: residual-in-residual dense blocks (Wang et al., ESRGAN, arXiv 1809.00219).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RrdbConfig {
    /// Channels of the image that goes in.
    pub in_channels: usize,
    /// Channels of the image that comes out.
    pub out_channels: usize,
    /// Channels between the blocks.
    pub features: usize,
    /// Channels that each convolution of a dense block adds.
    pub growth: usize,
    /// Blocks, of three dense blocks each.
    pub blocks: usize,
    /// How often the size is doubled after the blocks.
    pub upsamples: usize,
    /// The image goes in as squares of this many pixels in height and width, which become channels: 1, 2 or 4.
    pub unshuffle: usize,
}

impl RrdbConfig {
    /// How much larger the result is than the image, in each direction.
    pub fn scale(&self) -> usize {
        (1 << self.upsamples) / self.unshuffle
    }

    /// Height and width of what goes into the network for an image of this size: with squares of pixels multiples of 4, whatever
    /// the squares' size, and 2 at least. That is what spandrel requires, which other programs run these networks with
    /// (`size_requirements` of its architecture ESRGAN, version 0.4.2).
    pub fn padded(&self, size: [usize; 2]) -> [usize; 2] {
        let multiple = if self.unshuffle > 1 { 4 } else { 1 };
        size.map(|side| side.max(2).next_multiple_of(multiple))
    }
}

/// SRVGGNetCompact: a stack of convolutions at the size of the input (Real-ESRGAN, `realesrgan/archs/srvgg_arch.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactConfig {
    /// Channels of the image, in and out.
    pub channels: usize,
    /// Channels between the convolutions.
    pub features: usize,
    /// Convolutions between the first and the last: upstream's `num_conv`.
    pub convolutions: usize,
    /// How much larger the result is than the image, in each direction.
    pub scale: usize,
    /// The activation after each convolution but the last.
    pub activation: CompactActivation,
}

/// The activation of [`CompactConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactActivation {
    /// With learned slopes, one for each channel.
    PRelu,
    /// With the slope 0.
    Relu,
    /// With the slope 0.1, as upstream.
    LeakyRelu,
}

/// A network of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkConfig {
    /// ESRGAN, Real-ESRGAN and others.
    Rrdb(RrdbConfig),
    /// Real-ESRGAN's small models.
    Compact(CompactConfig),
}

impl NetworkConfig {
    /// The network's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rrdb(_) => "RRDBNet",
            Self::Compact(_) => "SRVGGNetCompact",
        }
    }

    /// How much larger the result is than the image, in each direction.
    pub fn scale(&self) -> usize {
        match self {
            Self::Rrdb(config) => config.scale(),
            Self::Compact(config) => config.scale,
        }
    }

    /// Channels of the image that goes in, and of the one that comes out.
    pub fn channels(&self) -> [usize; 2] {
        match self {
            Self::Rrdb(config) => [config.in_channels, config.out_channels],
            Self::Compact(config) => [config.channels; 2],
        }
    }
}

impl fmt::Display for NetworkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x{}", self.name(), self.scale())?;
        match self {
            Self::Rrdb(RrdbConfig { features, growth, blocks, unshuffle, .. }) => {
                write!(f, ", {blocks} blocks, {features} features, growth {growth}")?;
                if *unshuffle > 1 { write!(f, ", pixel unshuffle {unshuffle}") } else { Ok(()) }
            }
            Self::Compact(CompactConfig { features, convolutions, activation, .. }) => {
                let activation = match activation {
                    CompactActivation::PRelu => "PReLU",
                    CompactActivation::Relu => "ReLU",
                    CompactActivation::LeakyRelu => "LeakyReLU",
                };
                write!(f, ", {convolutions} convolutions, {features} features, {activation}")
            }
        }
    }
}
