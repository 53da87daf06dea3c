//! The flags that say how previews are made.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{PreviewMethod, PreviewOptions, Setup};

use crate::values::parse_as;

/// How previews are made.
#[derive(Debug, Clone, Args)]
pub struct PreviewArgs {
    /// How previews are made: auto (by TAESD if --preview-taesd fits the model, else by factors), latent2rgb (by factors, one pixel
    /// for each latent), taesd, or none.
    #[arg(long, value_name = "METHOD", default_value = "auto", value_parser = parse_as::<PreviewMethod>)]
    preview_method: PreviewMethod,
    /// TAESD's decoder for previews, which have up to 512 pixels a side then: a safetensors file, or a folder. Default: with
    /// --preview-method taesd the one of --taesd.
    #[arg(long, value_name = "FILE")]
    preview_taesd: Option<PathBuf>,
}

impl PreviewArgs {
    /// `setup` with these previews.
    pub fn apply(&self, setup: Setup) -> Setup {
        let previews = PreviewOptions { method: self.preview_method, taesd: self.preview_taesd.clone() };
        Setup { previews, ..setup }
    }
}
