//! AUTOMATIC1111's routes.

use std::io::Write;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_engine::{Enlarger, OpenUpscaler, TileRows, UpscalerChoice};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::fixtures;
use serde_json::{Value, json};

use crate::support::{Served, alone, cpu, options, pixels};

fn post(served: &Served, path: &str, body: &Value) -> Value {
    let answer = served.post(&format!("/sdapi/v1/{path}"), body.to_string().as_bytes());
    let (status, body) = (answer.status, answer.json());
    assert_eq!(status, 200, "{path}: {body}");
    body
}

fn get(served: &Served, path: &str) -> Value {
    served.get(&format!("/sdapi/v1/{path}")).json()
}

fn file(image: &Value) -> Vec<u8> {
    STANDARD.decode(image.as_str().unwrap()).unwrap()
}

fn body(steps: usize) -> Value {
    json!({ "prompt": "a pear", "steps": steps, "width": 64, "height": 64, "seed": 5, "sampler_name": "Euler a" })
}

/// The job of Kiln that the same fields of that program mean.
fn own(steps: usize) -> Value {
    json!({
        "prompt": "a pear", "negative_prompt": "", "steps": steps, "width": 64, "height": 64, "seed": 5, "cfg_scale": 7.0,
        "sampler": "euler_a", "convention": "a1111", "pad_conds": false, "rng": "cuda",
    })
}

#[test]
fn images_are_those_of_a_single_run_by_the_rules_of_that_program() {
    let served = Served::start(options());
    let mut wanted = body(4);
    wanted["n_iter"] = 2.into();
    // What clients always send, whatever the sampler has.
    (wanted["s_churn"], wanted["s_tmax"], wanted["s_noise"]) = (0.into(), 0.into(), 1.into());
    let answer = post(&served, "txt2img", &wanted);
    let mut job = own(4);
    job["batch_count"] = 2.into();
    let expected = alone(&[job]).remove(0);
    let images = answer["images"].as_array().unwrap();
    assert_eq!(images.len(), 2);
    for (image, expected) in images.iter().zip(&expected) {
        assert_eq!(pixels(&file(image)), expected.rgb);
    }
    assert_eq!((&answer["parameters"]["n_iter"], &answer["warnings"]), (&json!(2), &json!([])));
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    assert_eq!((&info["all_seeds"], &info["steps"], &info["width"]), (&json!([5, 6]), &json!(4), &json!(64)));
    assert_eq!(info["infotexts"][1], expected[1].parameters);
    let read = post(&served, "png-info", &json!({ "image": images[0] }));
    assert_eq!(read["info"], expected[0].parameters);
    assert_eq!(read["parameters"]["Seed"], "5");
}

#[test]
fn fields_that_are_left_out_are_named() {
    let served = Served::start(options());
    let mut wanted = body(2);
    (wanted["enable_hr"], wanted["hr_checkpoint_name"]) = (true.into(), "another".into());
    wanted["alwayson_scripts"] = json!({ "ADetailer": { "args": [true] } });
    wanted["override_settings"] = json!({ "samples_format": "webp", "sd_model_checkpoint": "other", "tea": 1 });
    let answer = post(&served, "txt2img", &wanted);
    let warnings = answer["warnings"].as_array().unwrap();
    for name in ["hr_checkpoint_name", "alwayson_scripts.ADetailer", "override_settings.tea", "model"] {
        let quoted = format!("`{name}`");
        assert!(warnings.iter().any(|text| text.as_str().unwrap().contains(&quoted)), "{name}: {warnings:?}");
    }
    assert!(file(&answer["images"][0]).starts_with(b"RIFF"));
    let wrong = |field: &str, value: Value| {
        let mut wanted = body(2);
        wanted[field] = value;
        let answer = served.post("/sdapi/v1/txt2img", wanted.to_string().as_bytes());
        assert_eq!(answer.status, if field == "script_name" { 422 } else { 400 });
        answer.json()["detail"].as_str().unwrap().to_string()
    };
    assert!(wrong("sampler_name", "Eulr".into()).starts_with("Sampler not found"));
    assert!(wrong("script_name", "X/Y/Z plot".into()).starts_with("Script 'X/Y/Z plot' not found"));
    assert!(wrong("steps", "many".into()).contains("steps"));
    assert!(wrong("override_settings", json!([1])).contains("`override_settings`"));
    assert_eq!(served.post("/sdapi/v1/img2img", body(2).to_string().as_bytes()).status, 404);
}

#[test]
fn an_image_and_a_mask_follow_the_rules_of_that_program() {
    let served = Served::start(options());
    let image = encode(&Rgb8Image::filled(64, 64, [200, 40, 40]).unwrap(), StillFormat::Png).unwrap();
    let mut mask = Rgb8Image::filled(64, 64, [0, 0, 0]).unwrap().into_data();
    mask[..64 * 24 * 3].fill(255);
    let mask = encode(&Rgb8Image::new(64, 64, mask).unwrap(), StillFormat::Png).unwrap();
    let mut wanted = body(4);
    wanted["init_images"] = json!([STANDARD.encode(&image)]);
    wanted["mask"] = STANDARD.encode(&mask).into();
    (wanted["inpaint_full_res"], wanted["inpainting_fill"]) = (false.into(), 1.into());
    let answer = post(&served, "img2img", &wanted);
    let pixels = pixels(&file(&answer["images"][0]));
    assert!(pixels[64 * 44 * 3..].chunks(3).all(|pixel| pixel == [200, 40, 40]), "what is not masked stays");
    assert_eq!((&answer["parameters"]["init_images"], &answer["parameters"]["mask"]), (&Value::Null, &Value::Null));
    assert_eq!(answer["warnings"], json!([]));
}

#[test]
fn a_second_pass_is_that_of_a_single_run() {
    let served = Served::start(ServeOptions { upscaler_dir: Some(fixtures("upscale")), ..options() });
    for (upscaler, own_name) in [("Latent (bicubic)", "latent-bicubic"), ("compact_x2", "compact_x2.pth")] {
        let mut wanted = body(4);
        (wanted["enable_hr"], wanted["hr_scale"], wanted["hr_upscaler"]) = (true.into(), 1.5.into(), upscaler.into());
        (wanted["denoising_strength"], wanted["hr_second_pass_steps"]) = (0.6.into(), 3.into());
        let answer = post(&served, "txt2img", &wanted);
        let mut job = own(4);
        (job["hires_scale"], job["hires_strength"], job["hires_steps"]) = (1.5.into(), 0.6.into(), 3.into());
        job["hires_upscaler"] = own_name.into();
        if own_name.ends_with(".pth") {
            job["upscaler_dir"] = fixtures("upscale").to_str().into();
        }
        let expected = alone(&[job]).remove(0).remove(0);
        assert_eq!(pixels(&file(&answer["images"][0])), expected.rgb, "{upscaler}");
        let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
        assert_eq!((&info["width"], &info["infotexts"][0]), (&json!(96), &json!(expected.parameters)));
        assert_eq!(answer["warnings"], json!([]));
    }
    let mut wrong = body(2);
    (wrong["enable_hr"], wrong["hr_upscaler"]) = (true.into(), "../../etc/passwd".into());
    assert_eq!(served.post("/sdapi/v1/txt2img", wrong.to_string().as_bytes()).status, 400);
    assert_eq!(get(&served, "latent-upscale-modes")[2], json!({ "name": "Latent (bicubic)" }));
}

#[test]
fn soft_inpainting_is_a_script() {
    let served = Served::start(options());
    let image = encode(&Rgb8Image::filled(64, 64, [200, 40, 40]).unwrap(), StillFormat::Png).unwrap();
    let mask = encode(&Rgb8Image::filled(64, 64, [128; 3]).unwrap(), StillFormat::Png).unwrap();
    let mut wanted = body(3);
    wanted["init_images"] = json!([STANDARD.encode(&image)]);
    wanted["mask"] = STANDARD.encode(&mask).into();
    let hard = post(&served, "img2img", &wanted);
    wanted["alwayson_scripts"] = json!({ "Soft Inpainting": { "args": [true, 1, 0.5, 4, 0, 0.5, 2] } });
    let soft = post(&served, "img2img", &wanted);
    let info: Value = serde_json::from_str(soft["info"].as_str().unwrap()).unwrap();
    assert!(info["infotexts"][0].as_str().unwrap().contains("Soft inpainting enabled: True"), "{info}");
    assert_ne!(hard["images"], soft["images"]);
    assert_eq!(soft["warnings"], json!([]));
}

#[test]
fn progress_interrupt_and_options() {
    let served = Served::start(options());
    assert_eq!(
        (&get(&served, "progress")["progress"], &get(&served, "progress")["state"]["job_count"]),
        (&json!(0.0), &json!(0))
    );
    assert_eq!(post(&served, "options", &json!({ "show_progress_every_n_steps": 1, "unknown": 2 })), Value::Null);
    assert_eq!(get(&served, "options")["sd_model_checkpoint"], "sd1");
    let images = std::thread::scope(|scope| {
        let made = scope.spawn(|| post(&served, "txt2img", &body(900)));
        let start = Instant::now();
        loop {
            let now = get(&served, "progress");
            if now["state"]["sampling_step"].as_u64() > Some(0) && now["current_image"].is_string() {
                assert_eq!(now["state"]["sampling_steps"], 900);
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{now}");
        }
        assert_eq!(post(&served, "interrupt", &json!({})), json!({}));
        made.join().unwrap()
    });
    assert_eq!(images["images"].as_array().unwrap().len(), 1, "what is there comes back");
    assert_eq!(post(&served, "skip", &json!({})), Value::Null);
    let whole = get(&served, "options");
    assert_eq!(post(&served, "options", &whole), Value::Null, "a client may send back what it got");
    for list in ["samplers", "schedulers", "upscalers", "sd-models"] {
        assert!(!get(&served, list).as_array().unwrap().is_empty(), "{list}");
    }
    for object in ["embeddings", "cmd-flags", "memory", "scripts"] {
        assert!(get(&served, object).is_object(), "{object}");
    }
    post(&served, "refresh-checkpoints", &json!({}));
}

#[test]
fn a_client_that_goes_away_ends_its_job() {
    let served = Served::start(options());
    let address = served.address.strip_prefix("http://").unwrap();
    let mut long = body(900);
    long["n_iter"] = 60.into(); // longer than the time in which the client may have ended its side only
    let text = long.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let head =
        format!("POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    stream.write_all(head.as_bytes()).unwrap();
    let start = Instant::now();
    while get(&served, "progress")["state"]["sampling_step"].as_u64() == Some(0) {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    drop(stream);
    while !served.get("/metrics").text().contains("kiln_jobs_total{outcome=\"canceled\"} 1") {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(get(&served, "progress")["state"]["job_count"], 0);
}

#[test]
fn images_are_enlarged_by_filters_and_networks() {
    let served = Served::start(ServeOptions { upscaler_dir: Some(fixtures("upscale")), ..options() });
    let image = encode(&Rgb8Image::filled(20, 10, [200, 40, 40]).unwrap(), StillFormat::Png).unwrap();
    let image = STANDARD.encode(&image);
    let size = |answer: &Value| {
        let decoded = kiln_media::decode(&file(&answer["image"]), "an image", &kiln_media::DecodeOptions::default());
        decoded.unwrap().rgb().size()
    };
    let with = |more: Value| {
        let mut wanted = json!({ "image": image, "upscaler_1": "Lanczos" });
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(&served, "extra-single-image", &wanted)
    };
    assert_eq!(size(&with(json!({ "upscaling_resize": 4 }))), (80, 40));
    let to_size = json!({ "resize_mode": 1, "upscaling_resize_w": 64, "upscaling_resize_h": 48 });
    assert_eq!(size(&with(to_size)), (64, 48));
    assert_eq!(size(&with(json!({ "upscaler_1": "None" }))), (20, 10));
    let network = with(json!({ "upscaler_1": "compact_x4", "upscaling_resize": 4 }));
    let expected = {
        let choice = UpscalerChoice::File(fixtures("upscale/compact_x4.safetensors"));
        let mut enlarger = Enlarger::load(OpenUpscaler::open(&choice, None).unwrap(), &cpu(), TileRows::Auto).unwrap();
        let small = Rgb8Image::filled(20, 10, [200, 40, 40]).unwrap();
        enlarger.enlarge(&small, 80, 40, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    assert_eq!(pixels(&file(&network["image"])), expected.data(), "the bits of `kiln upscale`");
    let both = with(json!({ "upscaler_2": "compact_x2", "extras_upscaler_2_visibility": 0.5, "upscaling_resize": 4 }));
    assert_eq!(size(&both), (80, 40));
    let names: Vec<Value> =
        get(&served, "upscalers").as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert!(
        names.starts_with(&[json!("None"), json!("Lanczos"), json!("Nearest")]) && names.contains(&json!("compact_x4"))
    );
    let many = json!({ "imageList": [{ "data": image, "name": "a" }, { "data": image, "name": "b" }], "upscaler_1": "Nearest" });
    assert_eq!(post(&served, "extra-batch-images", &many)["images"].as_array().unwrap().len(), 2);
    let large = json!({ "image": image, "upscaler_1": "Lanczos", "upscaling_resize": 64.0, "gfpgan_visibility": 1 });
    assert!(post(&served, "extra-single-image", &large)["html_info"].as_str().unwrap().contains("gfpgan_visibility"));
    for wrong in [
        json!({ "image": image, "upscaler_1": "R-ESRGAN 4x+" }),
        json!({ "image": image, "upscaler_1": "../upscale/compact_x4" }),
        json!({ "image": image, "upscaler_1": fixtures("upscale/compact_x4.safetensors").to_str() }),
        json!({ "image": "x" }),
        json!({ "image": image, "upscaling_resize": 1e9 }),
    ] {
        assert!([400, 422].contains(&served.post("/sdapi/v1/extra-single-image", wrong.to_string().as_bytes()).status));
    }
}

#[test]
fn several_input_images_give_a_result_each() {
    let served = Served::start(options());
    let folder = tempfile::tempdir().unwrap();
    let image = |name: &str, color: [u8; 3]| {
        let file = encode(&Rgb8Image::filled(64, 64, color).unwrap(), StillFormat::Png).unwrap();
        std::fs::write(folder.path().join(name), &file).unwrap();
        STANDARD.encode(&file)
    };
    let images = [image("a", [200, 40, 40]), image("b", [20, 40, 240])];
    let mut wanted = body(3);
    (wanted["init_images"], wanted["n_iter"], wanted["force_task_id"]) = (json!(images), 2.into(), "task(9)".into());
    wanted["sampler_name"] = "Euler".into();
    let answer = post(&served, "img2img", &wanted);
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&info["all_seeds"], &info["batch_size"], &answer["warnings"]),
        (&json!([5, 6, 7, 8]), &json!(2), &json!([]))
    );
    let job = |(seed, name): (u64, &str)| {
        let mut job = own(3);
        (job["seed"], job["init"], job["rule"]) =
            (seed.into(), folder.path().join(name).to_str().into(), "a1111".into());
        job["sampler"] = "euler".into();
        job
    };
    let expected = alone(&[(5, "a"), (6, "b"), (7, "a"), (8, "b")].map(job));
    let found = answer["images"].as_array().unwrap();
    assert_eq!(found.len(), 4);
    for (image, expected) in found.iter().zip(&expected) {
        assert!(pixels(&file(image)) == expected[0].rgb, "seed {}", expected[0].seed);
    }
    assert_eq!(served.get("/v1/jobs").json(), json!({ "jobs": [] }), "jobs that were answered are forgotten");
    wanted["n_iter"] = 40.into();
    let refused = served.post("/sdapi/v1/img2img", wanted.to_string().as_bytes());
    assert_eq!(refused.status, 400);
    assert!(refused.json()["detail"].as_str().unwrap().contains("`init_images` is 80"));
    // A request that is refused in part leaves nothing behind.
    (wanted["n_iter"], wanted["init_images"]) = (1.into(), json!([images[0], "iVBORw0KGgo="]));
    assert_eq!(served.post("/sdapi/v1/img2img", wanted.to_string().as_bytes()).status, 422);
    assert_eq!(served.get("/v1/jobs").json(), json!({ "jobs": [] }));
}

#[test]
fn a_tag_of_a_lora_that_is_not_there_is_a_comment() {
    let served = Served::start(options());
    let plain = post(&served, "txt2img", &body(2));
    let mut wanted = body(2);
    wanted["prompt"] = "a pear<lora:nope:1><hypernet:old:1>".into();
    let answer = post(&served, "txt2img", &wanted);
    assert_eq!(pixels(&file(&answer["images"][0])), pixels(&file(&plain["images"][0])));
    let expected = [
        "Lora not found: <lora:nope:1> is left out of the prompt",
        "<hypernet:old:1> is left out of the prompt: Kiln has no hypernetworks",
    ];
    assert_eq!(answer["warnings"], json!(expected));
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    assert_eq!(info["comments"], format!("{}\n{}\n", expected[0], expected[1]));
    // Kiln's own route refuses it, and the field `loras`.
    for (job, found) in [
        (json!({ "prompt": "a <lora:nope:1>" }), "<lora:nope:1> in the prompt names no LoRA of this server"),
        (json!({ "prompt": "a", "loras": ["nope"] }), "`loras` is \"nope\""),
    ] {
        let message = served.post("/v1/jobs", job.to_string().as_bytes()).refused(400, "invalid_request");
        assert!(message.contains(found), "{message}");
    }
    // Clients of OpenAI's API have no list of LoRAs.
    let job = json!({ "prompt": "a <lora:nope:1>", "size": "64x64", "steps": 1 });
    let answer = served.post("/v1/images/generations", job.to_string().as_bytes()).json();
    let expected = "<lora:nope:1> is left out of the prompt: the server has no LoRA of this name";
    assert_eq!(answer["warnings"], json!([expected]), "{answer}");
}

/// Base model and words are in both lists.
#[test]
fn loras_are_listed_with_their_notes() {
    let folder = tempfile::tempdir().unwrap();
    let tags = r#"{\"10_ink\": {\"ink\": 9, \"a cat\": 3}}"#;
    let header = format!(
        r#"{{"__metadata__":{{"ss_base_model_version":"sd_v1","ss_tag_frequency":"{tags}"}},"a.lora_up.weight":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#
    );
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(folder.path().join("ink.safetensors"), bytes).unwrap();
    let mut setup = cpu();
    setup.lora_dir = Some(folder.path().to_path_buf());
    let served = Served::start(ServeOptions { setups: vec![setup], ..options() });
    let listed = get(&served, "loras");
    let metadata =
        json!({ "ss_base_model_version": "sd_v1", "ss_tag_frequency": { "words": { "ink": 9, "a cat": 3 } } });
    let expected = json!([{ "name": "ink", "alias": "ink", "path": "ink.safetensors", "metadata": metadata }]);
    assert_eq!(listed, expected);
    let capabilities = served.get("/v1/capabilities").json();
    assert_eq!(capabilities["loras"], json!(["ink"]));
    let notes = json!([{ "name": "ink", "base": "sd_v1", "trigger": null, "words": ["ink", "a cat"] }]);
    assert_eq!(capabilities["lora_notes"], notes);
}

#[test]
fn models_have_their_hashes_where_they_are_known() {
    let cache = tempfile::tempdir().unwrap();
    let mut setup = cpu();
    setup.cache_dir = Some(cache.path().to_path_buf());
    let served = Served::start(ServeOptions { setups: vec![setup], ..options() });
    // The digest is computed while the first image is made.
    post(&served, "txt2img", &body(1));
    let model = get(&served, "sd-models")[0].clone();
    assert_eq!((&model["title"], &model["filename"]), (&json!("sd1"), &json!("sd1")));
    let sha256 = model["sha256"].as_str().unwrap();
    assert_eq!((sha256.len(), model["hash"].as_str()), (64, sha256.get(..10)));
    assert_eq!(get(&served, "options")["sd_checkpoint_hash"], sha256);
    let without = Served::start(options());
    assert_eq!(get(&without, "sd-models")[0]["sha256"], Value::Null);
}
