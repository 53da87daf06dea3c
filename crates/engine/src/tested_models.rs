//! The memory that the tested models of the Hub need, from their plans.

use kiln_mempool::SystemMemory;
use kiln_models::{DTypeChoice, TESTED, TestedModel};
use kiln_ops::Target;
use kiln_ops::device::gpus;
use rayon::prelude::*;
use serde::Serialize;

use crate::error::Result;
use crate::mode::Mode;
use crate::plan::{ExecutionTarget, Planner};
use crate::room::{DeviceMemory, Room};

/// The device of this machine that Kiln chooses, and its memory.
#[derive(Debug, Clone, Serialize)]
pub struct Here {
    /// Its name for `--device`.
    pub device: &'static str,
    /// The name of a GPU.
    pub name: Option<String>,
    /// The bytes that a run may use if no other program uses any; `None` if the system does not say.
    pub memory: Option<usize>,
    #[serde(skip)]
    on: ExecutionTarget,
}

/// The memory that a tested model needs.
#[derive(Debug, Clone)]
pub struct TestedNeeds {
    /// The model.
    pub model: &'static TestedModel,
    /// Bytes of a GPU with which the whole model stays in its memory.
    pub gpu_all: usize,
    /// The fewest bytes of a GPU.
    pub gpu_least: usize,
    /// The fastest mode that fits on this machine; `None` if none fits or the memory is not known.
    pub mode: Option<Mode>,
}

/// This machine's device, and what each tested model needs for one image of its usual size, without reading a file.
///
/// # Errors
/// Errors of the built-in configurations and of the networks' dry runs.
pub fn tested_models() -> Result<(Here, Vec<TestedNeeds>)> {
    let here = here();
    let all = TESTED.par_iter().map(|model| needs(model, &here)).collect::<Result<Vec<_>>>()?;
    Ok((here, all))
}

/// The total memory, since what other programs use now says nothing about a model that is downloaded for longer.
fn here() -> Here {
    let first = gpus().ok().and_then(|found| found.gpus.into_iter().next());
    let target = |target: Target| ExecutionTarget::new(target, DTypeChoice::Auto.resolve(target.is_gpu()));
    match first {
        Some(gpu) => {
            let memory = DeviceMemory::of_card(&gpu).total.bytes;
            Here { device: "cuda:0", memory: Some(memory), name: Some(gpu.name), on: target(Target::Gpu) }
        }
        None => {
            let memory = SystemMemory::now().map(|memory| usize::try_from(memory.total).unwrap_or(usize::MAX));
            let on = target(Target::Cpu { threads: rayon::current_num_threads() });
            Here { device: "cpu", name: None, memory, on }
        }
    }
}

fn needs(model: &'static TestedModel, here: &Here) -> Result<TestedNeeds> {
    let planner = Planner::of_configurations(&model.architecture()?)?;
    let work = planner.work([None, None], None, 1)?;
    let gpu = ExecutionTarget::new(Target::Gpu, DTypeChoice::Auto.resolve(true));
    let peaks: Vec<usize> = planner.modes(&work, gpu, None)?.iter().map(|plan| plan.peak()).collect();
    let mode = here.memory.and_then(|bytes| planner.choose_within(&work, here.on, Room::given(bytes)).ok());
    Ok(TestedNeeds {
        model,
        gpu_all: peaks.first().copied().unwrap_or(0),
        gpu_least: peaks.iter().copied().min().unwrap_or(0),
        mode: mode.map(|plan| plan.mode),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tested_model_has_a_plan() {
        let (here, all) = tested_models().unwrap();
        assert_eq!(all.len(), TESTED.len());
        assert!(here.memory.is_some_and(|bytes| bytes > 0));
        for needs in &all {
            assert!(0 < needs.gpu_least && needs.gpu_least < needs.gpu_all, "{needs:?}");
            // All weights in 16 bits are a part of it.
            assert!(needs.gpu_all as u64 > needs.model.download / 3, "{needs:?}");
        }
        let of = |name: &str| all.iter().find(|needs| needs.model.repository.ends_with(name)).unwrap();
        assert!(of("stable-diffusion-v1-5").gpu_all < of("xl-base-1.0").gpu_all);
        assert!(of("xl-base-1.0").gpu_all < of("Qwen-Image").gpu_all);
    }
}
