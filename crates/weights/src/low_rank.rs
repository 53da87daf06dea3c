//! A network as low-rank changes of another one's weights: the control LoRAs of Stability AI.

use std::borrow::Cow;

use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::ldm::Names;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// The tensors of a network: those of `changes` if it has them, else those of `base`, to which the product of `up` and `down`
/// is added if `changes` has these two (`ControlLoraOps` of ComfyUI's `comfy/controlnet.py`): `up` `(n, r, ..)`, `down` `(r,
/// k, ..)`, both read as matrices.
pub struct LowRank<A, B> {
    changes: A,
    /// Where `changes` has the tensors of a declared name.
    names: Names,
    base: B,
}

impl<A: ParamSource, B: ParamSource> LowRank<A, B> {
    /// The tensors of `changes`, whose names are those of `names`, over those of `base`.
    pub fn new(changes: A, names: Names, base: B) -> Self {
        Self { changes, names, base }
    }

    /// The name that `changes` has for `key`.
    fn stored(&self, key: &str) -> String {
        self.names.place(key).map_or_else(|| key.into(), |place| place.name)
    }

    /// The names of the factors of `key`, where `changes` has both.
    fn factors(&self, key: &str) -> Option<[String; 2]> {
        let stored = self.stored(key);
        let module = stored.strip_suffix(".weight")?;
        let factors = ["up", "down"].map(|factor| format!("{module}.{factor}"));
        factors.iter().all(|name| self.changes.info(name).is_some()).then_some(factors)
    }

    /// The first factors whose shapes are not those of a change of their tensor: their names, what was expected and found.
    pub fn mismatch<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> Option<(String, String, String)> {
        let shape = |source: &dyn ParamSource, name: &str| source.info(name).map(|info| info.shape).unwrap_or_default();
        let matrix = |shape: &[usize]| {
            let rows = shape.first().copied().unwrap_or(0);
            [rows, shape.iter().skip(1).product()]
        };
        keys.into_iter().find_map(|key| {
            let [up, down] = self.factors(key)?;
            let [n, k] = matrix(&shape(&self.base, key));
            let found = [&up, &down].map(|name| matrix(&shape(&self.changes, name)));
            let fits = found[0][0] == n && found[1][1] == k && found[0][1] == found[1][0];
            (!fits).then(|| {
                let expected = format!("factors of a matrix ({n}, {k})");
                let found = format!("({}, {}) and ({}, {})", found[0][0], found[0][1], found[1][0], found[1][1]);
                (format!("`{up}` and `{down}`"), expected, found)
            })
        })
    }

    fn values(source: &dyn ParamSource, name: &str) -> Result<Vec<f32>> {
        let wrong = |found: String| Error::StoredDType { origin: source.origin(name), key: name.into(), found };
        let data = source.data(name)?.ok_or_else(|| wrong("nothing".into()))?;
        data.to_f32().ok_or_else(|| wrong(format!("{:?}", data.info.dtype)))
    }

    /// The tensor of `base` with the product of two factors added, in f32.
    fn changed(&self, key: &str, [up, down]: [String; 2]) -> Result<Option<ParamData<'_>>> {
        let Some(info) = self.base.info(key) else { return Ok(None) };
        let mut values = Self::values(&self.base, key)?;
        let n = info.shape.first().copied().unwrap_or(0).max(1);
        let k = values.len() / n;
        let (up, down) = (Self::values(&self.changes, &up)?, Self::values(&self.changes, &down)?);
        let rank = up.len() / n;
        for (row, up) in values.chunks_exact_mut(k.max(1)).zip(up.chunks_exact(rank.max(1))) {
            for (factor, down) in up.iter().zip(down.chunks_exact(k.max(1))) {
                row.iter_mut().zip(down).for_each(|(value, down)| *value += factor * down);
            }
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Some(ParamData { info: ParamInfo { dtype: Dtype::F32.into(), ..info }, bytes: Cow::Owned(bytes) }))
    }
}

impl<A: ParamSource, B: ParamSource> ParamSource for LowRank<A, B> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        if let Some(info) = self.changes.info(&self.stored(key)) {
            return Some(info);
        }
        let info = self.base.info(key)?;
        Some(if self.factors(key).is_some() { ParamInfo { dtype: Dtype::F32.into(), ..info } } else { info })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        if let Some(data) = self.changes.data(&self.stored(key))? {
            return Ok(Some(data));
        }
        match self.factors(key) {
            Some(factors) => self.changed(key, factors),
            None => self.base.data(key),
        }
    }

    fn release(&self, key: &str) {
        self.changes.release(&self.stored(key));
        for name in self.factors(key).into_iter().flatten() {
            self.changes.release(&name);
        }
        self.base.release(key);
    }

    fn origin(&self, key: &str) -> String {
        self.changes.origin(&self.stored(key))
    }

    fn keys(&self) -> Vec<String> {
        let stored = self.changes.keys().into_iter();
        let own = stored.flat_map(|name| self.names.declared(&name)).map(|(key, _)| key);
        let mut keys: Vec<String> = own.chain(self.base.keys()).filter(|key| self.info(key).is_some()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}
