//! The flags of `kiln img2img`.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::Request;

use crate::option_args::InputArgs;
use crate::txt2img_args::Common;

/// `kiln img2img`.
#[derive(Debug, Args)]
pub struct Img2img {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// The input images, and what is done with them.
#[derive(Debug, Args)]
pub struct Inputs {
    /// The image to begin with; - is the standard input. Can be repeated: one job for each. Without a size, the results have
    /// its size, rounded down.
    #[arg(short = 'i', long, visible_alias = "init-img", value_name = "IMAGE", required_unless_present = "like")]
    init: Vec<PathBuf>,
    #[command(flatten)]
    options: InputArgs,
}

impl Inputs {
    /// The requests: one for each input image, or one alone where a stored request names its own.
    pub fn requests(&self, request: Request) -> Vec<Request> {
        let request = self.options.apply(request);
        match &self.init[..] {
            [] => vec![request],
            all => all.iter().map(|path| Request { init: Some(path.clone()), ..request.clone() }).collect(),
        }
    }
}
