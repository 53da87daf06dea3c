//! Requests that cost more than they look like are refused before the cost is paid.

use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_serve::{Limits, ServeOptions};
use serde_json::{Value, json};

use crate::support::{Served, options};

/// A GIF of this size with a frame of one pixel, in 35 bytes.
fn gif(width: u16, height: u16) -> Vec<u8> {
    let sides = [width.to_le_bytes(), height.to_le_bytes()].concat();
    let frame = b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
    [&b"GIF89a"[..], &sides, frame].concat()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|three| {
        let number = (0..3).fold(0u32, |number, i| number << 8 | u32::from(three.get(i).copied().unwrap_or(0)));
        (0..=three.len()).map(move |i| char::from(DIGITS[(number >> (18 - 6 * i) & 63) as usize]))
    });
    digits.collect()
}

#[test]
fn input_images_are_refused_by_their_headers() {
    let limits = Limits { input_pixels: 1 << 16, input_side: 1 << 12, ..Limits::default() };
    let served = Served::start(ServeOptions { limits, ..options() });
    for (image, limit) in [(gif(7999, 7999), "65536 pixels"), (gif(5000, 1), "4096 pixels a side")] {
        let text = base64(&image);
        let good = base64(&encode(&Rgb8Image::filled(64, 64, [9; 3]).unwrap(), StillFormat::Png).unwrap());
        let jobs = [
            json!({ "prompt": "a", "init": text }),
            json!({ "prompt": "a", "init": text, "width": 64, "height": 64 }),
            json!({ "prompt": "a", "init": good, "mask": text }),
            json!({ "prompt": "a", "controls": [{ "net": "canny", "image": text }] }),
        ];
        for job in &jobs {
            let refused = served.post("/v1/jobs", job.to_string().as_bytes()).refused(422, "unprocessable");
            assert!(refused.contains(limit) && !refused.contains("kiln-serve"), "{refused}");
        }
        for path in ["/v1/upscale", "/v1/settings"] {
            let refused = served.post(path, &image).refused(422, "unprocessable");
            assert!(refused.contains(limit), "{path}: {refused}");
        }
        let edit = json!({ "prompt": "a", "image": format!("data:image/gif;base64,{text}") });
        let refused = served.post("/v1/images/edits", edit.to_string().as_bytes()).refused(422, "unprocessable");
        assert!(refused.contains(limit), "{refused}");
        for (path, body) in [
            ("/sdapi/v1/img2img", json!({ "prompt": "a", "init_images": [text], "width": 64, "height": 64 })),
            ("/sdapi/v1/extra-single-image", json!({ "image": text, "upscaler_1": "Lanczos" })),
            ("/sdapi/v1/png-info", json!({ "image": text })),
            ("/controlnet/detect", json!({ "controlnet_module": "canny", "controlnet_input_images": [text] })),
            (
                "/sdapi/v1/txt2img",
                json!({ "prompt": "a", "alwayson_scripts": { "ControlNet": { "args": [
                    { "model": "a", "module": "canny", "image": text }] } } }),
            ),
        ] {
            let answer = served.post(path, body.to_string().as_bytes());
            let (status, detail) = (answer.status, answer.json()["detail"].to_string());
            assert!(status == 422 && detail.contains(limit), "{path}: {status} {detail}");
        }
    }
    let good = base64(&encode(&Rgb8Image::filled(64, 64, [9; 3]).unwrap(), StillFormat::Png).unwrap());
    let extended = json!({ "prompt": "a", "init": good, "width": 64, "height": 64, "extend": "top=2000" });
    let refused = served.post("/v1/jobs", extended.to_string().as_bytes()).refused(400, "invalid_request");
    assert!(refused.contains("`extend` is an image of 64x2064"), "{refused}");
    let limits = served.get("/v1/capabilities").json()["limits"].clone();
    assert_eq!(
        (&limits["input_pixels"], &limits["input_side"], &limits["tokens"]),
        (&json!(65536), &json!(4096), &json!(3000))
    );
}

#[test]
fn long_prompts_are_refused_with_their_length() {
    let limits = Limits { tokens: 300, ..Limits::default() };
    let served = Served::start(ServeOptions { limits, ..options() });
    let job = |fields: Value| {
        let mut job = json!({ "prompt": "a", "width": 16, "height": 16, "steps": 1 });
        job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        served.post("/v1/jobs", job.to_string().as_bytes())
    };
    let long = ["a"; 5].join(" BREAK ");
    let (parts, allowed) = (["a"; 5].join(" AND "), ["a"; 4].join(" BREAK "));
    for (fields, found) in [
        (json!({ "prompt": long }), "`prompt` is 375 tokens long or more, expected at most 300"),
        (json!({ "negative_prompt": long }), "`negative_prompt` is 375 tokens"),
        (json!({ "prompt": parts }), "`prompt` is 375 tokens"),
        (json!({ "prompt": "a ".repeat(2401) }), "`prompt` is a text of 4802 bytes, expected at most 4800"),
    ] {
        let refused = job(fields).refused(400, "invalid_request");
        assert!(refused.starts_with(found), "{refused}");
    }
    assert_eq!(job(json!({ "prompt": allowed })).status, 202);
}

#[test]
fn lists_of_jobs_are_short_and_jobs_are_whole() {
    let served = Served::start(options());
    let prompt = "ä".repeat(1500);
    let id = served.submit(&json!({ "prompt": prompt, "width": 16, "height": 16, "steps": 1 }));
    let job = served.finished(&id);
    assert_eq!((job["status"].as_str(), job["request"]["prompt"].as_str()), (Some("done"), Some(&*prompt)));
    assert_eq!(job["images"][0]["request"]["prompt"].as_str(), Some(&*prompt));
    let listed = served.get("/v1/jobs").json()["jobs"][0].clone();
    let cut = format!("{}...", "ä".repeat(512));
    assert_eq!((listed["id"].as_str(), listed["request"]["prompt"].as_str()), (Some(&*id), Some(&*cut)));
    assert_eq!(listed["images"][0]["request"]["prompt"].as_str(), Some(&*cut));
    assert!(listed["images"][0]["parameters"].as_str().unwrap().len() < 1100);
}

#[test]
fn names_of_megabytes_are_not_repeated() {
    let served = Served::start(options());
    let long = "k".repeat(3_000_000);
    for body in [
        json!({ "prompt": "a", &*long: 1 }),
        json!({ "prompt": "a", "sampler": long }),
        json!({ "prompt": "a", "steps": long }),
        json!({ "prompt": "a", "loras": [format!("/{long}")] }),
    ] {
        let refused = served.post("/v1/jobs", body.to_string().as_bytes()).refused(400, "invalid_request");
        assert!(
            refused.len() < 8192 + 16 && !refused.contains("did you mean"),
            "{} bytes: {refused:.200}",
            refused.len()
        );
    }
    for (path, field) in [("/sdapi/v1/txt2img", "sampler_name"), ("/v1/images/generations", "output_format")] {
        let answer = served.post(path, json!({ "prompt": "a", field: long }).to_string().as_bytes());
        assert!((400..500).contains(&answer.status) && answer.bytes().len() < 20_000, "{path}");
    }
    let refused = served.post("/v1/jobs", json!({ "prompt": "a", "sampler": "foo" }).to_string().as_bytes());
    let refused = refused.refused(400, "invalid_request");
    assert!(refused.contains("unknown sampler \"foo\". The samplers are: "), "{refused}");
}
