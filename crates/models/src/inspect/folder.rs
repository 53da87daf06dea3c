//! A model folder: its networks with their segments, and how its files store them.

use std::path::PathBuf;

use candle_core::DType;
use kiln_vae::{Decoder, Encoder};
use kiln_weights::{ParamSource, ParamSpec, Segments, mismatches};
use serde::Serialize;

use super::{Stored, stored, summary};
use crate::components::Component;
use crate::dtype::DTypeChoice;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::presets::Architecture;

/// The contents of a model folder.
#[derive(Debug, Clone, Serialize)]
pub struct FolderReport {
    /// The folder.
    pub path: PathBuf,
    /// The folder's name.
    pub name: String,
    /// The family of the pipeline.
    pub family: &'static str,
    /// Default width and height of the images.
    pub size: (usize, usize),
    /// Default number of steps.
    pub steps: usize,
    /// Default strength of guidance.
    pub cfg_scale: f64,
    /// The sampler that its schedule names, where Kiln has it.
    pub sampler: Option<String>,
    /// The number of files in the folder, and their bytes.
    pub files: (usize, u64),
    /// The license that its `README.md` names.
    pub license: Option<String>,
    /// The type for which the segment sizes are computed.
    pub dtype: String,
    /// The total number of parameters.
    pub parameters: usize,
    /// The sum of all segments in bytes.
    pub bytes: usize,
    /// The networks.
    pub components: Vec<ComponentReport>,
}

impl FolderReport {
    /// The stored types of all networks together, sorted by bytes in descending order.
    pub fn stored(&self) -> Vec<Stored> {
        let mut all: Vec<Stored> = Vec::new();
        for found in self.components.iter().flat_map(|component| &component.stored) {
            match all.iter_mut().find(|known| known.dtype == found.dtype) {
                Some(known) => {
                    known.tensors += found.tensors;
                    known.parameters += found.parameters;
                    known.bytes += found.bytes;
                }
                None => all.push(found.clone()),
            }
        }
        all.sort_by_key(|stored| std::cmp::Reverse(stored.bytes));
        all
    }
}

/// A network.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentReport {
    /// The subfolder of the model folder; for an autoencoder also the half.
    pub name: String,
    /// The number of parameters (elements, not tensors).
    pub parameters: usize,
    /// The sum of the segments in bytes.
    pub bytes: usize,
    /// The segments, in the order in which they run.
    pub segments: Vec<SegmentReport>,
    /// The stored types of the network's tensors; empty without files.
    pub stored: Vec<Stored>,
    /// Missing tensors and tensors with wrong shapes: the network cannot be loaded with any of them.
    pub problems: Vec<String>,
}

/// A part of a network that is loaded, streamed and dropped as a unit.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentReport {
    /// The name, as in the checkpoint.
    pub name: String,
    /// The number of parameters.
    pub parameters: usize,
    /// The exact size of its slab in bytes; 0 if it has none.
    pub bytes: usize,
    /// Whether it stays in host memory on every device.
    pub on_host: bool,
    /// Whether it has no slab: rows are read from the file when they are used.
    pub in_file: bool,
}

pub(crate) fn report(model: &ModelFolder, dtype: DTypeChoice) -> Result<FolderReport> {
    let dtype = dtype.resolve(false);
    let files = model.files();
    let mut components = Vec::new();
    let architecture = Architecture::from_folder(model);
    let stage = architecture.text_stage()?;
    let texts = stage.networks();
    for part in architecture.components() {
        let mut report = |name: &str, segments: &Segments| -> Result<()> {
            let keeps_stored = part != Component::Vae;
            components.push(component(name.into(), files.weights(part), segments, dtype, keeps_stored)?);
            Ok(())
        };
        match part {
            Component::TextEncoder(i) => {
                if let Some(text) = texts.get(i) {
                    report(files.text_folder(i), text.segments)?;
                }
            }
            Component::Denoiser => report(files.denoiser().folder, architecture.denoiser().segments())?,
            Component::Vae => {
                report("vae (decoder)", Decoder::new(&architecture.vae).segments())?;
                report("vae (encoder)", Encoder::new(&architecture.vae).segments())?;
            }
        }
    }
    Ok(FolderReport {
        path: model.path().to_path_buf(),
        name: model.name(),
        family: model.family().model_label(model.is_refiner()),
        size: (model.defaults().width, model.defaults().height),
        steps: model.defaults().steps,
        cfg_scale: model.defaults().cfg_scale,
        sampler: model.scheduler_config().sampler().ok().map(|sampler| sampler.id().to_string()),
        files: summary::count_files(model.path()),
        license: summary::license(model.path()),
        dtype: format!("{dtype:?}").to_lowercase(),
        parameters: components.iter().map(|component| component.parameters).sum(),
        bytes: components.iter().map(|component| component.bytes).sum(),
        components,
    })
}

fn component(
    name: String,
    source: Result<Box<dyn ParamSource>>,
    segments: &Segments,
    dtype: DType,
    keeps_stored: bool,
) -> Result<ComponentReport> {
    let source = match source {
        Ok(source) => Some(source),
        Err(Error::Weights(kiln_weights::Error::NoWeights { .. })) => None,
        Err(error) => return Err(error),
    };
    if let Some(source) = source.as_deref().filter(|_| keeps_stored) {
        segments.keep_stored(source, |_| false);
    }
    let params = || segments.iter().flat_map(|segment| segment.params());
    let segment = |segment: &kiln_weights::Segment| SegmentReport {
        name: segment.name().to_string(),
        parameters: segment.params().iter().map(ParamSpec::elements).sum(),
        bytes: segment.bytes(dtype),
        on_host: segment.on_host(),
        in_file: segment.in_source(),
    };
    let (stored, problems) = match &source {
        None => (Vec::new(), Vec::new()),
        Some(source) => (
            stored(params().filter_map(|param| source.info(&param.key))),
            mismatches(segments, source).iter().map(ToString::to_string).collect(),
        ),
    };
    Ok(ComponentReport {
        name,
        parameters: segments.parameters(),
        bytes: segments.bytes(dtype),
        segments: segments.iter().map(segment).collect(),
        stored,
        problems,
    })
}
