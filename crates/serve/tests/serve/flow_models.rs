//! A trained model of Stable Diffusion 3 behind every interface.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::{fixtures, repository};
use serde_json::{Value, json};

use crate::support::{Served, alone_with, options, pixels};

fn served() -> Served {
    let served = Served::start(ServeOptions {
        models: vec![repository().join("models/emoji-sd3")],
        max_batch: Some(4),
        ..options()
    });
    served.wait_ready();
    served
}

fn file(image: &Value) -> Vec<u8> {
    STANDARD.decode(image.as_str().unwrap()).unwrap()
}

fn job(prompt: &str, seed: u64, more: Value) -> Value {
    let mut job = json!({ "prompt": prompt, "steps": 3, "seed": seed, "width": 64, "height": 64 });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job
}

#[test]
fn jobs_share_steps_and_have_the_bits_of_single_runs() {
    let served = served();
    let jobs = [
        job("a red apple", 1, json!({})),
        job("a rocket", 2, json!({ "negative_prompt": "blue", "batch_size": 2 })),
        job("a pear", 3, json!({ "sampler": "dpmpp_2m", "steps": 5 })),
        job("a pear", 4, json!({ "shift": 2.0, "cfg_scale": 1.0 })),
        job("a green heart", 5, json!({ "max_length": 77 })),
        job("a green heart", 6, json!({ "slg_scale": 2.0, "slg_layers": "1,2", "slg_end": 0.9 })),
        job("a rocket", 7, json!({ "width": 96 })),
        job("a rocket", 8, json!({ "hires_scale": 2 })),
    ];
    let expected = alone_with(&repository().join("models/emoji-sd3"), &jobs);
    let ids: Vec<String> = jobs.iter().map(|job| served.submit(job)).collect();
    for (id, expected) in ids.iter().zip(&expected) {
        let done = served.finished(id);
        assert_eq!(done["status"], "done", "{done}");
        for (index, image) in expected.iter().enumerate() {
            assert_eq!(served.image(&done, index), image.rgb, "{done}");
            assert_eq!(done["images"][index]["parameters"], image.parameters);
        }
    }
    let refused = |more: Value| {
        let answer = served.post("/v1/jobs", job("a", 1, more).to_string().as_bytes());
        let status = answer.status;
        (status, answer.json()["error"]["message"].as_str().unwrap_or_default().to_string())
    };
    for (more, expected) in [
        (json!({ "sampler": "ddim" }), "sampler ddim is not defined for flow models"),
        (json!({ "width": 72 }), "`width` is 72"),
        (json!({ "pag_scale": 3.0 }), "`pag_scale` is 3"),
    ] {
        let (status, message) = refused(more);
        assert!(status == 400 && message.contains(expected), "{status} {message}");
    }
}

/// The family of the fixture `tiny-dit` is one module of `families`.
#[test]
fn a_family_of_one_module_is_served() {
    let model = fixtures("models/tiny-dit");
    let served = Served::start(ServeOptions { models: vec![model.clone()], max_batch: Some(4), ..options() });
    served.wait_ready();
    let jobs = [
        job("a fox", 1, json!({ "height": 48 })),
        job("a fox", 2, json!({ "height": 48, "negative_prompt": "night", "cfg_scale": 3.0 })),
    ];
    let ids: Vec<String> = jobs.iter().map(|job| served.submit(job)).collect();
    for (id, expected) in ids.iter().zip(&alone_with(&model, &jobs)) {
        let done = served.finished(id);
        assert_eq!(done["status"], "done", "{done}");
        assert_eq!(served.image(&done, 0), expected[0].rgb, "{done}");
    }
}

#[test]
fn lists_describe_the_model() {
    let served = served();
    let lists = served.get("/v1/capabilities").json();
    let model = &lists["models"][0];
    assert_eq!((&model["id"], &model["family"]), (&json!("emoji-sd3"), &json!("sd3")));
    assert_eq!((&model["steps"], &model["cfg_scale"], &model["sampler"]), (&json!(20), &json!(3.0), &json!("euler")));
    assert_eq!((&model["size_multiple"], &model["previews"]), (&json!(16), &json!(true)));
    let names: Vec<&str> =
        lists["options"].as_array().unwrap().iter().map(|option| option["name"].as_str().unwrap()).collect();
    for name in ["shift", "guidance", "max_length", "slg_scale", "cfg_zero_star"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let count = |prompt: &str| {
        let body = json!({ "prompt": prompt, "negative_prompt": "" });
        served.post("/v1/tokens", body.to_string().as_bytes()).json()
    };
    let (short, long) = (count("a red apple"), count(&"a red apple ".repeat(40)));
    assert_eq!(short["negative_prompt"]["tokens"], 0, "{short}");
    assert!((1..10).contains(&short["prompt"]["tokens"].as_u64().unwrap()), "{short}");
    assert!(long["prompt"]["tokens"].as_u64() > short["prompt"]["tokens"].as_u64(), "{long}");
}

#[test]
fn previews_have_colors() {
    let served = served();
    let id = served.submit(&job("a red apple", 1, json!({ "steps": 30 })));
    let events = served.events(&id);
    assert!(
        events.iter().any(|(name, _)| name == "preview"),
        "{:?}",
        events.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
}

#[test]
fn the_routes_of_openai_make_and_edit_images() {
    let served = served();
    let body = json!({ "prompt": "a rocket", "size": "64x64", "seed": 5, "steps": 3 });
    let answer = served.post("/v1/images/generations", body.to_string().as_bytes()).json();
    let expected = alone_with(&repository().join("models/emoji-sd3"), &[job("a rocket", 5, json!({}))]);
    assert_eq!(pixels(&file(&answer["data"][0]["b64_json"])), expected[0][0].rgb);
    let image = encode(&Rgb8Image::filled(64, 64, [200, 40, 40]).unwrap(), StillFormat::Png).unwrap();
    let url = format!("data:image/png;base64,{}", STANDARD.encode(&image));
    let body = json!({ "prompt": "a rocket", "steps": 3, "images": [{ "image_url": url }] });
    let answer = served.post("/v1/images/edits", body.to_string().as_bytes());
    assert_eq!(answer.status, 200);
    assert_eq!(pixels(&file(&answer.json()["data"][0]["b64_json"])).len(), 64 * 64 * 3);
}

/// AUTOMATIC1111's routes, with the fields that Forge added for these models.
#[test]
fn the_routes_of_the_web_ui_take_forges_fields() {
    let served = served();
    let post = |path: &str, body: &Value| {
        let answer = served.post(&format!("/sdapi/v1/{path}"), body.to_string().as_bytes());
        let (status, body) = (answer.status, answer.json());
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    let mut wanted = json!({
        "prompt": "a rocket", "steps": 3, "width": 64, "height": 64, "seed": 5, "sampler_name": "Euler", "scheduler": "simple",
    });
    let plain = post("txt2img", &wanted);
    assert_eq!(plain["warnings"], json!([]));
    let own = json!({
        "negative_prompt": "", "sampler": "euler", "scheduler": "simple", "convention": "a1111", "pad_conds": false,
        "rng": "cuda",
    });
    let expected = alone_with(&repository().join("models/emoji-sd3"), &[job("a rocket", 5, own)]);
    let found = file(&plain["images"][0]);
    assert_eq!(pixels(&found), expected[0][0].rgb);
    // What every client of Forge sends, and a model without this input has no use for.
    wanted["distilled_cfg_scale"] = json!(3.5);
    let distilled = post("txt2img", &wanted);
    assert_eq!((&distilled["warnings"], pixels(&file(&distilled["images"][0]))), (&json!([]), pixels(&found)));
    wanted["init_images"] = json!([STANDARD.encode(&found)]);
    wanted["denoising_strength"] = json!(0.6);
    let varied = post("img2img", &wanted);
    assert_ne!(pixels(&file(&varied["images"][0])), pixels(&found));
    let (side, mut mask) = (64, vec![0; 64 * 64 * 3]);
    mask[..64 * 24 * 3].fill(255);
    let mask = encode(&Rgb8Image::new(side, side, mask).unwrap(), StillFormat::Png).unwrap();
    wanted["mask"] = STANDARD.encode(&mask).into();
    (wanted["inpaint_full_res"], wanted["inpainting_fill"]) = (false.into(), 1.into());
    let masked = pixels(&file(&post("img2img", &wanted)["images"][0]));
    let below = 64 * 48 * 3;
    assert_eq!(masked[below..], pixels(&found)[below..], "what is not masked stays");
    let options = served.get("/sdapi/v1/options").json();
    assert_eq!(options["sd_model_checkpoint"], "emoji-sd3");
}
