//! The flags that say how prompts are read, the same for every command that has prompts.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{ChunkCut, Emphasis, Request};

use crate::values::{parse_count, parse_switch};

/// What a user may say of prompts.
#[derive(Debug, Clone, Args)]
pub struct PromptArgs {
    /// What weights such as (word:1.3) do: original (AUTOMATIC1111's, with the mean restored), no-norm, ignore, comfy,
    /// compel, or none: brackets are text. Default: original.
    #[arg(long, value_name = "NAME")]
    emphasis: Option<Emphasis>,
    /// The text encoder's layer that steers, counted from the last, which is 1. Default: 1, for SDXL 2.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    clip_skip: Option<usize>,
    /// A chunk of 75 tokens that is full ends at its last comma where that is at most N tokens back; 0: never. Default: 20.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    comma_backtrack: Option<usize>,
    /// Where a text is cut that has more tokens than a chunk: comma (see --comma-backtrack), or word, ComfyUI's way.
    /// Default: comma.
    #[arg(long, value_name = "NAME")]
    chunk_cut: Option<ChunkCut>,
    /// Whether a prompt and a negative prompt of unequal length get empty chunks up to the longer one: on, or off, which is
    /// AUTOMATIC1111's and ComfyUI's default. Default: on.
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    pad_conds: Option<bool>,
    /// Keeps what follows a # in a prompt. Without it, # begins a comment that ends with the line.
    #[arg(long)]
    keep_comments: bool,
    /// A folder of lists: __name__ in a prompt is a line of name.txt, by the picture's seed, as is one of {a|b|c}.
    #[arg(long, value_name = "DIR")]
    wildcards_dir: Option<PathBuf>,
}

impl PromptArgs {
    /// Whether `#` is text.
    pub fn keeps_comments(&self) -> bool {
        self.keep_comments
    }

    /// The request with what was said in the place of what it says.
    pub fn apply(&self, request: Request) -> Request {
        Request {
            emphasis: self.emphasis.unwrap_or(request.emphasis),
            clip_skip: self.clip_skip.or(request.clip_skip),
            comma_backtrack: self.comma_backtrack.or(request.comma_backtrack),
            chunk_cut: self.chunk_cut.unwrap_or(request.chunk_cut),
            pad_conds: self.pad_conds.or(request.pad_conds),
            keep_comments: self.keep_comments || request.keep_comments,
            wildcards_dir: self.wildcards_dir.clone().or(request.wildcards_dir),
            ..request
        }
    }
}
