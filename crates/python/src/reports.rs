//! Facts about models, devices and options, as JSON.

use std::path::PathBuf;

use kiln_engine::{Job, ModelFolder, OPTIONS, OptionGroup, PlanReport, Planner, Refiner, Setup, Workload};
use pyo3::prelude::*;
use serde_json::json;

use crate::engine_options::ENGINE_OPTIONS;
use crate::error::{of_engine, refused};
use crate::python_types::python_type;

/// The memory of a job's run in every mode.
pub(crate) fn plan(model: &ModelFolder, job: &Job, setup: &Setup) -> kiln_engine::Result<String> {
    let planner = Planner::of_job(model, job, setup)?;
    let (on, room) = planner.target(setup)?;
    let work = Workload { vae: setup.memory.vae, ..Workload::of(job) };
    let refiner = job.refiner.as_ref().map(Refiner::model).map(ModelFolder::name);
    let report = PlanReport::new(&planner, work, on, room)?;
    Ok(report.to_json(&model.name(), refiner.as_deref()).to_string())
}

/// The contents of a model folder, a checkpoint file or an image, without reading weights.
#[pyfunction]
pub fn inspect(py: Python<'_>, path: PathBuf, dtype: &str) -> PyResult<String> {
    let dtype = dtype.parse().map_err(|_| refused("dtype", dtype, "auto, f32, bf16 or f16"))?;
    let report = py.detach(|| kiln_engine::inspect(&path, dtype)).map_err(of_engine)?;
    Ok(json!(report).to_string())
}

/// The GPUs of this machine.
#[pyfunction]
pub fn devices(py: Python<'_>) -> String {
    json!(py.detach(kiln_engine::devices)).to_string()
}

/// The options of a request and of an engine: names, types and texts.
#[pyfunction]
pub fn options() -> String {
    let of_request: Vec<_> = OPTIONS
        .iter()
        .filter(|row| row.group != OptionGroup::Internal)
        .map(|row| {
            json!({
                "name": row.name, "type": python_type(row), "help": row.help(), "default": row.default,
                "choices": row.kind.names(), "group": format!("{:?}", row.group).to_lowercase(),
            })
        })
        .collect();
    let of_engine: Vec<_> = ENGINE_OPTIONS
        .iter()
        .map(|option| json!({ "name": option.name, "type": option.python, "help": option.help() }))
        .collect();
    json!({ "request": of_request, "engine": of_engine }).to_string()
}
