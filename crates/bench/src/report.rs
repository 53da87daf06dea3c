//! The results of a measurement as data.

use std::path::Path;

use kiln_engine::{Link, Machine, StepTrace};
use kiln_files::{FileRules, PlannedFile};
use kiln_mempool::DeviceMemory;
use serde::Serialize;

use super::BenchStage;
use super::streamed::StreamStage;
use crate::error::Result;

/// A complete report. `benches/peers` writes the same format for other engines.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// The measured program.
    pub engine: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The commit of the program, which sets it if its build knew it.
    pub commit: Option<&'static str>,
    /// The machine.
    pub machine: Machine,
    /// The link to the GPU, where weights stream over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// The type of weights and activations.
    pub dtype: String,
    /// The weight type of linear layers, if it differs.
    pub weight_type: Option<String>,
    /// The compute type of the denoiser's large layers, if it is not the type of the activations.
    pub compute: Option<String>,
    /// Steps of a whole call.
    pub steps: usize,
    /// Warm-up runs of every stage.
    pub warmup: usize,
    /// Peak physical memory of the process over all stages, if the system reports it. GPU memory is not included.
    pub peak_resident_bytes: Option<u64>,
    /// The models.
    pub models: Vec<ModelReport>,
}

/// The stages of one model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport {
    /// The name of the preset or the folder.
    pub name: String,
    /// Width of the images in pixels.
    pub width: usize,
    /// Height of the images in pixels.
    pub height: usize,
    /// The batch size of a step; the U-Net computes twice as many images.
    pub batch: usize,
    /// The type of the decoder: wider than the report's type for SDXL's VAE in f16.
    pub decoder_dtype: &'static str,
    /// The stages in the order of measurement.
    pub stages: Vec<StageReport>,
    /// The trace of a step by operator, if requested; it is written to a separate file.
    #[serde(skip)]
    pub trace: Option<StepTrace>,
}

/// One stage.
#[derive(Debug, Clone, Serialize)]
pub struct StageReport {
    /// The stage.
    pub stage: BenchStage,
    /// Parameters of its networks.
    pub parameters: usize,
    /// The time of creating the weights.
    pub load_seconds: f64,
    /// The time of a run.
    pub seconds: Summary,
    /// The median time per image; for a step, of one step of one image. `None` if a run produces no image.
    pub seconds_per_picture: Option<f64>,
    /// Floating-point operations of a run ([`kiln_nn::FlopCount`]).
    pub flop: f64,
    /// 10^9 operations per second of the median run.
    pub gflop_per_second: f64,
    /// Seconds of every run.
    pub runs: Vec<f64>,
    /// Page faults of every run on all threads: pages that the process did not have.
    pub faults: Vec<u64>,
    /// System calls for memory by the host pool in every run.
    pub pool_calls: Vec<u64>,
    /// Driver calls for memory in every run; 0 on the CPU.
    pub card_calls: Vec<u64>,
    /// GPU memory including weights; `None` on the CPU.
    pub card: Option<CardMemory>,
    /// The streaming of a step with streamed weights.
    pub stream: Option<StreamStage>,
}

/// GPU memory in bytes over one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CardMemory {
    /// Peak bytes of tensors.
    pub peak_used: u64,
    /// Peak bytes reserved for tensors and captured graphs.
    pub peak_reserved: u64,
    /// The decrease of free memory during the stage, as reported by the driver: includes libraries and code.
    pub driver: u64,
}

impl From<DeviceMemory> for CardMemory {
    fn from(memory: DeviceMemory) -> Self {
        let peak_reserved = memory.peak_reserved + memory.peak_graphs;
        Self { peak_used: memory.peak_used + memory.peak_graphs, peak_reserved, driver: memory.driver }
    }
}

/// Statistics of several values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Summary {
    /// The statistics of some values; without values all are 0.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or_default();
        let n = sorted.len();
        let median = (at(n / 2) + at(n.saturating_sub(1) / 2)) / 2.0;
        Self { median, min: at(0), max: at(n.saturating_sub(1)) }
    }
}

/// A JSON file for a report.
#[derive(Debug)]
pub struct ReportFile(PlannedFile);

impl ReportFile {
    /// Plans a file at `path`; an existing file will be replaced.
    ///
    /// # Errors
    /// See [`PlannedFile`]: the folder is missing or not writable, or the name is a folder's or has another
    /// extension than `.json`.
    pub fn plan(path: &Path) -> Result<Self> {
        let rules = FileRules { field: "json", what: "the report", extensions: &["json"], overwrite: true };
        Ok(Self(PlannedFile::plan(path, rules)?))
    }

    /// The file.
    pub fn file(&self) -> &PlannedFile {
        &self.0
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`].
    pub fn write(self, report: &impl Serialize) -> Result<()> {
        let written = self.0.write(|to| {
            serde_json::to_writer_pretty(&mut *to, report)?;
            to.write_all(b"\n")
        });
        Ok(written?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]), Summary { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]), Summary { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Summary::of(&[]), Summary { median: 0.0, min: 0.0, max: 0.0 });
    }
}
