//! The options of an engine: one table, from which the struct, its reader, the documentation and the types of keywords are made.

use std::path::PathBuf;

use kiln_engine::{
    DeviceList, HubOptions, MemoryOptions, ModeChoice, ModelOptions, Parallel, Setup, VaeMemory, cache_folder,
};
use kiln_request::Error;
use serde_json::{Map, Value, from_value};

/// An option of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineOption {
    /// The keyword.
    pub name: &'static str,
    /// Its type in Python.
    pub python: &'static str,
    doc: &'static [&'static str],
}

impl EngineOption {
    /// Its help, in one or a few sentences.
    pub fn help(&self) -> String {
        self.doc.iter().flat_map(|line| line.split_whitespace()).collect::<Vec<_>>().join(" ")
    }
}

macro_rules! engine_options {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty, $python:literal;)+) => {
        /// The options of an engine, as they were given.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct EngineOptions {
            $($(#[doc = $doc])+ pub $name: Option<$kind>,)+
        }

        /// All options, in the order in which they are shown.
        pub const ENGINE_OPTIONS: &[EngineOption] =
            &[$(EngineOption { name: stringify!($name), python: $python, doc: &[$($doc),+] }),+];

        impl EngineOptions {
            /// Sets the option `name`; `None` if there is none of this name.
            fn set(&mut self, name: &str, value: Value) -> Option<Result<(), serde_json::Error>> {
                match name {
                    $(stringify!($name) => Some(from_value(value).map(|value| self.$name = value)),)+
                    _ => None,
                }
            }
        }
    };
}

engine_options! {
    /// Device: auto, cpu, cuda or cuda:N; two with `parallel`, as in cuda:0,cuda:1.
    device: String, "str";
    /// Has two devices work on one image: cfg computes the two halves of a guided step on them.
    parallel: String, "str";
    /// The type of weights and activations: auto, f32, bf16 or f16.
    dtype: String, "str";
    /// Keeps the weights of linear layers in another type than `dtype`: auto (as the file stores them, if it does in 8 bits or less),
    /// f32, f16, bf16, f8, q8_0, q4_k and others.
    weight_type: String, "str";
    /// How the large layers of the denoiser are computed: auto (native), native (in `dtype`), int8 (in 8-bit
    /// integers) or fp8 (in 8-bit floats, on GPUs of compute capability 8.9 and later).
    compute: String, "str";
    /// With `compute` int8: a file of `kiln calibrate` with the ranges of the model's layers and those that keep `dtype`.
    scales: PathBuf, "StrPath";
    /// Number of CPU threads of this engine. Default: one for each core that the process may use. Images do not depend on it.
    threads: usize, "int";
    /// For a model in one file: a folder with configurations and tokenizers.
    config: PathBuf, "StrPath";
    /// The prediction type of the denoiser: epsilon, v or flow. Default: by the model's configuration, else by its tensors.
    prediction: String, "str";
    /// A denoiser (U-Net or transformer) that replaces the model's: a checkpoint file, or a component's folder.
    unet: PathBuf, "StrPath";
    /// An autoencoder (VAE) that replaces the model's: a checkpoint file, or a component's folder.
    vae: PathBuf, "StrPath";
    /// Text encoders that replace the model's encoders of the same width: checkpoint files.
    text_encoders: Vec<PathBuf>, "Sequence[StrPath]";
    /// Runs a model that can do without T5, as Stable Diffusion 3, without it: less memory, other images.
    no_t5: bool, "bool";
    /// Decodes with TAESD, a small autoencoder that keeps less detail: a safetensors file, or a folder.
    taesd: PathBuf, "StrPath";
    /// Folder of the LoRA files that a prompt names.
    lora_dir: PathBuf, "StrPath";
    /// Folder of the embeddings (textual inversion) that a prompt names.
    embeddings_dir: PathBuf, "StrPath";
    /// Folder that keeps packed weights for the next start on the CPU, which then takes a small part of the time.
    weight_cache: PathBuf, "StrPath";
    /// Number of encoded prompts that are kept for the next images. Default: 32.
    prompt_cache: usize, "int";
    /// The networks in memory: auto (the fastest mode that fits), full (all networks), medvram (one network at a time) or
    /// lowvram (only the layers that run next). It does not change images.
    memory: String, "str";
    /// The most memory that Kiln may use, of the GPU, or of the CPU if it runs there: 6G, 512M, or a number of bytes.
    vram_budget: Value, "str | int";
    /// Decodes in strips of rows, without seams.
    vae_tiling: bool, "bool";
    /// Height of a strip in pixels of the image. Default: as much as fits.
    vae_tile_size: usize, "int";
    /// Caches freed GPU memory for the next allocation. Default: on.
    cuda_malloc: bool, "bool";
    /// Copies weights to the GPU while it computes. Default: on.
    cuda_stream: bool, "bool";
    /// Keeps offloaded weights in pinned memory. Default: on.
    pin_shared_memory: bool, "bool";
    /// Does not access the network; uses cached files only.
    offline: bool, "bool";
}

impl EngineOptions {
    /// Reads the options of an object of JSON.
    ///
    /// # Errors
    /// The option that is unknown or has a value of another type, with a message.
    pub fn read(object: Map<String, Value>) -> Result<Self, (String, String)> {
        let mut options = Self::default();
        for (name, value) in object {
            match options.set(&name, value) {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err((name.clone(), format!("`{name}`: {error}"))),
                None => {
                    let known: Vec<&str> = ENGINE_OPTIONS.iter().map(|option| option.name).collect();
                    let message = format!("unknown option `{name}` of an engine; the options are {}", known.join(", "));
                    return Err((name, message));
                }
            }
        }
        Ok(options)
    }

    /// How files come from the Hub.
    ///
    /// # Errors
    /// [`Error::Value`] for a type that there is not.
    pub fn hub(&self) -> Result<HubOptions, Error> {
        Ok(HubOptions { offline: self.offline.unwrap_or(false), dtype: parsed("dtype", self.dtype.as_deref())? })
    }

    /// Options that replace those of the model's folder or file.
    ///
    /// # Errors
    /// [`Error::Value`] for an unknown prediction type.
    pub fn model_options(&self) -> Result<ModelOptions, Error> {
        Ok(ModelOptions {
            config: self.config.clone(),
            prediction: self.prediction.as_deref().map(|text| parsed_text("prediction", text)).transpose()?,
            unet: self.unet.clone(),
            vae: self.vae.clone(),
            text_encoders: self.text_encoders.clone().unwrap_or_default(),
            no_t5: self.no_t5.unwrap_or_default(),
        })
    }

    /// How the model is run. Its threads are always its own.
    ///
    /// # Errors
    /// [`Error::Value`] with the option that has no such value, and those of [`DeviceList::parallel_cfg`].
    pub fn setup(&self) -> kiln_engine::Result<Setup> {
        let mode = match self.memory.as_deref() {
            None | Some("auto") => ModeChoice::Auto,
            Some("full") => ModeChoice::Full,
            Some("medvram") => ModeChoice::Medvram,
            Some("lowvram") => ModeChoice::Lowvram,
            Some(other) => return Err(value("memory", other, "auto, full, medvram or lowvram").into()),
        };
        let budget = match &self.vram_budget {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(parsed_text("vram_budget", text)?),
            Some(other) => Some(parsed_text("vram_budget", &other.to_string())?),
        };
        let usual = MemoryOptions::default();
        let memory = MemoryOptions {
            mode,
            budget,
            cuda_malloc: self.cuda_malloc.unwrap_or(usual.cuda_malloc),
            cuda_stream: self.cuda_stream.unwrap_or(usual.cuda_stream),
            pin_shared_memory: self.pin_shared_memory.unwrap_or(usual.pin_shared_memory),
            vae: VaeMemory {
                tiling: self.vae_tiling.unwrap_or(false) || self.vae_tile_size.is_some(),
                tile_size: self.vae_tile_size,
            },
            ..usual
        };
        let parallel: Option<Parallel> =
            self.parallel.as_deref().map(|text| parsed_text("parallel", text)).transpose()?;
        let devices: Option<DeviceList> = parallel.map(|_| parsed("device", self.device.as_deref())).transpose()?;
        let device = if devices.is_some() { None } else { self.device.as_deref() };
        let setup = Setup {
            device: parsed("device", device)?,
            dtype: parsed("dtype", self.dtype.as_deref())?,
            weight_type: parsed("weight_type", self.weight_type.as_deref())?,
            compute: parsed("compute", self.compute.as_deref())?,
            scales: self.scales.clone(),
            threads: Some(self.threads.unwrap_or_else(kiln_engine::usual_threads)),
            taesd: self.taesd.clone(),
            memory,
            lora_dir: self.lora_dir.clone(),
            embeddings_dir: self.embeddings_dir.clone(),
            weight_cache: self.weight_cache.clone(),
            prompt_cache: self.prompt_cache,
            cache_dir: cache_folder(),
            ..Setup::default()
        };
        devices.map_or(Ok(setup.clone()), |devices| devices.parallel_cfg(&setup))
    }
}

fn value(name: &'static str, found: &str, expected: &str) -> Error {
    Error::Value { name, found: format!("{found:?}"), expected: expected.into() }
}

/// The value of an option that is a name; its default if none is given.
fn parsed<T: Default + std::str::FromStr<Err = String>>(name: &'static str, text: Option<&str>) -> Result<T, Error> {
    text.map_or_else(|| Ok(T::default()), |text| parsed_text(name, text))
}

fn parsed_text<T: std::str::FromStr<Err = String>>(name: &'static str, text: &str) -> Result<T, Error> {
    text.parse().map_err(|problem: String| value(name, text, problem.strip_prefix("expected ").unwrap_or(&problem)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(object: Value) -> Result<EngineOptions, (String, String)> {
        let Value::Object(object) = object else { panic!("an object") };
        EngineOptions::read(object)
    }

    #[test]
    fn values_become_the_setup() {
        let found = options(json!({
            "device": "cuda:1", "dtype": "bf16", "weight_type": "q8_0", "threads": 3, "memory": "lowvram",
            "vram_budget": "6G", "vae_tile_size": 64, "cuda_stream": false, "prediction": "v", "offline": true,
        }))
        .unwrap();
        let setup = found.setup().unwrap();
        assert_eq!(setup.device, kiln_engine::DeviceChoice::Cuda(1));
        assert_eq!((setup.threads, setup.memory.mode), (Some(3), ModeChoice::Lowvram));
        assert_eq!(setup.memory.budget.map(|size| size.0), Some(6 << 30));
        assert!(setup.memory.vae.tiling && !setup.memory.cuda_stream && setup.memory.cuda_malloc);
        assert!(found.hub().unwrap().offline && found.model_options().unwrap().prediction.is_some());
        let two = options(json!({ "device": "cuda:0,cuda:1", "parallel": "cfg" })).unwrap().setup().unwrap();
        assert_eq!(two.second.map(|second| second.device), Some(kiln_engine::DeviceChoice::Cuda(1)));
        let one = options(json!({ "device": "cuda", "parallel": "cfg" })).unwrap().setup().unwrap_err().to_string();
        assert!(one.starts_with("`device` is cuda:0, expected two GPUs"), "{one}");
        let usual = EngineOptions::default().setup().unwrap();
        assert_eq!(usual.memory, MemoryOptions::default());
        assert!(usual.threads.is_some_and(|threads| threads > 0), "the process's threads are left alone");
        let bytes = options(json!({ "vram_budget": 1 << 20 })).unwrap().setup().unwrap();
        assert_eq!(bytes.memory.budget.map(|size| size.0), Some(1 << 20));
    }

    #[test]
    fn what_an_option_does_not_take_is_named() {
        let (name, message) = options(json!({ "devise": "cpu" })).unwrap_err();
        assert_eq!(name, "devise");
        assert!(
            message.starts_with("unknown option `devise` of an engine; the options are device, parallel"),
            "{message}"
        );
        assert_eq!(options(json!({ "threads": "two" })).unwrap_err().0, "threads");
        for (name, wrong) in [
            ("device", "opencl"),
            ("dtype", "f64"),
            ("memory", "small"),
            ("compute", "int4"),
            ("parallel", "all"),
            ("vram_budget", "lots"),
        ] {
            let message = options(json!({ name: wrong })).unwrap().setup().unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{name}` is \"{wrong}\", expected ")), "{message}");
        }
    }

    #[test]
    fn every_option_is_explained() {
        for option in ENGINE_OPTIONS {
            assert!(option.help().ends_with('.') && !option.python.is_empty(), "{}", option.name);
        }
    }
}
