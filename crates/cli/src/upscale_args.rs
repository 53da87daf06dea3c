//! The arguments of `kiln upscale`.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{
    ByteSize, DTypeChoice, DeviceChoice, HubOptions, ImageSource, MemoryOptions, Setup, TileRows, UpscaleOptions,
};

use crate::values::{parse_count, parse_number};

/// `kiln upscale`.
#[derive(Debug, Args)]
pub struct UpscaleArgs {
    /// Images: PNG, JPEG, WebP, BMP, TIFF or GIF. - is the standard input.
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    /// A file of ESRGAN, Real-ESRGAN or SRVGGNetCompact (.safetensors or .pth), its name in the folder of upscalers, or
    /// hf:OWNER/NAME/FILE on the Hugging Face Hub. Without a file: lanczos, bicubic, bilinear or nearest.
    #[arg(short, long, value_name = "FILE", default_value = "lanczos")]
    pub upscaler: PathBuf,
    /// The folder with upscalers that are named without a path.
    #[arg(long, value_name = "DIR", env = "KILN_UPSCALERS")]
    upscaler_dir: Option<PathBuf>,
    /// How much larger the result is, 0.05 to 64. The network runs up to three times until its result is large enough, which
    /// is then resized by Lanczos. Default: the network's own scale; 2 without a network.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    scale: Option<f64>,
    /// Rows of the image that the network computes at once: auto, or a number. It changes memory and time, and on the CPU no
    /// bit of the result; there are no seams.
    #[arg(long, value_name = "ROWS", default_value = "auto", allow_negative_numbers = true)]
    tile: TileRows,
    /// A folder that exists, or a name that ends in .png, in which {stem} becomes the image's name without its ending,
    /// {scale} the scale and {index} the image's number. In a folder the name is {stem}-x{scale}.png. Default: the current
    /// folder.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replaces files that exist.
    #[arg(long)]
    overwrite: bool,
    /// Never uses the network: hf: names are looked up in the cache.
    #[arg(long)]
    offline: bool,
    /// Where the network runs: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// The type of weights and activations: auto, f32, bf16 or f16.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    dtype: DTypeChoice,
    /// Threads of the CPU, at most four for each CPU. Default: one for each core that the process may use.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub threads: Option<usize>,
    /// The most memory that weights and images may take, of the GPU, or of the CPU where the network runs there: 6G, 512M.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    vram_budget: Option<ByteSize>,
}

impl UpscaleArgs {
    /// How files come from the Hub.
    pub fn hub(&self) -> HubOptions {
        HubOptions { offline: self.offline, dtype: self.dtype }
    }

    /// The engine's options.
    pub fn options(&self) -> UpscaleOptions {
        let memory = MemoryOptions { budget: self.vram_budget, ..MemoryOptions::default() };
        let Self { device, dtype, .. } = *self;
        UpscaleOptions {
            images: self.images.iter().cloned().map(ImageSource::from).collect(),
            upscaler: self.upscaler.clone().into(),
            folder: self.upscaler_dir.clone(),
            scale: self.scale,
            tile: self.tile,
            output: self.output.clone(),
            overwrite: self.overwrite,
            setup: Setup { device, dtype, memory, ..Setup::default() },
        }
    }
}
