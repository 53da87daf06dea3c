//! The units of `alwayson_scripts.ControlNet` (`internal_controlnet/args.py` of the extension).

use std::path::PathBuf;

use kiln_engine::{ControlMode, ControlPasses, ControlType, ControlUse, IpAdapterUse};
use kiln_media::{AlphaRule, DecodeOptions, Rgb8Image, StillFormat, decode, encode};
use serde_json::{Map, Value};

use super::modules::{Module, resolution};
use super::prompts;
use crate::base64_image;
use crate::error::Refused;

/// Where the units act.
pub(crate) struct Place<'a> {
    /// Width and height of the results.
    pub(crate) size: (usize, usize),
    /// The input image in Base64, which units without an image take.
    pub(crate) init: Option<&'a str>,
    pub(crate) is_img2img: bool,
    /// Whether there is a second pass.
    pub(crate) is_hires: bool,
    /// Which images are decoded.
    pub(crate) images: DecodeOptions,
    /// The server's IP-Adapters.
    pub(crate) ip_adapters: &'a [(String, PathBuf)],
}

/// The units of a request that are on.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// The networks by their names, with images in Base64.
    pub(crate) controls: Vec<ControlUse>,
    /// The IP-Adapters by their names, with images in Base64.
    pub(crate) ip_adapters: Vec<IpAdapterUse>,
    /// Maps of preprocessors, PNG files in Base64, shown after the results.
    pub(crate) maps: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Fields that are left out, with what asks for nothing.
const LEFT_OUT: [&str; 4] = ["advanced_weighting", "effective_region_mask", "ipadapter_input", "pulid_mode"];
/// Fields of a unit that are read, and those that concern the extension's page or its memory.
const KNOWN: [&str; 25] = [
    "enabled",
    "module",
    "model",
    "weight",
    "image",
    "input_image",
    "mask",
    "mask_image",
    "resize_mode",
    "low_vram",
    "lowvram",
    "processor_res",
    "threshold_a",
    "threshold_b",
    "guidance_start",
    "guidance_end",
    "guidance",
    "pixel_perfect",
    "control_mode",
    "hr_option",
    "save_detected_map",
    "is_ui",
    "input_mode",
    "effective_region_mask",
    "union_control_type",
];

impl Units {
    /// Reads the units.
    ///
    /// # Errors
    /// [`Refused`] with the unit's field.
    pub(crate) fn read(args: &[Value], place: &Place<'_>) -> Result<Self, Refused> {
        let mut units = Self::default();
        for (i, unit) in args.iter().enumerate() {
            let Value::Object(unit) = unit else {
                return Err(Refused::value(
                    "alwayson_scripts",
                    format!("ControlNet with {unit}"),
                    "objects as its units",
                ));
            };
            let is_on = unit.get("enabled").is_none_or(|on| *on == Value::Bool(true));
            let model = unit.get("model").and_then(Value::as_str).unwrap_or("None");
            if !is_on {
                continue;
            }
            if ["", "none"].contains(&model.to_ascii_lowercase().as_str()) {
                units.warnings.push(format!("unit {i} of ControlNet is left out: it has no `model`"));
                continue;
            }
            units.add(i, unit, model, place)?;
        }
        Ok(units)
    }

    fn add(&mut self, i: usize, unit: &Map<String, Value>, model: &str, place: &Place<'_>) -> Result<(), Refused> {
        let (image, mask) = images(unit);
        let name = unit.get("module").and_then(Value::as_str).unwrap_or("none");
        if prompts::is_prompt(name, model, place.ip_adapters) {
            let (prompt, warnings) = prompts::read(i, unit, (name, model), place)?;
            self.ip_adapters.push(prompt);
            self.warnings.extend(warnings);
            return Ok(());
        }
        let module = Module::find(name).ok_or_else(|| {
            let known: Vec<&str> = super::modules::MODULES.iter().map(|module| module.name).collect();
            let expected = format!("one of those that need no network: {}", known.join(", "));
            Refused::value("alwayson_scripts", format!("`module` {name:?}"), expected)
        })?;
        let resize = unit.get("resize_mode").map_or(Resize::Crop, Resize::of);
        let [a, b] = [number(unit, &["threshold_a"], -1.0)?, number(unit, &["threshold_b"], -1.0)?];
        let shown = match module.preprocessor([a, b]) {
            None => image.map(String::from),
            Some(preprocessor) => {
                let source = image.or(place.init).ok_or_else(|| {
                    Refused::value(
                        "alwayson_scripts",
                        format!("unit {i} of ControlNet without `image`"),
                        "an image in Base64",
                    )
                })?;
                let source = rgb("alwayson_scripts", source, &place.images)?;
                let side = match unit.get("pixel_perfect") == Some(&Value::Bool(true)) {
                    true => pixel_perfect(source.size(), place.size, resize),
                    false => resolution(unit.get("processor_res").and_then(Value::as_i64)),
                };
                let map = preprocessor.run(&source, Some(side)).map_err(Refused::unread)?;
                let file = base64_image::encode(&encode(&map, StillFormat::Png).map_err(Refused::unread)?);
                if unit.get("save_detected_map") != Some(&Value::Bool(false)) {
                    self.maps.push(file.clone());
                }
                Some(file)
            }
        };
        self.warnings.extend(left_out(i, unit, mask, &LEFT_OUT));
        self.warnings.extend(several(i, unit));
        let control = ControlUse {
            image: shown.map(Into::into),
            weight: number(unit, &["weight"], 1.0)?,
            start: number(unit, &["guidance_start"], 0.0)?,
            end: number(unit, &["guidance_end", "guidance"], 1.0)?,
            kind: control_type(unit),
            mode: unit.get("control_mode").map_or(ControlMode::Balanced, mode),
            resize: resize.own(),
            passes: passes(unit).filter(|_| place.is_hires).unwrap_or_default(),
            ..ControlUse::new(model)
        };
        self.controls.extend(of_passes(control, place.is_hires && module.has_thin_edges()));
        Ok(())
    }
}

/// The control in each pass: in the second one, thin edges guide weakly.
fn of_passes(control: ControlUse, is_thin: bool) -> Vec<ControlUse> {
    let weak = ControlUse { passes: ControlPasses::Second, ..control.clone() }.with_thin_edges_enlarged();
    if !is_thin || weak.mode == control.mode {
        return vec![control];
    }
    match control.passes {
        ControlPasses::First => vec![control],
        ControlPasses::Second => vec![weak],
        ControlPasses::Both => vec![ControlUse { passes: ControlPasses::First, ..control }, weak],
    }
}

/// A number of a unit under the first of these names that it has.
pub(super) fn number(unit: &Map<String, Value>, names: &[&str], default: f64) -> Result<f64, Refused> {
    let found = names.iter().find_map(|name| unit.get(*name).filter(|value| !value.is_null()));
    found.map_or(Ok(default), |value| {
        value.as_f64().ok_or_else(|| Refused::value("alwayson_scripts", format!("`{}` {value}", names[0]), "a number"))
    })
}

/// The type of the image for a network that takes several (`ControlNetUnionControlType` of the extension).
fn control_type(unit: &Map<String, Value>) -> Option<ControlType> {
    let name = unit.get("union_control_type")?.as_str()?.to_ascii_lowercase();
    match name.as_str() {
        "hard edge" => Some(ControlType::Canny),
        "normal map" => Some(ControlType::Normal),
        "segmentation" => Some(ControlType::Segment),
        other => ControlType::find(&other.replace(' ', "")),
    }
}

/// The passes in which a unit acts; `None` for a text of another meaning.
pub(super) fn passes(unit: &Map<String, Value>) -> Option<ControlPasses> {
    match unit.get("hr_option").and_then(Value::as_str) {
        None | Some("") => Some(ControlPasses::Both),
        Some(text) => ControlPasses::find(text),
    }
}

/// Sentences about what of a unit is not done: the fields `names`, a mask, and fields that the extension does not have.
pub(super) fn left_out(i: usize, unit: &Map<String, Value>, mask: Option<&str>, names: &[&str]) -> Vec<String> {
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !["", "Unknown", "Fidelity"].contains(&text.as_str()),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    };
    let mut named: Vec<&str> = names.iter().copied().filter(|name| unit.get(*name).is_some_and(asks)).collect();
    let unknown = unit.iter().filter(|(name, value)| {
        let is_crop = *name == "inpaint_crop_input_image"; // it is usually on
        let is_known =
            KNOWN.contains(&name.as_str()) || LEFT_OUT.contains(&name.as_str()) || names.contains(&name.as_str());
        if is_crop { **value == Value::Bool(false) } else { !is_known && asks(value) }
    });
    named.extend(unknown.map(|(name, _)| name.as_str()));
    if mask.is_some_and(|mask| !mask.is_empty()) {
        named.push("mask");
    }
    if passes(unit).is_none() {
        named.push("hr_option");
    }
    if unit.get("union_control_type").is_some_and(asks)
        && control_type(unit).is_none()
        && !names.contains(&"union_control_type")
    {
        named.push("union_control_type");
    }
    named
        .into_iter()
        .map(|name| format!("`{name}` of unit {i} of ControlNet is left out: Kiln does not have it"))
        .collect()
}

/// A sentence about the images of a unit after the first.
pub(super) fn several(i: usize, unit: &Map<String, Value>) -> Option<String> {
    let images = ["image", "input_image"].iter().find_map(|name| unit.get(*name)?.as_array())?;
    let n = images.iter().filter(|image| image.is_object()).count();
    (n > 1).then(|| format!("`image` of unit {i} of ControlNet: the first of {n} images is taken"))
}

/// The image and the mask of a unit: text, a list of both, an object of both, or a list of such objects.
pub(super) fn images(unit: &Map<String, Value>) -> (Option<&str>, Option<&str>) {
    fn of(value: &Value) -> (Option<&str>, Option<&str>) {
        match value {
            Value::String(image) => (Some(image), None),
            Value::Array(both) => match &both[..] {
                [Value::Object(_), ..] => of(&both[0]),
                _ => (both.first().and_then(Value::as_str), both.get(1).and_then(Value::as_str)),
            },
            Value::Object(both) => {
                (both.get("image").and_then(Value::as_str), both.get("mask").and_then(Value::as_str))
            }
            _ => (None, None),
        }
    }
    let (image, mask) = ["image", "input_image"].iter().find_map(|name| unit.get(*name)).map_or((None, None), of);
    let own = ["mask", "mask_image"].iter().find_map(|name| unit.get(*name)?.as_str());
    (image.filter(|image| !image.is_empty()), own.or(mask))
}

/// The pixels of an image in Base64.
pub(super) fn rgb(field: &str, image: &str, images: &DecodeOptions) -> Result<Rgb8Image, Refused> {
    let bytes = base64_image::decode(field, image)?;
    Ok(decode(&bytes, "image", images).map_err(Refused::unread)?.into_rgb(AlphaRule::Drop))
}

/// `ResizeMode` of the extension, whose names have changed over time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Resize {
    Stretch,
    Crop,
    Fill,
}

impl Resize {
    fn of(value: &Value) -> Self {
        let name = value.as_str().unwrap_or_default().to_ascii_lowercase();
        match value.as_i64() {
            Some(0) => Self::Stretch,
            Some(2) => Self::Fill,
            Some(_) => Self::Crop,
            None if name.contains("inner fit") || name.contains("crop") => Self::Crop,
            None if name.contains("outer fit") || name.contains("fill") || name.contains("envelope") => Self::Fill,
            None if name.contains("resize") || name.contains("stretch") => Self::Stretch,
            None => Self::Crop,
        }
    }

    fn own(self) -> kiln_engine::ResizeChoice {
        match self {
            Self::Stretch => kiln_engine::ResizeChoice::Stretch,
            Self::Crop => kiln_engine::ResizeChoice::Crop,
            Self::Fill => kiln_engine::ResizeChoice::Fill,
        }
    }
}

/// `ControlMode` of the extension: its number, or a text about what is more important.
fn mode(value: &Value) -> ControlMode {
    let text = value.as_str().unwrap_or_default().to_ascii_lowercase();
    match value.as_i64() {
        Some(1) => ControlMode::Prompt,
        Some(2) => ControlMode::Control,
        None if text.contains("prompt") => ControlMode::Prompt,
        None if text.contains("controlnet") || text == "control" => ControlMode::Control,
        _ => ControlMode::Balanced,
    }
}

/// `pixel_perfect_resolution` of `scripts/external_code.py`: the shorter side of the image if it has the size of the results.
fn pixel_perfect((w, h): (usize, usize), (width, height): (usize, usize), resize: Resize) -> usize {
    let factors = [height as f64 / h as f64, width as f64 / w as f64];
    let factor = match resize {
        Resize::Fill => factors[0].min(factors[1]),
        Resize::Stretch | Resize::Crop => factors[0].max(factors[1]),
    };
    ((factor * w.min(h) as f64).round_ties_even() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image() -> String {
        let image = Rgb8Image::filled(64, 96, [200, 40, 40]).unwrap();
        base64_image::encode(&encode(&image, StillFormat::Png).unwrap())
    }

    fn place() -> Place<'static> {
        let images = DecodeOptions::default();
        Place { size: (64, 64), init: None, is_img2img: false, is_hires: true, images, ip_adapters: &[] }
    }

    fn read(units: Value) -> Result<Units, Refused> {
        Units::read(units.as_array().unwrap(), &place())
    }

    /// A unit of PyPI's webuiapi.
    #[test]
    fn a_unit_is_a_control_network() {
        let unit = json!({
            "enabled": true, "image": image(), "mask": null, "module": "canny", "model": "control_canny [d14c016b]", "weight": 0.5,
            "resize_mode": "Resize and Fill", "low_vram": false, "processor_res": 64, "threshold_a": 64, "threshold_b": 64,
            "guidance_start": 0.0, "guidance_end": 0.7, "control_mode": 2, "pixel_perfect": false, "hr_option": "Both",
        });
        let units = read(json!([unit, { "enabled": false, "model": "a", "module": "nonsense" }])).unwrap();
        let [control] = &units.controls[..] else { panic!("{units:?}") };
        assert_eq!((control.net.to_str(), control.weight, control.end), (Some("control_canny [d14c016b]"), 0.5, 0.7));
        assert_eq!((control.mode, control.resize), (ControlMode::Control, kiln_engine::ResizeChoice::Fill));
        assert_eq!(control.passes, ControlPasses::Both);
        assert_eq!((units.maps.len(), units.warnings.len()), (1, 0));
        let map = rgb("image", &units.maps[0], &DecodeOptions::default()).unwrap();
        assert_eq!(map, Rgb8Image::filled(64, 96, [0; 3]).unwrap(), "a plane has no edges");
        assert_eq!(control.image.as_ref().unwrap().to_str(), Some(&*units.maps[0]));
    }

    #[test]
    fn thin_edges_guide_weakly_in_the_second_pass() {
        use ControlPasses::{Both, First, Second};
        let of = |module: &str, option: &str| {
            let unit = json!({ "model": "a", "module": module, "image": image(), "hr_option": option });
            let controls = read(json!([unit])).unwrap().controls;
            controls.into_iter().map(|control| (control.passes, control.mode)).collect::<Vec<_>>()
        };
        assert_eq!(of("canny", "Both"), [(First, ControlMode::Balanced), (Second, ControlMode::Prompt)]);
        assert_eq!(of("canny", "High res only"), [(Second, ControlMode::Prompt)]);
        assert_eq!(of("canny", "Low res only"), [(First, ControlMode::Balanced)]);
        assert_eq!(of("invert", "Both"), [(Both, ControlMode::Balanced)]);
        assert_eq!(of("invert", "High res only"), [(Second, ControlMode::Balanced)]);
    }

    #[test]
    fn images_come_in_several_forms() {
        for form in [
            json!("a"),
            json!({ "image": "a", "mask": "m" }),
            json!(["a", "m"]),
            json!([{ "image": "a", "mask": null }]),
        ] {
            let unit = json!({ "image": form });
            assert_eq!(images(unit.as_object().unwrap()).0, Some("a"), "{unit}");
        }
        let unit = json!({ "input_image": "a", "mask_image": "m" });
        assert_eq!(images(unit.as_object().unwrap()), (Some("a"), Some("m")));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let none = read(json!([{ "model": "None" }])).unwrap();
        assert!(none.controls.is_empty() && none.warnings[0].contains("no `model`"), "{none:?}");
        let more = json!([{ "model": "a", "image": image(), "mask": image(), "advanced_weighting": [1], "hr_option": "Always" }]);
        let named: Vec<String> = read(more).unwrap().warnings;
        assert_eq!(
            named.iter().filter_map(|text| text.split('`').nth(1)).collect::<Vec<_>>(),
            ["advanced_weighting", "mask", "hr_option"]
        );
        for wrong in [
            json!(["x"]),
            json!([{ "model": "a", "module": "openpose" }]),
            json!([{ "model": "a", "module": "canny" }]),
            json!([{ "model": "a", "weight": "big" }]),
        ] {
            assert_eq!(read(wrong.clone()).unwrap_err().param.as_deref(), Some("alwayson_scripts"), "{wrong}");
        }
    }

    #[test]
    fn pixel_perfect_is_the_shorter_side_in_the_results() {
        assert_eq!(pixel_perfect((100, 200), (512, 512), Resize::Crop), 512);
        assert_eq!(pixel_perfect((100, 200), (512, 512), Resize::Fill), 256);
    }
}
