//! ComfyUI's routes: images that clients send, and graphs that load them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Filter, Image8, Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::{TinyControl, control_pixels, fixtures};
use serde_json::{Value, json};

use crate::comfy_graphs::{done, graph, graph_with, image, node, refused, taken};
use crate::support::{Answer, Served, options, pixels};

fn graph_image() -> Rgb8Image {
    Rgb8Image::new(64, 64, control_pixels(64, 64)).unwrap()
}

fn png<const C: usize>(image: &Image8<C>) -> Vec<u8> {
    encode(image, StillFormat::Png).unwrap()
}

/// The image whose upper half is transparent.
fn with_hole() -> Vec<u8> {
    let pixels = graph_image();
    let alpha = |i: usize| if i < 64 * 32 { 0 } else { 255 };
    let values = pixels.pixels().enumerate().flat_map(|(i, [r, g, b])| [*r, *g, *b, alpha(i)]).collect();
    png(&Image8::<4>::new(64, 64, values).unwrap())
}

/// Sends a form with a file and other fields.
pub fn upload(served: &Served, path: &str, name: &str, file: &[u8], fields: &[(&str, &str)]) -> Answer {
    let mut body = Vec::new();
    for (field, value) in fields {
        body.extend(format!("--x\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n").bytes());
    }
    let head = format!(
        "--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\nContent-Type: image/png\r\n\r\n"
    );
    body.extend(head.bytes().chain(file.iter().copied()).chain(b"\r\n--x--\r\n".iter().copied()));
    let request = served.agent.post(format!("{}{path}", served.address));
    request.header("content-type", "multipart/form-data; boundary=x").send(&body[..]).unwrap().into()
}

pub fn job(served: &Served, job: &Value) -> Vec<u8> {
    served.image(&served.finished(&served.submit(job)), 0)
}

pub fn made(served: &Served, graph: &Value) -> Vec<u8> {
    let history = done(served, &taken(served, graph));
    assert_eq!(history["status"]["status_str"], "success", "{history}");
    pixels(&image(served, &history, "9"))
}

/// The fields that the default graph means, with more of them.
pub fn own(more: &Value) -> Value {
    let mut job = json!({
        "prompt": "a (red:1.2) pear", "negative_prompt": "", "seed": 7, "steps": 4, "cfg_scale": 5.5, "sampler": "euler",
        "scheduler": "normal", "convention": "comfyui", "emphasis": "comfy", "chunk_cut": "word", "pad_conds": false,
    });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job
}

/// A graph that begins with an image.
fn from_picture(name: &str, more: &[(&str, Value)]) -> Value {
    let mut changes = vec![
        ("10", node("LoadImage", json!({ "image": name }))),
        ("5", node("VAEEncode", json!({ "pixels": ["10", 0], "vae": ["4", 2] }))),
        ("3.denoise", json!(0.6)),
    ];
    changes.extend(more.iter().cloned());
    graph_with(&changes)
}

#[test]
fn pictures_are_sent_and_begun_with() {
    let served = Served::start(options());
    let answer =
        upload(&served, "/upload/image", "a.png", &png(&graph_image()), &[("type", "input"), ("overwrite", "true")]);
    assert_eq!(answer.json(), json!({ "name": "a.png", "subfolder": "", "type": "input" }));
    let listed = served.get("/object_info/LoadImage").json()["LoadImage"]["input"]["required"]["image"][0].clone();
    assert_eq!(listed, json!(["a.png"]));
    let answer = served.get("/view?filename=a.png&type=input");
    assert_eq!(answer.response.headers()["content-type"], "image/png");
    assert_eq!(pixels(&answer.bytes()), graph_image().data());
    let init = STANDARD.encode(png(&graph_image()));
    let expected = own(&json!({ "init": init, "strength": 0.6, "rule": "comfy" }));
    assert_eq!(made(&served, &from_picture("a.png", &[])), job(&served, &expected));
    // The last 3 of 4 steps are those of 3 steps with 3/4 of the levels.
    let advanced = json!({
        "add_noise": "enable", "noise_seed": 7, "steps": 4, "cfg": 5.5, "sampler_name": "euler", "scheduler": "normal",
        "start_at_step": 1, "end_at_step": 4, "return_with_leftover_noise": "disable", "model": ["4", 0],
        "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0],
    });
    let last = own(&json!({ "init": init, "strength": 0.75, "rule": "comfy", "steps": 3 }));
    let advanced = from_picture("a.png", &[("3", node("KSamplerAdvanced", advanced))]);
    assert_eq!(made(&served, &advanced), job(&served, &last));
    // A result is loaded by its name, and made larger first.
    let history = done(&served, &taken(&served, &graph()));
    let file = &history["outputs"]["9"]["images"][0];
    let name = format!("{}/{} [output]", file["subfolder"].as_str().unwrap(), file["filename"].as_str().unwrap());
    let scale =
        json!({ "image": ["10", 0], "upscale_method": "lanczos", "width": 96, "height": 80, "crop": "disabled" });
    let larger = from_picture(&name, &[("11", node("ImageScale", scale)), ("5.pixels", json!(["11", 0]))]);
    let first = Rgb8Image::new(64, 64, pixels(&image(&served, &history, "9"))).unwrap();
    let init = STANDARD.encode(png(&first.resize(96, 80, Filter::Lanczos3).unwrap()));
    let expected = own(&json!({ "init": init, "strength": 0.6, "rule": "comfy" }));
    assert_eq!(made(&served, &larger), job(&served, &expected));
}

#[test]
fn names_of_pictures_lead_to_no_file_of_the_machine() {
    let served = Served::start(options());
    let file = png(&graph_image());
    assert_eq!(upload(&served, "/upload/image", "a.png", &file, &[]).status, 200);
    for name in ["../a.png", "/etc/passwd", "..", "a/b.png", "C:\\\\a.png"] {
        assert_eq!(upload(&served, "/upload/image", name, &file, &[]).status, 400, "{name}");
    }
    for folder in ["..", "../..", "a/../..", "a/../../b"] {
        assert_eq!(upload(&served, "/upload/image", "a.png", &file, &[("subfolder", folder)]).status, 400, "{folder}");
    }
    assert_eq!(upload(&served, "/upload/image", "a.png", &file, &[("type", "etc")]).status, 400);
    assert_eq!(upload(&served, "/upload/image", "a.png", b"no image", &[]).status, 422);
    assert_eq!(served.post("/upload/image", b"nothing").status, 400);
    for query in [
        "filename=../a.png&type=input",
        "filename=/etc/passwd",
        "filename=a.png&subfolder=..&type=input",
        "filename=a.png&type=etc",
        "filename=%00",
    ] {
        assert_eq!(served.get(&format!("/view?{query}")).status, 400, "{query}");
    }
    for query in ["filename=a.png", "filename=passwd&subfolder=etc", "type=input"] {
        assert_eq!(served.get(&format!("/view?{query}")).status, 404, "{query}");
    }
    for name in ["../a.png", "/etc/passwd", "b.png", "a.png [output]", ""] {
        let errors = refused(&served, &from_picture(name, &[]));
        assert_eq!(errors["10"]["errors"][0]["type"], "value_not_in_list", "{name}");
    }
}

#[test]
fn masks_generate_a_part_again() {
    let served = Served::start(options());
    upload(&served, "/upload/image", "hole.png", &with_hole(), &[]);
    upload(&served, "/upload/image", "plain.png", &png(&graph_image()), &[]);
    // The transparent part is generated again.
    let white_above: Vec<u8> = (0..64 * 64).map(|i| if i < 64 * 32 { 255 } else { 0 }).collect();
    let mask = STANDARD.encode(png(&Image8::<1>::new(64, 64, white_above).unwrap()));
    let init = STANDARD.encode(png(&graph_image()));
    let expected = own(&json!({ "init": init, "mask": mask, "strength": 0.6, "rule": "comfy", "paste_back": false }));
    let latents = |mask: Value| {
        let masked = node("SetLatentNoiseMask", json!({ "samples": ["12", 0], "mask": mask }));
        let encoder = node("VAEEncode", json!({ "pixels": ["10", 0], "vae": ["4", 2] }));
        from_picture("hole.png", &[("12", encoder), ("5", masked)])
    };
    let once = made(&served, &latents(json!(["10", 1])));
    assert_eq!(once, job(&served, &expected));
    // The same mask of another file, inverted twice.
    let mut twice = latents(json!(["14", 0]));
    twice["13"] = node("LoadImageMask", json!({ "image": "hole.png", "channel": "alpha" }));
    twice["14"] = node("InvertMask", json!({ "mask": ["15", 0] }));
    twice["15"] = node("InvertMask", json!({ "mask": ["13", 0] }));
    assert_eq!(made(&served, &twice), once);
    // For the encoder the masked part is gray, and the mask larger by 3 and 2 pixels.
    let erasing = node(
        "VAEEncodeForInpaint",
        json!({ "pixels": ["10", 0], "vae": ["4", 2], "mask": ["10", 1], "grow_mask_by": 6 }),
    );
    let gray: Vec<u8> =
        graph_image().data().iter().enumerate().map(|(i, v)| if i < 64 * 32 * 3 { 128 } else { *v }).collect();
    let larger: Vec<u8> = (0..64 * 64).map(|i| if i < 64 * 35 { 255 } else { 0 }).collect();
    let expected = own(&json!({
        "init": STANDARD.encode(png(&Rgb8Image::new(64, 64, gray).unwrap())), "rule": "comfy", "paste_back": false,
        "mask": STANDARD.encode(png(&Image8::<1>::new(64, 64, larger).unwrap())), "strength": 1.0,
    }));
    let graph = from_picture("hole.png", &[("5", erasing), ("3.denoise", json!(1.0))]);
    assert_eq!(made(&served, &graph), job(&served, &expected));
    let errors = refused(&served, &{
        let mut graph = latents(json!(["16", 1]));
        graph["16"] = node("LoadImage", json!({ "image": "plain.png" }));
        graph
    });
    assert!(errors["16"].to_string().contains("without transparency"), "{errors:?}");
    // A mask is painted over an image that is there.
    let original = json!({ "filename": "plain.png", "subfolder": "", "type": "input" }).to_string();
    let answer = upload(&served, "/upload/mask", "painted.png", &with_hole(), &[("original_ref", &original)]);
    assert_eq!(answer.json()["name"], "painted.png");
    let mut painted = latents(json!(["10", 1]));
    painted["10"]["inputs"]["image"] = json!("painted.png");
    assert_eq!(made(&served, &painted), once);
    let wrong = json!({ "filename": "../../etc/passwd", "type": "input" }).to_string();
    assert_eq!(upload(&served, "/upload/mask", "x.png", &with_hole(), &[("original_ref", &wrong)]).status, 400);
}

#[test]
fn control_networks_guide_both_prompts() {
    let folder = tempfile::tempdir().unwrap();
    TinyControl::full(0).write("sd1", &folder.path().join("canny"));
    let served = Served::start(ServeOptions { control_dir: Some(folder.path().into()), ..options() });
    upload(&served, "/upload/image", "a.png", &png(&graph_image()), &[]);
    let guided = |strength: f64, end: f64| {
        let apply = json!({
            "positive": ["6", 0], "negative": ["7", 0], "control_net": ["11", 0], "image": ["10", 0], "strength": strength,
            "start_percent": 0.0, "end_percent": end,
        });
        graph_with(&[
            ("10", node("LoadImage", json!({ "image": "a.png" }))),
            ("11", node("ControlNetLoader", json!({ "control_net_name": "canny" }))),
            ("12", node("ControlNetApplyAdvanced", apply)),
            ("3.positive", json!(["12", 0])),
            ("3.negative", json!(["12", 1])),
        ])
    };
    let control = json!([{ "net": "canny", "image": STANDARD.encode(png(&graph_image())), "weight": 0.8 }]);
    let expected = own(&json!({ "controls": control, "width": 64, "height": 64 }));
    assert_eq!(made(&served, &guided(0.8, 1.0)), job(&served, &expected));
    assert_eq!(made(&served, &guided(0.0, 1.0)), made(&served, &graph()));
    // Timestep 499.5 is between the second and the third of four.
    let half = own(&json!({
        "controls": [{ "net": "canny", "image": STANDARD.encode(png(&graph_image())), "weight": 0.8, "end": 0.5 }],
        "width": 64, "height": 64, "convention": "comfyui",
    }));
    let ended = made(&served, &guided(0.8, 0.5));
    assert_eq!(ended, job(&served, &half));
    assert!(ended != made(&served, &guided(0.8, 1.0)) && ended != made(&served, &graph()));
    let mut one = guided(0.8, 1.0);
    one["3"]["inputs"]["negative"] = json!(["7", 0]);
    assert!(refused(&served, &one)["12"].to_string().contains("one prompt"));
}

#[test]
fn results_are_enlarged_in_latents_and_in_pixels() {
    let folder = fixtures("upscale");
    let served = Served::start(ServeOptions { upscaler_dir: Some(folder), ..options() });
    // A second sampler over larger latents is the second pass of one job.
    let second = json!({
        "seed": 7, "steps": 3, "cfg": 4.0, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 0.5, "model": ["4", 0],
        "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["20", 0],
    });
    let upscale = json!({ "samples": ["3", 0], "upscale_method": "nearest-exact", "width": 128, "height": 128, "crop": "disabled" });
    let both =
        [("20", node("LatentUpscale", upscale)), ("21", node("KSampler", second)), ("8.samples", json!(["21", 0]))];
    let hires = graph_with(&both);
    let expected = own(&json!({
        "width": 64, "height": 64, "rule": "comfy", "hires_size": "128x128", "hires_upscaler": "latent-nearest-exact",
        "hires_steps": 3, "hires_strength": 0.5, "hires_cfg_scale": 4.0, "hires_sampler": "dpmpp_2m", "hires_scheduler": "karras",
    }));
    assert_eq!(made(&served, &hires), job(&served, &expected));
    let mut other = hires.clone();
    other["21"]["inputs"]["seed"] = json!(8);
    assert!(refused(&served, &other)["21"].to_string().contains("their seeds"));
    // Both samplers' images are two jobs, and a network enlarges one of them.
    let mut all = hires;
    all["30"] = node("VAEDecode", json!({ "samples": ["3", 0], "vae": ["4", 2] }));
    all["31"] = node("PreviewImage", json!({ "images": ["30", 0] }));
    all["32"] = node("UpscaleModelLoader", json!({ "model_name": "compact_x2" }));
    all["33"] = node("ImageUpscaleWithModel", json!({ "upscale_model": ["32", 0], "image": ["30", 0] }));
    all["34"] = node("SaveImage", json!({ "images": ["33", 0], "filename_prefix": "larger" }));
    let history = done(&served, &taken(&served, &all));
    assert_eq!(history["outputs"]["31"]["images"][0]["type"], "temp");
    let first = pixels(&image(&served, &history, "31"));
    assert_eq!(first, made(&served, &graph()));
    let answer = served.post("/v1/upscale?scale=2&upscaler=compact_x2", &image(&served, &history, "31"));
    assert_eq!(pixels(&image(&served, &history, "34")), pixels(&answer.bytes()));
}

#[test]
fn several_texts_are_averaged() {
    let served = Served::start(options());
    let combined = graph_with(&[
        ("10", node("CLIPTextEncode", json!({ "text": "a fig", "clip": ["4", 1] }))),
        ("11", node("ConditioningCombine", json!({ "conditioning_1": ["6", 0], "conditioning_2": ["10", 0] }))),
        ("3.positive", json!(["11", 0])),
    ]);
    let expected = own(&json!({ "prompt": "a (red:1.2) pear :0.5 AND a fig :0.5", "width": 64, "height": 64 }));
    assert_eq!(made(&served, &combined), job(&served, &expected));
}
