//! The values of the options of input images that are names.

use serde::{Deserialize, Serialize};

use crate::init::InitLatents;

/// Declares an enumeration whose variants have an id, as users type it, and a label, as an infotext has it.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])+
        $name:ident { $($(#[$meta:meta])+ $variant:ident = $id:literal, $label:literal;)+ }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$meta])+ #[serde(rename = $id)] $variant,)+
        }

        named!($name { $($variant = $id, $label;)+ });
    };
}

/// Names of variants.
macro_rules! named {
    ($name:ident { $($variant:ident = $id:literal, $label:literal;)+ }) => {
        impl $name {
            /// All ids, as users type them.
            pub(crate) const IDS: &[&str] = &[$($id),+];

            /// The name that users type.
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$variant => $id,)+
                }
            }

            /// The name in an infotext.
            pub(crate) fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }

            /// The value with this id or label.
            pub fn find(text: &str) -> Option<Self> {
                match text.trim().to_ascii_lowercase() {
                    $(text if text == $id || text.eq_ignore_ascii_case($label) => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {choice, named};

choice! {
    /// The program whose rules an image-to-image run follows: step counts, starting noise, and what a mask does.
    Rule {
        /// diffusers.
        #[default]
        Diffusers = "diffusers", "diffusers";
        /// AUTOMATIC1111's web UI.
        Automatic1111 = "a1111", "a1111";
        /// ComfyUI.
        Comfy = "comfy", "comfy";
    }
}

choice! {
    /// The unit in which AUTOMATIC1111's rule finds the step at which the refiner takes over.
    SwitchBy {
        /// Evaluations of the denoiser: AUTOMATIC1111 up to 1.8, and later with its option for it.
        #[default]
        Steps = "steps", "steps";
        /// Timesteps of the noise level: AUTOMATIC1111 from 1.9 on.
        Timesteps = "timesteps", "timesteps";
    }
}

choice! {
    /// How an input image gets the size of the job's images.
    ResizeChoice {
        /// The whole image, its shape changed.
        #[default]
        Stretch = "stretch", "Just resize";
        /// The middle of the image, its shape kept.
        Crop = "crop", "Crop and resize";
        /// The whole image, its shape kept, with bars of the colors of its edge.
        Fill = "fill", "Resize and fill";
    }
}

choice! {
    /// The content of the masked part of the input before noise is added.
    MaskContent {
        /// The input itself.
        #[default]
        Original = "original", "original";
        /// Colors from around the mask.
        Fill = "fill", "fill";
        /// Noise of the image's seed in the latents.
        Noise = "noise", "latent noise";
        /// Latents of 0.
        Nothing = "nothing", "latent nothing";
    }
}

choice! {
    /// Which part of the input the network sees.
    InpaintArea {
        /// All of it.
        #[default]
        Whole = "whole", "Whole picture";
        /// The mask's bounding box with padding, enlarged to the size of the job's images.
        Masked = "masked", "Only masked";
    }
}

named!(InitLatents {
    Sample = "sample", "sample";
    Mean = "mean", "mean";
});
