//! An image again: which model, which files and which request made it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_media::Infotext;
use kiln_models::{DTypeChoice, Hashes, ModelFolder, ModelOptions, Scope, locate_model, locate_named, old_hash};
use kiln_request::settings::formats::{self, Taken, Unknown};
use kiln_request::settings::{from_infotext, is_hash, labels, programs};
use kiln_request::{
    HiresUpscaler, ImageReport, LoraName, NamedFile, OwnSettings, PartFile, PartKind, Request, file_stem, find_lora,
};
use kiln_scheduler::{SamplerChoice, SigmaSchedule};

use crate::generated_image::GeneratedImage;
use crate::stored_inputs::locate_inputs;
use kiln_setup::compute::ComputeType;
use kiln_setup::error::{Error, Result};
use kiln_setup::linear_weights::LinearWeightType;
use kiln_setup::setup::Setup;

/// An image whose settings are taken.
///
/// Kiln's own settings come before AUTOMATIC1111's where an image has both. What cannot be met becomes a warning: a
/// sentence for the user.
#[derive(Debug)]
pub struct Like {
    path: PathBuf,
    source: Source,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Source {
    Own(Box<OwnSettings>),
    Text(Infotext),
    Program(Box<Taken>),
}

impl Like {
    /// Reads the settings in the image at `path`.
    ///
    /// # Errors
    /// See [`ImageReport::read`], and [`Error::NoSettings`] with what is there instead.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            let looked_for = "`like`, an image with settings".into();
            return Err(Error::not_found(path, looked_for));
        }
        let ImageReport { kiln, unknown, parameters, others, texts, .. } = ImageReport::read(path)?;
        let path = path.to_path_buf();
        match (kiln, parameters) {
            (Some(own), _) => {
                let unknown =
                    unknown.iter().map(|name| format!("{name} is left out: this version of Kiln does not know it"));
                Ok(Self { path, warnings: unknown.collect(), source: Source::Own(own.into()) })
            }
            (None, Some(text)) => Ok(Self { path, source: Source::Text(text), warnings: Vec::new() }),
            (None, None) => {
                let found = match (formats::find(&texts), others.first()) {
                    (Some((_, Ok(taken))), _) => {
                        return Ok(Self { path, source: Source::Program(taken.into()), warnings: Vec::new() });
                    }
                    (Some((program, Err(problem))), _) => {
                        format!("those of {program} cannot be met: {problem}; `kiln inspect` shows them")
                    }
                    (None, Some(other)) => {
                        format!("those of {} are not understood; `kiln inspect` shows them", other.program)
                    }
                    (None, None) => "it has none".into(),
                };
                Err(Error::NoSettings { path, found })
            }
        }
    }

    /// Takes the warnings so far.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let path = self.path.display();
        let told = self.warnings.iter().map(|warning| format!("{path}: {warning}")).collect();
        self.warnings.clear();
        told
    }

    /// The model's name and digest, if they are known.
    fn model(&self) -> (Option<&str>, Option<&str>) {
        match &self.source {
            Source::Own(own) => (Some(own.model.name.as_str()), own.model.sha256.as_deref()),
            Source::Text(text) => (text.get(labels::MODEL), text.get(labels::MODEL_HASH).filter(|hash| is_hash(hash))),
            Source::Program(taken) => {
                (taken.model.as_deref(), taken.model_hash.as_deref().filter(|hash| is_hash(hash)))
            }
        }
    }

    /// Where the model is: the file or folder of the same hash that was used on this machine before, else one of the same
    /// name where models are looked for. `cache` is the folder with digests.
    ///
    /// # Errors
    /// [`Error::Files`] with the model's name and hash.
    pub fn locate_model(&self, cache: Option<&Path>) -> Result<PathBuf> {
        let (name, hash) = self.model();
        if let Some(path) = hash.and_then(|hash| by_hash(hash, cache, Scope::Whole)) {
            return Ok(path);
        }
        let name = name.filter(|name| !name.is_empty()).map(Path::new).filter(|name| name.components().count() == 1);
        if let Some(path) = name.and_then(locate_named) {
            return Ok(path);
        }
        let hash = hash.map(|hash| format!(" (hash {})", hash.get(..10).unwrap_or(hash))).unwrap_or_default();
        let by = self.path.display();
        match name {
            None => Err(Error::NoSettings {
                path: self.path.clone(),
                found: format!("it does not name its model{hash}; say which one with `model`"),
            }),
            Some(name) => {
                let tried = locate_model(Some(name)).err().map(|error| format!("; {error}")).unwrap_or_default();
                let looked_for = format!("the model that made {by}{hash}; say where it is with `model`{tried}");
                Err(Error::not_found(name.to_path_buf(), looked_for))
            }
        }
    }

    /// Fills in parts of the model that came from other files, where `options` and `setup` say nothing, and the type of
    /// weights if that is left to Kiln. Files are found by their hashes.
    pub fn fill_in(&mut self, options: &mut ModelOptions, setup: &mut Setup) {
        let cache = setup.cache_dir.clone();
        match &self.source {
            Source::Own(own) => {
                if let (DTypeChoice::Auto, Ok(dtype)) = (setup.dtype, own.dtype.parse()) {
                    setup.dtype = dtype;
                }
                let matrices = own.weight_type.as_ref().and_then(|kind| kind.parse().ok());
                if let (LinearWeightType::Auto, Some(kind)) = (setup.weight_type, matrices) {
                    setup.weight_type = kind;
                }
                let compute = own.compute.as_ref().and_then(|kind| kind.parse().ok());
                if let (ComputeType::Auto, Some(kind)) = (setup.compute, compute) {
                    setup.compute = kind;
                }
                options.prediction =
                    options.prediction.or(own.prediction.as_deref().and_then(|name| name.parse().ok()));
                let had_text = !options.text_encoders.is_empty();
                for PartFile { component, file } in &own.files {
                    let is_text = *component == PartKind::TextEncoder;
                    let place = match component {
                        PartKind::Unet => &mut options.unet,
                        PartKind::Vae => &mut options.vae,
                        PartKind::Config => &mut options.config,
                        PartKind::Taesd => &mut setup.taesd,
                        PartKind::Scales if setup.eight_bits(false).is_none() => continue,
                        PartKind::Scales => &mut setup.scales,
                        PartKind::TextEncoder | PartKind::Unknown => &mut None,
                    };
                    if place.is_some() || (is_text && had_text) {
                        continue;
                    }
                    let found = file.sha256.as_deref().and_then(|hash| by_hash(hash, cache.as_deref(), Scope::Whole));
                    let name = &file.name;
                    match found {
                        Some(path) if is_text => options.text_encoders.push(path),
                        Some(path) => *place = Some(path),
                        None if *component == PartKind::Unknown => {
                            self.warnings.push(format!("was made with {name}; this version of Kiln has no use for it"))
                        }
                        None => {
                            self.warnings.push(format!("was made with `{}` {name}; say where it is", component.id()))
                        }
                    }
                }
            }
            Source::Text(text) => {
                let name = text.get("VAE").filter(|name| !["Automatic", "None", ""].contains(name));
                if let Some(name) = name.filter(|_| options.vae.is_none()) {
                    options.vae = text.get("VAE hash").and_then(|hash| by_hash(hash, cache.as_deref(), Scope::Whole));
                    if options.vae.is_none() {
                        self.warnings.push(format!("was made with the VAE {name}; say where it is with `vae`"));
                    }
                }
            }
            Source::Program(taken) => {
                if let Some(name) = taken.vae.as_deref().filter(|_| options.vae.is_none()) {
                    self.warnings.push(format!("was made with the VAE {name}; say where it is with `vae`"));
                }
            }
        }
    }

    /// Refuses settings that name a sampler or a schedule that Kiln does not have: another one makes another image.
    /// `sampler` and `schedule` say whether the user gives one in its place.
    ///
    /// # Errors
    /// [`Error::Request`] names the file and the field.
    pub fn check_names(&self, sampler: bool, schedule: bool) -> Result<()> {
        let names = match &self.source {
            Source::Own(_) => Vec::new(),
            Source::Text(text) => programs::unknown_names(text).into_iter().flatten().collect(),
            Source::Program(taken) => {
                let told = |unknown: &Unknown| (unknown.is_schedule, unknown.field, unknown.name.clone());
                taken.unknown.iter().map(told).collect()
            }
        };
        for (is_schedule, field, name) in names {
            // A schedule of a sampler that Kiln does not have means nothing.
            let (option, given) = if is_schedule { ("scheduler", schedule || sampler) } else { ("sampler", sampler) };
            if !given {
                let found = format!("{}, with {field}: {name}", self.path.display());
                let unknown = match is_schedule {
                    true => SigmaSchedule::from_str(&name).err(),
                    false => SamplerChoice::from_str(&name).err(),
                };
                let why = unknown.map(|error| format!(" ({error})")).unwrap_or_default();
                let expected = format!("settings that Kiln has, or `{option}` too{why}");
                return Err(Error::value("like", found, expected));
            }
        }
        Ok(())
    }

    /// The request that makes the image with `model`.
    pub fn request(&mut self, model: &ModelFolder, setup: &Setup) -> Request {
        match &self.source {
            Source::Own(own) => {
                let mut request = own.request.clone();
                // A stranger's image says neither which folders are read nor how many images are made.
                (request.wildcards_dir, request.batch_count, request.batch_size) = (None, None, None);
                request.upscaler_dir = None;
                if let Some(upscaler) = &mut request.hires_upscaler
                    && let Some(path) = found_upscaler(upscaler, own, setup)
                {
                    *upscaler = path.into();
                }
                for lora in &mut request.loras {
                    if let LoraName::File(path) = &lora.lora {
                        let name = PathBuf::from(path.file_name().unwrap_or_default());
                        lora.lora = found_lora(&name, own, setup);
                    }
                }
                for (i, control) in request.controls.iter_mut().enumerate() {
                    let hash = own.controls.get(i).and_then(|file| file.sha256.as_deref());
                    let found = hash.and_then(|hash| by_hash(hash, setup.cache_dir.as_deref(), Scope::Whole));
                    let name = |path: &Path| PathBuf::from(path.file_name().unwrap_or_default());
                    control.net = found.unwrap_or_else(|| name(&control.net));
                    control.image = control.image.as_deref().map(name);
                }
                for (i, adapter) in request.ip_adapters.iter_mut().enumerate() {
                    let hash = own.ip_adapters.get(i).and_then(|file| file.sha256.as_deref());
                    let found = hash.and_then(|hash| by_hash(hash, setup.cache_dir.as_deref(), Scope::Whole));
                    for path in adapter.files_mut() {
                        *path = PathBuf::from(path.file_name().unwrap_or_default());
                    }
                    adapter.model = found.unwrap_or_else(|| adapter.model.clone());
                }
                for mask in request.regions.iter_mut().filter_map(|region| region.mask.as_mut()) {
                    *mask = PathBuf::from(mask.file_name().unwrap_or_default());
                }
                let hash = own.refiner.as_ref().and_then(|refiner| refiner.sha256.as_deref());
                request.refiner = request.refiner.map(|name| found_refiner(&name, hash, setup));
                self.warnings.extend(request.drop_foreign(model));
                request
            }
            Source::Text(text) => {
                let (mut request, warnings) = from_infotext::request(text, model.family());
                self.warnings.extend(warnings);
                let hash = text.get(labels::REFINER).and_then(|text| from_infotext::refiner_name(text).1);
                request.refiner = request.refiner.map(|name| found_refiner(&name, hash, setup));
                self.warnings.extend(request.drop_foreign(model));
                request
            }
            Source::Program(taken) => {
                self.warnings.extend(taken.warnings.iter().cloned());
                let mut request = taken.request.clone();
                self.warnings.extend(request.drop_foreign(model));
                request
            }
        }
    }

    /// Gives `request`, which these settings made, the files of its input and control images, where they are found by their
    /// checksums next to the image and in the current folder.
    ///
    /// # Errors
    /// [`Error::Files`] with the option that gives an image which is not found.
    pub fn locate_inputs(&self, request: &mut Request) -> Result<()> {
        match &self.source {
            Source::Own(own) => locate_inputs(own, &self.path, request),
            Source::Text(_) | Source::Program(_) => Ok(()),
        }
    }

    /// Differences between the settings and the files that the image was made with, a sentence each.
    pub fn differences(&self, image: &GeneratedImage, model: &ModelFolder) -> Vec<String> {
        let Ok((now, _)) = OwnSettings::from_json(&image.settings) else { return Vec::new() };
        let mut all = Vec::new();
        let (name, hash) = self.model();
        if let Some(difference) = model_difference(name, hash, &now.model, model) {
            all.push(difference);
        }
        let loras: Vec<NamedFile> = match &self.source {
            Source::Own(own) => own.loras.clone(),
            Source::Text(text) => lora_hashes(text.get(labels::LORA_HASHES).unwrap_or_default()),
            Source::Program(_) => Vec::new(),
        };
        for lora in loras {
            let same = |other: &&NamedFile| other.name.eq_ignore_ascii_case(&lora.name);
            let Some(used) = now.loras.iter().find(same) else { continue };
            if let (Some(then), Some(now)) = (&lora.sha256, &used.sha256)
                && !now.starts_with(then)
            {
                all.push(format!(
                    "the LoRA {} is another file: its hash is {}, not {}",
                    lora.name,
                    short(now),
                    short(then)
                ));
            }
        }
        if let Source::Text(text) = &self.source
            && let Some(then) = text.get(labels::INIT_IMAGE_HASH)
            && let Some(now) = now.inputs.iter().find_map(|input| input.pixels_md5.as_deref())
            && !then.trim().eq_ignore_ascii_case(now)
        {
            let (then, now) = (short(then.trim()), short(now));
            all.push(format!("its `init` was an image with the hash {then}, this is another image (hash {now})"));
        }
        if let Source::Own(own) = &self.source {
            for input in &own.inputs {
                let used = now.inputs.iter().find(|used| used.option == input.option);
                if let (Some(then), Some(now)) = (&input.file.sha256, used.and_then(|used| used.file.sha256.as_ref()))
                    && then != now
                {
                    let (option, name) = (&input.option, &input.file.name);
                    let (then, now) = (short(then), short(now));
                    let what = if option == "hires_upscaler" { "file" } else { "image" };
                    all.push(format!("its `{option}` was {name} (hash {then}), this is another {what} (hash {now})"));
                }
            }
            let matrices = |own: &OwnSettings| own.weight_type.clone().unwrap_or_else(|| own.dtype.clone());
            let compute = |own: &OwnSettings| own.compute.clone().unwrap_or_else(|| "native".into());
            for (what, then, now) in [
                ("device", own.device.clone(), now.device.clone()),
                ("type", own.dtype.clone(), now.dtype.clone()),
                ("linear layers' type", matrices(own), matrices(&now)),
                ("denoiser's arithmetic", compute(own), compute(&now)),
            ] {
                if then != now {
                    all.push(format!("its {what} was {then}, here it is {now}: pixels will differ"));
                }
            }
            let missing: Vec<_> =
                own.embeddings.iter().filter(|word| !now.embeddings.contains(word)).cloned().collect();
            if !missing.is_empty() {
                all.push(format!("these words had vectors of their own (`embeddings_dir`): {}", missing.join(", ")));
            }
        }
        let path = self.path.display();
        all.into_iter().map(|difference| format!("{path}: {difference}")).collect()
    }
}

/// Whether another model is used than `name` with `hash`: by the hash where both have one, else by the name.
fn model_difference(name: Option<&str>, hash: Option<&str>, now: &NamedFile, model: &ModelFolder) -> Option<String> {
    let then = name.unwrap_or("one without a name");
    let hash = hash.map(str::to_ascii_lowercase);
    let hash_now = match &hash {
        Some(hash) if hash.len() < 10 => old_hash(model.path()).ok(),
        _ => now.sha256.clone(),
    };
    match (hash, hash_now) {
        (Some(then), Some(now)) if now.starts_with(&then) => None,
        (Some(hash), Some(hash_now)) => {
            let (hash, hash_now) = (short(&hash), short(&hash_now));
            Some(format!("its model was {then} (hash {hash}), this is {} (hash {hash_now})", now.name))
        }
        _ if name.is_some_and(|name| name != now.name) => Some(format!("its model was {then}, this is {}", now.name)),
        _ => None,
    }
}

fn short(hash: &str) -> &str {
    hash.get(..10).unwrap_or(hash)
}

/// The file of a hash, if it is long enough to be one of SHA-256.
fn by_hash(hash: &str, cache: Option<&Path>, scope: Scope) -> Option<PathBuf> {
    (hash.len() >= 10 && is_hash(hash)).then(|| Hashes::new(cache).find(hash, scope)).flatten()
}

/// Where an upscaler's file is of which the name is known, by its hash.
fn found_upscaler(upscaler: &HiresUpscaler, own: &OwnSettings, setup: &Setup) -> Option<PathBuf> {
    upscaler.file()?;
    let hash = own.inputs.iter().find(|input| input.option == "hires_upscaler")?.file.sha256.as_deref()?;
    by_hash(hash, setup.cache_dir.as_deref(), Scope::Whole)
}

/// Where a refiner is of which the name is known: by its hash, else by its name where models are looked for. Where there is
/// none, opening it says so.
fn found_refiner(name: &Path, hash: Option<&str>, setup: &Setup) -> PathBuf {
    let name = PathBuf::from(name.file_name().unwrap_or_default());
    let by_hash = hash.and_then(|hash| by_hash(hash, setup.cache_dir.as_deref(), Scope::Whole));
    by_hash.or_else(|| locate_named(&name)).unwrap_or(name)
}

/// Where a LoRA is of which the file's name is known: by its hash, else by its name, here or in the folder of LoRAs.
fn found_lora(path: &Path, own: &OwnSettings, setup: &Setup) -> LoraName {
    let hash = own.lora(path).and_then(|lora| lora.sha256.as_deref());
    let scopes = [Scope::PastHeader, Scope::Whole];
    let mut by_hash = scopes.into_iter().filter_map(|scope| by_hash(hash?, setup.cache_dir.as_deref(), scope));
    if let Some(path) = by_hash.next() {
        return LoraName::File(path);
    }
    // Where there is none, loading says so.
    let in_folder = || find_lora(&LoraName::Named(file_stem(path)), setup.lora_dir.as_deref()).ok();
    let beside = path.is_file().then(|| path.to_path_buf());
    LoraName::File(beside.or_else(in_folder).unwrap_or_else(|| path.to_path_buf()))
}

/// `name: hash, name: hash`.
fn lora_hashes(text: &str) -> Vec<NamedFile> {
    let one = |pair: &str| {
        let (name, hash) = pair.rsplit_once(':').filter(|(_, hash)| is_hash(hash.trim()))?;
        Some(NamedFile { name: name.trim().into(), sha256: Some(hash.trim().to_ascii_lowercase()) })
    };
    text.split(',').filter_map(one).collect()
}
