//! Texts with images that the text encoder sees.

use super::*;

const OPTIONAL_VAE: Input = takes("vae", Kind::Link("VAE"));

/// These classes.
pub(super) static CLASSES: &[Class] = &[
    class(
        "TextEncodeQwenImageEdit",
        "TextEncodeQwenImageEdit",
        "advanced/conditioning",
        &[CLIP, prompt("prompt"), OPTIONAL_VAE, takes("image", Kind::Link("IMAGE"))],
        OF_TEXT,
    ),
    class(
        "TextEncodeQwenImageEditPlus",
        "TextEncodeQwenImageEditPlus",
        "advanced/conditioning",
        &[
            CLIP,
            prompt("prompt"),
            OPTIONAL_VAE,
            takes("image1", Kind::Link("IMAGE")),
            takes("image2", Kind::Link("IMAGE")),
            takes("image3", Kind::Link("IMAGE")),
        ],
        OF_TEXT,
    ),
];
