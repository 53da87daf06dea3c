//! The origin of an engine's images: its model, and the files that replaced parts of it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device};
use kiln_media::PngLevel;
use kiln_models::{Hashed, Hashes, ModelFolder, Scope};
use kiln_prompt::mentions;
use kiln_request::{
    Control, FilesInText, InputFile, IpAdapter, Job, LoraName, LoraUse, NamedFile, OwnSettings, PartFile, PartKind,
    find_lora,
};
use kiln_weights::MatrixType;

use crate::embedding_names::embedding_names;
use kiln_setup::compute::ComputeType;
use kiln_setup::setup::Setup;

/// The model and its files as the settings of an image name them. Their checksums are computed on a separate thread from the
/// start.
pub struct Origin {
    hashes: Hashes,
    /// The settings without what differs from image to image.
    base: OwnSettings,
    model: Option<Hashed>,
    is_single_file: bool,
    parts: Vec<(PartKind, PathBuf)>,
    vae_config: PathBuf,
    lora_dir: Option<PathBuf>,
    loras: Mutex<HashMap<LoraName, Option<Hashed>>>,
    /// The words that may have vectors of their own.
    words: Vec<String>,
    png_level: PngLevel,
}

impl Origin {
    /// The compression of the images' files.
    pub fn png_level(&self) -> PngLevel {
        self.png_level
    }

    /// Of a model that runs so, in this type, with linear layers' matrices perhaps in another one. Begins to hash, where the setup has a folder for digests.
    pub fn new(model: &ModelFolder, setup: &Setup, device: &Device, types: (DType, Option<MatrixType>)) -> Self {
        let hashes = Hashes::new(setup.cache_dir.as_deref());
        let parts = parts(model, setup);
        let base = OwnSettings {
            kiln: env!("CARGO_PKG_VERSION").into(),
            model: NamedFile { name: model.name(), sha256: None },
            prediction: model.options().prediction.map(|prediction| prediction.id().into()),
            dtype: types.0.as_str().into(),
            weight_type: types.1.map(|kind| kind.to_string()),
            compute: matches!(setup.compute, ComputeType::Int8 | ComputeType::Fp8).then(|| setup.compute.to_string()),
            device: match setup.portable() {
                Some(named) => named.interface(),
                None if device.is_cuda() => "cuda".into(),
                None => "cpu".into(),
            },
            ..OwnSettings::default()
        };
        let this = Self {
            png_level: setup.png_level,
            model: Hashed::model(model.path()),
            is_single_file: model.path().is_file(),
            parts,
            vae_config: model.files().config_path("vae/config.json"),
            lora_dir: setup.lora_dir.clone(),
            loras: Mutex::default(),
            words: embedding_names(setup.embeddings_dir.as_deref()),
            base,
            hashes,
        };
        let files = this.parts.iter().filter_map(|(_, path)| Hashed::component(path));
        this.hashes.start(this.model.iter().cloned().chain(files).collect());
        this
    }

    /// The configuration that has the number of image channels.
    pub fn vae_config(&self) -> &Path {
        &self.vae_config
    }

    /// The model's SHA-256 in 64 hexadecimal digits, if it is computed; waits for it.
    pub fn model_hash(&self) -> Option<String> {
        self.hashes.get(self.model.as_ref()?)
    }

    /// A digest of the files that text encoders are made of, where digests are computed; waits for them.
    pub fn text_encoders_hash(&self, model: &ModelFolder) -> Option<String> {
        let path = model.path();
        let own = match path.is_file() {
            true => vec![Hashed::model(path)?],
            false => ["text_encoder", "text_encoder_2"]
                .iter()
                .map(|name| path.join(name))
                .filter(|folder| folder.is_dir())
                .map(|folder| Hashed::component(&folder))
                .collect::<Option<Vec<_>>>()?,
        };
        let replaced = self.parts.iter().filter(|(kind, _)| *kind == PartKind::TextEncoder);
        let replaced = replaced.map(|(_, path)| Hashed::component(path)).collect::<Option<Vec<_>>>()?;
        let digests = own.iter().chain(&replaced).map(|file| self.hashes.get(file)).collect::<Option<Vec<String>>>()?;
        (!digests.is_empty()).then(|| digests.join("+"))
    }

    /// Begins to hash a refiner.
    pub fn start_refiner(&self, refiner: &ModelFolder) {
        self.hashes.start(Hashed::model(refiner.path()).into_iter().collect());
    }

    /// Begins to hash LoRAs.
    pub fn start_loras(&self, loras: &[LoraUse]) {
        self.hashes.start(loras.iter().filter_map(|lora| self.lora(&lora.lora)).collect());
    }

    /// Begins to hash the files of IP-Adapters.
    pub fn start_ip_adapters(&self, adapters: &[IpAdapter]) {
        self.hashes.start(adapters.iter().filter_map(|adapter| Hashed::component(&adapter.using.model)).collect());
    }

    /// Begins to hash control networks.
    pub fn start_controls(&self, controls: &[Control]) {
        self.hashes.start(controls.iter().filter_map(|control| Hashed::component(&control.using.net)).collect());
    }

    fn lora(&self, name: &LoraName) -> Option<Hashed> {
        let mut known = self.loras.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || find_lora(name, self.lora_dir.as_deref()).ok().map(|path| Hashed::lora(&path));
        known.entry(name.clone()).or_insert_with(find).clone()
    }

    /// The settings of image `index` of `job`; waits for digests that are still computed.
    pub fn settings(&self, job: &Job, index: usize) -> OwnSettings {
        let named = |name: String, hashed: Option<Hashed>| NamedFile {
            name,
            sha256: hashed.and_then(|hashed| self.hashes.get(&hashed)),
        };
        let file = |(component, path): &(PartKind, PathBuf)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            PartFile { component: *component, file: named(name, Hashed::component(path)) }
        };
        let passes: Vec<_> = job.passes().map(|job| job.prompts(index)).collect();
        let texts =
            || passes.iter().flat_map(|parsed| [Some(&parsed.prompt), parsed.negative_prompt.as_ref()]).flatten();
        let is_named = |word: &&String| texts().any(|text| mentions(text, word));
        let mut loras: Vec<&LoraUse> = job.loras.iter().collect();
        for lora in job.second_pass().iter().flat_map(|pass| &pass.job.loras) {
            if loras.iter().all(|known| known.lora != lora.lora) {
                loras.push(lora);
            }
        }
        OwnSettings {
            request: job.request_of(index),
            model: NamedFile { sha256: self.model_hash(), ..self.base.model.clone() },
            files: self.parts.iter().map(file).collect(),
            refiner: job.refiner.as_ref().map(|refiner| {
                let model = refiner.model();
                named(model.name(), Hashed::model(model.path()))
            }),
            loras: loras.into_iter().map(|lora| named(lora.name(), self.lora(&lora.lora))).collect(),
            controls: job
                .controls
                .iter()
                .map(|control| named(control.using.name(), Hashed::component(&control.using.net)))
                .collect(),
            ip_adapters: job
                .ip_adapters
                .iter()
                .map(|adapter| named(adapter.using.name(), Hashed::component(&adapter.using.model)))
                .collect(),
            inputs: job
                .input
                .iter()
                .flat_map(|input| &input.files)
                .chain(job.controls.iter().filter_map(|control| control.file.as_ref()))
                .chain(job.ip_adapters.iter().flat_map(|adapter| &adapter.files))
                .chain(job.regions.iter().filter_map(|region| region.file.as_ref()))
                .chain(job.references.iter().filter_map(|reference| reference.file.as_ref()))
                .cloned()
                .chain(self.upscaler(job))
                .collect(),
            embeddings: self.words.iter().filter(is_named).cloned().collect(),
            ..self.base.clone()
        }
    }

    /// The file of the upscaler between the passes.
    fn upscaler(&self, job: &Job) -> Option<InputFile> {
        let path = job.second_pass()?.file()?;
        let file = NamedFile {
            name: path.file_name()?.to_string_lossy().into_owned(),
            sha256: self.hashes.get(&Hashed::file(&path, Scope::Whole)),
        };
        Some(InputFile { option: "hires_upscaler".into(), file, pixels_md5: None })
    }

    /// Begins to hash the upscaler of a job.
    pub fn start_upscaler(&self, job: &Job) {
        let file = job.second_pass().and_then(|pass| pass.file());
        self.hashes.start(file.iter().map(|path| Hashed::file(path, Scope::Whole)).collect());
    }

    /// The files that AUTOMATIC1111's text names.
    pub fn files(&self, settings: &OwnSettings, job: &Job) -> FilesInText {
        let short = |sha256: &String, digits: usize| sha256.get(..digits).unwrap_or(sha256).to_string();
        let NamedFile { name, sha256 } = &settings.model;
        let lora = |lora: &NamedFile| Some((lora.name.clone(), short(lora.sha256.as_ref()?, 12)));
        FilesInText {
            model: name.clone(),
            model_hash: sha256.as_ref().filter(|_| self.is_single_file).map(|sha256| short(sha256, 10)),
            refiner: settings.refiner.as_ref().map(|NamedFile { name, sha256 }| {
                let is_file = job.refiner.as_ref().is_some_and(|refiner| refiner.model().path().is_file());
                let hash = sha256.as_ref().filter(|_| is_file);
                hash.map_or_else(|| name.clone(), |sha256| format!("{name} [{}]", short(sha256, 10)))
            }),
            loras: settings.loras.iter().filter_map(lora).collect(),
        }
    }
}

/// The files that replace components of `model`, and its scales.
pub fn parts(model: &ModelFolder, setup: &Setup) -> Vec<(PartKind, PathBuf)> {
    let options = model.options();
    let one = [
        (PartKind::Config, options.config.as_deref()),
        (PartKind::Unet, options.unet.as_deref()),
        (PartKind::Vae, options.vae.as_deref()),
        (PartKind::Taesd, setup.taesd.as_deref()),
        (PartKind::Scales, setup.scales.as_deref()),
    ];
    let text = options.text_encoders.iter().map(|path| (PartKind::TextEncoder, Some(path.as_path())));
    one.into_iter().chain(text).filter_map(|(component, path)| Some((component, path?.to_path_buf()))).collect()
}
