//! The fields of AUTOMATIC1111's `txt2img`, `img2img` and `extra-*-image`, as its dataclasses and Forge's have them.

use serde_json::{Value, json};

use super::Does::{self, Answer, Bits, Nothing, Refused, Warns};
use super::{Outcome, Rig, check, decoded, image, mask, none, other_image, report, sent, texts, with};

pub fn base() -> Value {
    json!({
        "prompt": "a pear", "negative_prompt": "a plum", "steps": 3, "width": 64, "height": 64, "seed": 5, "sampler_name": "Euler a",
    })
}

pub fn send(rig: &Rig, route: &str, body: &Value) -> Outcome {
    rig.once(&format!("{route} {body}"), || {
        let (status, answer) = sent(rig, &format!("/sdapi/v1/{route}"), body);
        if status != 200 {
            let message = answer["detail"].as_str().unwrap().to_string();
            return Outcome { refused: Some(message), answer, ..Outcome::default() };
        }
        Outcome { images: decoded(&answer["images"]), warnings: texts(&answer["warnings"]), refused: None, answer }
    })
}

fn two(_: &Outcome, found: &Outcome) -> bool {
    found.images.len() == 2
}

const NO_FIELD: &str = "Kiln does not have it here";

/// Fields of both routes: what has to be there besides, a value that matters, and what comes of it.
#[rustfmt::skip]
fn of_both() -> Vec<(&'static str, Value, Value, Does)> {
    let euler = || json!({ "sampler_name": "Euler" });
    vec![
        ("prompt", none(), json!("a fig"), Bits),
        ("negative_prompt", none(), json!("a fig"), Bits),
        ("styles", none(), json!(["a"]), Warns(NO_FIELD)),
        ("seed", none(), json!(6), Bits),
        ("subseed", json!({ "subseed_strength": 0.5, "subseed": 1 }), json!(7), Bits),
        ("subseed", none(), json!(7), Warns("`subseed_strength` is 0")),
        ("subseed_strength", json!({ "subseed": 1 }), json!(0.5), Bits),
        ("seed_resize_from_w", json!({ "seed_resize_from_h": 32 }), json!(32), Bits),
        ("seed_resize_from_h", json!({ "seed_resize_from_w": 32 }), json!(32), Bits),
        ("seed_resize_from_w", none(), json!(32), Nothing("that program needs both sides, too")),
        ("sampler_name", none(), json!("Heun"), Bits),
        ("sampler_name", none(), json!("Eulr"), Refused("Sampler not found")),
        ("scheduler", none(), json!("karras"), Bits),
        ("batch_size", none(), json!(2), Answer(two)),
        ("n_iter", none(), json!(2), Answer(two)),
        ("steps", none(), json!(4), Bits),
        ("cfg_scale", none(), json!(3), Bits),
        ("width", none(), json!(96), Bits),
        ("height", none(), json!(96), Bits),
        ("restore_faces", none(), json!(true), Warns(NO_FIELD)),
        ("tiling", none(), json!(true), Warns(NO_FIELD)),
        ("do_not_save_samples", none(), json!(true), Nothing("the server saves none")),
        ("do_not_save_grid", none(), json!(true), Nothing("the server saves none")),
        ("eta", none(), json!(0.5), Bits),
        ("eta", euler(), json!(0.5), Warns("`Eta` 0.5 is left out")),
        ("s_min_uncond", none(), json!(1), Warns(NO_FIELD)),
        ("s_churn", euler(), json!(2), Bits),
        ("s_churn", none(), json!(2), Warns("`Sigma churn` 2 is left out")),
        ("s_tmin", json!({ "sampler_name": "Euler", "s_churn": 2 }), json!(10), Bits),
        ("s_tmin", euler(), json!(10), Warns("`s_churn` is 0")),
        ("s_tmax", json!({ "sampler_name": "Euler", "s_churn": 2 }), json!(1), Bits),
        ("s_tmax", euler(), json!(1), Warns("`s_churn` is 0")),
        ("s_noise", none(), json!(0.9), Bits),
        ("override_settings", none(), json!({ "CLIP_stop_at_last_layers": 2 }), Bits),
        ("override_settings", none(), json!({ "eta_noise_seed_delta": 31337 }), Bits),
        ("override_settings", none(), json!({ "randn_source": "CPU" }), Bits),
        ("override_settings", none(), json!({ "sd_model_checkpoint": "sd2v" }), Bits),
        ("override_settings", none(), json!({ "sd_model_checkpoint": "nope" }), Warns("`model` is \"nope\"")),
        ("override_settings", none(), json!({ "tea": 1 }), Warns("override_settings.tea")),
        ("override_settings", none(), json!({ "samples_format": "webp" }), Answer(|usual, found| usual.answer["images"] != found.answer["images"])),
        ("override_settings", none(), json!({ "samples_format": "bmp" }), Refused("samples_format")),
        ("refiner_checkpoint", json!({ "refiner_switch_at": 0.3, "sampler_name": "Euler" }), json!("sd1_half"), Bits),
        ("refiner_switch_at", json!({ "refiner_checkpoint": "sd1_half", "sampler_name": "Euler", "steps": 9 }), json!(0.3), Bits),
        ("refiner_switch_at", none(), json!(0.3), Nothing("clients send it without a refiner")),
        ("disable_extra_networks", json!({ "prompt": "a pear<lora:kohya:1>" }), json!(true), Bits),
        ("firstpass_image", none(), json!("x"), Warns(NO_FIELD)),
        ("comments", none(), json!({ "a": 1 }), Warns(NO_FIELD)),
        ("sampler_index", json!({ "sampler_name": "" }), json!("Heun"), Bits),
        ("sampler_index", none(), json!("Heun"), Nothing("`sampler_name` comes first, there too")),
        ("script_name", none(), json!("X/Y/Z plot"), Refused("not found")),
        ("script_args", none(), json!([1]), Nothing("arguments of no script")),
        ("send_images", none(), json!(false), Answer(|_, found| found.images.is_empty())),
        ("save_images", none(), json!(true), Warns(NO_FIELD)),
        ("alwayson_scripts", none(), json!({ "ADetailer": { "args": [true] } }), Warns("ADetailer")),
        ("force_task_id", none(), json!("task(1)"), Nothing("the number of the job")),
        ("infotext", json!({ "prompt": null, "negative_prompt": null }), json!("a fig\nSteps: 9, Sampler: Euler a, CFG scale: 4, Seed: 9, Size: 64x96"), Bits),
        ("distilled_cfg_scale", none(), json!(2), Warns(NO_FIELD)),
        ("tea", none(), json!(1), Warns("there is no such field")),
        ("prompt", none(), json!("a pear<lora:nope:1>"), Warns("Lora not found: <lora:nope:1>")),
        ("prompt", none(), json!("a pear<hypernet:x:1>"), Warns("<hypernet:x:1>")),
    ]
}

#[rustfmt::skip]
fn of_txt2img() -> Vec<(&'static str, Value, Value, Does)> {
    let hires = || json!({ "enable_hr": true, "hr_scale": 1.5, "hr_second_pass_steps": 2, "denoising_strength": 0.6, "sampler_name": "Euler" });
    let off = "what `enable_hr` needs";
    vec![
        ("enable_hr", json!({ "hr_scale": 1.5 }), json!(true), Bits),
        ("denoising_strength", hires(), json!(0.3), Bits),
        ("denoising_strength", none(), json!(0.3), Nothing(off)),
        ("firstphase_width", hires(), json!(32), Warns(NO_FIELD)),
        ("firstphase_height", hires(), json!(32), Warns(NO_FIELD)),
        ("hr_scale", hires(), json!(2), Bits),
        ("hr_scale", none(), json!(2), Nothing(off)),
        ("hr_upscaler", hires(), json!("Lanczos"), Bits),
        ("hr_upscaler", hires(), json!("compact_x2"), Bits),
        ("hr_upscaler", hires(), json!("R-ESRGAN 4x+"), Refused("hires_upscaler")),
        ("hr_second_pass_steps", hires(), json!(3), Bits),
        ("hr_resize_x", hires(), json!(128), Bits),
        ("hr_resize_y", hires(), json!(128), Bits),
        ("hr_checkpoint_name", hires(), json!("sd2v"), Warns(NO_FIELD)),
        ("hr_sampler_name", hires(), json!("Heun"), Bits),
        ("hr_scheduler", hires(), json!("karras"), Bits),
        ("hr_prompt", hires(), json!("a fig"), Bits),
        ("hr_prompt", hires(), json!("a fig<lora:nope:1>"), Answer(|_, found| found.warnings.iter().any(|text| text.contains("<lora:nope:1>")))),
        ("hr_negative_prompt", hires(), json!("a fig"), Bits),
        ("hr_cfg", hires(), json!(3), Bits),
        ("hr_distilled_cfg", hires(), json!(2), Warns(NO_FIELD)),
        ("hr_additional_modules", hires(), json!(["a"]), Warns(NO_FIELD)),
        ("init_images", none(), json!([image()]), Warns("txt2img has no such field")),
        ("mask", none(), json!(mask()), Warns("txt2img has no such field")),
        ("inpainting_fill", none(), json!(2), Warns("txt2img has no such field")),
        ("resize_mode", none(), json!(1), Warns("txt2img has no such field")),
    ]
}

#[rustfmt::skip]
fn of_img2img() -> Vec<(&'static str, Value, Value, Does)> {
    let masked = || json!({ "mask": mask(), "inpaint_full_res": false, "inpainting_fill": 1, "mask_blur": 0 });
    let area = || json!({ "mask": mask(), "inpaint_full_res": true, "inpaint_full_res_padding": 16 });
    vec![
        ("init_images", none(), json!([other_image()]), Bits),
        ("init_images", none(), json!([image(), other_image()]), Answer(two)),
        ("init_images", none(), json!([]), Refused("Init image not found")),
        ("resize_mode", none(), json!(1), Bits),
        ("resize_mode", none(), json!(3), Refused("resize_mode")),
        ("denoising_strength", none(), json!(0.3), Bits),
        ("image_cfg_scale", none(), json!(2), Warns(NO_FIELD)),
        ("mask", none(), json!(mask()), Bits),
        ("mask_blur", masked(), json!(8), Bits),
        ("mask_blur", none(), json!(8), Warns("there is no `mask`")),
        ("mask_blur_x", masked(), json!(8), Warns(NO_FIELD)),
        ("mask_blur_y", masked(), json!(8), Warns(NO_FIELD)),
        ("mask_round", masked(), json!(false), Warns(NO_FIELD)),
        ("inpainting_fill", masked(), json!(2), Bits),
        ("inpainting_fill", none(), json!(2), Warns("there is no `mask`")),
        ("inpaint_full_res", masked(), json!(true), Bits),
        ("inpaint_full_res_padding", area(), json!(2), Bits),
        ("inpaint_full_res_padding", none(), json!(2), Warns("there is no `mask`")),
        ("inpainting_mask_invert", masked(), json!(1), Bits),
        ("inpainting_mask_invert", none(), json!(1), Warns("there is no `mask`")),
        ("initial_noise_multiplier", none(), json!(0.8), Bits),
        ("latent_mask", masked(), json!("x"), Warns(NO_FIELD)),
        ("include_init_images", none(), json!(true), Answer(|_, found| found.answer["parameters"]["init_images"].is_array())),
        ("enable_hr", none(), json!(true), Warns("img2img has no second pass")),
        ("alwayson_scripts", masked(), json!({ "Soft Inpainting": { "args": [true] } }), Bits),
    ]
}

#[test]
fn every_field_of_that_program_does_something_or_is_named() {
    let rig = Rig::start();
    let mut wrong = Vec::new();
    let img2img = with(&base(), &json!({ "init_images": [image()] }));
    let all = [
        ("txt2img", base(), of_both()),
        ("txt2img", base(), of_txt2img()),
        ("img2img", img2img.clone(), of_both()),
        ("img2img", img2img, of_img2img()),
    ];
    for (route, base, cases) in all {
        for (name, context, value, does) in cases {
            let usual = with(&base, &context);
            let mut set = usual.clone();
            set[name] = value;
            let (usual, set) = (send(&rig, route, &usual), send(&rig, route, &set));
            wrong.extend(check(&format!("{route} {name}"), does, &usual, &set));
        }
    }
    report(wrong);
}

#[test]
fn settings_of_a_request_may_stay() {
    let rig = Rig::start();
    let mut body = base();
    body["override_settings"] = json!({ "CLIP_stop_at_last_layers": 2 });
    let skipped = send(&rig, "txt2img", &body);
    let options = || rig.served.get("/sdapi/v1/options").json();
    assert_eq!(options()["CLIP_stop_at_last_layers"], 1);
    body["override_settings_restore_afterwards"] = false.into();
    assert_eq!(send(&rig, "txt2img", &body).images, skipped.images);
    assert_eq!(options()["CLIP_stop_at_last_layers"], 2);
    assert_eq!(send(&rig, "txt2img", &base()).images, skipped.images);
}

#[test]
fn every_field_of_extras_does_something_or_is_named() {
    let rig = Rig::start();
    let send = |route: &str, body: &Value| {
        let (status, answer) = sent(&rig, &format!("/sdapi/v1/{route}"), body);
        let refused = (status != 200).then(|| answer["detail"].as_str().unwrap().to_string());
        let images = if answer["image"].is_string() { json!([answer["image"]]) } else { answer["images"].clone() };
        let warnings = answer["html_info"].as_str().into_iter().filter(|text| !text.is_empty()).map(String::from);
        Outcome { images: decoded(&images), warnings: warnings.collect(), refused, answer: answer.clone() }
    };
    let base = json!({ "image": image(), "upscaler_1": "Lanczos", "upscaling_resize": 1.5 });
    let sized = json!({ "resize_mode": 1, "upscaling_resize_w": 128, "upscaling_resize_h": 128 });
    let mut wrong = Vec::new();
    #[rustfmt::skip]
    let cases: Vec<(&str, Value, Value, Does)> = vec![
        ("image", none(), json!(other_image()), Bits),
        ("resize_mode", none(), json!(1), Bits),
        ("show_extras_results", none(), json!(false), Nothing("that program's page")),
        ("gfpgan_visibility", none(), json!(0.5), Warns("gfpgan_visibility")),
        ("codeformer_visibility", none(), json!(0.5), Warns("codeformer_visibility")),
        ("codeformer_weight", none(), json!(0.5), Nothing("`codeformer_visibility` is 0")),
        ("upscaling_resize", none(), json!(2), Bits),
        ("upscaling_resize_w", sized.clone(), json!(160), Bits),
        ("upscaling_resize_h", sized.clone(), json!(160), Bits),
        ("upscaling_crop", sized, json!(false), Bits),
        ("upscaler_1", none(), json!("compact_x2"), Bits),
        ("upscaler_1", none(), json!("nope"), Refused("upscaler_1")),
        ("upscaler_2", json!({ "extras_upscaler_2_visibility": 0.5 }), json!("Nearest"), Bits),
        ("extras_upscaler_2_visibility", json!({ "upscaler_2": "Nearest" }), json!(0.5), Bits),
        ("upscale_first", none(), json!(true), Nothing("the order of enlarging and of faces, of which there are none")),
        ("tea", none(), json!(1), Warns("tea")),
    ];
    for (name, context, value, does) in cases {
        let usual = with(&base, &context);
        let mut set = usual.clone();
        set[name] = value;
        let (usual, set) = (send("extra-single-image", &usual), send("extra-single-image", &set));
        wrong.extend(check(name, does, &usual, &set));
    }
    let list = json!({ "imageList": [{ "data": image(), "name": "a" }, { "data": other_image(), "name": "b" }], "upscaler_1": "Lanczos" });
    assert_eq!(send("extra-batch-images", &list).images.len(), 2);
    report(wrong);
}
