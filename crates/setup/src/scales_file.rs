//! Files with scales for products in 8 bits: the ranges of the inputs of a model's layers, balances between input channels,
//! and the layers that keep their type.
//!
//! A safetensors file of f32 tensors. For each layer of the denoiser, by the name of its weight without `.weight`:
//!
//! - `LAYER.range` `(2)`: the least and the largest value of its input, balanced;
//! - `LAYER.absmax` `(c_in)`: the largest magnitude of each input channel, not balanced;
//! - `LAYER.balance` `(c_in)`, perhaps: the factor of each input channel;
//! - `LAYER.error` `(1)`: the squared error of its output in 8 bits over the output's squares.
//!
//! The metadata has `format`, `version`, `model_sha256` (the digest of the model's file, or of the weights of a folder's
//! U-Net), `kept` and `dynamic` (lists of layers in JSON), `sha256` (of the contents) and notes. Nothing in the file depends
//! on how many bits or which type a product has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use kiln_files::{FileRules, PlannedFile, Sha256};
use kiln_models::{Hashed, ModelFolder};
use kiln_weights::{EightBitLayers, Int8Input, NewTensor, ParamSource, SafetensorsFile, write_safetensors};
use safetensors::Dtype;

use crate::error::{Error, Result};

/// The value of `format` in the metadata.
const FORMAT: &str = "kiln-scales";
/// The version of the format.
const VERSION: &str = "1";
/// The ending of the names of weights.
const WEIGHT: &str = ".weight";
/// The metadata that are no notes.
const FIELDS: [&str; 6] = ["format", "version", "model_sha256", "kept", "dynamic", "sha256"];
/// The digits of a digest that messages have.
const DIGITS: usize = 10;

/// The contents of a file with scales.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ComputeScales {
    /// The SHA-256 of the model, in 64 hexadecimal digits ([`Self::digest`]).
    pub model_sha256: String,
    /// The layers, by the names of their weights.
    pub layers: BTreeMap<String, LayerScales>,
    /// Notes on the calibration, for people: names and values.
    pub notes: BTreeMap<String, String>,
}

/// The measurements of one layer, and how the layer is computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerScales {
    /// The least and the largest value of its input, balanced.
    pub range: [f32; 2],
    /// The largest magnitude of each input channel, not balanced.
    pub absmax: Vec<f32>,
    /// The factor of each input channel; `None` for 1.
    pub balance: Option<Arc<[f32]>>,
    /// The squared error of its output in 8 bits over the output's squares.
    pub error: f32,
    /// Whether each call measures the range of its own input, since the error is smaller then.
    pub is_dynamic: bool,
    /// Whether the layer is computed in the type of the activations.
    pub is_kept: bool,
}

impl ComputeScales {
    /// These layers keep their type, and no others.
    pub fn keep<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        self.layers.values_mut().for_each(|layer| layer.is_kept = false);
        for name in names {
            if let Some(layer) = self.layers.get_mut(name) {
                layer.is_kept = true;
            }
        }
    }

    /// The layers that are computed in 8 bits, and how their inputs become bytes. A layer that is not in the file measures the
    /// range of its input at each call.
    pub fn eight_bit_layers(&self) -> EightBitLayers {
        let mut layers = EightBitLayers::default();
        for (name, layer) in &self.layers {
            if layer.is_kept {
                layers.kept.insert(name.clone());
            } else {
                let range = (!layer.is_dynamic).then_some(layer.range);
                let input = Int8Input { range, balance: layer.balance.clone() };
                layers.inputs.insert(name.clone(), Arc::new(input));
            }
        }
        layers
    }

    /// The digest that names a model in such files: that of its file, of the weights of a folder's U-Net, or of the U-Net that
    /// replaces the model's. `cache` is the folder with digests.
    ///
    /// # Errors
    /// [`Error::Request`] where the files cannot be read.
    pub fn digest(model: &ModelFolder, cache: Option<&Path>) -> Result<String> {
        let hashed = match &model.options().unet {
            Some(unet) => Hashed::component(unet),
            None => Hashed::model(model.path()),
        };
        let digest = hashed.and_then(|hashed| hashed.digest(cache));
        digest.ok_or_else(|| Error::value("model", model.path().display(), "a model whose weights can be read"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Files`] if there is none, [`Error::Weights`] for a file that is no safetensors file, [`Error::Request`] for
    /// one of another format or version, and for a damaged one.
    pub fn read(path: &Path) -> Result<Self> {
        check_exists(path)?;
        let file = SafetensorsFile::open(path)?;
        let refused = |problem: String| {
            Error::value("scales", format!("{}, {problem}", path.display()), "a file that `kiln calibrate` wrote")
        };
        let field = |name: &str| {
            let value = file.metadata().get(name).map(String::as_str);
            value.ok_or_else(|| refused(format!("whose metadata has no `{name}`")))
        };
        if field("format")? != FORMAT {
            return Err(refused(format!("whose format is {:?}", field("format")?)));
        }
        if field("version")? != VERSION {
            let version = field("version")?;
            return Err(refused(format!("of version {version}; this version of Kiln reads version {VERSION}")));
        }
        let mut tensors = BTreeMap::new();
        for key in file.keys() {
            let values = file.data(&key)?.and_then(|data| data.to_f32());
            let values = values.ok_or_else(|| refused(format!("in which {key} has no numbers")))?;
            tensors.insert(key, values);
        }
        let metadata: BTreeMap<_, _> = file.metadata().clone().into_iter().collect();
        if checksum(&metadata, &tensors) != field("sha256")? {
            return Err(refused("which is damaged: its checksum is wrong".into()));
        }
        let list = |name: &str| -> Result<BTreeSet<String>> {
            serde_json::from_str(field(name)?).map_err(|error| refused(format!("whose `{name}` is no list: {error}")))
        };
        let (kept, dynamic) = (list("kept")?, list("dynamic")?);
        let mut layers: BTreeMap<String, LayerScales> = BTreeMap::new();
        for (key, values) in tensors {
            let impossible = || refused(format!("in which {key} has a value that is not possible"));
            let (layer, kind) = key.rsplit_once('.').ok_or_else(impossible)?;
            let entry = layers.entry(format!("{layer}{WEIGHT}")).or_default();
            (entry.is_kept, entry.is_dynamic) = (kept.contains(layer), dynamic.contains(layer));
            let is_finite = values.iter().all(|value| value.is_finite());
            match (kind, values.as_slice()) {
                ("range", &[least, largest]) if is_finite && least <= largest => entry.range = [least, largest],
                ("balance", all) if is_finite && all.iter().all(|factor| *factor > 0.0) => {
                    entry.balance = Some(all.into());
                }
                ("absmax", all) if is_finite => entry.absmax = all.into(),
                ("error", &[error]) => entry.error = error,
                _ => return Err(impossible()),
            }
        }
        let notes = metadata.into_iter().filter(|(name, _)| !FIELDS.contains(&name.as_str())).collect();
        Ok(Self { model_sha256: field("model_sha256")?.into(), layers, notes })
    }

    /// Refuses scales of another model than `model`. `path` is their file, `cache` the folder with digests.
    ///
    /// # Errors
    /// [`Error::Request`] with both digests.
    pub fn check(&self, path: &Path, model: &ModelFolder, cache: Option<&Path>) -> Result<()> {
        let digest = Self::digest(model, cache)?;
        if digest == self.model_sha256 {
            return Ok(());
        }
        let short = |digest: &str| digest.chars().take(DIGITS).collect::<String>();
        let found = format!("{}, made for a model with the hash {}", path.display(), short(&self.model_sha256));
        let model = model.path().display();
        Err(Error::value("scales", found, format!("a file for {model}, whose hash is {}", short(&digest))))
    }

    /// Plans a file at `path`.
    ///
    /// # Errors
    /// See [`PlannedFile`].
    pub fn plan(path: &Path, overwrite: bool) -> Result<PlannedFile> {
        let (what, extensions) = ("the scales", &["safetensors"][..]);
        Ok(PlannedFile::plan(path, FileRules { field: "output", what, extensions, overwrite })?)
    }

    /// Writes the file, which appears when it is whole.
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn write(&self, file: &PlannedFile) -> Result<()> {
        let mut tensors = BTreeMap::new();
        for (name, layer) in &self.layers {
            let mut add =
                |kind: &str, values: &[f32]| tensors.insert(format!("{}.{kind}", stem(name)), values.to_vec());
            add("range", &layer.range);
            add("absmax", &layer.absmax);
            add("error", &[layer.error]);
            if let Some(balance) = &layer.balance {
                add("balance", balance);
            }
        }
        let names = |of: fn(&LayerScales) -> bool| {
            let names: Vec<&str> =
                self.layers.iter().filter(|(_, layer)| of(layer)).map(|(name, _)| stem(name)).collect();
            serde_json::json!(names).to_string()
        };
        let mut metadata = self.notes.clone();
        metadata.extend([
            ("format".into(), FORMAT.into()),
            ("version".into(), VERSION.into()),
            ("model_sha256".into(), self.model_sha256.clone()),
            ("kept".into(), names(|layer| layer.is_kept)),
            ("dynamic".into(), names(|layer| layer.is_dynamic)),
        ]);
        metadata.insert("sha256".into(), checksum(&metadata, &tensors));
        let tensors = tensors.iter().map(|(name, values)| NewTensor {
            name: name.clone(),
            shape: vec![values.len()],
            dtype: Dtype::F32.into(),
            bytes: Box::new(|| Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into())),
        });
        let tensors: Vec<_> = tensors.collect();
        Ok(file.write(|to| write_safetensors(to, tensors, &metadata).map_err(std::io::Error::other))?)
    }
}

/// Refuses a file that is not there.
///
/// # Errors
/// [`Error::Files`].
pub fn check_exists(path: &Path) -> Result<()> {
    match path.exists() {
        true => Ok(()),
        false => Err(Error::not_found(path, "`scales`, a file that `kiln calibrate` wrote".into())),
    }
}

/// The name of a layer: that of its weight without its ending.
fn stem(weight: &str) -> &str {
    weight.strip_suffix(WEIGHT).unwrap_or(weight)
}

/// The SHA-256 of all that a file says, without the checksum itself.
fn checksum(metadata: &BTreeMap<String, String>, tensors: &BTreeMap<String, Vec<f32>>) -> String {
    let mut hasher = Sha256::default();
    for (name, value) in metadata.iter().filter(|(name, _)| *name != "sha256") {
        hasher.update(format!("{name}\0{value}\0").as_bytes());
    }
    for (name, values) in tensors {
        hasher.update(format!("{name}\0{}\0", values.len()).as_bytes());
        values.iter().for_each(|value| hasher.update(&value.to_le_bytes()));
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scales() -> ComputeScales {
        let plain = LayerScales { range: [-1.0, 2.5], absmax: vec![1.0, 2.5], error: 1e-4, ..LayerScales::default() };
        let balanced = LayerScales { balance: Some([0.5, 4.0].into()), is_dynamic: true, ..plain.clone() };
        let kept = LayerScales { is_kept: true, ..plain.clone() };
        let layers = [("a.weight", plain), ("b.0.weight", balanced), ("c.weight", kept)];
        ComputeScales {
            model_sha256: "12".repeat(32),
            layers: layers.into_iter().map(|(name, layer)| (name.to_string(), layer)).collect(),
            notes: [("images".to_string(), "8".to_string())].into(),
        }
    }

    #[test]
    fn a_file_has_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scales.safetensors");
        scales().write(&ComputeScales::plan(&path, false).unwrap()).unwrap();
        assert_eq!(ComputeScales::read(&path).unwrap(), scales());
        let layers = scales().eight_bit_layers();
        assert_eq!(layers.kept, ["c.weight".to_string()].into());
        let input =
            |name: &str| (layers.inputs[name].range, layers.inputs[name].balance.as_deref().map(<[f32]>::to_vec));
        assert_eq!(input("a.weight"), (Some([-1.0, 2.5]), None));
        assert_eq!((input("b.0.weight"), layers.inputs.len()), ((None, Some(vec![0.5, 4.0])), 2));
        assert!(ComputeScales::plan(&path, false).is_err() && ComputeScales::plan(&path, true).is_ok());
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scales.safetensors");
        scales().write(&ComputeScales::plan(&path, false).unwrap()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            ComputeScales::read(&path).unwrap_err().to_string()
        };
        let replaced = |from: &str, to: &str| {
            let at = whole.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
            let mut bytes = whole.clone();
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            bytes
        };
        for (bytes, expected) in [
            (replaced("\"version\":\"1\"", "\"version\":\"2\""), "of version 2; this version of Kiln reads version 1"),
            (replaced("kiln-scales", "kiln-stales"), "whose format is \"kiln-stales\""),
            (replaced("model_sha256", "model_sha255"), "its checksum is wrong"),
            (replaced("\"dynamic\"", "\"dynamis\""), "its checksum is wrong"),
            ([&whole[..whole.len() - 1], &[whole[whole.len() - 1] ^ 1]].concat(), "its checksum is wrong"),
            (whole[..whole.len() - 4].to_vec(), "scales.safetensors"),
            (b"nothing".to_vec(), "scales.safetensors"),
        ] {
            let message = refused(&bytes);
            assert!(message.contains(expected) && message.contains("scales.safetensors"), "{message}");
        }
        assert!(ComputeScales::read(&folder.path().join("none")).unwrap_err().to_string().contains("`scales`"));
    }
}
