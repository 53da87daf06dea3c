//! Errors as the exceptions of `kiln.errors`.

use kiln_batch::Error as BatchError;
use kiln_engine::Error;
use kiln_request::FieldError;
use pyo3::prelude::*;

/// The exception `class` of `kiln.errors` with a message, and the field that is at fault.
fn exception(class: &str, message: String, field: Option<&str>) -> PyErr {
    Python::attach(|py| {
        let raised = py.import("kiln.errors").and_then(|errors| errors.getattr(class)?.call1((message, field)));
        raised.map_or_else(|error| error, PyErr::from_value)
    })
}

/// A name that is a field's, and not words about something else.
fn field(name: &str) -> Option<&str> {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_').then_some(name)
}

/// A value that a call or an option cannot have.
pub(crate) fn refused(name: &str, found: impl std::fmt::Display, expected: &str) -> PyErr {
    exception("RequestError", format!("`{name}` is {found}, expected {expected}"), Some(name))
}

/// The engine is closed.
pub(crate) fn closed() -> PyErr {
    exception("Error", "the engine is closed; make another one".into(), None)
}

/// The engine was loaded by the process from which this one was forked.
pub(crate) fn forked() -> PyErr {
    let message = "the engine was loaded before this process was forked, and its threads are the parent's; make another \
                   one here, or start processes by `spawn`";
    exception("Error", message.into(), None)
}

/// A callback of a call uses the engine that makes the call.
pub(crate) fn busy() -> PyErr {
    exception(
        "Error",
        "the engine makes a call on this thread already; a callback cannot make another one".into(),
        None,
    )
}

/// A field of a request that cannot be read.
pub(crate) fn of_field(error: FieldError) -> PyErr {
    exception("RequestError", error.message, error.field.as_deref())
}

/// An error of the engine.
pub(crate) fn of_engine(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let (class, name) = match &error {
        Error::Interrupted => ("Stopped", None),
        Error::Budget { .. } | Error::Memory { .. } => ("OutOfMemoryError", None),
        error if error.is_out_of_memory() => ("OutOfMemoryError", None),
        Error::Request(kiln_request::Error::Value { name, .. }) => ("RequestError", field(name)),
        Error::Device(_) => ("DeviceError", Some("device")),
        error if error.is_usage() => ("RequestError", None),
        Error::Files(_) | Error::Models(_) | Error::Media(_) | Error::Upscale(_) | Error::Weights(_) => {
            ("FileError", None)
        }
        _ => ("Error", None),
    };
    exception(class, error.to_string(), name)
}

/// An error of an image set.
pub(crate) fn of_batch(error: BatchError) -> PyErr {
    match error {
        BatchError::Engine(error) => of_engine(error),
        error if error.is_usage() => exception("RequestError", error.to_string(), None),
        other => exception("Error", other.to_string(), None),
    }
}

/// An error of a server.
pub(crate) fn of_server(error: kiln_serve::Error) -> PyErr {
    match error {
        kiln_serve::Error::Engine(error) => of_engine(error),
        kiln_serve::Error::Value { name, .. } => exception("RequestError", error.to_string(), field(name)),
        kiln_serve::Error::Listen { .. } => exception("RequestError", error.to_string(), Some("listen")),
        other => exception("Error", other.to_string(), None),
    }
}
