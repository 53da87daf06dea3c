//! A call of an engine: its callbacks, and the ways to stop it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln_engine::Event;
use pyo3::prelude::*;

use crate::elements::Elements;
use crate::error;
use crate::image::Generated;

/// Stops a call from another thread, at its next step.
#[pyclass(frozen, from_py_object, module = "kiln._kiln")]
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Stops the call.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who hears of a call, and may stop it.
pub(crate) struct Watcher {
    on_step: Option<Py<PyAny>>,
    on_preview: Option<Py<PyAny>>,
    /// Whether this is the thread on which Python handles signals.
    handles_signals: bool,
    stop: Option<Stop>,
    /// Whether a callback asked to stop: who reports an image that is saved asks again at the next step.
    is_stopped: bool,
    /// The exception of a callback or of a signal.
    raised: Option<PyErr>,
    /// The images that are finished.
    pub(crate) images: Vec<Generated>,
    /// Whether settings make the images again.
    pub(crate) has_settings: bool,
}

impl Watcher {
    pub(crate) fn new(
        py: Python<'_>,
        on_step: Option<Py<PyAny>>,
        on_preview: Option<Py<PyAny>>,
        stop: Option<Stop>,
    ) -> PyResult<Self> {
        let threading = py.import("threading")?;
        let [this, main] = ["current_thread", "main_thread"].map(|name| threading.call_method0(name));
        let handles_signals = this?.is(&main?);
        Ok(Self {
            on_step,
            on_preview,
            handles_signals,
            stop,
            is_stopped: false,
            raised: None,
            images: Vec::new(),
            has_settings: true,
        })
    }

    pub(crate) fn has_previews(&self) -> bool {
        self.on_preview.is_some()
    }

    /// Takes an event of the engine.
    pub(crate) fn event(&mut self, event: Event) -> kiln_engine::Result<ControlFlow<()>> {
        match event {
            Event::Image(image) => self.images.push(Generated::of(*image, self.has_settings)?),
            Event::Step { done, total } if self.on_step.is_some() => {
                return Ok(self.call(|py, watcher| goes_on(py, watcher.on_step.as_ref(), (done, total))));
            }
            Event::Preview { index, step, image } => {
                let (width, height) = image.size();
                let pixels = Elements::of_bytes(image.into_data(), &[height, width, 3]);
                return Ok(self.call(|py, watcher| goes_on(py, watcher.on_preview.as_ref(), (index, step, pixels))));
            }
            Event::DecodeAgain { index, seed, from, to } => self.warn(format!(
                "image {} (seed {seed}) overflowed {from} in the VAE; it and all following images are decoded in {to}",
                index + 1
            )),
            Event::Smaller { stage, from, to } => {
                self.warn(format!("out of memory for {} with {from}; continuing with {to}", stage.doing()));
            }
            _ => {}
        }
        Ok(self.look())
    }

    /// Whether the call goes on: handles signals, and asks [`Stop`].
    pub(crate) fn look(&mut self) -> ControlFlow<()> {
        if self.ends() {
            return ControlFlow::Break(());
        }
        if self.handles_signals { self.call(|_, _| Ok(true)) } else { ControlFlow::Continue(()) }
    }

    /// Whether somebody has asked to stop.
    fn ends(&self) -> bool {
        let is_set = self.stop.as_ref().is_some_and(|stop| stop.0.load(Ordering::Relaxed));
        is_set || self.is_stopped || self.raised.is_some()
    }

    /// Runs Python code, after the handlers of signals that have come. Its exception stops the call, and `false` does.
    pub(crate) fn call(&mut self, run: impl FnOnce(Python<'_>, &Self) -> PyResult<bool>) -> ControlFlow<()> {
        let result = Python::attach(|py| {
            py.check_signals()?;
            run(py, self)
        });
        match result {
            Ok(true) if self.ends() => ControlFlow::Break(()),
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => {
                self.is_stopped = true;
                ControlFlow::Break(())
            }
            Err(error) => {
                self.raised.get_or_insert(error);
                ControlFlow::Break(())
            }
        }
    }

    /// A line of the logger `kiln`.
    pub(crate) fn warn(&mut self, text: String) {
        let log = |py: Python<'_>| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("kiln",))?;
            logger.call_method1("warning", ("%s", text)).map(drop)
        };
        if let Err(error) = Python::attach(log) {
            self.raised.get_or_insert(error);
        }
    }

    /// Takes the exception of a caller's other code, which ended the call.
    pub(crate) fn raise(&mut self, error: Option<PyErr>) {
        if let Some(error) = error {
            self.raised.get_or_insert(error);
        }
    }

    /// The images, or the exception: that of a callback or a signal before the engine's.
    pub(crate) fn images(self, py: Python<'_>, result: kiln_engine::Result<()>) -> PyResult<Vec<Generated>> {
        let Self { raised, images, .. } = self;
        match (raised, result) {
            (Some(raised), _) => Err(raised),
            (None, Ok(())) => Ok(images),
            (None, Err(failed)) => {
                let stopped = matches!(failed, kiln_engine::Error::Interrupted);
                let error = error::of_engine(failed);
                if stopped {
                    error.value(py).setattr("generated", images)?;
                }
                Err(error)
            }
        }
    }

    /// A result, or the exception of a callback or a signal.
    pub(crate) fn result<T>(self, result: PyResult<T>) -> PyResult<T> {
        self.raised.map_or(result, Err)
    }
}

/// Calls a callback; `False` is for stopping, every other result for going on.
pub(crate) fn goes_on<'py, A>(py: Python<'py>, callback: Option<&Py<PyAny>>, args: A) -> PyResult<bool>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    let Some(callback) = callback else { return Ok(true) };
    let answer = callback.bind(py).call1(args)?;
    Ok(!answer.is(pyo3::types::PyBool::new(py, false)))
}
