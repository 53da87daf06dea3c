//! Convolutions with their batch normalizations, as convolutions alone.

use std::borrow::Cow;

use kiln_weights::{ParamData, ParamInfo, ParamSource, Result};
use safetensors::Dtype;

/// The epsilon of the normalizations.
const EPSILON: f32 = 1e-3;
/// Names of a convolution's tensors, of which the file has only the first.
const WEIGHT: &str = ".conv.weight";
const BIAS: &str = ".conv.bias";

/// A file in which a normalization `NAME.bn` follows each convolution `NAME.conv` without a bias. Each channel of the convolution is
/// multiplied by `gamma / sqrt(variance + epsilon)`, and its bias is `beta - mean gamma / sqrt(variance + epsilon)`, all in f32.
pub(super) struct Folded<S>(pub(super) S);

impl<S: ParamSource> Folded<S> {
    /// The values of a tensor in f32, if there is one of a weight's type.
    fn values(&self, key: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.0.data(key)?.and_then(|data| data.to_f32()))
    }

    /// The factors of the channels of a convolution.
    fn factors(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let (gamma, variance) =
            (self.values(&format!("{name}.bn.weight"))?, self.values(&format!("{name}.bn.running_var"))?);
        let factor = |(gamma, variance): (f32, f32)| gamma / (variance + EPSILON).sqrt();
        Ok(gamma.zip(variance).map(|(gamma, variance)| gamma.into_iter().zip(variance).map(factor).collect()))
    }

    fn weight(&self, key: &str, name: &str) -> Result<Option<Vec<f32>>> {
        let (weight, factors) = (self.values(key)?, self.factors(name)?);
        let Some((mut weight, factors)) = weight.zip(factors) else { return Ok(None) };
        let channel = weight.len() / factors.len().max(1);
        for (values, factor) in weight.chunks_mut(channel.max(1)).zip(factors) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(Some(weight))
    }

    fn bias(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let (beta, mean) = (self.values(&format!("{name}.bn.bias"))?, self.values(&format!("{name}.bn.running_mean"))?);
        let Some(((beta, mean), factors)) = beta.zip(mean).zip(self.factors(name)?) else { return Ok(None) };
        let bias = |((beta, mean), factor): ((f32, f32), f32)| beta - mean * factor;
        Ok(Some(beta.into_iter().zip(mean).zip(factors).map(bias).collect()))
    }
}

impl<S: ParamSource> ParamSource for Folded<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        let stored = match key.strip_suffix(BIAS) {
            Some(name) => self.0.info(&format!("{name}.bn.bias"))?,
            None => self.0.info(key)?,
        };
        Some(ParamInfo { dtype: Dtype::F32.into(), ..stored })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let values = match (key.strip_suffix(WEIGHT), key.strip_suffix(BIAS)) {
            (Some(name), _) => self.weight(key, name)?,
            (_, Some(name)) => self.bias(name)?,
            _ => self.values(key)?,
        };
        let (Some(info), Some(values)) = (self.info(key), values) else { return Ok(None) };
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
