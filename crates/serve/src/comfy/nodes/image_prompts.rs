//! Node classes of image prompts: those of ComfyUI_IPAdapter_plus, and the image encoder of ComfyUI.

use super::*;

const ADAPTER: Input = link("ipadapter", "IPADAPTER");
const START_AT: Input = number("start_at", 0.0, 0.0, 1.0, 0.001);
const END_AT: Input = number("end_at", 1.0, 0.0, 1.0, 0.001);

/// These classes. Names of weights and scalings that Kiln lacks are listed as there, and are refused by name.
pub(super) static CLASSES: &[Class] = &[
    class(
        "CLIPVisionLoader",
        "Load CLIP Vision",
        "loaders",
        &[list("clip_name", List::Encoders)],
        &[("CLIP_VISION", "CLIP_VISION")],
    ),
    class(
        "IPAdapterModelLoader",
        "IPAdapter Model Loader",
        "ipadapter/loaders",
        &[list("ipadapter_file", List::Adapters)],
        &[("IPADAPTER", "IPADAPTER")],
    ),
    class(
        "IPAdapterUnifiedLoader",
        "IPAdapter Unified Loader",
        "ipadapter",
        &[
            MODEL,
            choice(
                "preset",
                &[
                    "LIGHT - SD1.5 only (low strength)",
                    "STANDARD (medium strength)",
                    "VIT-G (medium strength)",
                    "PLUS (high strength)",
                    "PLUS FACE (portraits)",
                    "FULL FACE - SD1.5 only (portraits stronger)",
                ],
            ),
            takes("ipadapter", Kind::Link("IPADAPTER")),
        ],
        &[("MODEL", "model"), ("IPADAPTER", "ipadapter")],
    ),
    class(
        "IPAdapter",
        "IPAdapter",
        "ipadapter",
        &[
            MODEL,
            ADAPTER,
            IMAGE,
            number("weight", 1.0, -1.0, 3.0, 0.05),
            START_AT,
            END_AT,
            choice("weight_type", &["standard", "prompt is more important", "style transfer"]),
            takes("attn_mask", Kind::Link("MASK")),
        ],
        OF_MODEL,
    ),
    class(
        "IPAdapterAdvanced",
        "IPAdapter Advanced",
        "ipadapter",
        &[
            MODEL,
            ADAPTER,
            IMAGE,
            number("weight", 1.0, -1.0, 5.0, 0.05),
            choice(
                "weight_type",
                &[
                    "linear",
                    "ease in",
                    "ease out",
                    "ease in-out",
                    "reverse in-out",
                    "weak input",
                    "weak output",
                    "weak middle",
                    "strong middle",
                    "style transfer",
                    "composition",
                    "strong style transfer",
                    "style and composition",
                    "style transfer precise",
                    "composition precise",
                ],
            ),
            choice("combine_embeds", &["concat", "add", "subtract", "average", "norm average"]),
            START_AT,
            END_AT,
            choice("embeds_scaling", &["V only", "K+V", "K+V w/ C penalty", "K+mean(V) w/ C penalty"]),
            takes("image_negative", Kind::Link("IMAGE")),
            takes("attn_mask", Kind::Link("MASK")),
            takes("clip_vision", Kind::Link("CLIP_VISION")),
        ],
        OF_MODEL,
    ),
];
