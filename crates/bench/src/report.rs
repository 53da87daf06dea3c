//! What was measured, as data.

use std::path::Path;

use kiln_engine::{Machine, StepTrace};
use kiln_files::{FileRules, PlannedFile};
use kiln_mempool::DeviceMemory;
use serde::Serialize;

use super::BenchStage;
use super::streamed::StreamStage;
use crate::error::Result;

/// A whole measurement. `benches/peers` writes the same form for other engines.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// The program that was measured.
    pub engine: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The commit that it was built from, where the build was told (`KILN_COMMIT`).
    pub commit: Option<&'static str>,
    /// On what it ran.
    pub machine: Machine,
    /// The type of weights and activations.
    pub dtype: String,
    /// The type of linear layers' matrices, where it is another one.
    pub weight_type: Option<String>,
    /// Steps of a whole call.
    pub steps: usize,
    /// Runs of every stage before those that were measured.
    pub warmup: usize,
    /// The most physical memory that the process ever had, over all stages together, where the system tells. A card's
    /// memory is not in it.
    pub peak_resident_bytes: Option<u64>,
    /// The models.
    pub models: Vec<ModelReport>,
}

/// The stages of one model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport {
    /// The preset's or the folder's name.
    pub name: String,
    /// Width of the pictures in pixels.
    pub width: usize,
    /// Height of the pictures in pixels.
    pub height: usize,
    /// Pictures that a step makes at once; the U-Net sees twice as many.
    pub batch: usize,
    /// The type in which pictures are decoded: wider than the report's for SDXL's VAE in f16.
    pub decoder_dtype: &'static str,
    /// The stages, in the order in which they were measured.
    pub stages: Vec<StageReport>,
    /// A step by operator, where that was asked for; it goes into a file of its own.
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
    /// How long it took to make the weights.
    pub load_seconds: f64,
    /// How long a run took.
    pub seconds: Summary,
    /// The median for each picture: of a step, one step of it. `None` where a run makes none.
    pub seconds_per_picture: Option<f64>,
    /// Floating-point operations of a run ([`kiln_nn::FlopCount`]).
    pub flop: f64,
    /// Those of the median run in a second, in thousands of millions.
    pub gflop_per_second: f64,
    /// Seconds of every run.
    pub runs: Vec<f64>,
    /// Page faults of every run, on all threads: pages that the process did not have.
    pub faults: Vec<u64>,
    /// Calls of the kernel for memory that the host pool made in every run.
    pub pool_calls: Vec<u64>,
    /// Calls of the card's driver for memory in every run; 0 on the processor.
    pub card_calls: Vec<u64>,
    /// Memory of the card, weights among it; `None` on the processor.
    pub card: Option<CardMemory>,
    /// Of a step whose weights were streamed.
    pub stream: Option<StreamStage>,
}

/// Memory of a card in bytes, over one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CardMemory {
    /// The most that tensors had at once.
    pub peak_used: u64,
    /// The most that was taken from the card for tensors and recorded steps.
    pub peak_reserved: u64,
    /// What the card had less to give at the stage's end than at the start, by its driver: libraries and code too.
    pub driver: u64,
}

impl From<DeviceMemory> for CardMemory {
    fn from(memory: DeviceMemory) -> Self {
        let peak_reserved = memory.peak_reserved + memory.peak_graphs;
        Self { peak_used: memory.peak_used + memory.peak_graphs, peak_reserved, driver: memory.driver }
    }
}

/// Many values in three.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The value in the middle, or the mean of the two there.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Summary {
    /// Of some values; of none, all are 0.
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
    /// Plans a file at `path`; one that is there will be replaced.
    ///
    /// # Errors
    /// Those of [`PlannedFile`]: the folder is missing or takes no files, or the name is a folder's or has another
    /// ending than `.json`.
    pub fn plan(path: &Path) -> Result<Self> {
        let rules = FileRules { field: "json", what: "the report", extensions: &["json"], overwrite: true };
        Ok(Self(PlannedFile::plan(path, rules)?))
    }

    /// The file.
    pub fn file(&self) -> &PlannedFile {
        &self.0
    }

    /// Writes the file; it appears whole or not at all.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`].
    pub fn write(self, report: &BenchReport) -> Result<()> {
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
