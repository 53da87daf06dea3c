//! Inspection of a model folder, a checkpoint file or an image without reading weights.

use std::path::Path;

use kiln_models::{DTypeChoice, FileReport, FolderReport, Inspected, ListReport};
use kiln_request::ImageReport;
use serde::Serialize;

use crate::error::Result;

/// The result of an inspection.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Inspection {
    /// A model folder.
    Folder(FolderReport),
    /// A checkpoint file.
    File(Box<FileReport>),
    /// A folder of several models, networks or adapters.
    List(ListReport),
    /// An image, with its settings.
    Image(Box<ImageReport>),
}

/// Inspects `path`. Segment sizes are for elements of `dtype`.
///
/// # Errors
/// See [`kiln_models::inspect`] and [`ImageReport::read`].
pub fn inspect(path: &Path, dtype: DTypeChoice) -> Result<Inspection> {
    if ImageReport::is_for(path) {
        return Ok(Inspection::Image(ImageReport::read(path)?.into()));
    }
    Ok(match kiln_models::inspect(path, dtype)? {
        Inspected::Folder(report) => Inspection::Folder(report),
        Inspected::File(report) => Inspection::File(report),
        Inspected::List(report) => Inspection::List(report),
    })
}
