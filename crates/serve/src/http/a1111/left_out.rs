//! Fields that ask for something that is not done: a sentence for each.

use serde_json::{Map, Value};

/// Fields that Kiln does not have, with the values that ask for nothing. `null`, `""`, `false` and empty lists never do, except
/// where `true` is the usual value.
const LEFT_OUT: [(&str, &[f64]); 22] = [
    ("distilled_cfg_scale", &[3.5]), // of models without this guidance
    ("styles", &[]),
    ("restore_faces", &[]),
    ("tiling", &[]),
    ("do_not_save_samples", &[1.0]),
    ("do_not_save_grid", &[1.0]),
    ("s_min_uncond", &[0.0]),
    ("firstpass_image", &[]),
    ("comments", &[]),
    ("firstphase_width", &[0.0]),
    ("firstphase_height", &[0.0]),
    ("hr_checkpoint_name", &[]),
    ("hr_additional_modules", &[]),
    ("hr_distilled_cfg", &[3.5]),
    ("save_images", &[]),
    ("image_cfg_scale", &[0.0, 1.5]),
    ("mask_round", &[1.0]),
    ("latent_mask", &[]),
    ("sampler_index", &[]),
    ("mask_blur_x", &[4.0]),
    ("mask_blur_y", &[4.0]),
    ("resize_to", &[]),
];
/// Fields whose usual value is `true`, and for which `false` asks for something.
const USUALLY_ON: [&str; 1] = ["mask_round"];

/// Fields of `img2img` that `txt2img` does not have, with the values that ask for nothing.
const OF_IMG2IMG: [(&str, &[f64]); 11] = [
    ("init_images", &[]),
    ("mask", &[]),
    ("resize_mode", &[0.0]),
    ("mask_blur", &[4.0]),
    ("inpainting_fill", &[0.0]),
    ("inpaint_full_res", &[1.0]),
    ("inpaint_full_res_padding", &[0.0]),
    ("inpainting_mask_invert", &[0.0]),
    ("initial_noise_multiplier", &[1.0]),
    ("include_init_images", &[]),
    ("mask_blur_x", &[4.0]),
];
/// The fields of masks.
const OF_MASKS: [&str; 5] =
    ["mask_blur", "inpainting_fill", "inpaint_full_res", "inpaint_full_res_padding", "inpainting_mask_invert"];

/// Whether the value of a field asks for something; `neutral` are numbers that do not.
fn asks(name: &str, value: &Value, neutral: &[f64]) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(false) => USUALLY_ON.contains(&name),
        Value::Bool(true) => !neutral.contains(&1.0),
        Value::Number(number) => !number.as_f64().is_some_and(|number| neutral.contains(&number)),
        Value::String(text) => !text.is_empty() && name != "sampler_index",
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}

/// A sentence for each field that is left and asks for something. `saves` says whether all images are written to files.
pub(super) fn left_out(fields: &Map<String, Value>, saves: bool) -> Vec<String> {
    let known = |name: &str| LEFT_OUT.iter().find(|(known, _)| *known == name);
    let asks = |name: &str, value: &Value| {
        let neutral = known(name).map_or(&[][..], |(_, neutral)| *neutral);
        !(saves && name == "save_images") && asks(name, value, neutral)
    };
    let sentence = |(name, _): (&String, &Value)| match known(name) {
        Some(_) => format!("`{name}` is left out: Kiln does not have it here"),
        None => format!("`{name}` is left out: there is no such field"),
    };
    fields.iter().filter(|(name, value)| asks(name, value)).map(sentence).collect()
}

/// A sentence for each field of another route, and for each field of a mask without one.
pub(super) fn of_other_routes(fields: &Map<String, Value>, is_img2img: bool, is_masked: bool) -> Vec<String> {
    let mut sentences = Vec::new();
    if is_img2img && fields.get("enable_hr") == Some(&Value::Bool(true)) {
        sentences.push("`enable_hr` is left out: img2img has no second pass".into());
    }
    for (name, neutral) in OF_IMG2IMG {
        let Some(value) = fields.get(name) else { continue };
        let is_off = name == "inpaint_full_res" && *value == Value::Bool(false);
        if !asks(name, value, neutral) && !is_off {
            continue;
        }
        if !is_img2img {
            sentences.push(format!("`{name}` is left out: txt2img has no such field"));
        } else if !is_masked && OF_MASKS.contains(&name) {
            sentences.push(format!("`{name}` has no effect: there is no `mask`"));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(sentences: Vec<String>) -> Vec<String> {
        sentences.iter().filter_map(|text| Some(text.split('`').nth(1)?.to_string())).collect()
    }

    #[test]
    fn fields_of_another_route_are_named() {
        let of = |fields: Value, is_img2img, is_masked| {
            named(of_other_routes(fields.as_object().unwrap(), is_img2img, is_masked))
        };
        let usual = json!({
            "mask_blur": 4, "inpainting_fill": 0, "inpaint_full_res": true, "inpaint_full_res_padding": 0,
            "inpainting_mask_invert": 0, "resize_mode": 0, "enable_hr": false, "initial_noise_multiplier": 1,
        });
        for (is_img2img, is_masked) in [(false, false), (true, false), (true, true)] {
            assert!(of(usual.clone(), is_img2img, is_masked).is_empty());
        }
        let masked = json!({ "mask": "x", "inpaint_full_res": false, "mask_blur": 8 });
        assert_eq!(of(masked.clone(), false, false), ["mask", "mask_blur", "inpaint_full_res"]);
        assert_eq!(of(masked.clone(), true, false), ["mask_blur", "inpaint_full_res"]);
        assert!(of(masked, true, true).is_empty());
        assert_eq!(of(json!({ "enable_hr": true }), true, false), ["enable_hr"]);
    }

    #[test]
    fn what_asks_for_nothing_is_not_named() {
        let fields = json!({ "mask_round": true, "save_images": true, "styles": [], "tiling": false, "comments": {} });
        assert_eq!(named(left_out(fields.as_object().unwrap(), true)), Vec::<String>::new());
        let fields = json!({ "mask_round": false, "save_images": true, "tea": 1, "styles": ["a"] });
        let expected = ["mask_round", "save_images", "styles", "tea"];
        assert_eq!(named(left_out(fields.as_object().unwrap(), false)), expected);
    }
}
