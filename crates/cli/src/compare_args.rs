//! The arguments of `kiln compare`.

use std::path::PathBuf;

use clap::Args;
use kiln_compare::{Bounds, CompareOptions, PairBy};

use crate::values::{named, parse_count, parse_number};

/// `kiln compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// An image (PNG, JPEG, WebP, BMP, TIFF or GIF), or a folder of images.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The other image, or the other folder. For --fid also an .npz file with mu and sigma, the statistics of a folder.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// How the images of two folders are paired: by name, or by settings, the prompt, seed and size that the images have. Default: name;
    /// with --fid no pairs, unless --lpips, --sheet or a bound of pairs needs them.
    #[arg(long, value_name = "KEY", hide_possible_values = true, value_parser = named::<PairBy>(&["name", "settings"]))]
    pair: Option<PairBy>,
    /// Computes LPIPS with the networks in a safetensors file: the state dict of lpips.LPIPS, with AlexNet or VGG16. docs/compare.md
    /// shows how to make it.
    #[arg(long, value_name = "FILE")]
    lpips: Option<PathBuf>,
    /// Computes FID, the distance of both folders as sets, with the Inception network in a safetensors file: the state dict of
    /// pytorch-fid. docs/compare.md shows how to make it.
    #[arg(long, value_name = "FILE")]
    fid: Option<PathBuf>,
    /// Computes the CLIP score of each image with the prompt in its settings, with --fid and without pairs for those of A. A folder with transformers' CLIPModel, such as
    /// clip-vit-base-patch16.
    #[arg(long, value_name = "DIR")]
    clip: Option<PathBuf>,
    /// The least peak signal-to-noise ratio of each pair in dB; inf for equal images alone.
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = parse_number)]
    min_psnr: Option<f64>,
    /// The least structural similarity of each pair; 1 is that of equal images.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    min_ssim: Option<f64>,
    /// The largest LPIPS of each pair; 0 is that of equal images.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    max_lpips: Option<f64>,
    /// The largest FID of both folders.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    max_fid: Option<f64>,
    /// Writes the images of each pair and eight times their difference into a .png file, which is replaced if it exists.
    #[arg(long, value_name = "FILE")]
    sheet: Option<PathBuf>,
    /// Threads of the CPU, at most four for each CPU. Default: one for each core that the process may use.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    pub threads: Option<usize>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

impl CompareArgs {
    /// The options of the comparison.
    pub fn options(&self) -> CompareOptions {
        let Self { min_psnr, min_ssim, max_lpips, max_fid, .. } = *self;
        CompareOptions {
            a: self.a.clone(),
            b: self.b.clone(),
            pair_by: self.pair,
            lpips: self.lpips.clone(),
            clip: self.clip.clone(),
            fid: self.fid.clone(),
            bounds: Bounds { min_psnr, min_ssim, max_lpips, max_fid },
            sheet: self.sheet.clone(),
        }
    }
}
