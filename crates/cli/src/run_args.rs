//! The flags that say which model runs, and how: the same for every command that makes images.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{
    ControlUse, HubOptions, IpAdapterUse, LoraName, LoraUse, ModelOptions, Overlap, Parallel, PngLevel, Prediction,
    Result, Setup, cache_folder,
};

use crate::memory_args::MemoryArgs;
use crate::place_args::PlaceArgs;
use crate::pull::located;
use crate::values::{named, parse_count};

/// Options of the model and of the device that it runs on.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A model folder in the diffusers layout, a checkpoint file (.safetensors, .ckpt, .gguf), a name in KILN_MODELS,
    /// or hf:OWNER/NAME[@REVISION][/FILE] on the Hugging Face Hub, which is downloaded once.
    /// Default: the model that comes with Kiln.
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// For a model in one file: a folder with configurations and tokenizers, instead of those inferred from tensor shapes.
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// Does not access the network; uses cached files only.
    #[arg(long)]
    offline: bool,
    /// The prediction type of the denoiser: epsilon, v or flow. Default: by the model's configuration, else by its tensors.
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = named::<Prediction>(&["epsilon", "v", "flow"]))]
    prediction: Option<Prediction>,
    /// A denoiser (U-Net or transformer) that replaces the model's: a checkpoint file, or a component's folder.
    #[arg(long, value_name = "FILE", visible_aliases = ["diffusion-model", "transformer"])]
    unet: Option<PathBuf>,
    /// An autoencoder (VAE) that replaces the model's: a checkpoint file, or a component's folder.
    #[arg(long, value_name = "FILE")]
    vae: Option<PathBuf>,
    /// A text encoder of the same width that replaces the model's: a checkpoint file. Can be repeated.
    #[arg(long, value_name = "FILE", visible_aliases = ["clip-l", "clip-g", "t5xxl", "llm"], aliases = ["clip_l", "clip_g"])]
    text_encoder: Vec<PathBuf>,
    /// Runs a model that can do without T5, as Stable Diffusion 3, without it: less memory, other images.
    #[arg(long)]
    no_t5: bool,
    /// Decodes with TAESD, a small autoencoder that keeps less detail. A safetensors file, or a folder.
    #[arg(long, value_name = "FILE")]
    taesd: Option<PathBuf>,
    /// Folder of the LoRA files that a prompt names: <lora:name:0.8>.
    #[arg(long, value_name = "DIR", env = "KILN_LORAS")]
    lora_dir: Option<PathBuf>,
    /// Folder of the embeddings (textual inversion) that a prompt names by their files' names.
    #[arg(long, value_name = "DIR", env = "KILN_EMBEDDINGS")]
    embeddings_dir: Option<PathBuf>,
    /// Folder that keeps packed weights for the next start on the CPU, which then takes a small part of the time. It takes as many
    /// bytes as the weights do in memory, for each model and type.
    #[arg(long, value_name = "DIR", env = "KILN_WEIGHT_CACHE")]
    weight_cache: Option<PathBuf>,
    /// Number of encoded prompts that are kept for the next images. Default: 32.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = PromptCache::parse_count)]
    prompt_cache: Option<PromptCache>,

    /// Compression of PNG files: none, fast, balanced or best. The pixels are the same.
    #[arg(long, value_name = "LEVEL", default_value = "fast", hide_possible_values = true,
          value_parser = named::<PngLevel>(&["none", "fast", "balanced", "best"]))]
    png_level: PngLevel,

    #[command(flatten)]
    pub place: PlaceArgs,

    /// Has the two devices of --device work on one image: cfg computes the two halves of a guided step on them
    /// (--device cuda:0,cuda:1 --parallel cfg). The U-Net is in the memory of both.
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = named::<Parallel>(&["cfg"]))]
    parallel: Option<Parallel>,

    #[command(flatten)]
    memory: MemoryArgs,
}

/// Where encoded prompts are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptCache {
    /// So many of them, here.
    Count(usize),
    /// In a store with this address, too.
    Store(String),
}

impl PromptCache {
    /// A number, or the address of a store.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        match text.contains("://") {
            true => Ok(Self::Store(text.into())),
            false => Self::parse_count(text),
        }
    }

    /// A number.
    pub fn parse_count(text: &str) -> std::result::Result<Self, String> {
        Ok(Self::Count(parse_count(text)?))
    }

    fn count(&self) -> Option<usize> {
        match self {
            Self::Count(count) => Some(*count),
            Self::Store(_) => None,
        }
    }
}

impl RunArgs {
    /// Fetches what is named on the Hub, among `loras`, `controls` and `adapters` too. Files that came are put in the places of their names; the
    /// model keeps its own, by which the cache has it now.
    ///
    /// # Errors
    /// Errors of the Hub.
    pub fn fetch(
        &mut self,
        loras: &mut [LoraUse],
        controls: &mut [ControlUse],
        adapters: &mut [IpAdapterUse],
    ) -> Result<()> {
        let options = self.hub();
        self.model.as_deref().map(|model| located(model, &options)).transpose()?;
        let parts = [&mut self.unet, &mut self.vae, &mut self.taesd].into_iter().flatten();
        let of_loras = loras.iter_mut().filter_map(|lora| match &mut lora.lora {
            LoraName::File(path) => Some(path),
            LoraName::Named(_) => None,
        });
        let nets = controls.iter_mut().map(|control| &mut control.net);
        let of_adapters = adapters.iter_mut().flat_map(|adapter| [Some(&mut adapter.model), adapter.encoder.as_mut()]);
        let nets = nets.chain(of_adapters.flatten());
        for path in parts.chain(&mut self.text_encoder).chain(of_loras).chain(nets) {
            *path = located(path, &options)?;
        }
        Ok(())
    }

    /// How files come from the Hub.
    pub fn hub(&self) -> HubOptions {
        HubOptions { offline: self.offline, dtype: self.place.dtype }
    }

    /// Options that replace those of the model's folder or file.
    pub fn model_options(&self) -> ModelOptions {
        ModelOptions {
            config: self.config.clone(),
            prediction: self.prediction,
            unet: self.unet.clone(),
            vae: self.vae.clone(),
            text_encoders: self.text_encoder.clone(),
            no_t5: self.no_t5,
        }
    }

    /// Starts the threads of the process.
    ///
    /// # Errors
    /// See [`kiln_engine::start_threads`].
    pub fn start_threads(&self) -> kiln_engine::Result<()> {
        self.place.start_threads()
    }

    /// The address of a store of encoded prompts, which `kiln serve` takes.
    pub fn prompt_store(&self) -> Option<String> {
        match &self.prompt_cache {
            Some(PromptCache::Store(address)) => Some(address.clone()),
            Some(PromptCache::Count(_)) | None => None,
        }
    }

    /// How the model is run.
    pub fn setup(&self) -> Setup {
        Setup {
            taesd: self.taesd.clone(),
            memory: self.memory.options(),
            lora_dir: self.lora_dir.clone(),
            embeddings_dir: self.embeddings_dir.clone(),
            weight_cache: self.weight_cache.clone(),
            prompt_cache: self.prompt_cache.as_ref().and_then(PromptCache::count),
            png_level: self.png_level,
            cache_dir: cache_folder(),
            ..self.place.setup()
        }
    }

    /// How the model is run by one engine: on one device, or on the two that share its steps. The threads of the process are
    /// there already.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Request`] for several devices without --parallel, and those of [`kiln_engine::DeviceList::parallel_cfg`].
    pub fn one_setup(&self) -> Result<Setup> {
        match self.parallel {
            Some(Parallel::Cfg) => self.place.devices().parallel_cfg(&self.setup()),
            None => self.place.check_one().map(|()| self.setup()),
        }
    }

    /// How the model is run on each of the devices, for a command that has an engine on each and many images. With --parallel there is
    /// one engine.
    ///
    /// # Errors
    /// See [`kiln_engine::DeviceList::setups`] and [`kiln_engine::DeviceList::parallel_cfg`].
    pub fn setups(&self) -> Result<Vec<Setup>> {
        match self.parallel {
            Some(Parallel::Cfg) => Ok(vec![self.place.devices().parallel_cfg(&self.overlapped())?]),
            None => self.place.devices().setups(&self.overlapped()),
        }
    }

    /// Setups for an engine on each NUMA node of the CPU.
    ///
    /// # Errors
    /// See [`kiln_engine::DeviceList::per_node`].
    pub fn setups_of_nodes(&self) -> Result<Vec<Setup>> {
        self.place.devices().per_node()?.setups(&self.place.with_threads(self.overlapped()))
    }

    /// The setup of a command with many images: encoding and decoding overlap with the steps of others.
    fn overlapped(&self) -> Setup {
        Setup { overlap: Overlap::OnGpus, ..self.setup() }
    }
}
