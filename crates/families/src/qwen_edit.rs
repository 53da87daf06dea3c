//! Qwen-Image-Edit: Qwen-Image whose language model and transformer see images too.

use std::sync::Arc;

use kiln_network::text::EncoderConfig;
use kiln_qwen::QwenConfig;

use crate::control::{ReferenceSizes, References};

/// Pixels of an image in the size in which the transformer sees it.
const PIXELS: usize = 1024 * 1024;
/// Pixels of an image in the size in which the language model of later models sees it.
const TEXT_PIXELS: usize = 384 * 384;

/// The classes of pipelines in diffusers.
pub(crate) const CLASSES: [&str; 2] = ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"];
/// Parts of the names of models for several images.
const PLUS_NAMES: [&str; 3] = ["2509", "2511", "plus"];

/// The kind of an editing model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// For one image: the model of August 2025.
    One,
    /// For several images, which the text numbers: the models of September and November 2025 (2509, 2511).
    Several,
}

impl Edit {
    /// The kind of models of a class in diffusers; `None` for other classes.
    pub(crate) fn of_class(class: &str) -> Option<Self> {
        CLASSES.iter().zip([Self::One, Self::Several]).find(|(known, _)| **known == class).map(|(_, kind)| kind)
    }

    /// The class of a model whose file has this name. The tensors of editing models have the names and shapes of Qwen-Image's.
    pub(crate) fn class_of_name(name: &str) -> Option<&'static str> {
        let name = name.to_ascii_lowercase();
        let is_plus = PLUS_NAMES.iter().any(|part| name.contains(part));
        name.contains("edit").then_some(CLASSES[usize::from(is_plus)])
    }

    /// How such models take reference images (diffusers' `QwenImageEditPipeline` and `QwenImageEditPlusPipeline`).
    pub(crate) fn references(self) -> References {
        let sizes = ReferenceSizes::Area(PIXELS);
        match self {
            Self::One => References { sizes, text: Some(sizes), most: 1 },
            Self::Several => References { sizes, text: Some(ReferenceSizes::Area(TEXT_PIXELS)), most: usize::MAX },
        }
    }

    /// The text before a prompt with so many images.
    pub(crate) fn frame(self, images: usize) -> String {
        const IMAGE: &str = "<|vision_start|><|image_pad|><|vision_end|>";
        match self {
            Self::One => IMAGE.repeat(images),
            Self::Several => (1..=images).map(|number| format!("Picture {number}: {IMAGE}")).collect(),
        }
    }
}

/// The language model with its vision tower.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EditEncoder {
    /// The language model.
    pub(crate) config: QwenConfig,
    /// The kind of model that it belongs to.
    pub(crate) kind: Edit,
}

impl EditEncoder {
    /// The configuration of a text encoder in a model of the class `class`, for which other models have `config`.
    pub(crate) fn of_class(class: &str, config: Arc<dyn EncoderConfig>) -> Arc<dyn EncoderConfig> {
        match (Edit::of_class(class), config.own::<QwenConfig>()) {
            (Some(kind), Some(own)) => Arc::new(Self { config: own.clone(), kind }),
            _ => config,
        }
    }
}

impl EncoderConfig for EditEncoder {
    fn width(&self) -> usize {
        self.config.width()
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_tell_the_class() {
        let class = |name| Edit::class_of_name(name).and_then(Edit::of_class);
        assert_eq!(class("Qwen_Image_Edit-Q4_K_M"), Some(Edit::One));
        for name in ["qwen_image_edit_2509_fp8_e4m3fn", "Qwen-Image-Edit-2511", "qwen-image-edit-plus"] {
            assert_eq!(class(name), Some(Edit::Several), "{name}");
        }
        assert_eq!(class("qwen-image-2509"), None);
    }

    #[test]
    fn images_are_numbered_if_there_may_be_several() {
        assert_eq!(Edit::One.frame(1), "<|vision_start|><|image_pad|><|vision_end|>");
        let [image, two] = [Edit::One.frame(1), Edit::Several.frame(2)];
        let numbered: Vec<&str> = two.split_inclusive(&image).collect();
        assert_eq!(numbered.len(), 2);
        for (i, part) in numbered.iter().enumerate() {
            assert!(part.ends_with(&format!(" {}: {image}", i + 1)), "{part}");
        }
        assert_eq!((Edit::One.frame(0), Edit::Several.frame(0)), (String::new(), String::new()));
    }
}
