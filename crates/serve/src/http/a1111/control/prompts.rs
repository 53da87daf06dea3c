//! Units that are image prompts: the IP-Adapters of the extension.

use std::path::{Path, PathBuf};

use kiln_engine::{ControlPasses, IpAdapterUse};
use serde_json::{Map, Value};

use super::units::{Place, images, left_out, number, passes, several};
use crate::error::Refused;
use crate::named_files::find;

/// The extension's preprocessors of IP-Adapters, with the names that its page shows. Which image encoder is needed follows from the
/// adapter's file here, as with the first of them.
pub(super) const MODULES: [(&str, &str); 4] = [
    ("ip-adapter-auto", "ip-adapter-auto"),
    ("ip-adapter_clip_sd15", "ip-adapter_clip_h"),
    ("ip-adapter_clip_sdxl_plus_vith", "ip-adapter_clip_sdxl_plus_vith"),
    ("ip-adapter_clip_sdxl", "ip-adapter_clip_g"),
];
/// How the names of those begin, and of others that need the recognizer of a face.
const BEGIN: &str = "ip-adapter";

/// Fields of a unit that are left out for an image prompt, with what asks for nothing.
const LEFT_OUT: [&str; 4] = ["advanced_weighting", "ipadapter_input", "pulid_mode", "union_control_type"];

/// Whether a module is one of IP-Adapters.
fn is_module(name: &str) -> bool {
    MODULES.iter().any(|(known, label)| known.eq_ignore_ascii_case(name) || label.eq_ignore_ascii_case(name))
}

/// Whether a unit with this module and model is an image prompt.
pub(super) fn is_prompt(module: &str, model: &str, adapters: &[(String, PathBuf)]) -> bool {
    let has_module = module.trim().to_ascii_lowercase().starts_with(BEGIN);
    has_module || (module.eq_ignore_ascii_case("none") && find(adapters, model).is_some())
}

/// The image prompt of unit `i`, and sentences about what of it is not done.
///
/// # Errors
/// [`Refused`] with the unit's field.
pub(super) fn read(
    i: usize,
    unit: &Map<String, Value>,
    (module, model): (&str, &str),
    place: &Place<'_>,
) -> Result<(IpAdapterUse, Vec<String>), Refused> {
    let refuse = |found: String, expected: String| Refused::value("alwayson_scripts", found, expected);
    if !module.eq_ignore_ascii_case("none") && !is_module(module.trim()) {
        let known = MODULES.map(|(name, _)| name).join(", ");
        return Err(refuse(format!("`module` {module:?}"), format!("one that recognizes no faces: {known}")));
    }
    if find(place.ip_adapters, model).is_none() {
        let names: Vec<&str> = place.ip_adapters.iter().map(|(name, _)| name.as_str()).collect();
        let names = if names.is_empty() { "it has none".into() } else { names.join(", ") };
        let expected = format!("one of the server's IP-Adapters with this `module`: {names}");
        return Err(refuse(format!("`model` {model:?}"), expected));
    }
    let (image, mask) = images(unit);
    let image = image
        .or(place.init)
        .ok_or_else(|| refuse(format!("unit {i} of ControlNet without `image`"), "an image in Base64".into()))?;
    let mut warnings = left_out(i, unit, mask, &LEFT_OUT);
    warnings.extend(several(i, unit));
    if place.is_hires && passes(unit).is_some_and(|passes| passes != ControlPasses::Both) {
        warnings
            .push(format!("`hr_option` of unit {i} of ControlNet is left out: an image prompt acts in both passes"));
    }
    let region = unit.get("effective_region_mask").and_then(Value::as_str).filter(|mask| !mask.is_empty());
    let prompt = IpAdapterUse {
        image: Some(Path::new(image).into()),
        weight: number(unit, &["weight"], 1.0)?,
        start: number(unit, &["guidance_start"], 0.0)?,
        end: number(unit, &["guidance_end", "guidance"], 1.0)?,
        mask: region.map(Into::into),
        ..IpAdapterUse::new(model)
    };
    Ok((prompt, warnings))
}
