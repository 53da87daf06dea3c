//! The fields of the ControlNet extension's units (`internal_controlnet/args.py`), for networks and for IP-Adapters.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_testkit::{Fixture, write_tensors};
use serde_json::{Value, json};

use super::Does::{self, Bits, Nothing, Refused, Warns};
use super::a1111::{base, send};
use super::{Outcome, Rig, check, file, image, mask, none, other_image, report, with};
use crate::support::alone;

const LEFT_OUT: &str = "is left out: Kiln does not have it";

/// An image with edges of several strengths.
fn edges() -> String {
    let level = |x: usize| [0, 10, 30, 70, 150, 150][x / 16] as u8;
    file(96, 64, (0..64).flat_map(|_| (0..96).flat_map(|x| [level(x); 3])).collect())
}

fn control() -> Value {
    json!({ "image": edges(), "module": "canny", "model": "canny [d14c016b]", "processor_res": 64, "threshold_a": 40, "threshold_b": 90 })
}

fn prompt() -> Value {
    json!({ "image": edges(), "module": "ip-adapter-auto", "model": "plain [0123abcd]" })
}

/// The effects on a unit with a network, and on one with an IP-Adapter.
type Effects = (Option<Does>, Option<Does>);
type Row = (&'static str, Value, Value, Effects);

/// A field, what has to be there besides in the request, a value that matters, and what comes of it for a network and for an IP-Adapter.
#[rustfmt::skip]
fn fields() -> Vec<Row> {
    let hires = || json!({ "enable_hr": true, "hr_scale": 1.5, "hr_second_pass_steps": 2, "sampler_name": "Euler" });
    let both = |does: Does| (Some(does), Some(does));
    vec![
        ("enabled", none(), json!(false), both(Bits)),
        ("module", none(), json!("invert"), (Some(Bits), Some(Refused("`controls`")))),
        ("module", none(), json!("ip-adapter_clip_sd15"), (Some(Refused("IP-Adapters")), Some(Nothing("the encoder follows from the file")))),
        ("module", none(), json!("ip-adapter_clip_h"), (None, Some(Nothing("the name that its page shows")))),
        ("module", none(), json!("ip-adapter_face_id_plus"), both(Refused("recognizes no faces"))),
        ("module", none(), json!("openpose"), both(Refused("`module` \"openpose\""))),
        ("model", none(), json!("nope"), both(Refused("nope"))),
        ("model", none(), json!("None"), both(Bits)),
        ("weight", none(), json!(0.4), both(Bits)),
        ("image", none(), json!(other_image()), both(Bits)),
        ("image", none(), json!({ "image": other_image(), "mask": null }), both(Bits)),
        ("image", none(), json!([{ "image": edges() }, { "image": other_image() }]), both(Warns("the first of 2 images is taken"))),
        ("mask", none(), json!(mask()), both(Warns(LEFT_OUT))),
        ("mask_image", none(), json!(mask()), both(Warns(LEFT_OUT))),
        ("resize_mode", none(), json!("Just Resize"), (Some(Bits), Some(Nothing("CLIP sees the center of the image")))),
        ("low_vram", none(), json!(true), both(Nothing("memory is planned by the server"))),
        ("processor_res", none(), json!(128), (Some(Bits), Some(Nothing("it has no preprocessor")))),
        ("threshold_a", none(), json!(200), (Some(Bits), Some(Nothing("it has no preprocessor")))),
        ("threshold_b", none(), json!(250), (Some(Bits), Some(Nothing("it has no preprocessor")))),
        ("guidance_start", none(), json!(0.5), both(Bits)),
        ("guidance_end", none(), json!(0.4), both(Bits)),
        ("guidance", none(), json!(0.4), both(Bits)),
        ("pixel_perfect", none(), json!(true), (None, Some(Nothing("it has no preprocessor")))),
        ("control_mode", none(), json!("My prompt is more important"), (Some(Bits), Some(Nothing("the extension has no modes for it")))),
        ("inpaint_crop_input_image", none(), json!(false), both(Warns(LEFT_OUT))),
        ("hr_option", hires(), json!("Low res only"), (Some(Bits), Some(Warns("acts in both passes")))),
        ("hr_option", none(), json!("Always"), both(Warns(LEFT_OUT))),
        ("save_detected_map", none(), json!(false), (Some(Does::Answer(|_, found| found.images.len() == 1)), Some(Nothing("there is no map")))),
        ("advanced_weighting", none(), json!([1.0]), both(Warns(LEFT_OUT))),
        ("effective_region_mask", none(), json!(mask()), (Some(Warns(LEFT_OUT)), Some(Bits))),
        ("pulid_mode", none(), json!("Extremely style"), both(Warns(LEFT_OUT))),
        ("ipadapter_input", none(), json!(["x"]), both(Warns(LEFT_OUT))),
        ("union_control_type", none(), json!("Depth"), (Some(Refused("type=depth")), Some(Warns(LEFT_OUT)))),
        ("is_ui", none(), json!(true), both(Nothing("the extension's page"))),
        ("input_mode", none(), json!("batch"), both(Nothing("the extension's page"))),
        ("batch_images", none(), json!("a"), both(Warns(LEFT_OUT))),
        ("output_dir", none(), json!("a"), both(Warns(LEFT_OUT))),
        ("loopback", none(), json!(true), both(Warns(LEFT_OUT))),
        ("tea", none(), json!(1), both(Warns(LEFT_OUT))),
    ]
}

#[test]
fn every_field_of_a_unit_does_something_or_is_named() {
    let rig = Rig::start();
    let of = |context: &Value, unit: &Value| -> Outcome {
        let mut body = with(&base(), context);
        body["alwayson_scripts"] = json!({ "ControlNet": { "args": [unit] } });
        send(&rig, "txt2img", &body)
    };
    let mut wrong = Vec::new();
    for (name, context, value, (of_control, of_prompt)) in fields() {
        for (unit, does) in [(control(), of_control), (prompt(), of_prompt)] {
            let Some(does) = does else { continue };
            let mut set = unit.clone();
            set[name] = value.clone();
            let label = format!("{} {name}", unit["model"]);
            wrong.extend(check(&label, does, &of(&context, &unit), &of(&context, &set)));
        }
    }
    report(wrong);
}

/// The unit is what `ip_adapters` says, and what a single run makes of its files.
#[test]
fn image_prompts_are_those_of_a_single_run() {
    let rig = Rig::start();
    let unit = with(&prompt(), &json!({ "weight": 0.6, "guidance_end": 0.7, "effective_region_mask": mask() }));
    let mut body = base();
    body["alwayson_scripts"] = json!({ "ControlNet": { "args": [unit] } });
    let found = send(&rig, "txt2img", &body);
    assert_eq!((found.images.len(), found.warnings.len()), (1, 0), "{:?}", found.warnings);
    let job = json!({
        "prompt": "a pear", "negative_prompt": "a plum", "steps": 3, "width": 64, "height": 64, "seed": 5, "cfg_scale": 7.0,
        "sampler": "euler_a", "convention": "a1111", "pad_conds": false, "rng": "cuda",
    });
    let prompt = |image: Value, mask: Value, model: Value| {
        let adapter = json!({ "model": model, "image": image, "mask": mask, "weight": 0.6, "end": 0.7 });
        with(&job, &json!({ "ip_adapters": [adapter] }))
    };
    let own = rig.served.submit(&prompt(json!(edges()), json!(mask()), json!("plain")));
    let own = rig.served.finished(&own);
    assert_eq!(rig.served.image(&own, 0), found.images[0], "{own}");
    let shown = &own["request"]["ip_adapters"][0];
    assert_eq!((&shown["model"], &shown["image"], &shown["mask"]), (&json!("plain"), &Value::Null, &Value::Null));
    assert_eq!(own["images"][0]["request"]["ip_adapters"][0]["image"], Value::Null, "images are not shown again");

    let files = tempfile::tempdir().unwrap();
    let stored = |name: &str, text: &str| {
        std::fs::write(files.path().join(name), STANDARD.decode(text).unwrap()).unwrap();
        json!(files.path().join(name))
    };
    let adapter = json!(rig.path("prompts/plain.safetensors"));
    let run = prompt(stored("image.png", &edges()), stored("mask.png", &mask()), adapter);
    assert_eq!(alone(&[run])[0][0].rgb, found.images[0]);
}

/// A face's vector is read while the job runs.
#[test]
fn features_come_with_the_request() {
    let rig = Rig::start();
    let (folder, vector) = (tempfile::tempdir().unwrap(), Fixture::open("ip_adapter.safetensors").tensor("embeds"));
    let file = folder.path().join("embeds.safetensors");
    write_tensors(&[("image_embeds".to_string(), vector)].into(), &file);
    let job = |model: Value, embeds: Value| json!({ "prompt": "a pear", "steps": 3, "seed": 5, "ip_adapters": [{ "model": model, "embeds": embeds }] });
    let sent = job(json!("face"), json!(STANDARD.encode(std::fs::read(&file).unwrap())));
    let made = rig.served.finished(&rig.served.submit(&sent));
    assert_eq!(made["request"]["ip_adapters"], json!([{ "model": "face" }]), "{made}");
    let run = job(json!(rig.path("prompts/face.safetensors")), json!(file));
    assert!(rig.served.image(&made, 0) == alone(&[run])[0][0].rgb);
    let image = json!({ "prompt": "a", "ip_adapters": [{ "model": "face", "image": image() }] });
    let failed = rig.served.finished(&rig.served.submit(&image));
    assert!(failed["error"]["message"].as_str().unwrap().contains("`embeds`"), "{failed}");
}

/// Jobs with other adapters, other images and none take turns.
#[test]
fn image_prompts_of_several_jobs_do_not_mix() {
    let rig = Rig::start();
    let job =
        |more: Value| with(&json!({ "prompt": "a pear", "steps": 4, "seed": 5, "width": 64, "height": 64 }), &more);
    let of = |image: String| job(json!({ "ip_adapters": [{ "model": "plain", "image": image }] }));
    let jobs = [
        of(image()),
        job(none()),
        of(other_image()),
        of(file(8, 8, vec![200; 192])),
        job(json!({ "loras": ["kohya"] })),
    ];
    let one = |job: &Value| rig.served.image(&rig.served.finished(&rig.served.submit(job)), 0);
    let alone: Vec<Vec<u8>> = jobs.iter().map(one).collect();
    let ids: Vec<String> = jobs.iter().chain(&jobs).map(|job| rig.served.submit(job)).collect();
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(rig.served.image(&rig.served.finished(id), 0), alone[i % jobs.len()], "{i}");
    }
}

#[test]
fn adapters_are_names_and_never_paths() {
    let rig = Rig::start();
    let refused = |more: Value| {
        let adapter = with(&json!({ "model": "plain", "image": image() }), &more);
        let body = json!({ "prompt": "a", "steps": 1, "ip_adapters": [adapter] });
        rig.served.post("/v1/jobs", body.to_string().as_bytes()).refused(400, "invalid_request")
    };
    for model in ["../prompts/plain", "/etc/passwd", "image_encoder", "", "hf:a/b/c"] {
        let message = refused(json!({ "model": model }));
        assert!(message.contains("`ip_adapters`") && message.contains("plain"), "{message}");
    }
    assert!(refused(json!({ "encoder": "/etc" })).contains("image_encoder"));
    assert!(refused(json!({ "image": "/etc/passwd.png" })).contains("Base64"));
    assert!(refused(json!({ "embeds": "/etc/passwd" })).contains("`ip_adapters`"));
    let wrong = refused(json!({ "image": null }));
    assert!(wrong.contains("`ip_adapters`") && !wrong.contains("/tmp"), "{wrong}");
    let of_other = json!({ "prompt": "a", "model": "sd2v", "ip_adapters": [{ "model": "plain", "image": image() }] });
    let message = rig.served.post("/v1/jobs", of_other.to_string().as_bytes()).refused(400, "invalid_request");
    assert!(message.contains("is an IP-Adapter for") && !message.contains("/prompts/"), "{message}");
    let lists = rig.served.get("/controlnet/model_list").json();
    assert_eq!(lists["model_list"], json!(["canny", "face", "plain"]));
    let types = rig.served.get("/controlnet/control_types").json();
    assert_eq!(types["control_types"]["IP-Adapter"]["default_model"], "face");
    assert_eq!(types["control_types"]["IP-Adapter"]["default_option"], "ip-adapter-auto");
}
