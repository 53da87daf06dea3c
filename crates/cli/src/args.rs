//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use kiln_engine::{
    BatchSize, BenchPlan, BenchStage, ByteSize, DTypeChoice, HubReference, LoraName, LoraUse, Preset, Request, Setup,
    StreamPlan, WeightType,
};

use crate::batch_args::BatchArgs;
use crate::place_args::PlaceArgs;
use crate::prompt_args::PromptArgs;
use crate::run_args::RunArgs;
use crate::sampling_args::SamplingArgs;
use crate::tell::LogFormat;

/// Stable Diffusion, natively.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, max_term_width = 110)]
pub struct Args {
    /// Says what is done; twice, in every detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// How lines on the error stream are written: text, or json, an object a line.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What Kiln can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes pictures from a prompt.
    Txt2img(Box<Txt2img>),
    /// Makes the pictures of a file of jobs; what was made before stays.
    Batch(Box<BatchArgs>),
    /// Fetches a model from the Hugging Face Hub, or brings it up to date.
    Pull(PullArgs),
    /// Tells what this machine has, and what Kiln would do with it.
    Devices(DevicesArgs),
    /// Tells what is in a model folder, a checkpoint file or a picture. Reads no weights.
    Inspect(InspectArgs),
    /// Writes a model in another layout: a folder, a .safetensors or a .gguf file.
    Convert(ConvertArgs),
    /// Measures the stages of a model, with random weights.
    Bench(BenchArgs),
    /// Tells how much memory a run takes in every mode, on this card or another. Reads no weights.
    Plan(PlanArgs),
    /// Plays traces of memory back under other rules, or draws them.
    Memory {
        /// What to do with them.
        #[command(subcommand)]
        command: MemoryCommand,
    },
    /// Prints completions for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the manual page.
    Man,
}

/// `kiln pull`.
#[derive(Debug, ClapArgs)]
pub struct PullArgs {
    /// The repository, perhaps with a revision (a branch, a tag or a commit) and one file.
    #[arg(value_name = "OWNER/NAME[@REVISION][/FILE]")]
    pub reference: HubReference,
    /// Files and folders of the repository. Default: what a model needs, its weights in one type.
    #[arg(value_name = "FILE")]
    pub files: Vec<String>,
    /// The type in which the model is to run: for f32 weights of full size are fetched, else those of 16 bits where
    /// there are such.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub dtype: DTypeChoice,
    /// Asks nobody: tells whether all is in the cache, and where.
    #[arg(long)]
    pub offline: bool,
}

/// `kiln devices`.
#[derive(Debug, ClapArgs)]
pub struct DevicesArgs {
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kiln inspect`.
#[derive(Debug, ClapArgs)]
pub struct InspectArgs {
    /// A model folder in the diffusers layout, a name in KILN_MODELS, a checkpoint file of any format, or a picture with
    /// settings: PNG, JPEG, WebP or AVIF.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The type for which the segments' sizes are told: f32, bf16 or f16; auto is what the processor would run.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
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
    /// For a model in one file: a folder with configurations and tokenizers in the place of those that its shapes tell.
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Replaces what is there.
    #[arg(long)]
    pub overwrite: bool,
}

/// `kiln plan`.
#[derive(Debug, ClapArgs)]
pub struct PlanArgs {
    /// A model whose configuration is part of the program: emoji, sd15-512, sdxl-1024.
    #[arg(value_name = "PRESET", conflicts_with = "model")]
    pub preset: Option<Preset>,
    /// A model folder in the diffusers layout, a checkpoint file, or a name in KILN_MODELS. Default: the model that comes
    /// with Kiln.
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// With TAESD in the place of the VAE. A safetensors file, or a folder.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    taesd: Option<PathBuf>,
    /// Width in pixels, a multiple of 8. Default: the model's.
    #[arg(short = 'W', long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    width: Option<usize>,
    /// Height in pixels, a multiple of 8. Default: the model's.
    #[arg(short = 'H', long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    height: Option<usize>,
    /// How many pictures at once; auto is as many as are fastest.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub batch_size: BatchSize,
    /// Steps of the sampler: they weigh copies that are made once against those of every step. Default: 20.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub steps: Option<usize>,
    /// The memory that may be used, such as 6G or 512M. Default: what is free.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub vram_budget: Option<ByteSize>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// On what and in which type.
    pub fn setup(&self) -> Setup {
        Setup { taesd: self.taesd.clone(), ..self.place.setup() }
    }

    /// Width and height.
    pub fn size(&self) -> [Option<usize>; 2] {
        [self.width, self.height]
    }

    /// Pictures at once, where a number says so.
    pub fn batch(&self) -> usize {
        self.batch_size.number().unwrap_or(1)
    }
}

/// `kiln memory`.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Tells what other rules for memory would make of a trace: calls of the driver, and peaks.
    Replay {
        /// Files that --memory-trace wrote.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Draws memory over time, by stage and by what it is for.
    Plot {
        /// A file that --memory-trace wrote.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The drawing, an .svg file. Replaced if it exists.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
}

/// `kiln bench`.
#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    /// What is measured: emoji, sd15-512, sdxl-1024, in any number. Default: emoji.
    #[arg(value_name = "MODEL", conflicts_with = "config")]
    models: Vec<Preset>,
    /// Another model: a folder in the diffusers layout, whose weights may be missing, or a checkpoint file.
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Size of the pictures in pixels, multiples of 8. Default: the model's.
    #[arg(long, value_name = "WxH", value_parser = parse_size)]
    size: Option<(usize, usize)>,
    /// Pictures that a step or a call makes at once.
    #[arg(long, value_name = "N", default_value = "1")]
    batch: usize,
    /// Steps of a call.
    #[arg(long, value_name = "N", default_value = "20")]
    steps: usize,
    /// The stages: step (one guided step), vae (latents to a picture), text (a text of 77 tokens), call (both prompts
    /// to PNG files in memory, once the model is loaded).
    #[arg(long, value_name = "STAGES", value_delimiter = ',', default_value = "step,vae,text")]
    stages: Vec<BenchStage>,
    /// How often a stage is measured.
    #[arg(long, value_name = "N", default_value = "5")]
    runs: usize,
    /// How often a stage runs before it is measured.
    #[arg(long, value_name = "N", default_value = "1")]
    warmup: usize,
    /// Writes JSON to a file, which is replaced if it exists; - prints it in the table's place.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes one step of each model by operator, for ui.perfetto.dev. A .json file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Streams the weights through a small ring on the device.
    #[arg(long)]
    lowvram: bool,
    /// Streams weights beyond so many MiB of them, which stay on the device.
    #[arg(long, value_name = "N")]
    resident_mib: Option<usize>,
    /// The ring's size in MiB. Default: the least that does not slow steps down.
    #[arg(long, value_name = "N", conflicts_with = "resident_mib")]
    ring_mib: Option<usize>,
    /// Writes every allocation of the run, for kiln memory. A .jsonl file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub memory_trace: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

impl BenchArgs {
    /// The presets to measure, where no folder is given.
    pub fn presets(&self) -> &[Preset] {
        if self.models.is_empty() { &[Preset::Emoji] } else { &self.models }
    }

    /// What is measured of them.
    pub fn plan(&self) -> BenchPlan {
        BenchPlan {
            size: self.size,
            batch: self.batch,
            steps: self.steps,
            stages: self.stages.clone(),
            runs: self.runs,
            warmup: self.warmup,
            trace: self.trace.is_some(),
            stream: (self.lowvram || self.resident_mib.is_some() || self.ring_mib.is_some()).then(|| {
                let bytes = |mib: usize| mib.saturating_mul(1 << 20);
                StreamPlan { resident: self.resident_mib.map_or(0, bytes), ring: self.ring_mib.map(bytes) }
            }),
            setup: self.place.setup(),
        }
    }
}

/// `kiln txt2img`.
#[derive(Debug, ClapArgs)]
pub struct Txt2img {
    /// What the picture shows.
    #[arg(value_name = "PROMPT", conflicts_with = "prompt_flag",
          required_unless_present_any = ["prompt_flag", "like"])]
    prompt: Option<String>,
    /// What the picture shows (the same as PROMPT).
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", allow_hyphen_values = true)]
    prompt_flag: Option<String>,
    /// What it does not show. For SDXL, none at all is not the same as an empty one.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    negative_prompt: Option<String>,
    /// Takes everything that no flag says from a picture's settings: Kiln's or AUTOMATIC1111's, in PNG, JPEG or WebP.
    #[arg(long, value_name = "IMAGE")]
    pub like: Option<PathBuf>,
    #[command(flatten)]
    prompts: PromptArgs,

    /// Adds a LoRA file to the weights: FILE, FILE:0.8, or FILE:0.8:0.5 for text encoders and denoiser. In any number.
    #[arg(long = "lora", value_name = "FILE[:X]")]
    pub loras: Vec<LoraUse>,

    /// Width in pixels, a multiple of 8. Default: the model's.
    #[arg(short = 'W', long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    width: Option<usize>,
    /// Height in pixels, a multiple of 8. Default: the model's.
    #[arg(short = 'H', long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    height: Option<usize>,
    /// Steps of the sampler. Default: the model's, usually 20.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    steps: Option<usize>,
    /// How strongly the prompt steers; 1 is not at all, and twice as fast. Default: the model's; 7, for SDXL 5.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    cfg_scale: Option<f64>,
    /// The first picture's seed; the next ones count on. Negative, and the default: a random one, which is told.
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, value_parser = parse_seed)]
    seed: Option<Seed>,
    /// How many batches.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    batch_count: Option<usize>,
    /// How many pictures at once; auto is as many as are fastest.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub batch_size: Option<BatchSize>,

    /// The picture's file, a pattern with {index} and {seed}, or a folder. Default: kiln-{index}-{seed}.png.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Replaces files that are there.
    #[arg(long)]
    pub overwrite: bool,
    /// Writes the latents too: a safetensors file with `latents` (n, 4, h, w), f32. Replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub latents_out: Option<PathBuf>,
    /// Writes the second step by operator, for ui.perfetto.dev. A .json file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Writes every allocation of the run, for kiln memory. A .jsonl file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub memory_trace: Option<PathBuf>,

    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

impl Txt2img {
    /// The request, as every other front end makes it.
    pub fn request(&self) -> Request {
        self.request_over(Request::default())
    }

    /// The request that is `base` where no flag says anything.
    pub fn request_over(&self, base: Request) -> Request {
        let mut request = self.prompts.apply(base);
        if let Some(prompt) = self.prompt.as_ref().or(self.prompt_flag.as_ref()) {
            request.prompt = prompt.clone();
            request.literal_prompt = false;
            // What another prompt's tags named goes with it.
            request.loras.retain(|lora| matches!(lora.lora, LoraName::File(_)));
        }
        if let Some(negative_prompt) = &self.negative_prompt {
            request.negative_prompt = Some(negative_prompt.clone());
            request.literal_negative_prompt = false;
        }
        if let Some(Seed(seed)) = self.seed {
            request.seed = seed;
        }
        if !self.loras.is_empty() {
            request.loras = self.loras.clone();
        }
        if self.steps.is_some() {
            request.sigmas = None; // those of a picture, which say how many steps there are
        }
        self.sampling.apply(&mut request);
        Request {
            width: self.width.or(request.width),
            height: self.height.or(request.height),
            steps: self.steps.or(request.steps),
            cfg_scale: self.cfg_scale.or(request.cfg_scale),
            batch_count: self.batch_count.or(request.batch_count),
            batch_size: self.batch_size.and_then(BatchSize::number).or(request.batch_size),
            ..request
        }
    }
}

/// A number of things; its bounds are the request's to check, which knows the model.
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, not negative".into())
}

pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "expected a number".into())
}

/// A seed, or none for a random one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

pub(crate) fn parse_seed(text: &str) -> Result<Seed, String> {
    match text.parse::<i128>() {
        Ok(seed) if seed < 0 => Ok(Seed(None)),
        Ok(seed) if seed <= i128::from(u64::MAX) => Ok(Seed(Some(seed as u64))),
        _ => Err(format!("expected a number from 0 to {}, or -1 for a random one", u64::MAX)),
    }
}

pub(crate) fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let size = text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    size.ok_or_else(|| "expected width and height in pixels, as in 512x768".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use kiln_engine::{SamplerKind, SigmaSchedule};

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_sampler_and_schedule() {
        let help = Args::command().find_subcommand_mut("txt2img").unwrap().render_long_help().to_string();
        let names = SamplerKind::ALL.iter().map(|sampler| sampler.id());
        for name in names.chain(SigmaSchedule::ALL.iter().map(|schedule| schedule.id())) {
            assert!(help.contains(name), "{name} is not in the help");
        }
    }

    #[test]
    fn seeds_are_whole_numbers() {
        assert_eq!(parse_seed("42"), Ok(Seed(Some(42))));
        assert_eq!(parse_seed("-1"), Ok(Seed(None)));
        assert_eq!(parse_seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        assert!(parse_seed("18446744073709551616").is_err());
        assert!(parse_seed("1.5").is_err());
    }

    /// The arguments of `kiln bench`, or what is wrong with them.
    fn bench(line: &str) -> Result<BenchArgs, String> {
        let words = ["kiln", "bench"].into_iter().chain(line.split_whitespace());
        match Args::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Bench(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bench_measures_everything_of_the_emoji_model_when_nothing_is_said() {
        let args = bench("").unwrap();
        assert_eq!(args.presets(), [Preset::Emoji]);
        assert_eq!(args.plan(), BenchPlan::default());
    }

    #[test]
    fn bench_takes_presets_stages_and_a_size() {
        let args = bench("sd15-512 sdxl-1024 --stages vae,text --size 512x768 --batch 4 --steps 30 --runs 3 --json -")
            .unwrap();
        assert_eq!(args.presets(), [Preset::Sd15, Preset::Sdxl]);
        let plan = args.plan();
        assert_eq!(plan.stages, [BenchStage::Vae, BenchStage::Text]);
        assert_eq!((plan.size, plan.batch, plan.steps, plan.runs), (Some((512, 768)), 4, 30, 3));
    }

    #[test]
    fn bench_says_what_it_expected() {
        for (line, expected) in [
            ("sd14", "expected emoji, sd15-512, sdxl-1024"),
            ("--stages step,unet", "expected step, vae, text, call"),
            ("--size 512", "as in 512x768"),
            ("--runs few", "invalid digit"),
            ("emoji --config models/emoji", "cannot be used with"),
            ("--dtype int8", "expected auto, f32, bf16 or f16"),
        ] {
            let message = bench(line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }

    #[test]
    fn the_help_names_every_preset_and_stage() {
        let help = Args::command().find_subcommand_mut("bench").unwrap().render_long_help().to_string();
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
