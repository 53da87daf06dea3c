//! IP-Adapters of requests: names of the server's files, and images in Base64.

use std::path::Path;

use kiln_engine::{Request, prompt_plans};
use kiln_models::ModelFolder;
use tempfile::TempDir;

use crate::app::{named, store};
use crate::base64_image;
use crate::error::Refused;
use crate::named_files;

/// The field of requests.
const FIELD: &str = "ip_adapters";
/// The most bytes of a file of `embeds`: features of several images, and less than costs much memory.
const MOST_EMBEDS: usize = 4 << 20;
/// The fields of an IP-Adapter that come in Base64.
pub(crate) const FILES: [&str; 3] = ["image", "mask", "embeds"];

/// Puts the server's own files in the places of their names.
///
/// # Errors
/// [`Refused`] with the names that there are.
pub(crate) fn find_named(request: &mut Request, folder: Option<&Path>) -> Result<(), Refused> {
    if request.ip_adapters.is_empty() {
        return Ok(());
    }
    let (adapters, encoders) = (named_files::ip_adapters(folder), named_files::image_encoders(folder));
    for adapter in &mut request.ip_adapters {
        adapter.model = named(FIELD, &adapters, &adapter.model, "the server's IP-Adapters")?;
        if let Some(encoder) = &mut adapter.encoder {
            *encoder = named(FIELD, &encoders, encoder, "the image encoders next to the server's IP-Adapters")?;
        }
    }
    Ok(())
}

/// Refuses adapters that do not belong to the model, before weights are read.
///
/// # Errors
/// [`Refused`] with what is wrong.
pub(crate) fn check(request: &Request, model: &ModelFolder) -> Result<(), Refused> {
    let plans = prompt_plans(model, &request.ip_adapters);
    plans.map(drop).map_err(|error| Refused::invalid(format!("`{FIELD}`: {error}")).at(FIELD))
}

/// Writes the images, masks and features of a request, in Base64, into files of `folder`, and puts their paths into the request.
///
/// # Errors
/// [`Refused`] for text that is not Base64, and for features in another format than safetensors.
pub(crate) fn store_inputs(request: &mut Request, folder: &mut Option<TempDir>) -> Result<(), Refused> {
    for (i, adapter) in request.ip_adapters.iter_mut().enumerate() {
        for (name, field) in [("image", &mut adapter.image), ("mask", &mut adapter.mask)] {
            let Some(text) = field.take() else { continue };
            let bytes = base64_image::decode(FIELD, &text.to_string_lossy())?;
            *field = Some(store(folder, &format!("prompt-{i}-{name}"), &bytes)?);
        }
        let Some(text) = adapter.embeds.take() else { continue };
        let bytes = base64_image::decode(FIELD, &text.to_string_lossy())?;
        if bytes.len() > MOST_EMBEDS {
            let found = format!("`embeds` of {} bytes", bytes.len());
            return Err(Refused::value(FIELD, found, format!("at most {MOST_EMBEDS}")));
        }
        if !is_safetensors(&bytes) {
            return Err(Refused::value(FIELD, "`embeds` of another format", "a safetensors file in Base64"));
        }
        adapter.embeds = Some(store(folder, &format!("prompt-{i}-embeds.safetensors"), &bytes)?);
    }
    Ok(())
}

/// The files of a request that came with it.
pub(crate) fn inputs(request: &Request) -> impl Iterator<Item = &Path> {
    request.ip_adapters.iter().flat_map(|adapter| {
        [adapter.image.as_deref(), adapter.mask.as_deref(), adapter.embeds.as_deref()].into_iter().flatten()
    })
}

/// Whether files of the request are read after it was resolved: features are, images are not.
pub(crate) fn keeps_files(request: &Request) -> bool {
    request.ip_adapters.iter().any(|adapter| adapter.embeds.is_some())
}

/// The length of a header, and the header, which is an object of JSON.
fn is_safetensors(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
    length.is_some_and(|length| length < bytes.len() as u64) && bytes.get(8) == Some(&b'{')
}
