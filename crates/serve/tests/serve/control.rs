//! Control networks: by their names, over both APIs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Preprocessor, Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::{TinyControl, control_pixels};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Served, alone, options, pixels};

/// Control networks and an image in a folder, and a server that has them.
struct Control {
    folder: TempDir,
    served: Served,
}

impl Control {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        TinyControl::full(0).write("sd1", &folder.path().join("nets/canny"));
        TinyControl::full(1).write("sd1", &folder.path().join("nets/depth"));
        std::fs::write(folder.path().join("control.png"), Self::image()).unwrap();
        let served = Served::start(ServeOptions { control_dir: Some(folder.path().join("nets")), ..options() });
        Self { folder, served }
    }

    fn image() -> Vec<u8> {
        encode(&Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap(), StillFormat::Png).unwrap()
    }

    /// A job of Kiln with a network of the folder, as `kiln batch` takes it.
    fn own(&self, net: &str, more: Value) -> Value {
        let path = |name: &str| self.folder.path().join(name).to_str().unwrap().to_string();
        let mut control = json!({ "net": path(&format!("nets/{net}")), "image": path("control.png") });
        control.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "prompt": "a pear", "seed": 5, "steps": 3, "width": 64, "height": 64, "controls": [control] })
    }

    /// The same for the server.
    fn sent(net: &str, more: Value) -> Value {
        let mut control = json!({ "net": net, "image": STANDARD.encode(Self::image()) });
        control.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "prompt": "a pear", "seed": 5, "steps": 3, "width": 64, "height": 64, "controls": [control] })
    }
}

#[test]
fn networks_are_named_and_images_come_with_the_request() {
    let control = Control::start();
    let served = &control.served;
    let strong = json!({ "weight": 0.7, "end": 0.8 });
    // Three lanes at once: two networks, and none.
    let plain = json!({ "prompt": "a pear", "seed": 5, "steps": 3, "width": 64, "height": 64 });
    let ids = [
        served.submit(&Control::sent("canny", json!({}))),
        served.submit(&Control::sent("depth", strong.clone())),
        served.submit(&plain),
        served.submit(&Control::sent("canny.safetensors", strong.clone())),
    ];
    let jobs = ids.map(|id| served.finished(&id));
    let expected = alone(&[
        control.own("canny", json!({})),
        control.own("depth", strong.clone()),
        plain,
        control.own("canny", strong),
    ]);
    for (job, expected) in jobs.iter().zip(&expected) {
        assert_eq!(job["status"], "done", "{job}");
        assert_eq!(served.image(job, 0), expected[0].rgb);
    }
    assert!(
        !jobs[0]["request"].to_string().contains("image\""),
        "control images are not shown again: {}",
        jobs[0]["request"]
    );
    assert_eq!(served.get("/v1/capabilities").json()["controls"], json!(["canny", "depth"]));
    for wrong in ["../nets/canny", "/etc/passwd", "seg", ""] {
        let answer = served.post("/v1/jobs", Control::sent(wrong, json!({})).to_string().as_bytes());
        assert!(answer.refused(400, "invalid_request").contains("`controls`"), "{wrong}");
    }
    let mut path = Control::sent("canny", json!({}));
    path["controls"][0]["image"] = "/etc/passwd.png".into();
    assert!(served.post("/v1/jobs", path.to_string().as_bytes()).refused(400, "invalid_request").contains("Base64"));
}

#[test]
fn units_of_automatic1111_are_control_networks() {
    let control = Control::start();
    let served = &control.served;
    let unit = json!({
        "enabled": true, "image": STANDARD.encode(Control::image()), "mask": null, "module": "canny", "model": "canny [d14c016b]",
        "weight": 0.8, "resize_mode": "Crop and Resize", "processor_res": 64, "threshold_a": 40, "threshold_b": 90, "guidance_start": 0.0,
        "guidance_end": 1.0, "control_mode": "Balanced", "pixel_perfect": true,
    });
    let wanted = json!({
        "prompt": "a pear", "steps": 3, "width": 64, "height": 64, "seed": 5, "sampler_name": "Euler a",
        "alwayson_scripts": { "ControlNet": { "args": [unit] } },
    });
    let answer = served.post("/sdapi/v1/txt2img", wanted.to_string().as_bytes()).json();
    let images = answer["images"].as_array().unwrap();
    assert_eq!((images.len(), &answer["warnings"]), (2, &json!([])), "the result, and what the preprocessor made");
    let files: Vec<Vec<u8>> = images.iter().map(|image| STANDARD.decode(image.as_str().unwrap()).unwrap()).collect();
    let source = Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap();
    let map = Preprocessor::Canny { low: 40.0, high: 90.0 }.run(&source, Some(64)).unwrap();
    assert_eq!(pixels(&files[1]), map.data());

    std::fs::write(control.folder.path().join("control.png"), encode(&map, StillFormat::Png).unwrap()).unwrap();
    let mut own = control.own("canny", json!({ "weight": 0.8, "resize": "crop" }));
    let more = json!({ "width": 64, "height": 64, "negative_prompt": "", "cfg_scale": 7.0, "sampler": "euler_a", "convention": "a1111", "pad_conds": false, "rng": "cuda" });
    own.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(pixels(&files[0]), alone(&[own])[0][0].rgb);

    let get = |path: &str| served.get(&format!("/controlnet/{path}")).json();
    assert_eq!(
        (get("version"), get("model_list")),
        (json!({ "version": 3 }), json!({ "model_list": ["canny", "depth"] }))
    );
    assert_eq!(get("module_list?alias_names=true")["module_list"][1], "canny");
    assert_eq!(get("control_types")["control_types"]["Canny"]["default_model"], "canny");
    assert!(get("settings")["control_net_unit_count"].is_u64());
    let asked = json!({
        "controlnet_module": "canny", "controlnet_input_images": [STANDARD.encode(Control::image())], "controlnet_processor_res": 64,
        "controlnet_threshold_a": 40, "controlnet_threshold_b": 90,
    });
    let detected = served.post("/controlnet/detect", asked.to_string().as_bytes()).json();
    assert_eq!(pixels(&STANDARD.decode(detected["images"][0].as_str().unwrap()).unwrap()), map.data());
    for wrong in [
        json!({ "controlnet_module": "openpose", "controlnet_input_images": ["x"] }),
        json!({ "controlnet_module": "canny" }),
    ] {
        assert_eq!(served.post("/controlnet/detect", wrong.to_string().as_bytes()).status, 422, "{wrong}");
    }
}
