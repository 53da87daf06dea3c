//! Convolutions with their batch normalizations, as convolutions alone.

use std::borrow::Cow;

use kiln_weights::{Error, ParamData, ParamInfo, ParamSource, Result};
use safetensors::Dtype;

/// The epsilon of the normalizations.
const EPSILON: f32 = 1e-3;
/// The ends of the names of a convolution's tensors, of which the file has only the first.
const WEIGHT: &str = ".conv.weight";
const BIAS: &str = ".conv.bias";

/// A file in which a normalization `NAME.bn` follows each convolution `NAME.conv` without a bias. Each channel of the convolution is
/// multiplied by `gamma / sqrt(variance + epsilon)`, and its bias is `beta - mean gamma / sqrt(variance + epsilon)`, all in f32.
pub(super) struct Folded<S>(pub(super) S);

impl<S: ParamSource> Folded<S> {
    /// The values of one of the normalization's tensors, which has a number for each channel.
    ///
    /// # Errors
    /// [`Error::Missing`] and [`Error::Shape`].
    fn of_channels(&self, name: &str, kind: &str, channels: usize) -> Result<Vec<f32>> {
        let (key, expected) = (format!("{name}.bn.{kind}"), vec![channels]);
        let origin = self.0.origin(&key);
        match self.0.data(&key)? {
            None => Err(Error::Missing { origin, key, expected }),
            Some(data) if data.info.shape != expected => {
                Err(Error::Shape { origin, key, expected, found: data.info.shape.clone() })
            }
            Some(data) => {
                let found = data.info.dtype;
                data.to_f32().ok_or_else(|| Error::StoredDType { origin, key, found: found.to_string() })
            }
        }
    }

    /// The factors of the channels of a convolution.
    fn factors(&self, name: &str, channels: usize) -> Result<Vec<f32>> {
        let gamma = self.of_channels(name, "weight", channels)?;
        let variance = self.of_channels(name, "running_var", channels)?;
        let factor = |(gamma, variance): (f32, f32)| gamma / (variance + EPSILON).sqrt();
        Ok(gamma.into_iter().zip(variance).map(factor).collect())
    }

    fn weight(&self, key: &str, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(data) = self.0.data(key)? else { return Ok(None) };
        let channels = data.info.shape.first().copied().unwrap_or(0);
        let Some(mut weight) = data.to_f32() else { return Ok(None) };
        let size = weight.len() / channels.max(1);
        for (values, factor) in weight.chunks_mut(size.max(1)).zip(self.factors(name, channels)?) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(Some(weight))
    }

    fn bias(&self, name: &str, channels: usize) -> Result<Vec<f32>> {
        let beta = self.of_channels(name, "bias", channels)?;
        let mean = self.of_channels(name, "running_mean", channels)?;
        let bias = |((beta, mean), factor): ((f32, f32), f32)| beta - mean * factor;
        Ok(beta.into_iter().zip(mean).zip(self.factors(name, channels)?).map(bias).collect())
    }
}

impl<S: ParamSource> ParamSource for Folded<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        let shape = match key.strip_suffix(BIAS) {
            Some(name) => self.0.info(&format!("{name}{WEIGHT}"))?.shape.into_iter().take(1).collect(),
            None => self.0.info(key)?.shape,
        };
        Some(ParamInfo { dtype: Dtype::F32.into(), shape })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(info) = self.info(key) else { return Ok(None) };
        let values = match (key.strip_suffix(WEIGHT), key.strip_suffix(BIAS)) {
            (Some(name), _) => self.weight(key, name)?,
            (_, Some(name)) => Some(self.bias(name, info.shape.iter().product())?),
            _ => self.0.data(key)?.and_then(|data| data.to_f32()),
        };
        let Some(values) = values else { return Ok(None) };
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Some(ParamData { info, bytes: Cow::Owned(bytes) }))
    }

    fn origin(&self, key: &str) -> String {
        self.0.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.0.keys()
    }
}
