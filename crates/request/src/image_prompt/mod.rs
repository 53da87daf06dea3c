//! Image prompts of a request (IP-Adapter): what it says of them, and their images.

mod blocks;
mod mask;
mod spec;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_media::{AlphaRule, Filter, Gray8Image, Rgb8Image};
use serde::Serialize;

pub use blocks::{PromptBlock, PromptBlocks};
pub use mask::downsampled_mask;
pub use spec::IpAdapterUse;

use crate::error::{Error, Result};
use crate::input::read_prompt_image;
use crate::options::Request;
use crate::settings::InputFile;

/// An IP-Adapter of a job, with its image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IpAdapter {
    /// The fields of the request without the image: images of one batch have their own.
    pub using: IpAdapterUse,
    /// Red, green and blue, in any size; `None` where the features come from a file.
    #[serde(skip)]
    pub image: Option<Arc<Rgb8Image>>,
    /// The mask in the size of the results: white pixels see the prompt. `None` is everywhere.
    #[serde(skip)]
    pub mask: Option<Arc<Gray8Image>>,
    /// The files of image and mask without their folders, where the request names them.
    #[serde(skip)]
    pub files: Vec<InputFile>,
}

impl IpAdapter {
    /// An adapter for `image`.
    pub fn new(using: IpAdapterUse, image: Rgb8Image) -> Self {
        let using = IpAdapterUse { image: None, mask: None, ..using };
        Self { using, image: Some(Arc::new(image)), mask: None, files: Vec::new() }
    }

    /// The request that makes the prompt again, with files named without their folders.
    pub(crate) fn request(&self) -> IpAdapterUse {
        let name = |path: &Path| path.file_name().map_or_else(|| path.to_path_buf(), PathBuf::from);
        let named = |end: &str| self.files.iter().find(|file| file.option.ends_with(end));
        let named = |end: &str| named(end).map(|file| PathBuf::from(file.file.name.clone()));
        IpAdapterUse {
            model: name(&self.using.model),
            image: named(".image"),
            embeds: self.using.embeds.as_deref().map(name),
            encoder: self.using.encoder.as_deref().map(name),
            mask: named(".mask"),
            ..self.using.clone()
        }
    }
}

impl Request {
    /// Reads the images of the image prompts, and their masks for results of `size`, width and height.
    ///
    /// # Errors
    /// [`Error::Value`] for impossible values, and those of the files.
    pub(crate) fn prepare_image_prompts(&self, size: (usize, usize)) -> Result<Vec<IpAdapter>> {
        let one = |(i, adapter): (usize, &IpAdapterUse)| {
            if let Some((found, expected)) = adapter.problem() {
                return Err(Error::Value { name: "ip_adapters", found, expected });
            }
            let (mut image, mut mask, mut files) = (None, None, Vec::new());
            if let Some(path) = &adapter.image {
                let (read, file) = read_prompt_image(path, format!("ip_adapters[{i}].image"))?;
                image = Some(Arc::new(read.into_rgb(AlphaRule::Drop)));
                files.push(file);
            }
            if let Some(path) = &adapter.mask {
                // diffusers' `IPAdapterMaskProcessor`: resized, then gray, then black or white.
                let (read, file) = read_prompt_image(path, format!("ip_adapters[{i}].mask"))?;
                let read = read.into_rgb(AlphaRule::Drop);
                mask = Some(Arc::new(read.resize(size.0, size.1, Filter::Lanczos3)?.to_gray()));
                files.push(file);
            }
            Ok(IpAdapter { using: IpAdapterUse { image: None, ..adapter.clone() }, image, mask, files })
        };
        self.ip_adapters.iter().enumerate().map(one).collect()
    }
}
