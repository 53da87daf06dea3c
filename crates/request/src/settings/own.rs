//! Kiln's own settings in an image: the whole request that makes it alone, bit for bit, as JSON under the key `kiln`.
//!
//! Choices are made and every default is filled in, so that neither a list of words nor a model's defaults are asked again.
//! Files are named without their folders, which concern nobody who gets the image, and with their SHA-256, by which they
//! are found again on the machine where they were used.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::Control;
use crate::image_prompt::IpAdapter;
use crate::input::Rule;
use crate::job::Job;
use crate::lora::{LoraName, LoraUse, beside_tags, file_stem};
use crate::options::{OptionSet, Request, find_option, set_sampling};
use crate::reference::ReferenceSize;
use crate::regions::Region;

/// The key in a PNG.
pub const KEY: &str = "kiln";

/// The program, model and request that made an image.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnSettings {
    /// The version of Kiln.
    pub kiln: String,
    /// The request of this image alone.
    pub request: Request,
    /// The model: its name, and of a folder the U-Net's digest.
    pub model: NamedFile,
    /// Files that took the place of parts of the model.
    pub files: Vec<PartFile>,
    /// The prediction type of the denoiser, if it was set.
    pub prediction: Option<String>,
    /// The model that took over the last steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refiner: Option<NamedFile>,
    /// The LoRAs, in their order.
    pub loras: Vec<NamedFile>,
    /// The control networks, in their order.
    pub controls: Vec<NamedFile>,
    /// The IP-Adapters, in their order.
    pub ip_adapters: Vec<NamedFile>,
    /// The input images.
    pub inputs: Vec<InputFile>,
    /// The words of the prompts that had vectors of their own.
    pub embeddings: Vec<String>,
    /// The type of weights and activations.
    pub dtype: String,
    /// The type of linear layers' matrices, if it was another one.
    pub weight_type: Option<String>,
    /// The compute type of the denoiser's large layers, if it was another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// `cpu` or `cuda`.
    pub device: String,
}

/// A file without its folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedFile {
    /// Its name; of models and LoRAs without its ending.
    pub name: String,
    /// Its SHA-256; of a LoRA in safetensors that of what follows the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// An input image, or the file of the upscaler between two passes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InputFile {
    /// The option that names it: `init`, `mask` or `hires_upscaler`.
    pub option: String,
    /// The file; its SHA-256 is that of all of its bytes.
    #[serde(flatten)]
    pub file: NamedFile,
    /// The MD5 of the pixels of `init`, by which AUTOMATIC1111 names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixels_md5: Option<String>,
}

/// A file that replaces a component of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartFile {
    /// The component.
    #[serde(alias = "flag")]
    pub component: PartKind,
    /// The file.
    #[serde(flatten)]
    pub file: NamedFile,
}

/// The option that a stored file belongs to: a component of the model, or a file that goes with it. Kiln 0.1 named them by flags, which are read as aliases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// The folder with configurations and tokenizers of a model in one file.
    #[serde(alias = "--config")]
    Config,
    /// The denoiser.
    #[serde(alias = "--unet")]
    Unet,
    /// The autoencoder.
    #[serde(alias = "--vae")]
    Vae,
    /// The small autoencoder that decodes in the place of the model's.
    #[serde(alias = "--taesd")]
    Taesd,
    /// A text encoder.
    #[serde(alias = "--text-encoder")]
    TextEncoder,
    /// The scales of products in 8 bits.
    Scales,
    /// A component of another version of Kiln.
    #[default]
    #[serde(other)]
    Unknown,
}

impl PartKind {
    /// The name of the option that selects its file.
    pub fn id(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Unet => "unet",
            Self::Vae => "vae",
            Self::Taesd => "taesd",
            Self::TextEncoder => "text_encoder",
            Self::Scales => "scales",
            Self::Unknown => "unknown",
        }
    }
}

impl OwnSettings {
    /// The LoRA of this file: tags and settings know LoRAs by the stem of the file's name.
    pub fn lora(&self, path: &Path) -> Option<&NamedFile> {
        let name = file_stem(path);
        self.loras.iter().find(|lora| lora.name == name)
    }

    /// One line of JSON without defaults.
    pub fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(request) = value.get_mut("request") {
            let defaults = serde_json::to_value(Request::default()).unwrap_or_default();
            if let (Some(request), Some(defaults)) = (request.as_object_mut(), defaults.as_object()) {
                request.retain(|key, value| defaults.get(key) != Some(value));
            }
        }
        if let Some(settings) = value.as_object_mut() {
            settings.retain(|_, value| !is_nothing(value));
        }
        value.to_string()
    }

    /// Reads JSON of [`Self::to_json`], of this version or another; returns the names of unknown request fields.
    ///
    /// # Errors
    /// Errors of the JSON.
    pub fn from_json(text: &str) -> Result<(Self, Vec<String>), serde_json::Error> {
        let mut value = Value::Object(serde_json::from_str(text)?);
        let mut unknown = Vec::new();
        if let Some(fields) = value.get_mut("request").and_then(Value::as_object_mut) {
            for (name, value) in std::mem::take(fields) {
                match find_option(&name) {
                    // An alias is what another version calls the option; of two the option's own name wins.
                    Some(row) if row.name == name => drop(fields.insert(name, value)),
                    Some(row) => drop(fields.entry(row.name).or_insert(value)),
                    None => unknown.push(name),
                }
            }
        }
        let mut settings: Self = serde_json::from_value(value)?;
        let parts = settings.files.iter_mut().map(|part| &mut part.file);
        let inputs = settings.inputs.iter_mut().map(|input| &mut input.file);
        let models = settings.refiner.iter_mut().chain([&mut settings.model]);
        let nets = settings.controls.iter_mut().chain(&mut settings.ip_adapters);
        for file in parts.chain(inputs).chain(&mut settings.loras).chain(nets).chain(models) {
            file.sha256 = file.sha256.take().filter(|hash| is_hash(hash));
        }
        Ok((settings, unknown))
    }
}

/// Whether a text is a digest or the begin of one: hexadecimal digits, and no more than SHA-256 has. What a file says in its
/// place is shown to nobody.
pub fn is_hash(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

impl Job {
    /// The request that makes image `index` alone: its resolution is this job's but for what makes other images.
    pub fn request_of(&self, index: usize) -> Request {
        let parsed = self.prompts(index);
        let negative_prompt = parsed.negative_prompt.clone();
        let (prompt, loras) = beside_tags(&self.prompt, &parsed.prompt, &self.loras);
        let varied = self.seeds.subseed_strength > 0.0;
        let has_number_sign =
            [Some(&prompt), negative_prompt.as_ref()].into_iter().flatten().any(|text| text.contains('#'));
        let mut request = Request {
            // Comments were removed; what is left, from a list or because it was asked for, is text.
            keep_comments: has_number_sign,
            literal_prompt: self.literal_prompt || prompt.contains('{') || prompt.contains("__"),
            literal_negative_prompt: self.literal_negative_prompt
                || negative_prompt.as_ref().is_some_and(|text| text.contains('{') || text.contains("__")),
            prompt,
            negative_prompt,
            width: Some(self.width),
            height: Some(self.height),
            steps: Some(self.steps),
            cfg_scale: Some(self.cfg_scale),
            cfg_schedule: self.cfg_schedule.clone(),
            seed: Some(self.seed_of(index)),
            sampler: Some(self.sampler.into()),
            scheduler: self.scheduler,
            ensd: Some(self.seeds.eta_seed_delta).filter(|&delta| delta != 0),
            subseed: varied.then(|| self.seeds.subseed.wrapping_add(index as u64)),
            subseed_strength: varied.then_some(self.seeds.subseed_strength),
            seed_resize_from: self.seeds.resize_from,
            noise_part: self.seeds.part.and_then(|part| part.after(index)),
            rng: self.rng,
            loras: loras.iter().cloned().map(without_folder).collect(),
            controls: self.controls.iter().map(Control::request).collect(),
            ip_adapters: self.ip_adapters.iter().map(IpAdapter::request).collect(),
            regions: self.regions.iter().map(Region::request).collect(),
            references: self.references.iter().filter_map(|one| one.name().map(PathBuf::from)).collect(),
            reference_size: self
                .references
                .first()
                .map(|one| one.size)
                .filter(|size| *size != ReferenceSize::default()),
            emphasis: self.emphasis,
            clip_skip: self.clip_skip,
            comma_backtrack: Some(self.comma_backtrack),
            chunk_cut: self.chunk_cut,
            max_length: self.max_length,
            pad_conds: (!self.pad_conds).then_some(false),
            ..Request::default() // it makes this image alone, and its lists have been read
        };
        set_sampling(&mut request, &self.sampling);
        self.guidance.write(&mut request);
        self.flow.write(&mut request);
        self.network.write(&mut request);
        self.sizes.write(&mut request);
        if let Some(pass) = self.second_pass() {
            pass.write(index, &mut request);
            let literal =
                |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains('{') || text.contains("__"));
            request.keep_comments |=
                request.hires_prompt.iter().chain(&request.hires_negative_prompt).any(|text| text.contains('#'));
            request.literal_prompt |= literal(&request.hires_prompt);
            request.literal_negative_prompt |= literal(&request.hires_negative_prompt);
        }
        if let Some(input) = &self.input {
            input.write(&self.image, &mut request);
        }
        if let Some(refiner) = &self.refiner {
            self.refining.write(&mut request);
            request.refiner = Some(refiner.model().name().into());
            // AUTOMATIC1111 writes it in any case.
            request.refiner_switch = Some(self.refining.switch);
            request.rule = Some(self.image.rule).filter(|rule| *rule != Rule::default());
        } else if self.input.is_some() {
            self.refining.write(&mut request); // the scores of a refiner that runs alone
            (request.refiner_switch, request.refiner_switch_by) = (None, None);
        }
        request
    }
}

fn without_folder(mut lora: LoraUse) -> LoraUse {
    if let LoraName::File(path) = &mut lora.lora
        && let Some(name) = path.file_name()
    {
        *path = name.into();
    }
    lora
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_as_they_were() {
        let lora = LoraUse { lora: LoraName::File("ink.safetensors".into()), text: 0.1, unet: -1.0 / 3.0 };
        let settings = OwnSettings {
            kiln: "0.1.0".into(),
            request: Request {
                prompt: "a \"cat\",\nぼ 🍎\u{1b}".into(),
                negative_prompt: Some(String::new()),
                cfg_scale: Some(0.1 + 0.2),
                seed: Some(u64::MAX),
                sigmas: Some(vec![14.614642, 1e-300, f64::MIN_POSITIVE, 2.0f64.sqrt(), 1.0 / 3.0]),
                ensd: Some(i64::MIN),
                sampler: Some("DPM++ 2M".parse().unwrap()),
                loras: vec![lora],
                ..Request::default()
            },
            model: NamedFile { name: "emoji".into(), sha256: Some("ab".repeat(32)) },
            files: vec![PartFile { component: PartKind::Vae, file: NamedFile::default() }],
            ..OwnSettings::default()
        };
        let json = settings.to_json();
        assert!(!json.contains("null") && !json.contains("guidance") && !json.contains('\n'), "{json}");
        let (found, unknown) = OwnSettings::from_json(&json).unwrap();
        assert_eq!((found, unknown), (settings, vec![]));
    }

    /// Numbers of 17 digits, which `serde_json` reads exactly with its feature `float_roundtrip` only.
    #[test]
    fn every_number_comes_back() {
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        let mut numbers = Vec::new();
        while numbers.len() < 3000 {
            bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let number = f64::from_bits(bits);
            if number.is_finite() {
                numbers.push(number);
            }
        }
        let request = Request { sigmas: Some(numbers), ..Request::default() };
        let settings = OwnSettings { request, ..OwnSettings::default() };
        let json = settings.to_json();
        assert_eq!(OwnSettings::from_json(&json).unwrap().0.request, settings.request);
    }

    #[test]
    fn hashes_are_hexadecimal() {
        let escape = "\\u001b]0;title\\u0007";
        let json = format!(
            "{{\"model\": {{\"name\": \"a\", \"sha256\": \"{escape}\"}}, \"loras\": [{{\"sha256\": \"{escape}\"}}, \
             {{\"sha256\": \"00ffAB\"}}], \"files\": [{{\"flag\": \"--vae\", \"sha256\": \"{}\"}}]}}",
            "a".repeat(65)
        );
        let (found, _) = OwnSettings::from_json(&json).unwrap();
        assert_eq!((found.model.sha256, found.files[0].file.sha256.as_ref()), (None, None));
        let hashes: Vec<_> = found.loras.iter().map(|lora| lora.sha256.as_deref()).collect();
        assert_eq!(hashes, [None, Some("00ffAB")]);
    }

    /// Kiln 0.1 wrote a flag instead of the component's name.
    #[test]
    fn files_of_older_versions_are_read() {
        let names = ["config", "unet", "vae", "taesd", "text-encoder"];
        let part = |flag: &str| format!("{{\"flag\": \"--{flag}\", \"name\": \"a\", \"sha256\": \"00ff\"}}");
        let json = format!("{{\"files\": [{}, {}]}}", names.map(part).join(", "), part("controlnet"));
        let (found, unknown) = OwnSettings::from_json(&json).unwrap();
        let kinds: Vec<&str> = found.files.iter().map(|part| part.component.id()).collect();
        assert_eq!(kinds, ["config", "unet", "vae", "taesd", "text_encoder", "unknown"]);
        assert!(found.files.iter().all(|part| part.file.name == "a" && part.file.sha256.as_deref() == Some("00ff")));
        assert!(unknown.is_empty());
        let written = found.to_json();
        assert!(written.contains("\"component\":\"text_encoder\"") && !written.contains("--"), "{written}");
        assert_eq!(OwnSettings::from_json(&written).unwrap().0, found);
    }

    #[test]
    fn aliases_of_options_are_read() {
        let json = "{\"request\": {\"variation_seed\": 5, \"cfg\": 3.0, \"cfg_scale\": 4.0}}";
        let (found, unknown) = OwnSettings::from_json(json).unwrap();
        assert_eq!((found.request.subseed, found.request.cfg_scale), (Some(5), Some(4.0)));
        assert!(unknown.is_empty());
    }

    #[test]
    fn another_versions_fields_are_named() {
        let json = "{\"kiln\": \"9.0\", \"more\": [1], \"request\": {\"prompt\": \"a\", \"tiling\": true}}";
        let (found, unknown) = OwnSettings::from_json(json).unwrap();
        assert_eq!((&*found.request.prompt, &*found.kiln), ("a", "9.0"));
        assert_eq!(unknown, ["tiling"]);
        for wrong in ["", "7", "[]", "{\"request\": 7}", "{\"request\": {\"steps\": \"x\"}}", "{\"kiln\": 8}"] {
            assert!(OwnSettings::from_json(wrong).is_err(), "{wrong}");
        }
        // Earlier versions wrote numbers that a rounding reader gets wrong a second time, as texts.
        let number = 1.000_000_000_000_000_2_f64 / 3.0;
        let exact = format!("{{\"request\": {{\"eta\": {number}}}, \"exact\": {{\"/eta\": \"{number}\", \"x\": 7}}}}");
        assert_eq!(OwnSettings::from_json(&exact).unwrap().0.request.eta, Some(number));
    }
}
