//! A Python object that takes part in a call: it gives noise and latents, and sees and changes steps.

use candle_core::{Device, Tensor};
use kiln_engine::{Error, NoiseDraw, Result, Steering, StepChange};
use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::elements::Elements;
use crate::error::refused;

/// An object with the methods `noise`, `input_latents` and `after_step`, and the attribute `sees_steps`.
pub(crate) struct PySteering {
    object: Py<PyAny>,
    sees_steps: bool,
    /// The exception of a method.
    raised: Mutex<Option<PyErr>>,
}

impl PySteering {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let sees_steps = object.getattr("sees_steps")?.is_truthy()?;
        Ok(Self { object: object.clone().unbind(), sees_steps, raised: Mutex::new(None) })
    }

    /// The exception that ended the call, if one did.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        self.raised.lock().take()
    }

    /// Runs Python code. Its exception ends the call.
    fn ask<T>(&self, ask: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| ask(py, self.object.bind(py))).map_err(|error| {
            self.raised.lock().get_or_insert(error);
            Error::Interrupted
        })
    }
}

impl Steering for PySteering {
    fn noise(&self, draw: &NoiseDraw) -> Result<Option<Vec<f32>>> {
        let NoiseDraw { number, is_of_input, first, shape } = *draw;
        self.ask(|py, object| {
            let given = object.call_method1("noise", (number, is_of_input, first, shape))?;
            if given.is_none() {
                return Ok(None);
            }
            let values = PyBuffer::<f32>::get(&given)?.to_vec(py)?;
            let expected: usize = shape.iter().product();
            match values.len() == expected {
                true => Ok(Some(values)),
                false => Err(refused("noise", format!("{} values", values.len()), &format!("{expected}"))),
            }
        })
    }

    fn input_latents(&self) -> Result<Option<Tensor>> {
        let given = self.ask(|py, object| match object.call_method0("input_latents")? {
            given if given.is_none() => Ok(None),
            given => floats(py, &given).map(Some),
        })?;
        given.map(tensor).transpose()
    }

    fn sees_steps(&self) -> bool {
        self.sees_steps
    }

    fn after_step(&self, done: usize, all: usize, latents: &Tensor) -> Result<StepChange> {
        let (values, shape) = (latents.flatten_all()?.to_vec1::<f32>()?, latents.dims());
        let (latents, cfg_scale, ends) = self.ask(|py, object| {
            let shown = Elements::of_f32(values, shape);
            let answer = object.call_method1("after_step", (done, all, shown))?;
            let (latents, cfg_scale, ends): (Option<Bound<'_, PyAny>>, Option<f64>, bool) = answer.extract()?;
            Ok((latents.map(|latents| floats(py, &latents)).transpose()?, cfg_scale, ends))
        })?;
        Ok(StepChange { latents: latents.map(tensor).transpose()?, cfg_scale, ends })
    }
}

/// The values of a buffer of f32, and its shape.
fn floats(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<(Vec<f32>, Vec<usize>)> {
    let buffer = PyBuffer::<f32>::get(given)?;
    Ok((buffer.to_vec(py)?, buffer.shape().to_vec()))
}

fn tensor((values, shape): (Vec<f32>, Vec<usize>)) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}
