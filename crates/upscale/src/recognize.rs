//! Which network a file holds, by the names and shapes of its tensors.

use kiln_nn::limits::MAX_CHANNELS;
use kiln_weights::{ParamSource, Segments};

use crate::config::{CompactActivation, CompactConfig, NetworkConfig, RrdbConfig};
use crate::error::{Error, Result};
use crate::names::{Names, RrdbNames};

/// Dictionaries in which training programs keep weights, the preferred first. A file of `torch.save` has been unwrapped
/// by its reader, one of safetensors has them in its names.
const PREFIXES: [&str; 5] = ["", "params_ema.", "params.", "module.", "model."];
/// More blocks, convolutions and doublings than any network has: 23, 32 and 3 are usual.
const MAX_LAYERS: usize = 512;
const MAX_UPSAMPLES: usize = 5;
/// The largest scale of SRVGGNetCompact.
const MAX_SCALE: usize = 32;

/// The network of a file, and what the file calls its tensors.
///
/// # Errors
/// [`Error::NotAnUpscaler`], or what is wrong with the network.
pub(crate) fn recognize(
    source: &dyn ParamSource,
    activation: Option<CompactActivation>,
) -> Result<(NetworkConfig, Names)> {
    let file = File { source, keys: source.keys() };
    for prefix in PREFIXES {
        for rrdb in [RrdbNames::BasicSr, RrdbNames::Trunk, RrdbNames::Original { blocks: 0, upsamples: 0 }] {
            let names = Names { prefix, rrdb: Some(rrdb) };
            let is_rrdb = ["conv_first.weight", "body.0.rdb1.conv1.weight"].map(|name| file.has(&names.of(name)));
            if is_rrdb == [true; 2] {
                return file.rrdb(prefix, rrdb);
            }
        }
        let names = Names { prefix, rrdb: None };
        let shapes =
            ["body.0.weight", "body.2.weight"].map(|name| file.shape(&names.of(name)).map(|shape| shape.len()));
        if shapes == [Some(4); 2] {
            return file.compact(names, activation);
        }
    }
    Err(file.unknown())
}

/// Refuses a file whose tensors are not exactly those of a network.
pub(crate) fn check(
    source: &dyn ParamSource,
    segments: &Segments,
    network: &NetworkConfig,
    names: Names,
) -> Result<()> {
    let network = || network.to_string();
    let mut known = std::collections::HashSet::new();
    for param in segments.iter().flat_map(|segment| segment.params()) {
        let tensor = names.of(&param.key);
        let origin = || source.origin(&tensor);
        match source.info(&tensor) {
            None => return Err(Error::Missing { origin: origin(), tensor, network: network() }),
            Some(info) if info.shape != param.shape => {
                let (expected, found) = (format!("{:?}", param.shape), info.shape);
                return Err(Error::Shape { origin: origin(), tensor, network: network(), expected, found });
            }
            Some(_) => known.insert(tensor),
        };
    }
    // Beside the preferred weights a file may have others, under another prefix.
    let mut others: Vec<String> = source.keys();
    others.retain(|key| key.starts_with(names.prefix) && !known.contains(key));
    if names.prefix.is_empty() {
        others.retain(|key| {
            !PREFIXES.iter().any(|prefix| !prefix.is_empty() && *prefix != "model." && key.starts_with(prefix))
        });
    }
    match others.into_iter().min() {
        Some(tensor) => Err(Error::Unknown { origin: source.origin(&tensor), tensor, network: network() }),
        None => Ok(()),
    }
}

struct File<'a> {
    source: &'a dyn ParamSource,
    keys: Vec<String>,
}

impl File<'_> {
    fn has(&self, name: &str) -> bool {
        self.source.info(name).is_some()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.source.info(name).map(|info| info.shape)
    }

    /// The shape `(out, in, 3, 3)` of a convolution's kernel, as `[out, in]`.
    fn kernel(&self, tensor: String, network: &str) -> Result<[usize; 2]> {
        let origin = self.source.origin(&tensor);
        match self.shape(&tensor).as_deref() {
            Some(&[out, input, 3, 3]) if (1..=MAX_CHANNELS).contains(&out) && (1..=MAX_CHANNELS).contains(&input) => {
                Ok([out, input])
            }
            Some(found) => {
                let expected = format!("(out, in, 3, 3) with 1 to {MAX_CHANNELS} channels");
                Err(Error::Shape { origin, tensor, network: network.into(), expected, found: found.to_vec() })
            }
            None => Err(Error::Missing { origin, tensor, network: network.into() }),
        }
    }

    fn rrdb(&self, prefix: &'static str, rrdb: RrdbNames) -> Result<(NetworkConfig, Names)> {
        let network = "RRDBNet";
        let declared = Names { prefix, rrdb: Some(rrdb) };
        let count = |name: &dyn Fn(usize) -> String, from: usize, most: usize| {
            (from..from + most).take_while(|&i| self.has(&declared.of(&name(i)))).count()
        };
        let blocks = count(&|i| format!("body.{i}.rdb1.conv1.weight"), 0, MAX_LAYERS);
        let upsamples = match rrdb {
            RrdbNames::Original { .. } => {
                let numbers = self.keys.iter().filter_map(|key| key.strip_prefix(prefix)?.strip_prefix("model."));
                let last = numbers.filter_map(|rest| rest.split('.').next()?.parse::<usize>().ok()).max().unwrap_or(0);
                (last.saturating_sub(4) / 3).min(MAX_UPSAMPLES)
            }
            _ => count(&|i| format!("conv_up{i}.weight"), 1, MAX_UPSAMPLES),
        };
        let rrdb = match rrdb {
            RrdbNames::Original { .. } => RrdbNames::Original { blocks, upsamples },
            other => other,
        };
        let names = Names { prefix, rrdb: Some(rrdb) };
        let [features, channels] = self.kernel(names.of("conv_first.weight"), network)?;
        let [growth, _] = self.kernel(names.of("body.0.rdb1.conv1.weight"), network)?;
        let last = names.of("conv_last.weight");
        let [out_channels, _] = self.kernel(last.clone(), network)?;
        // Pixels are unshuffled if as many times more channels go in than come out.
        let unshuffle = match channels / out_channels {
            square @ (4 | 16) if channels == square * out_channels => {
                if square == 4 {
                    2
                } else {
                    4
                }
            }
            _ => 1,
        };
        let config = RrdbConfig {
            in_channels: channels / (unshuffle * unshuffle),
            out_channels,
            features,
            growth,
            blocks,
            upsamples,
            unshuffle,
        };
        if config.scale() == 0 {
            let tensor = names.of(&format!("conv_up{}.weight", upsamples + 1));
            return Err(Error::Missing { origin: self.source.origin(&last), tensor, network: network.into() });
        }
        Ok((NetworkConfig::Rrdb(config), names))
    }

    fn compact(&self, names: Names, activation: Option<CompactActivation>) -> Result<(NetworkConfig, Names)> {
        let network = "SRVGGNetCompact";
        let has = |i: usize| self.has(&names.of(&format!("body.{}.weight", 2 * i)));
        let convs = (0..MAX_LAYERS).take_while(|&i| has(i)).count(); // the last one included
        let [features, channels] = self.kernel(names.of("body.0.weight"), network)?;
        let last = names.of(&format!("body.{}.weight", 2 * convs.saturating_sub(1)));
        let [shuffled, _] = self.kernel(last.clone(), network)?;
        let square = shuffled / channels;
        let scale = (1..=MAX_SCALE).find(|scale| scale * scale >= square).unwrap_or(MAX_SCALE);
        if scale * scale * channels != shuffled {
            let expected = format!("({channels} s s, {features}, 3, 3) with the scale s, up to {MAX_SCALE}");
            let found = self.shape(&last).unwrap_or_default();
            let origin = self.source.origin(&last);
            return Err(Error::Shape { origin, tensor: last, network: network.into(), expected, found });
        }
        let slopes = names.of("body.1.weight");
        let activation = match (self.has(&slopes), activation) {
            (true, _) => CompactActivation::PRelu,
            (false, Some(activation)) => activation,
            (false, None) => {
                return Err(Error::UnknownActivation { origin: self.source.origin(&slopes), tensor: slopes });
            }
        };
        let convolutions = convs.saturating_sub(2);
        Ok((NetworkConfig::Compact(CompactConfig { channels, features, convolutions, scale, activation }), names))
    }

    /// The error for a file without a network of this crate.
    fn unknown(&self) -> Error {
        let mut some: Vec<&String> = self.keys.iter().collect();
        some.sort();
        let origin = self.source.origin(some.first().map_or("", |key| key));
        let names = some.iter().take(3).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let found = match some.len() {
            0 => "it has no tensors".to_string(),
            count if self.keys.iter().any(|key| key.contains("conv1x1")) => {
                format!("it has {count} tensors, some of ESRGAN+ (`conv1x1`)")
            }
            count => format!("it has {count} tensors, such as {names}"),
        };
        Error::NotAnUpscaler { origin, found }
    }
}
