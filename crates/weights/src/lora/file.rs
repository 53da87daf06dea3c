//! Reads a LoRA file into patches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;

use super::change::Change;
use super::face;
use super::factor::Factor;
use super::merge::{Magnitude, Patch};
use super::numbered::{self, Factors};
use super::peft::Settings;
use super::role::{self, Role, UnusedReason};
use super::targets::{FIRST_TEXT, Layer, Network, SECOND_TEXT, Targets};
use crate::error::{Error, Result};
use crate::formats::Checkpoint;
use crate::ldm::Piece;
use crate::source::ParamSource;

/// The changes of a LoRA file to a model.
pub struct Lora {
    patches: Vec<Arc<Patch>>,
    vectors: Vec<Vectors>,
    unused: Vec<Unused>,
    tensors: usize,
}

/// Vectors for a word of the prompt, which some files contain.
struct Vectors {
    word: String,
    /// The id of the text encoder.
    network: &'static str,
    factor: Factor,
}

/// A tensor of the file without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Its name.
    pub key: String,
    /// The reason.
    pub reason: UnusedReason,
}

impl Lora {
    /// Opens a checkpoint file of any format. Its factors are read when the weights are read.
    ///
    /// # Errors
    /// Errors of [`Checkpoint::open`] and [`Self::read`].
    pub fn open(path: &Path, targets: &Targets) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let metadata = file.metadata().clone();
        Self::read(Arc::new(file), &metadata, Some(path), targets)
    }

    /// Determines which layers of `targets` the tensors of `source` change. `metadata` is the file's metadata. `path`
    /// is the file's location, for settings in the same folder.
    ///
    /// # Errors
    /// [`Error::Format`] if no layer of the model is changed, a scale is not a number, or PEFT's settings are damaged;
    /// [`Error::Shape`] if a change is for a layer of another size.
    pub fn read(
        source: Arc<dyn ParamSource>,
        metadata: &BTreeMap<String, String>,
        path: Option<&Path>,
        targets: &Targets,
    ) -> Result<Self> {
        let mut keys = source.keys();
        keys.sort_unstable(); // a deterministic order
        let reader = Reader { source: &source, settings: Settings::read(metadata, path)?, targets };
        let mut lora = Self { patches: Vec::new(), vectors: Vec::new(), unused: Vec::new(), tensors: keys.len() };

        let mut groups: BTreeMap<String, Factors> = numbered::groups(&source, &keys, targets).into_iter().collect();
        let layers = face::AttentionLayers::new(targets);
        for key in keys {
            if face::is_of_adapter(&key) {
                continue;
            }
            let Some(factor) = Factor::find(&source, &key) else { continue };
            if let Some((word, network)) = word(&key, metadata) {
                lora.vectors.push(Vectors { word, network, factor });
            } else if let Some((layer, role)) = role::parse(layers.renamed(&key).as_deref().unwrap_or(&key)) {
                groups.entry(layer).or_default().insert(role, factor);
            } else if !numbered::is_numbered(&key) {
                lora.unused.push(Unused { key, reason: UnusedReason::Name });
            }
        }
        for (name, factors) in groups {
            reader.group(&name, factors, &mut lora)?;
        }
        lora.unused.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        if lora.patches.is_empty() && lora.vectors.is_empty() {
            let first = lora.unused.first();
            let first = first.map_or(String::new(), |unused| format!(" (`{}`: {})", unused.key, unused.reason));
            let problem = format!(
                "changes nothing of this model: none of its {} tensors belongs to a layer of the model{first}; is it \
                 a LoRA, and for a model of this kind?",
                lora.tensors
            );
            return Err(Error::Format { path: PathBuf::from(source.origin("")), problem });
        }
        Ok(lora)
    }

    /// The changes.
    pub fn patches(&self) -> &[Arc<Patch>] {
        &self.patches
    }

    /// The tensors that change nothing, by name.
    pub fn unused(&self) -> &[Unused] {
        &self.unused
    }

    /// The number of tensors in the file.
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// The words for which the file contains vectors, each once.
    pub fn words(&self) -> Vec<&str> {
        let mut words: Vec<&str> = self.vectors.iter().map(|vectors| vectors.word.as_str()).collect();
        words.dedup();
        words
    }

    /// The vectors `(n, d)` in f32 of one of [`Self::words`] for a text encoder. `None` if there are none for it.
    ///
    /// # Errors
    /// [`Error::StoredDType`] if they are not numbers.
    pub fn vectors(&self, word: &str, network: Network) -> Result<Option<Tensor>> {
        let found = self.vectors.iter().find(|vectors| vectors.word == word && vectors.network == network.id);
        found.map(|vectors| Ok(crate::textual_inversion::rows(&vectors.factor.tensor()?)?)).transpose()
    }
}

/// The word that a tensor is a vector for, and the id of the text encoder. cloneofsimo's metadata marks them, and kohya's bundles have a prefix.
fn word(key: &str, metadata: &BTreeMap<String, String>) -> Option<(String, &'static str)> {
    if metadata.get(key).is_some_and(|note| note == "<embed>") {
        return Some((key.to_string(), FIRST_TEXT));
    }
    let (word, name) = key.strip_prefix("bundle_emb.")?.split_once('.')?;
    let network = match name {
        "clip_g" => SECOND_TEXT,
        "t5xxl" => return None,
        _ => FIRST_TEXT,
    };
    Some((word.to_string(), network))
}

/// The layer of a transformer that takes the latents. Control LoRAs widen it.
const IMAGE_INPUT: &str = "x_embedder";

struct Reader<'a> {
    source: &'a Arc<dyn ParamSource>,
    settings: Settings,
    targets: &'a Targets,
}

/// A layer of the model with a name of a file.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    layer: &'a Layer,
    /// The piece that the layer has of a change with this name.
    piece: Piece,
}

impl Reader<'_> {
    /// Adds the patches of all layers with a name to `lora`, or the reason why there are none.
    fn group(&self, name: &str, factors: Factors, lora: &mut Lora) -> Result<()> {
        let keys = |factors: &Factors| factors.values().map(|factor| factor.key().to_string()).collect::<Vec<_>>();
        let mut layers = self.targets.find(name).peekable();
        let (mut rest, mut reason) = (keys(&factors), UnusedReason::Form);
        if layers.peek().is_none() {
            reason = self.targets.missing(name);
        }
        for (layer, piece) in layers {
            let mut left = factors.clone();
            let patches = self.layer(Named { name, layer, piece }, &mut left)?;
            // Factors that were taken are used. Of a layer without any change, none are.
            if !patches.is_empty() {
                rest = keys(&left);
            }
            lora.patches.extend(patches.into_iter().map(Arc::new));
        }
        lora.unused.extend(rest.into_iter().map(|key| Unused { key, reason }));
        Ok(())
    }

    /// The patches of one layer. Removes the factors that they have.
    fn layer(&self, named: Named<'_>, factors: &mut Factors) -> Result<Vec<Patch>> {
        let Named { layer, piece, .. } = named;
        let mut patches = Vec::new();
        let alpha = self.number(factors.remove(&Role::Alpha))?;
        let scalar = self.number(factors.remove(&Role::Scalar))?.unwrap_or(1.0);
        let dora = factors.remove(&Role::DoraScale).map(|values| (values, false));
        let magnitude = dora.or_else(|| factors.remove(&Role::Magnitude).map(|values| (values, true)));
        let bias = factors.remove(&Role::DiffBias);
        let up_bias = factors.remove(&Role::UpBias);
        if let Some(change) = Change::take(factors) {
            change.check(&piece.stored_shape(&layer.weight)).map_err(|found| self.mismatch(named, found))?;
            let scale = match (&change, change.rank()) {
                (Change::Rotate { .. }, _) => alpha.unwrap_or(0.0).max(0.0),
                // Two whole matrices have no rank. LyCORIS' alpha has no effect then, and PEFT's comes with a rank.
                (Change::Kronecker(..), None) if alpha.is_none() => {
                    scalar * self.settings.scale(layer.network, &layer.path, 1)
                }
                (_, None) => scalar,
                // A missing alpha, or one of 0, means the rank, in both LyCORIS and kohya's scripts.
                (_, Some(rank)) => match alpha.filter(|&alpha| alpha != 0.0) {
                    Some(alpha) => scalar * alpha / rank.max(1) as f64,
                    None => scalar * self.settings.scale(layer.network, &layer.path, rank),
                },
            };
            let magnitude = magnitude.map(|(values, by_rows)| self.magnitude(named, values, by_rows)).transpose()?;
            // Rotations and norms of columns combine rows that are in several layers.
            let combines = matches!(change, Change::Rotate { .. }) || magnitude.as_ref().is_some_and(|m| m.columns);
            if combines && piece != Piece::Whole {
                return Ok(Vec::new());
            }
            if let Some(values) = up_bias {
                patches.push(self.bias(named, values, scale)?);
            }
            let key = format!("{}.weight", layer.path);
            patches.push(Patch { network: layer.network, key, piece, change, scale, magnitude });
        }
        if let Some(values) = bias {
            patches.push(self.bias(named, values, 1.0)?);
        }
        Ok(patches)
    }

    /// The value of a tensor with one element.
    fn number(&self, factor: Option<Factor>) -> Result<Option<f64>> {
        let Some(factor) = factor else { return Ok(None) };
        match factor.scalar()? {
            Some(value) => Ok(Some(value)),
            None => {
                let problem = format!(
                    "tensor `{}` has shape {:?}, expected one finite number; the file is damaged",
                    factor.key(),
                    factor.shape()
                );
                Err(Error::Format { path: PathBuf::from(self.source.origin(factor.key())), problem })
            }
        }
    }

    /// DoRA's magnitudes of a layer: by rows, or as their shape determines.
    fn magnitude(&self, named: Named<'_>, values: Factor, by_rows: bool) -> Result<Magnitude> {
        let weight = named.piece.stored_shape(&named.layer.weight);
        let [rows, columns, ..] = weight[..] else { return Err(self.mismatch(named, None)) };
        let along_columns = !by_rows && values.shape().first() == Some(&1) && values.elements() == columns;
        if along_columns || values.elements() == rows {
            return Ok(Magnitude { values, columns: along_columns });
        }
        Err(self.mismatch(Named { name: values.key(), ..named }, Some(values.shape().to_vec())))
    }

    /// The change of a layer's bias. A linear layer without a bias gets one: PEFT's `lora_bias` does that for the
    /// projections of attention.
    fn bias(&self, named: Named<'_>, values: Factor, scale: f64) -> Result<Patch> {
        let Named { name, layer, piece } = named;
        let change = Change::Add(super::change::Matrix::Whole(values));
        let bias = match &layer.bias {
            Some(bias) => bias.clone(),
            None if layer.linear => layer.weight[..1].to_vec(),
            None => {
                let problem =
                    format!("has a bias for `{name}`, but the model's layer has none; is it from another model?");
                return Err(Error::Format { path: PathBuf::from(self.source.origin(name)), problem });
            }
        };
        change.check(&piece.stored_shape(&bias)).map_err(|found| self.mismatch(named, found))?;
        let key = format!("{}.bias", layer.path);
        Ok(Patch { network: layer.network, key, piece, change, scale, magnitude: None })
    }

    /// The error for a change of a layer of another size, or with factors that do not match.
    fn mismatch(&self, named: Named<'_>, found: Option<Vec<usize>>) -> Error {
        let Named { name, layer, piece } = named;
        let (origin, key) = (self.source.origin(name), name.to_string());
        let Some(found) = found else {
            let problem = format!("the factors of `{key}` do not match; the file is damaged");
            return Error::Format { path: PathBuf::from(origin), problem };
        };
        let shape = piece.stored_shape(&layer.weight);
        let (out, rest) = (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product());
        let is_image_input = layer.network.is_denoiser() && layer.path == IMAGE_INPUT && found.first() == Some(&out);
        if let Some(columns) = found.get(1).filter(|columns| is_image_input && **columns > rest) {
            let problem = format!(
                "is a control LoRA: it widens the image input `{key}` from {rest} to {columns} channels for a control image; \
                 use it with a model that has such an input"
            );
            return Error::Format { path: PathBuf::from(origin), problem };
        }
        Error::Shape { origin, key, expected: vec![out, rest], found }
    }
}
