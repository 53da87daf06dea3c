//! Image prompts of a graph as those of a request.

use std::path::PathBuf;

use kiln_engine::{IpAdapterUse, prompt_blocks};
use kiln_models::ModelFolder;
use kiln_request::comfy::{GraphPrompt, stem};

use crate::app::App;
use crate::named_files::ip_adapters;

/// Why a prompt cannot be had: the input at fault, and the problem.
pub(super) type Problem = (&'static str, String);

/// The request's image prompt without its image; `None` for one that adds nothing.
///
/// # Errors
/// [`Problem`] for a preset whose file the server does not have, and weights that are not defined for the model.
pub(super) fn adapter(app: &App, prompt: &GraphPrompt, model: &ModelFolder) -> Result<Option<IpAdapterUse>, Problem> {
    let names: Vec<String> =
        ip_adapters(app.options.ip_adapters_dir.as_deref()).into_iter().map(|(name, _)| name).collect();
    let is_xl = model.unet_config().is_some_and(|unet| unet.pooled_dim().is_some());
    let name = prompt.adapter.find(&names, is_xl).ok_or_else(|| {
        let named = prompt.adapter.named();
        let family = if is_xl { "Stable Diffusion XL" } else { "Stable Diffusion 1" };
        let message = format!(
            "preset of node {} ({}) is {:?}, and the server has no file of it for {family}",
            named.node, named.class, named.name
        );
        ("preset", message)
    })?;
    let (weight, blocks) = prompt.weights.of(prompt.weight, &prompt_blocks(model)).ok_or_else(|| {
        let message = format!(
            "weight_type of node {} is defined for Stable Diffusion 1 and XL, and the model has another number of blocks: expected linear",
            prompt.node
        );
        ("weight_type", message)
    })?;
    if weight == 0.0 {
        return Ok(None);
    }
    let encoder = prompt.encoder.as_ref().map(|encoder| PathBuf::from(stem(&encoder.name)));
    let (start, end) = (prompt.start, prompt.end);
    Ok(Some(IpAdapterUse { weight, blocks, encoder, start, end, ..IpAdapterUse::new(name) }))
}
