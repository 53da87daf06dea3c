//! The flags of `kiln txt2img`.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{BatchSize, LoraName, LoraUse, Request};

use crate::prompt_args::PromptArgs;
use crate::run_args::RunArgs;
use crate::sampling_args::SamplingArgs;
use crate::values::{Seed, parse_count, parse_number, parse_seed};

/// `kiln txt2img`.
#[derive(Debug, Args)]
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
    /// Takes everything that no flag says from a picture's settings: those of Kiln, AUTOMATIC1111, ComfyUI (plain
    /// graphs), SwarmUI, Fooocus, InvokeAI or NovelAI, in PNG, JPEG or WebP.
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
    /// Whether flags name a sampler, and noise levels.
    pub fn names(&self) -> (bool, bool) {
        self.sampling.names()
    }

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
        // A new text may have comments, and what a picture says of its own has none: what is left of `#` there is text.
        let texts = [Some(&request.prompt), request.negative_prompt.as_ref()];
        let is_new = [self.prompt.is_some() || self.prompt_flag.is_some(), self.negative_prompt.is_some()];
        let kept = texts.into_iter().zip(is_new).any(|(text, new)| !new && text.is_some_and(|text| text.contains('#')));
        if is_new.contains(&true) && !kept {
            request.keep_comments = self.prompts.keeps_comments();
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
