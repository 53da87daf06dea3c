//! Images and masks.

use super::*;

/// These classes.
pub(super) static CLASSES: &[Class] = &[
    class("VAEEncode", "VAE Encode", "latent", &[PIXELS, VAE], OF_LATENT),
    class(
        "VAEEncodeForInpaint",
        "VAE Encode (for Inpainting)",
        "latent/inpaint",
        &[PIXELS, VAE, MASK, whole("grow_mask_by", 6, 0, 64)],
        OF_LATENT,
    ),
    class("SetLatentNoiseMask", "Set Latent Noise Mask", "latent/inpaint", &[SAMPLES, MASK], OF_LATENT),
    class("VAEDecode", "VAE Decode", "latent", &[SAMPLES, VAE], OF_IMAGE),
    class(
        "VAEDecodeTiled",
        "VAE Decode (Tiled)",
        "latent",
        &[
            SAMPLES,
            VAE,
            side("tile_size", 512, 64, 32),
            takes("overlap", Kind::Whole { default: 64, min: 0, max: 4096, step: 32 }),
            takes("temporal_size", Kind::Whole { default: 64, min: 8, max: 4096, step: 4 }),
            takes("temporal_overlap", Kind::Whole { default: 8, min: 4, max: 4096, step: 4 }),
        ],
        OF_IMAGE,
    ),
    class("LoadImage", "Load Image", "image", &[list("image", List::Images)], &[("IMAGE", "IMAGE"), ("MASK", "MASK")]),
    class(
        "LoadImageMask",
        "Load Image (as Mask)",
        "mask",
        &[list("image", List::Images), choice("channel", &["alpha", "red", "green", "blue"])],
        OF_MASK,
    ),
    class("InvertMask", "InvertMask", "mask", &[MASK], OF_MASK),
    class(
        "ImageScale",
        "Upscale Image",
        "image/upscaling",
        &[IMAGE, IMAGE_FILTERS, side("width", 512, 0, 1), side("height", 512, 0, 1), CROP],
        OF_IMAGE,
    ),
    class(
        "ImageScaleBy",
        "Upscale Image By",
        "image/upscaling",
        &[IMAGE, IMAGE_FILTERS, number("scale_by", 1.0, 0.01, 8.0, 0.01)],
        OF_IMAGE,
    ),
    class(
        "ImageScaleToTotalPixels",
        "Scale Image to Total Pixels",
        "image/upscaling",
        &[
            IMAGE,
            IMAGE_FILTERS,
            number("megapixels", 1.0, 0.01, 16.0, 0.01),
            takes("resolution_steps", Kind::Whole { default: 1, min: 1, max: 256, step: 1 }),
        ],
        OF_IMAGE,
    ),
    class("FluxKontextImageScale", "FluxKontextImageScale", "advanced/conditioning/flux", &[IMAGE], OF_IMAGE),
    class(
        "ImageUpscaleWithModel",
        "Upscale Image (using Model)",
        "image/upscaling",
        &[link("upscale_model", "UPSCALE_MODEL"), IMAGE],
        OF_IMAGE,
    ),
    saver(
        "SaveImage",
        "Save Image",
        &[link("images", "IMAGE"), needs("filename_prefix", Kind::Text { default: "ComfyUI", multiline: false })],
    ),
    saver("PreviewImage", "Preview Image", &[link("images", "IMAGE")]),
    class("PrimitiveInt", "Int", "utils/primitive", &[whole("value", 0, i64::MIN, SEED)], &[("INT", "INT")]),
    class(
        "PrimitiveFloat",
        "Float",
        "utils/primitive",
        &[number("value", 0.0, f64::MIN, f64::MAX, 0.1)],
        &[("FLOAT", "FLOAT")],
    ),
    class(
        "PrimitiveString",
        "String",
        "utils/primitive",
        &[needs("value", Kind::Text { default: "", multiline: false })],
        &[("STRING", "STRING")],
    ),
    class(
        "PrimitiveStringMultiline",
        "String (Multiline)",
        "utils/primitive",
        &[prompt("value")],
        &[("STRING", "STRING")],
    ),
    class(
        "PrimitiveBoolean",
        "Boolean",
        "utils/primitive",
        &[needs("value", Kind::Flag(true))],
        &[("BOOLEAN", "BOOLEAN")],
    ),
];
