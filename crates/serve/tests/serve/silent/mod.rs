//! Nothing that is asked for is ignored in silence: every field of every API either changes the images, or changes the answer in a
//! stated way, or is refused, or is named in a warning, or stands here with the reason why it does nothing.

mod a1111;
mod openai;
mod own;
mod units;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_serve::ServeOptions;
use kiln_testkit::{
    Fixture, PromptForm, TinyControl, TinyIpAdapter, TinyVision, control_pixels, fixtures, write_tensors,
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::{Served, cpu, options, pixels};

/// The effect of a field.
#[derive(Clone, Copy)]
pub enum Does {
    /// Other images.
    Bits,
    /// Another answer than the usual one, for which this holds.
    Answer(fn(&Outcome, &Outcome) -> bool),
    /// The request is refused with these words.
    Refused(&'static str),
    /// The same images, and a warning with these words.
    Warns(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// The outcome of a request.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The pixels of the images.
    pub images: Vec<Vec<u8>>,
    pub warnings: Vec<String>,
    /// The message of a refusal.
    pub refused: Option<String>,
    /// The answer.
    pub answer: Value,
}

/// A server with one of everything.
pub struct Rig {
    pub served: Served,
    folder: TempDir,
    /// The outcomes of requests that were made before, by their bodies.
    known: RefCell<HashMap<String, Outcome>>,
}

impl Rig {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        TinyControl::full(0).write("sd1", &path("nets/canny"));
        std::fs::create_dir(path("prompts")).unwrap();
        TinyVision::write(&path("prompts/image_encoder"));
        TinyIpAdapter { number: 0, form: PromptForm::Plain }.write("sd1", &path("prompts/plain.safetensors"));
        TinyIpAdapter { number: 1, form: PromptForm::Face }.write("sd1", &path("prompts/face.safetensors"));
        let setups = vec![kiln_engine::Setup { lora_dir: Some(fixtures("lora/sd1")), ..cpu() }];
        let served = Served::start(ServeOptions {
            models: vec![
                fixtures("models/sd1"),
                fixtures("models/sd2v"),
                fixtures("models/sdxl"),
                halved(&path("sd1_half")),
            ],
            setups,
            control_dir: Some(path("nets")),
            ip_adapters_dir: Some(path("prompts")),
            upscaler_dir: Some(fixtures("upscale")),
            ..options()
        });
        Self { served, folder, known: RefCell::default() }
    }

    /// A file of the server's folders.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The outcome of `send`, which is asked once for each `key`.
    pub fn once(&self, key: &str, send: impl FnOnce() -> Outcome) -> Outcome {
        if let Some(known) = self.known.borrow().get(key) {
            return known.clone();
        }
        let outcome = send();
        self.known.borrow_mut().insert(key.into(), outcome.clone());
        outcome
    }
}

/// A copy of the tiny model with other weights.
fn halved(to: &Path) -> PathBuf {
    copy(&fixtures("models/sd1"), to);
    let name = "unet/diffusion_pytorch_model.safetensors";
    let unet = Fixture::open(&format!("models/sd1/{name}"));
    let factor = |key: &str| if key == "conv_out.weight" { 0.5 } else { 1.0 };
    let tensors = unet.keys().into_iter().map(|key| (key.to_string(), (unet.tensor(key) * factor(key)).unwrap()));
    write_tensors(&tensors.collect(), &to.join(name));
    to.to_path_buf()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Checks what a field does, against the outcome without it. Returns what is wrong.
pub fn check(name: &str, does: Does, usual: &Outcome, found: &Outcome) -> Option<String> {
    let same = found.refused.is_none() && found.images == usual.images;
    let new: Vec<&String> = found.warnings.iter().filter(|warning| !usual.warnings.contains(warning)).collect();
    let wrong = |expected: &str| {
        Some(format!("{name}: expected {expected}, found {:?}, same images: {same}, warnings {new:?}", found.refused))
    };
    match does {
        _ if usual.refused.is_some() => Some(format!("{name}: the request without it is refused: {:?}", usual.refused)),
        Does::Bits if same || found.refused.is_some() => wrong("other images"),
        Does::Answer(is_so) if found.refused.is_some() || !is_so(usual, found) => wrong("another answer"),
        Does::Refused(words) if !found.refused.as_ref().is_some_and(|message| message.contains(words)) => {
            wrong(&format!("a refusal with {words:?}"))
        }
        Does::Warns(words) if !same || !new.iter().any(|warning| warning.contains(words)) => {
            wrong(&format!("a warning with {words:?}"))
        }
        Does::Nothing(reason) if !same || !new.is_empty() => wrong(&format!("nothing ({reason})")),
        _ => None,
    }
}

/// Fails with all that is wrong.
pub fn report(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{} fields:\n{}", wrong.len(), wrong.join("\n"));
}

/// `base` with the fields of `more`.
pub fn with(base: &Value, more: &Value) -> Value {
    let mut both = base.clone();
    let more: Map<String, Value> = more.as_object().unwrap().clone();
    both.as_object_mut().unwrap().extend(more);
    both
}

/// An image file in Base64.
pub fn file(width: usize, height: usize, data: Vec<u8>) -> String {
    STANDARD.encode(encode(&Rgb8Image::new(width, height, data).unwrap(), StillFormat::Png).unwrap())
}

/// An image with edges and colors, which is no square.
pub fn image() -> String {
    file(96, 64, control_pixels(96, 64))
}

/// Another one.
pub fn other_image() -> String {
    file(64, 64, control_pixels(64, 64).into_iter().rev().collect())
}

/// A mask for [`image`]: a rectangle, gray on its left and white on its right.
pub fn mask() -> String {
    let pixel = |x: usize, y: usize| match (24..40).contains(&y) && (32..64).contains(&x) {
        true => [((x - 31) * 12).min(255) as u8; 3],
        false => [0; 3],
    };
    file(96, 64, (0..64).flat_map(|y| (0..96).flat_map(move |x| pixel(x, y))).collect())
}

/// The pixels of images in Base64.
pub fn decoded(images: &Value) -> Vec<Vec<u8>> {
    let one = |image: &Value| pixels(&STANDARD.decode(image.as_str().unwrap()).unwrap());
    images.as_array().into_iter().flatten().map(one).collect()
}

/// Texts of a list.
pub fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_string()).collect()
}

/// A request of A1111's or OpenAI's form, whose answer is waited for.
pub fn sent(rig: &Rig, path: &str, body: &Value) -> (u16, Value) {
    let answer = rig.served.post(path, body.to_string().as_bytes());
    (answer.status, answer.json())
}

/// See [`json!`]: an empty object.
pub fn none() -> Value {
    json!({})
}

#[test]
fn the_rig_has_one_of_everything() {
    let rig = Rig::start();
    let lists = rig.served.get("/v1/capabilities").json();
    assert_eq!(lists["ip_adapters"], json!(["face", "plain"]));
    assert_eq!(lists["controls"], json!(["canny"]));
    assert!(lists["options"].as_array().unwrap().iter().any(|option| option["type"] == "ip_adapters"));
    assert!(lists["loras"].as_array().unwrap().contains(&json!("kohya")));
}
