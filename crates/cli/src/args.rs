//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use kiln_engine::{
    BatchSize, ByteSize, ControlUse, DTypeChoice, HiresUpscaler, HubReference, IpAdapterUse, LinkChoice, LinkRate,
    MemoryOptions, Preset, Setup, WeightType, cache_folder,
};

use crate::batch_args::BatchArgs;
use crate::bench_args::BenchArgs;
use crate::calibrate_args::CalibrateArgs;
use crate::compare_args::CompareArgs;
use crate::help::MESSAGES;
use crate::img2img_args::Img2img;
use crate::option_args::NetworkArgs;
use crate::place_args::PlaceArgs;
use crate::preprocess_args::PreprocessArgs;
#[cfg(feature = "serve")]
use crate::serve_args::ServeArgs;
use crate::status::LogFormat;
use crate::txt2img_args::Txt2img;
use crate::upscale_args::UpscaleArgs;
use crate::values::{DTYPES, Named, named, parse_count};

/// Stable Diffusion, natively.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, max_term_width = 110, disable_help_flag = true)]
pub struct Args {
    /// Prints help: -h the usual flags, --help all flags.
    #[arg(short, long, global = true, action = clap::ArgAction::Help, help_heading = MESSAGES)]
    pub help: Option<bool>,
    /// Verbose output; twice (-vv) for debugging.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet", help_heading = MESSAGES)]
    pub verbose: u8,
    /// No progress and no other information on standard error; twice (-qq) no warnings.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = MESSAGES,
          help = "No progress; twice (-qq) no warnings",
          long_help = "No progress and no other information on standard error; twice (-qq) no warnings")]
    pub quiet: u8,
    /// Format of the messages on standard error: text, or json, one object in a line.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", help_heading = MESSAGES, hide_short_help = true,
          hide_possible_values = true, value_parser = named::<LogFormat>(&["text", "json"]))]
    pub log_format: LogFormat,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of Kiln.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generates images from a prompt.
    Txt2img(Box<Txt2img>),
    /// Generates images from a prompt and an image: variations, inpainting, outpainting.
    Img2img(Box<Img2img>),
    /// Generates the images of a file of jobs; images that exist are kept.
    Batch(Box<BatchArgs>),
    /// Serves images over HTTP: Kiln's own API, with live previews, from one queue for all clients.
    #[cfg(feature = "serve")]
    Serve(Box<ServeArgs>),
    /// Enlarges images, with a network or a filter.
    Upscale(Box<UpscaleArgs>),
    /// Makes the map of an image that a ControlNet takes: edges, lines, a blur, without a network.
    Preprocess(Box<PreprocessArgs>),
    /// Compares two images, or the images of two folders: PSNR, SSIM, LPIPS, FID, CLIP scores, and bounds for scripts.
    Compare(Box<CompareArgs>),
    /// Downloads a model from the Hugging Face Hub, or updates it; without a name, lists tested models and what they need.
    Pull(PullArgs),
    /// Lists the models on this machine, with the argument for each.
    Models(ModelsArgs),
    /// Lists the devices of this machine, and those that Kiln would use.
    Devices(DevicesArgs),
    /// Lists the samplers and the schedules of noise levels.
    Samplers(SamplersArgs),
    /// Shows what is in a model folder, a checkpoint file or an image, without reading weights.
    Inspect(InspectArgs),
    /// Converts a model to another layout: a folder, a .safetensors or a .gguf file.
    Convert(ConvertArgs),
    /// Measures the layers of a model for --compute int8: ranges of values, and layers that must keep their type.
    Calibrate(CalibrateArgs),
    /// Measures the stages of a model, with random weights.
    Bench(BenchArgs),
    /// Shows the memory of a run in every mode, without reading weights.
    Plan(Box<PlanArgs>),
    /// Replays or plots memory traces.
    Memory {
        /// The command for models.
        #[command(subcommand)]
        command: MemoryCommand,
    },
    /// Updates the program, if an install script put it here.
    #[command(name = "self")]
    Itself {
        /// The command for the program.
        #[command(subcommand)]
        command: SelfCommand,
    },
    /// Prints completions for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the manual page.
    Man,
}

impl Command {
    /// Whether it is `kiln serve`.
    pub fn is_server(&self) -> bool {
        #[cfg(feature = "serve")]
        if let Self::Serve(_) = self {
            return true;
        }
        false
    }
}

/// A preset for `kiln plan`, which takes other models by a flag.
fn preset_of_plan(text: &str) -> Result<Preset, String> {
    text.parse().map_err(|_| format!("expected {}; for a model of your own: kiln plan --model {text}", Preset::names()))
}

/// `kiln pull`.
#[derive(Debug, ClapArgs)]
pub struct PullArgs {
    /// The repository, perhaps with a revision (a branch, a tag or a commit) and one file. Without it, tested models are listed with
    /// the sizes of their downloads, their licenses and the memory that they need.
    #[arg(value_name = "OWNER/NAME[@REVISION][/FILE]")]
    pub reference: Option<HubReference>,
    /// Files and folders of the repository. Default: what a model needs, its weights in one type.
    #[arg(value_name = "FILE")]
    pub files: Vec<String>,
    /// The type in which the model is to run. For f32, weights in f32 are downloaded, else weights of 16 bits where the
    /// repository has them.
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true,
          value_parser = named::<DTypeChoice>(DTYPES))]
    pub dtype: DTypeChoice,
    /// Does not access the network: shows whether the model is in the cache, and where.
    #[arg(long)]
    pub offline: bool,
    /// Prints the list of tested models as JSON.
    #[arg(long, conflicts_with = "reference")]
    pub json: bool,
}

/// `kiln models`.
#[derive(Debug, ClapArgs)]
pub struct ModelsArgs {
    /// A folder with models, or that of AUTOMATIC1111's web UI, Forge or ComfyUI. Default: KILN_MODELS, models in the current folder,
    /// the Hub's cache, and the usual folders of these programs.
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kiln self`.
#[derive(Debug, Subcommand)]
pub enum SelfCommand {
    /// Replaces the program by the newest release, if an install script put it here. No other command looks for releases.
    Update {
        /// Says whether there is a newer release, and changes nothing.
        #[arg(long)]
        check: bool,
    },
}

/// `kiln devices`.
#[derive(Debug, ClapArgs)]
pub struct DevicesArgs {
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kiln samplers`.
#[derive(Debug, ClapArgs)]
pub struct SamplersArgs {
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kiln inspect`.
#[derive(Debug, ClapArgs)]
pub struct InspectArgs {
    /// A model folder in the diffusers layout, a name in KILN_MODELS, a checkpoint file of any format, a folder of them, or an
    /// image with settings: PNG, JPEG, WebP or AVIF. With -v also the segments of a model folder.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// With -v, the type for which the sizes of segments are shown: f32, bf16 or f16; auto is the CPU's.
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true,
          value_parser = named::<DTypeChoice>(DTYPES))]
    pub dtype: DTypeChoice,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kiln convert`.
#[derive(Debug, ClapArgs)]
pub struct ConvertArgs {
    /// A model folder in the diffusers layout, a checkpoint file of any format, or a name in KILN_MODELS.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// A file that ends in .safetensors or .gguf; any other name is a folder's, in the diffusers layout.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// The weights' type: auto keeps each tensor's; f32, f16, bf16; for .gguf also q8_0, q5_0, q5_1, q4_0, q4_1, q6_k,
    /// q5_k, q4_k, q3_k, q2_k.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub weight_type: WeightType,
    /// For a model in one file: a folder with configurations and tokenizers, instead of those inferred from tensor shapes.
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Replaces an existing output.
    #[arg(long)]
    pub overwrite: bool,
}

/// `kiln plan`.
#[derive(Debug, ClapArgs)]
pub struct PlanArgs {
    /// A model whose configuration is part of the program, such as sdxl-1024; --help lists them.
    #[arg(value_name = "PRESET", long_help = format!("A model whose configuration is part of the program: {}", Preset::names()),
        hide_possible_values = true, conflicts_with = "model", value_parser = Named::new(preset_of_plan, Preset::ALL.map(Preset::id).to_vec()))]
    pub preset: Option<Preset>,
    /// A model folder in the diffusers layout, a checkpoint file, or a name in KILN_MODELS. Default: the model that comes
    /// with Kiln.
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// With TAESD instead of the VAE. A safetensors file, or a folder.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    taesd: Option<PathBuf>,
    /// Width in pixels, a multiple of 8. Default: the model's.
    #[arg(short = 'W', long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    width: Option<usize>,
    /// Height in pixels, a multiple of 8. Default: the model's.
    #[arg(short = 'H', long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    height: Option<usize>,
    /// Number of images in a batch; auto selects the fastest number.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub batch_size: BatchSize,
    /// Number of sampling steps, to weigh copies that are made once against copies in every step. Default: 20.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub steps: Option<usize>,
    /// Includes the encoding of an input image, as kiln img2img does it.
    #[arg(long)]
    pub img2img: bool,
    /// Includes a second pass that is larger by this factor.
    #[arg(long, value_name = "X", value_parser = parse_scale)]
    pub hires_scale: Option<f64>,
    /// Upscaler of the images before the second pass: a name, or a file of kiln upscale.
    #[arg(long, value_name = "NAME|FILE", default_value = "latent", requires = "hires_scale")]
    pub hires_upscaler: HiresUpscaler,
    /// Includes a control network: net=FILE|DIR. Can be repeated. Its image is not read.
    #[arg(long = "control", value_name = "net=FILE", conflicts_with = "preset")]
    pub controls: Vec<ControlUse>,
    /// Includes an IP-Adapter: model=FILE,image=FILE[,encoder=DIR|FILE]. Can be repeated. Its image is not read.
    #[arg(long = "ip-adapter", value_name = "model=FILE", conflicts_with = "preset")]
    pub ip_adapters: Vec<IpAdapterUse>,
    /// Includes a refiner that takes over the last steps: a model folder, a checkpoint file, or a name in KILN_MODELS.
    #[arg(long, value_name = "PATH")]
    pub refiner: Option<PathBuf>,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// The memory that may be used, such as 6G or 512M. Default: the free memory.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub vram_budget: Option<ByteSize>,
    /// Plans for a link to the GPU that copies this many GB/s from pinned memory, such as 12. Default: the link of this GPU, which
    /// is measured once.
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true)]
    pub link: Option<LinkRate>,
    /// Measures the link to the GPU again.
    #[arg(long, conflicts_with = "link")]
    pub measure_link: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// Starts the threads of the process, for one device.
    ///
    /// # Errors
    /// See [`kiln_engine::start_threads`] and of several devices.
    pub fn start_threads(&self) -> kiln_engine::Result<()> {
        self.place.check_one()?;
        self.place.start_threads()
    }

    /// On what and in which type.
    pub fn setup(&self) -> Setup {
        let setup = self.place.setup();
        let memory = MemoryOptions { budget: self.vram_budget, ..setup.memory.clone() };
        let link = match self.link {
            Some(rate) => LinkChoice::Given(rate),
            None if self.measure_link => LinkChoice::Measure,
            None => LinkChoice::Kept,
        };
        Setup { taesd: self.taesd.clone(), memory, link, cache_dir: cache_folder(), ..setup }
    }

    /// Width and height.
    pub fn size(&self) -> [Option<usize>; 2] {
        [self.width, self.height]
    }

    /// Images at once, where a number says so.
    pub fn batch(&self) -> usize {
        self.batch_size.number().unwrap_or(1)
    }
}

/// A factor of both sides.
fn parse_scale(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|scale| (1.0..=16.0).contains(scale))
        .ok_or_else(|| "expected a number from 1 to 16".into())
}

/// `kiln memory`.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Replays traces under other allocation rules, and shows driver calls and peaks.
    Replay {
        /// Files that --memory-trace wrote.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Plots memory over time, by stage and category.
    Plot {
        /// A file that --memory-trace wrote.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The plot, an .svg file. Replaced if it exists.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::help::command;
    use kiln_bench::BenchStage;
    use kiln_engine::{SamplerKind, SigmaSchedule};

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_help_names_every_sampler_and_schedule() {
        let help = command().find_subcommand_mut("txt2img").unwrap().render_long_help().to_string();
        let names = SamplerKind::ALL.iter().map(|sampler| sampler.id());
        for name in names.chain(SigmaSchedule::ALL.iter().map(|schedule| schedule.id())) {
            assert!(help.contains(name), "{name} is not in the help");
        }
    }

    #[test]
    fn a_model_is_no_preset_of_plan() {
        let error = Args::try_parse_from(["kiln", "plan", "me/x"]).unwrap_err().to_string();
        assert!(error.contains("for a model of your own: kiln plan --model me/x"), "{error}");
        assert!(Args::try_parse_from(["kiln", "plan", "sdxl-1024"]).is_ok());
    }

    #[test]
    fn the_help_names_every_preset_and_stage() {
        let help = command().find_subcommand_mut("bench").unwrap().render_long_help().to_string();
        let names = Preset::ALL.iter().map(|preset| preset.id());
        for name in names.chain(BenchStage::ALL.iter().map(|stage| stage.id())) {
            assert!(help.contains(name), "{name} is not in the help");
        }
    }

    #[test]
    fn inspect_needs_a_path() {
        assert!(Args::try_parse_from(["kiln", "inspect"]).is_err());
        assert!(Args::try_parse_from(["kiln", "inspect", "models/emoji", "--dtype", "f16", "--json"]).is_ok());
    }
}
