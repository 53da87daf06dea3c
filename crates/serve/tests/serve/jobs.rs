//! Kiln's own API: jobs, events, images.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_engine::{PreviewMethod, PreviewOptions, Setup};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_serve::{ServeOptions, Server};
use kiln_testkit::fixtures;
use serde_json::{Value, json};

use crate::support::{Answer, Served, alone, cpu, options, pixels};

/// A job of the tiny model.
pub fn job(prompt: &str, steps: usize, seed: u64) -> Value {
    json!({ "prompt": prompt, "steps": steps, "seed": seed, "width": 64, "height": 64, "sampler": "euler" })
}

#[test]
fn images_have_the_bits_of_a_single_run_whatever_else_runs() {
    let mut batch = options();
    batch.max_batch = Some(4);
    let served = Served::start(batch);
    let with = |mut job: Value, more: Value| {
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let jobs = [
        job("a pear", 12, 1),
        with(job("a [fig:plum:2]", 9, 2), json!({ "sampler": "dpmpp_2m" })),
        with(job("a plum", 3, 3), json!({ "batch_size": 2, "batch_count": 2, "sampler": "heun" })),
        with(job("a fig", 5, 4), json!({ "cfg_scale": 1.0, "sampler": "euler_a" })),
        with(job("a quince", 6, 5), json!({ "width": 96 })),
        job("a lime AND a pear :0.5", 4, 6),
        job("a pear", 8, 7),
        job("a melon", 8, 8),
    ];
    let expected = alone(&jobs);
    let ids: Vec<String> = jobs.iter().map(|job| served.submit(job)).collect();
    for (id, expected) in ids.iter().zip(&expected) {
        let done = served.finished(id);
        assert_eq!(done["status"], "done", "{done}");
        assert_eq!(done["images"].as_array().unwrap().len(), expected.len());
        for (index, image) in expected.iter().enumerate() {
            assert_eq!(served.image(&done, index), image.rgb, "{done}");
            assert_eq!(done["images"][index]["parameters"], image.parameters);
            assert_eq!(done["images"][index]["seed"], image.seed);
        }
    }
    let metrics = served.get("/metrics").text();
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{metrics}"));
        line.trim().parse().unwrap()
    };
    assert_eq!(value("kiln_images_total"), 11.0);
    assert_eq!(value("kiln_jobs_total{outcome=\"done\"}"), 8.0);
    assert!(value("kiln_step_images_sum") > value("kiln_step_images_count"), "steps are shared");
}

#[test]
fn numbers_of_jobs_begin_with_the_prefix_of_the_server() {
    let prefixed = |prefix: &str| ServeOptions { job_prefix: Some(prefix.into()), ..options() };
    let served = Served::start(prefixed("r1"));
    let id = served.submit(&job("a pear", 2, 1));
    assert!(id.starts_with("r1-") && id.len() == 19, "{id}");
    let done = served.finished(&id);
    assert!(!served.image(&done, 0).is_empty());
    // The proxy of several servers gives a job its number again.
    let again = |id: &str| {
        let sent = served.agent.post(format!("{}/v1/jobs", served.address)).header("kiln-job", id);
        let job: Value = Answer::from(sent.send(job("a pear", 2, 1).to_string()).unwrap()).json();
        job["id"].as_str().unwrap().to_string()
    };
    assert_eq!(again("r0-0123456789abcdef"), "r0-0123456789abcdef");
    assert_eq!(served.finished("r0-0123456789abcdef")["images"][0]["id"], "r0-0123456789abcdef-0");
    assert!(again("r0-0123456789abcdef").starts_with("r1-"), "a number is given once");
    assert!(again("../r0").starts_with("r1-"));
    for wrong in ["", "a/b", "a-b"] {
        let refused = Server::start(prefixed(wrong)).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains("job_prefix")), "{wrong}: {refused:?}");
    }
}

#[test]
fn a_drawn_second_seed_is_in_the_request() {
    let served = Served::start(options());
    let mut varied = job("a pear", 2, 1);
    varied["variation_strength"] = 0.5.into();
    varied["variation_seed"] = (-1).into();
    let first = served.finished(&served.submit(&varied));
    let drawn = first["request"]["subseed"].as_u64().unwrap_or_else(|| panic!("{first}"));
    varied["variation_seed"] = drawn.into();
    let again = served.finished(&served.submit(&varied));
    assert_eq!(served.image(&first, 0), served.image(&again, 0));
    assert!(served.finished(&served.submit(&job("a pear", 2, 1)))["request"]["subseed"].is_null());
}

#[test]
fn the_seconds_of_the_queue_are_estimated() {
    let served = Served::start(options());
    let seconds = || -> f64 {
        let metrics = served.get("/metrics").text();
        let line = metrics.lines().find_map(|line| line.strip_prefix("kiln_queue_seconds ")).unwrap();
        line.parse().unwrap()
    };
    assert_eq!(seconds(), 0.0);
    let ids: Vec<String> = (0..4).map(|seed| served.submit(&job("a pear", 100, seed))).collect();
    served.wait(&ids[0], |job| job["step"].as_u64() > Some(30));
    let (estimate, start) = (seconds(), Instant::now());
    ids.iter().for_each(|id| drop(served.finished(id)));
    let took = start.elapsed().as_secs_f64();
    assert!(estimate > took / 10.0 && estimate < took * 10.0, "estimated {estimate} s, took {took} s");
    served.wait_metric("kiln_queue_seconds 0.0");
}

#[test]
fn the_last_images_are_there_until_they_are_read() {
    let served = Served::start(options());
    let id = served.submit(&job("a pear", 100, 1));
    served.server.drain();
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| served.server.wait());
        let done = served.finished(&id);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!ended.is_finished(), "the server has ended with an image that its client does not have");
        assert!(!served.image(&done, 0).is_empty());
        let start = Instant::now();
        ended.join().unwrap().unwrap();
        assert!(start.elapsed() < Duration::from_secs(9), "it waits although the image was read");
    });
}

#[test]
fn events_tell_steps_previews_images_and_the_end() {
    let served = Served::start(options());
    let id = served.submit(&job("a pear", 300, 1));
    let events = served.events(&id);
    let named = |name: &str| events.iter().filter(|(found, _)| found == name).map(|(_, data)| data).collect::<Vec<_>>();
    let steps: Vec<u64> = named("step").iter().map(|data| data["step"].as_u64().unwrap()).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&300), "{steps:?}");
    let previews = named("preview");
    assert!(!previews.is_empty());
    for preview in previews {
        assert_eq!((&preview["width"], &preview["height"], &preview["index"]), (&json!(8), &json!(8), &json!(0)));
        let file = STANDARD.decode(preview["data"].as_str().unwrap()).unwrap();
        assert_eq!(pixels(&file).len(), 8 * 8 * 3);
    }
    assert_eq!(named("image").len(), 1);
    let (last, job) = events.last().unwrap();
    assert_eq!((last.as_str(), job["status"].as_str()), ("done", Some("done")));
    // Who comes late sees the end at once.
    let late = served.events(&id);
    assert_eq!(late.last().unwrap().0, "done");
    assert_eq!(late.iter().filter(|(name, _)| name == "image").count(), 1);
}

/// Previews by TAESD have the size of small images, and larger ones are JPEG.
#[test]
fn previews_by_taesd_are_larger() {
    let taesd = Some(fixtures("taesd/default"));
    let with = |method: PreviewMethod| {
        let previews = PreviewOptions { method, taesd: taesd.clone() };
        ServeOptions { setups: vec![Setup { previews, ..cpu() }], ..options() }
    };
    let previews = |served: &Served, side: u64| -> Vec<Value> {
        let mut job = job("a pear", 20, 1);
        (job["width"], job["height"]) = (json!(side), json!(side));
        let events = served.events(&served.submit(&job));
        events.into_iter().filter(|(name, _)| name == "preview").map(|(_, data)| data).collect()
    };
    let served = Served::start(with(PreviewMethod::Taesd));
    for (side, kind) in [(64, "image/png"), (192, "image/jpeg")] {
        let found = previews(&served, side);
        let first = found.first().unwrap_or_else(|| panic!("no preview of {side}"));
        assert_eq!((&first["width"], &first["type"]), (&json!(side), &json!(kind)));
        let file = STANDARD.decode(first["data"].as_str().unwrap()).unwrap();
        let found = kiln_media::decode(&file, "preview", &kiln_media::DecodeOptions::default()).unwrap();
        assert_eq!((found.width() as u64, found.height() as u64), (side, side));
    }
    assert!(previews(&Served::start(with(PreviewMethod::None)), 64).is_empty());
    assert_eq!(served.get("/v1/capabilities").json()["models"][0]["previews"], true);
}

#[test]
fn an_image_says_how_it_is_made_again() {
    let served = Served::start(options());
    let first = served.finished(&served.submit(&job("a pear", 4, 11)));
    let file = served.get(first["images"][0]["url"].as_str().unwrap()).bytes();
    let settings = served.post("/v1/settings", &file).json();
    assert_eq!(settings["request"]["seed"], 11);
    assert_eq!(settings["warnings"], json!([]));
    assert!(settings["parameters"].as_str().unwrap().contains("Steps: 4"));
    for request in [&settings["request"], &first["images"][0]["request"]] {
        let again = served.finished(&served.submit(request));
        assert_eq!(served.image(&again, 0), pixels(&file), "{request}");
    }
    let plain = encode(&Rgb8Image::filled(8, 8, [1, 2, 3]).unwrap(), StillFormat::Png).unwrap();
    for nothing in [&plain[..], b"no image", b""] {
        let message = served.post("/v1/settings", nothing).refused(422, "unprocessable");
        assert!(!message.contains("/tmp"), "{message}");
    }
}

#[test]
fn an_image_and_a_mask_come_in_base64() {
    let served = Served::start(options());
    let image = encode(&Rgb8Image::filled(64, 64, [200, 40, 40]).unwrap(), StillFormat::Png).unwrap();
    let mut mask = Rgb8Image::filled(64, 64, [0, 0, 0]).unwrap().into_data();
    mask[..64 * 32 * 3].fill(255);
    let mask = encode(&Rgb8Image::new(64, 64, mask).unwrap(), StillFormat::Png).unwrap();
    let mut body = job("a pear", 4, 1);
    body["init"] = format!("data:image/png;base64,{}", STANDARD.encode(&image)).into();
    body["mask"] = STANDARD.encode(&mask).into();
    body["strength"] = 0.9.into();
    let done = served.finished(&served.submit(&body));
    assert_eq!(done["status"], "done", "{done}");
    assert!(done["request"].get("init").is_none() && done["request"].get("mask").is_none());
    let pixels = served.image(&done, 0);
    assert!(pixels[64 * 40 * 3..].chunks(3).all(|pixel| pixel == [200, 40, 40]), "what is not masked stays");
    assert!(pixels[..64 * 24 * 3].chunks(3).any(|pixel| pixel != [200, 40, 40]));
    body["mask"] = "iVBORw0KGgo=".into();
    let message = served.post("/v1/jobs", body.to_string().as_bytes()).refused(422, "unprocessable");
    assert!(message.starts_with("mask") && !message.contains("kiln-serve-"), "{message}");
}

#[test]
fn what_cannot_be_made_is_refused_at_once() {
    let mut small = options();
    small.limits.pixels = 64 * 128;
    small.limits.steps = 50;
    small.limits.images = 4;
    let served = Served::start(small);
    let with = |field: &str, value: Value| {
        let mut job = job("a pear", 4, 1);
        job[field] = value;
        job.to_string()
    };
    for (body, found) in [
        ("{\"prompt\": ".to_string(), "is not a JSON object"),
        ("[1]".into(), "expected an object"),
        ("\u{0}".into(), "is not a JSON object"),
        ("{\"prompt\": \"a\", \"prompt\": \"b\"}".into(), "prompt"),
        (format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000)), "is not a JSON object"),
        ("{}".into(), "no prompt"),
        (with("promt", "a".into()), "did you mean prompt"),
        (with("steps", 0.into()), "`steps` is 0"),
        (with("steps", 51.into()), "at most 50, the limit of this server"),
        (with("width", 136.into()), "at most 8192"),
        (with("width", 63.into()), "`width`"),
        (with("batch_count", 5.into()), "at most 4"),
        (with("init", "/etc/passwd".into()), "no Base64"),
        (with("init", "http://127.0.0.1/a.png".into()), "an address"),
        (with("init", "-".into()), "no Base64"),
        (with("wildcards_dir", "/etc".into()), "`wildcards_dir`"),
        (with("output", "/tmp/x.png".into()), "`output`"),
        (with("refiner", "/etc".into()), "`refiner`"),
        (with("loras", json!(["/etc/passwd"])), "names without folders"),
        (with("loras", json!(["ink:0.5"])), "`loras` is \"ink\""),
        (with("prompt", "a <lora:../ink:1>".into()), "<lora:../ink:1> in the prompt"),
        (with("preview_every", "often".into()), "`preview_every`"),
    ] {
        let message = served.post("/v1/jobs", body.as_bytes()).refused(400, "invalid_request");
        assert!(message.contains(found), "{message}");
    }
    let message = served.post("/v1/jobs", with("model", "other".into()).as_bytes()).refused(404, "not_found");
    assert!(message.contains("expected one of sd1"), "{message}");
    assert_eq!(served.post("/v1/jobs", &[0xff, 0xfe, 0x00]).status, 400);
    assert_eq!(served.get("/v1/jobs").json(), json!({ "jobs": [] }), "nothing was added");
}

#[test]
fn jobs_are_listed_and_forgotten() {
    let served = Served::start(options());
    let ids: Vec<String> = (0..3).map(|seed| served.submit(&job("a pear", 2, seed))).collect();
    ids.iter().for_each(|id| drop(served.finished(id)));
    let listed = served.get("/v1/jobs").json();
    let found: Vec<&str> = listed["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(found, ids.iter().rev().collect::<Vec<_>>(), "the newest first");
    assert_eq!(served.delete(&format!("/v1/jobs/{}", ids[0])).status, 200);
    served.get(&format!("/v1/jobs/{}", ids[0])).refused(404, "not_found");
    served.get(&format!("/v1/images/{}-0", ids[0])).refused(404, "not_found");
    for path in ["/v1/jobs/x", "/v1/jobs/x/events", "/v1/images/x", "/v1/images/..%2f..%2fetc%2fpasswd", "/nowhere"] {
        served.get(path).refused(404, "not_found");
    }
    served.delete("/v1/jobs").refused(405, "method_not_allowed");
}

#[test]
fn finished_jobs_are_kept_for_a_while() {
    let mut short = options();
    short.keep = std::time::Duration::from_millis(10);
    let served = Served::start(short);
    let id = served.submit(&job("a pear", 2, 1));
    let start = std::time::Instant::now();
    while served.get(&format!("/v1/jobs/{id}")).status == 200 {
        assert!(start.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn lists_name_what_the_server_has() {
    let served = Served::start(options());
    let lists = served.get("/v1/capabilities").json();
    assert_eq!(lists["models"][0]["id"], "sd1");
    let options = lists["options"].as_array().unwrap();
    let option = |name: &str| options.iter().find(|option| option["name"] == name);
    assert_eq!(option("steps").unwrap()["minimum"], 1.0);
    assert_eq!(option("init").unwrap()["type"], "image");
    assert!(option("wildcards_dir").is_none());
    assert!(lists["samplers"].as_array().unwrap().contains(&json!({ "id": "euler_a", "name": "Euler a" })));
    assert_eq!(served.get("/v1/models").json()["data"][0]["id"], "sd1");
    assert_eq!(served.get("/v1/models/sd1").json()["object"], "model");
    let unknown = served.get("/v1/models/gpt-image-1");
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &"model".into()));
    let document = served.get("/openapi.json").json();
    assert!(document["paths"]["/v1/jobs"]["post"].is_object());
    assert!(served.get("/docs").text().contains("/v1/jobs"));
}
