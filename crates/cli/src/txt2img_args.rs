//! The flags of `kiln txt2img`.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{BatchSize, ControlUse, IpAdapterUse, LoraName, LoraUse, Request};

use crate::option_args::{CommonArgs, HiresArgs};
use crate::preview::PreviewTo;
use crate::preview_args::PreviewArgs;
use crate::run_args::RunArgs;
use crate::values::parse_positive;

/// `kiln txt2img`.
#[derive(Debug, Args)]
pub struct Txt2img {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub hires: HiresArgs,
}

/// The flags of all commands that make images of a prompt.
#[derive(Debug, Args)]
pub struct Common {
    /// The prompt.
    #[arg(value_name = "PROMPT", conflicts_with = "prompt_flag",
          required_unless_present_any = ["prompt_flag", "like"])]
    prompt: Option<String>,
    /// The prompt (the same as PROMPT).
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", allow_hyphen_values = true)]
    prompt_flag: Option<String>,
    /// Uses the settings stored in an image where no flag is given: those of Kiln, AUTOMATIC1111, ComfyUI (plain graphs),
    /// SwarmUI, Fooocus, InvokeAI or NovelAI, in PNG, JPEG or WebP.
    #[arg(long, value_name = "IMAGE")]
    pub like: Option<PathBuf>,
    /// Adds a LoRA file to the weights: FILE, FILE:0.8, or FILE:0.8:0.5 for text encoders and denoiser. Can be repeated.
    #[arg(long = "lora", value_name = "FILE[:X]")]
    pub loras: Vec<LoraUse>,
    /// Guides the images by a control network: net=FILE|DIR|hf:NAME,image=FILE[,weight=1][,start=0][,end=1]
    /// [,mode=balanced|prompt|control][,guess=true][,resize=stretch|crop|fill][,preprocess=NAME][,type=NAME]
    /// [,passes=both|first|second]. Can be repeated.
    #[arg(long = "control", value_name = "net=FILE,..")]
    pub controls: Vec<ControlUse>,
    /// Adds an image as a prompt: model=FILE|hf:NAME/FILE,image=FILE[,weight=1][,start=0][,end=1][,encoder=DIR|FILE]
    /// [,mask=FILE][,blocks=style|layout|NAME:X+..][,embeds=FILE][,shortcut=true]. Can be repeated.
    #[arg(long = "ip-adapter", value_name = "model=FILE,..")]
    pub ip_adapters: Vec<IpAdapterUse>,
    /// Adds a reference image: FLUX.1 Kontext, FLUX.2 klein and Qwen-Image-Edit edit it by the prompt, FLUX.1 Depth and Canny take it as
    /// the control image. Can be repeated.
    #[arg(short = 'r', long = "reference", visible_alias = "ref-image", value_name = "IMAGE")]
    pub references: Vec<PathBuf>,

    /// Number of images in a batch, which are generated at once; auto selects the fastest number. Default: 1.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub batch_size: Option<BatchSize>,

    /// The image's file, a pattern with {index} and {seed}, or a folder. Default: kiln-{index}-{seed}.png.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Replaces existing files. {index} in a name then begins at 1 instead of after the existing files.
    #[arg(long)]
    pub overwrite: bool,
    /// Also writes the latents: a safetensors file with `latents` (n, 4, h, w), f32. Replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub latents_out: Option<PathBuf>,
    /// Shows what the images are about to become: FILE.png, replaced at each preview, with {index} and {step} in its name or without;
    /// or terminal, which shows them by the protocol of kitty, iTerm2 or sixel where the terminal is known to have one, else in
    /// colored characters; or kitty, iterm2, sixel, blocks.
    #[arg(long, value_name = "FILE|terminal")]
    pub preview: Option<PreviewTo>,
    /// Steps between previews. There are five a second at most. Default: 1.
    #[arg(long, value_name = "N", requires = "preview", allow_negative_numbers = true, value_parser = parse_positive)]
    pub preview_every: Option<usize>,
    #[command(flatten)]
    pub previews: PreviewArgs,
    /// Writes a trace of the second step by operator, for ui.perfetto.dev. A .json file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Writes every allocation of the run, for kiln memory. A .jsonl file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub memory_trace: Option<PathBuf>,

    #[command(flatten)]
    options: CommonArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

impl Common {
    /// Whether flags name a sampler, and noise levels.
    pub fn names(&self) -> (bool, bool) {
        (self.options.has("sampler"), self.options.has("scheduler") || self.options.has("sigmas"))
    }

    /// The request, as every other front end makes it.
    pub fn request(&self) -> Request {
        self.request_over(Request::default())
    }

    /// The request that is `base` where no flag says anything.
    pub fn request_over(&self, base: Request) -> Request {
        let keeps_comments = base.keep_comments;
        let mut request = self.options.apply(base);
        let is_new_prompt = self.prompt.is_some() || self.prompt_flag.is_some();
        if let Some(prompt) = self.prompt.as_ref().or(self.prompt_flag.as_ref()) {
            request.prompt = prompt.clone();
            request.literal_prompt = false;
            request.hires_prompt = None; // it belongs to the prompt that is replaced
            // What another prompt's tags named goes with it.
            request.loras.retain(|lora| matches!(lora.lora, LoraName::File(_)));
        }
        // A new text may have comments. A text of an image has none: a `#` that is left in it is text.
        let texts = [Some(&request.prompt), request.negative_prompt.as_ref()];
        let is_new = [is_new_prompt, self.options.has("negative_prompt")];
        let kept = texts.into_iter().zip(is_new).any(|(text, new)| !new && text.is_some_and(|text| text.contains('#')));
        let is_replaced = is_new.contains(&true) && !kept;
        request.keep_comments = self.options.has("keep_comments") || (keeps_comments && !is_replaced);
        if !self.loras.is_empty() {
            request.loras = self.loras.clone();
        }
        if !self.controls.is_empty() {
            request.controls = self.controls.clone();
        }
        if !self.ip_adapters.is_empty() {
            request.ip_adapters = self.ip_adapters.clone();
        }
        if !self.references.is_empty() {
            request.references = self.references.clone();
        }
        request.batch_size = self.batch_size.and_then(BatchSize::number).or(request.batch_size);
        request
    }
}
