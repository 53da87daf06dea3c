//! Invalid values of the flags of `kiln txt2img`.

/// A value, and a required part of the error message.
pub(crate) type Bad = (&'static str, &'static str);

const WHOLE: &str = "expected a whole number";
const AUTO_OR_WHOLE: &str = "expected auto or a whole number";
pub(crate) const REQUIRED: &str = "a value is required";
const SIDES: &[Bad] = &[
    ("100", "a multiple of 8 from 8 to 16384; the nearest is 104"),
    ("99", "the nearest is 96"),
    ("7", "the nearest is 8"),
    ("0", "the nearest is 8"),
    ("16392", "the nearest is 16384"),
    ("1000000000000", "the nearest is 16384"),
    ("99999999999999999999999", WHOLE),
    ("-8", WHOLE),
    ("64.0", WHOLE),
    ("64px", WHOLE),
    (" 64", WHOLE),
    ("٦٤", WHOLE),
    ("wide", WHOLE),
    ("", WHOLE),
];
const PICTURES: &[Bad] = &[
    ("0", "a number from 1 to 100000"),
    ("100001", "a number from 1 to 100000"),
    ("18446744073709551615", "a number from 1 to 100000"),
    ("18446744073709551616", WHOLE),
    ("-1", WHOLE),
    ("two", WHOLE),
    ("", WHOLE),
];
const NUMBER: &str = "expected a number";
const PART: &[Bad] = &[
    ("-0.1", "a number from 0 to 1"),
    ("1.1", "a number from 0 to 1"),
    ("nan", "a number from 0 to 1"),
    ("half", NUMBER),
    ("", NUMBER),
];
const SCORE: &[Bad] = &[("-1", "a number from 0 to 10"), ("11", "a number from 0 to 10"), ("x", NUMBER), ("", NUMBER)];
const XL_SIZE: &[Bad] = &[("512", "as in 512x768"), ("64x64", "models that take sizes"), ("", "as in 512x768")];
const XL_CROP: &[Bad] =
    &[("16", "as in 16,0"), ("x,0", "as in 16,0"), ("0,0", "models that take sizes"), ("", "as in 16,0")];
const LEVELS: &str = "expected none, fast, balanced, best";
const DEVICES: &str = "expected auto, cpu, cuda, cuda:N, gpu, vulkan, metal, dx12, all, or a list";
const PARALLEL: &str = "expected cfg";
const EMPHASES: &str = "expected original, no-norm, ignore, comfy, compel or none";
const FORMATS: &str = "expected text or json";
const PREDICTIONS: &str = "expected epsilon, v or flow";
const DTYPES: &str = "expected auto, f32, bf16 or f16";
const COMPUTE_TYPES: &str = "expected auto, native, int8 or fp8";
const WEIGHTS: &str = "expected auto, f32, f16, bf16, f8, q4_0, ";

const SWITCH: &[Bad] = &[("yes", "expected on or off"), ("ON", "expected on or off"), ("2", "expected on or off")];

/// Values that fail with exit status 2. A new flag needs rows here, or a reason in [`EXEMPT`].
pub(crate) const BAD: &[(&str, &[Bad])] = &[
    ("--width", SIDES),
    ("--height", SIDES),
    (
        "--steps",
        &[
            ("0", "a number from 1 to 1000"),
            ("1001", "a number from 1 to 1000"),
            ("99999999999999999999", WHOLE),
            ("-20", WHOLE),
            ("2.5", WHOLE),
            ("many", WHOLE),
            ("", WHOLE),
        ],
    ),
    (
        "--cfg-scale",
        &[
            ("-0.5", "a number from 0 to 1000"),
            ("1000.5", "a number from 0 to 1000"),
            ("1e300", "--cfg-scale is 1e300, expected a number from 0 to 1000"),
            ("nan", "a number from 0 to 1000"),
            ("inf", "a number from 0 to 1000"),
            ("7,5", "expected a number"),
            ("strong", "expected a number"),
            ("", "expected a number"),
        ],
    ),
    (
        "--seed",
        &[
            ("18446744073709551616", "a number from 0 to 18446744073709551615, or -1 for a random seed"),
            ("1.5", "a number from 0 to"),
            ("0x2a", "a number from 0 to"),
            ("random", "or -1 for a random seed"),
            ("", "a number from 0 to"),
        ],
    ),
    (
        "--sampler",
        &[
            ("euler b", "did you mean euler"),
            ("DPM++ 9M", "did you mean dpmpp_2m"),
            ("eulre", "did you mean euler"),
            ("euler karas", "did you mean euler_a"),
            ("", "The samplers are: "),
        ],
    ),
    (
        "--scheduler",
        &[
            ("karas", "did you mean karras"),
            ("linear", "The schedules are: default, karras, "),
            ("", "The schedules are: default, karras, "),
        ],
    ),
    (
        "--sigmas",
        &[
            ("1,2", "noise levels that fall, as in 14.6,6.5"),
            ("0", "noise levels that fall"),
            ("10,nan,1", "noise levels that fall"),
            ("1e308,1e307", "--sigmas is 1e308,1e307, expected noise levels that fall"),
            ("1e30,1e20,1e-30,0", "0, from 1e5 at most to 1e-5 at least"),
            ("10;1", "noise levels that fall"),
            ("", "noise levels that fall"),
        ],
    ),
    // The model's own sampler is PNDM, which supports none of them.
    ("--eta", &[("0.5", "none with pndm: it is for ddim, "), ("some", NUMBER), ("", NUMBER)]),
    ("--s-churn", &[("5", "none with pndm: it is for euler, heun, dpm2"), ("some", NUMBER), ("", NUMBER)]),
    ("--s-tmin", &[("1", "none with pndm"), ("some", NUMBER), ("", NUMBER)]),
    ("--s-tmax", &[("1", "none with pndm"), ("some", NUMBER), ("", NUMBER)]),
    ("--s-noise", &[("1", "none with pndm"), ("some", NUMBER), ("", NUMBER)]),
    ("--rho", &[("7", "none but with the sigma schedules karras and polyexponential"), ("some", NUMBER), ("", NUMBER)]),
    ("--convention", &[("forge", "expected diffusers or a1111 or comfyui"), ("", "expected diffusers or a1111")]),
    (
        "--sigma-range",
        &[
            ("table", "none but with the sigma schedules karras, exponential, polyexponential, beta_sigmas"),
            ("all", "expected table or spacing"),
            ("", "expected table or spacing"),
        ],
    ),
    ("--sigma-min", &[("0.1", "none but with the sigma schedules karras, "), ("some", NUMBER), ("", NUMBER)]),
    ("--sigma-max", &[("9", "none but with the sigma schedules karras, "), ("some", NUMBER), ("", NUMBER)]),
    (
        "--discard-penultimate-sigma",
        &[("true", "none without a sigma schedule"), ("maybe", "true, false"), ("", "true, false")],
    ),
    (
        "--initial-noise",
        &[("variance", "none with pndm: it is for euler, "), ("all", "expected sigma or variance"), ("", "sigma or")],
    ),
    (
        "--unipc-variant",
        &[("bh1", "none with pndm: it is for unipc"), ("bh3", "expected bh1 or bh2"), ("", "bh1 or bh2")],
    ),
    (
        "--cfg-schedule",
        &[("", "expected"), ("7,x", "expected"), ("7,-1", "numbers from 0 to 1000"), ("1001", "0 to 1000")],
    ),
    ("--apg-eta", &[("11", "a number from -10 to 10"), ("nan", "from -10 to 10"), ("some", NUMBER), ("", NUMBER)]),
    ("--apg-threshold", &[("-1", "a number from 0 to 10000"), ("5", "--apg-eta too"), ("some", NUMBER), ("", NUMBER)]),
    ("--apg-momentum", &[("2", "a number from -1 to 1"), ("-0.5", "--apg-eta too"), ("some", NUMBER), ("", NUMBER)]),
    ("--slg-scale", &[("-1", "a number from 0 to 100"), ("2.8", "transformers of Stable Diffusion 3"), ("", NUMBER)]),
    ("--slg-layers", &[("7,8", "transformers of Stable Diffusion 3"), ("64", "from 0 to 63"), ("", "as in 7,8,9")]),
    ("--slg-start", &[("1.1", "a number from 0 to 1"), ("0.1", "transformers of Stable Diffusion 3"), ("", NUMBER)]),
    ("--slg-end", &[("1.1", "a number from 0 to 1"), ("0.1", "transformers of Stable Diffusion 3"), ("", NUMBER)]),
    ("--cfg-norm", &[("-1", "a number from 0 to 100"), ("1", "it works with flow models"), ("", NUMBER)]),
    ("--shift", &[("0", "a number from 0.01 to 100"), ("3", "it works with flow models"), ("x", NUMBER), ("", NUMBER)]),
    ("--guidance", &[("-1", "a number from 0 to 1000"), ("3.5", "that were distilled with guidance"), ("", NUMBER)]),
    ("--pag-scale", &[("-1", "a number from 0 to 1000"), ("nan", "from 0 to 1000"), ("strong", NUMBER), ("", NUMBER)]),
    ("--pag-adaptive-scale", &[("-1", "from 0 to 1000"), ("0.1", "--pag-scale too"), ("some", NUMBER), ("", NUMBER)]),
    (
        "--pag-layers",
        &[("mid", "--pag-scale too"), ("middle", "is no layer"), ("up_blocks.x", "no layer"), ("", "no layer")],
    ),
    ("--freeu", &[("1,2,3", "four numbers"), ("1,2,3,x", "four numbers"), ("1,2,3,-1", "four"), ("", "four numbers")]),
    ("--freeu-version", &[("v1", "--freeu too"), ("v3", "expected one of diffusers, v1, v2"), ("", "expected one of")]),
    (
        "--cache",
        &[
            ("deepcache:1", "2 to 1000"),
            ("x", "expected deepcache"),
            ("deepcache:3:99", "a branch less"),
            ("", "expected"),
        ],
    ),
    (
        "--block-cache",
        &[("-1", "a number from 0 to 10"), ("0.1", "it works with transformers"), ("x", NUMBER), ("", NUMBER)],
    ),
    ("--deep-shrink", &[("0.5", "a number from 1 to 8"), ("9", "from 1 to 8"), ("some", NUMBER), ("", NUMBER)]),
    ("--deep-shrink-block", &[("33", "from 0 to 32"), ("3", "--deep-shrink too"), ("-1", WHOLE), ("", WHOLE)]),
    ("--deep-shrink-start", &[("2", "from 0 to 1"), ("0.1", "--deep-shrink too"), ("x", NUMBER), ("", NUMBER)]),
    ("--deep-shrink-end", &[("2", "a number from 0 to 1"), ("0.5", "--deep-shrink too"), ("x", NUMBER), ("", NUMBER)]),
    ("--sag-scale", &[("-1", "a number from 0 to 100"), ("nan", "from 0 to 100"), ("strong", NUMBER), ("", NUMBER)]),
    ("--sag-sigma", &[("0", "a number from 0.1 to 10"), ("1", "--sag-scale too"), ("some", NUMBER), ("", NUMBER)]),
    ("--sag-threshold", &[("-1", "from 0 to 100"), ("1", "--sag-scale too"), ("some", NUMBER), ("", NUMBER)]),
    ("--guidance-rescale", PART),
    ("--guidance-start", PART),
    ("--guidance-end", PART),
    ("--dynamic-thresholding", PART),
    ("--mimic-scale", &[("5", "--dynamic-thresholding too"), ("some", NUMBER), ("", NUMBER)]),
    (
        "--ensd",
        &[
            ("1.5", "a whole number"),
            ("9223372036854775808", "a whole number"),
            ("x", "a whole number"),
            ("", "a whole number"),
        ],
    ),
    ("--subseed", &[("1.5", "a number from 0 to"), ("random", "or -1 for a random seed"), ("", "a number from 0 to")]),
    ("--subseed-strength", PART),
    (
        "--seed-resize-from",
        &[
            ("512", "as in 512x768"),
            ("100x64", "the nearest is 104"),
            ("64x0", "the nearest is 8"),
            ("", "as in 512x768"),
        ],
    ),
    ("--noise-part", &[("0/4", "as 2/4"), ("5/4", "as 2/4"), ("1/65", "at most 64"), ("2", "as 2/4"), ("", "as 2/4")]),
    ("--rule", &[("x", "expected one of diffusers"), ("", "expected one of diffusers")]),
    ("--refiner", &[("", REQUIRED)]),
    ("--refiner-switch", &[("1.1", "a number from 0 to 1"), ("half", NUMBER), ("", NUMBER)]),
    ("--refiner-switch-by", &[("x", "expected one of steps"), ("", "expected one of steps")]),
    ("--original-size", XL_SIZE),
    ("--target-size", XL_SIZE),
    ("--negative-original-size", XL_SIZE),
    ("--negative-target-size", XL_SIZE),
    ("--crop", XL_CROP),
    ("--negative-crop", XL_CROP),
    ("--aesthetic-score", SCORE),
    ("--negative-aesthetic-score", SCORE),
    (
        "--hires-scale",
        &[("0.5", "a number from 1 to 16"), ("17", "a number from 1 to 16"), ("x", NUMBER), ("", NUMBER)],
    ),
    ("--hires-size", &[("512", "as in 512x768"), ("100x64", "the nearest is 104"), ("", "as in 512x768")]),
    ("--hires-upscaler", &[("", REQUIRED)]),
    ("--hires-steps", &[("0", "a number from 1 to"), ("-1", WHOLE), ("x", WHOLE), ("", WHOLE)]),
    ("--hires-strength", PART),
    (
        "--hires-cfg-scale",
        &[("-1", "a number from 0 to 1000"), ("1001", "from 0 to 1000"), ("x", NUMBER), ("", NUMBER)],
    ),
    ("--hires-sampler", &[("eulr", "did you mean euler"), ("", "unknown sampler")]),
    ("--hires-scheduler", &[("karas", "did you mean karras"), ("", "unknown")]),
    ("--upscaler-dir", &[("", REQUIRED)]),
    ("--rng", &[("gpu", "expected cpu"), ("CPU", "expected cpu"), ("", "expected cpu")]),
    ("--batch-count", PICTURES),
    (
        "--batch-size",
        &[
            ("0", "a number from 1 to 100000"),
            ("100001", "a number from 1 to 100000"),
            ("18446744073709551616", AUTO_OR_WHOLE),
            ("-1", AUTO_OR_WHOLE),
            ("all", AUTO_OR_WHOLE),
            ("", AUTO_OR_WHOLE),
        ],
    ),
    (
        "--output",
        &[
            ("", "a file name"),
            ("nowhere/..", "a file name"),
            ("apple.jpg", "a name that ends in .png"),
            ("apple", "a name that ends in .png"),
            ("{sed}.png", "only the placeholders {index} and {seed}"),
            ("{index.png", "only the placeholders {index} and {seed}"),
            ("}{.png", "only the placeholders {index} and {seed}"),
            ("{{seed}}.png", "only the placeholders {index} and {seed}"),
        ],
    ),
    (
        "--latents-out",
        &[
            ("", REQUIRED),
            (".", "found a folder"),
            ("apple.png", "a name that ends in .safetensors"),
            ("latents", "a name that ends in .safetensors"),
        ],
    ),
    (
        "--trace",
        &[
            ("", REQUIRED),
            (".", "found a folder"),
            ("apple.png", "a name that ends in .json"),
            ("trace", "a name that ends in .json"),
        ],
    ),
    ("--emphasis", &[("Original", EMPHASES), ("nonorm", EMPHASES), ("1.1", EMPHASES), ("", EMPHASES)]),
    (
        "--clip-skip",
        &[
            ("0", "a number from 1 to"),
            ("99", "--clip-skip is 99, expected a number from 1 to"),
            ("-1", WHOLE),
            ("1.5", WHOLE),
            ("last", WHOLE),
            ("", WHOLE),
        ],
    ),
    (
        "--chunk-cut",
        &[
            ("Comma", "expected comma, word or truncate"),
            ("8", "expected comma, word or truncate"),
            ("", "expected comma, word or truncate"),
        ],
    ),
    ("--pad-conds", &[("yes", "expected on or off"), ("1", "expected on or off"), ("", "expected on or off")]),
    ("--comma-backtrack", &[("76", "a number from 0 to 75"), ("-1", WHOLE), ("near", WHOLE), ("", WHOLE)]),
    ("--max-length", &[("0", "a number from 1 to 512"), ("513", "a number from 1 to 512"), ("-1", WHOLE), ("", WHOLE)]),
    ("--wildcards-dir", &[("", REQUIRED)]),
    (
        "--prompt-cache",
        &[("10001", "a number from 0 to 10000"), ("-1", WHOLE), ("0.5", WHOLE), ("all", WHOLE), ("", WHOLE)],
    ),
    (
        "--regions",
        &[
            ("half", "is none of its fields"),
            ("share=1x1", "expected WIDTHxHEIGHT+LEFT+TOP"),
            ("share=2x2+0+0", "expected numbers from 0 to 1"),
            ("strength=x", NUMBER),
            ("whole;half", "is none of its fields"),
        ],
    ),
    ("--preview-method", &[("x", "expected one of auto, latent2rgb, taesd, none"), ("", "expected one of auto")]),
    ("--preview-taesd", &[("", REQUIRED)]),
    ("--preview-every", &[("0", "at least 1"), ("2", "--preview <FILE"), ("", "at least 1")]),
    (
        "--preview",
        &[("", "a name that ends in .png"), (".", "found a folder"), ("apple.jpg", "a name that ends in .png")],
    ),
    (
        "--memory-trace",
        &[
            ("", REQUIRED),
            (".", "found a folder"),
            ("apple.png", "a name that ends in .jsonl"),
            ("trace", "a name that ends in .jsonl"),
        ],
    ),
    ("--like", &[("", REQUIRED)]),
    ("--model", &[("", REQUIRED)]),
    ("--taesd", &[("", REQUIRED)]),
    ("--control", &[("8", "is none of its fields"), ("net=a,image=b,weight=x", "expected")]),
    ("--ip-adapter", &[("8", "is none of its fields"), ("model=a,image=b,weight=x", "expected")]),
    ("--reference", &[("", REQUIRED)]),
    ("--reference-size", &[("large", "expected"), ("", "expected")]),
    ("--lora", &[("", "expected a file"), (":0.8", "expected a file, as in FILE:0.8")]),
    ("--lora-dir", &[("", REQUIRED)]),
    ("--weight-cache", &[("", REQUIRED)]),
    ("--embeddings-dir", &[("", REQUIRED)]),
    ("--config", &[("", REQUIRED)]),
    ("--unet", &[("", REQUIRED)]),
    ("--vae", &[("", REQUIRED)]),
    ("--text-encoder", &[("", REQUIRED)]),
    ("--prediction", &[("velocity", PREDICTIONS), ("V", PREDICTIONS), ("", PREDICTIONS)]),
    (
        "--device",
        &[
            ("opencl", DEVICES),
            ("vulkan:x", DEVICES),
            ("CPU", DEVICES),
            ("cuda:", DEVICES),
            ("cuda:one", DEVICES),
            ("cuda:-1", DEVICES),
            ("cuda:99999999999999999999", DEVICES),
            ("", DEVICES),
        ],
    ),
    ("--parallel", &[("", PARALLEL), ("two", PARALLEL), ("CFG", PARALLEL)]),
    (
        "--vram-budget",
        &[
            ("-1G", "such as 6G, 512M or 64K"),
            ("0", "such as 6G"),
            ("6X", "such as 6G"),
            ("lots", "such as 6G"),
            ("1e9", "such as 6G"),
            ("", "such as 6G"),
        ],
    ),
    ("--vae-tile-size", &[("-64", WHOLE), ("64.5", WHOLE), ("64x64", WHOLE), ("", WHOLE)]),
    ("--cuda-malloc", SWITCH),
    ("--cuda-stream", SWITCH),
    ("--pin-shared-memory", SWITCH),
    ("--png-level", &[("8", LEVELS), ("Fast", LEVELS), ("zlib", LEVELS), ("", LEVELS)]),
    ("--log-format", &[("yaml", FORMATS), ("JSON", FORMATS), ("", FORMATS)]),
    (
        "--weight-type",
        &[("int8", WEIGHTS), ("Q8_0", WEIGHTS), ("q7_0", WEIGHTS), ("q4_k_m", WEIGHTS), ("8", WEIGHTS), ("", WEIGHTS)],
    ),
    ("--compute", &[("int4", COMPUTE_TYPES), ("INT8", COMPUTE_TYPES), ("", COMPUTE_TYPES)]),
    ("--scales", &[("", REQUIRED)]),
    ("--dtype", &[("f8", DTYPES), ("float16", DTYPES), ("F32", DTYPES), ("", DTYPES)]),
    (
        "--threads",
        &[
            ("0", "a number from 1 to 1024"),
            ("1025", "a number from 1 to 1024"),
            ("99999999", "a number from 1 to 1024"),
            ("99999999999999999999", WHOLE),
            ("-1", WHOLE),
            ("1.5", WHOLE),
            ("all", WHOLE),
            ("", WHOLE),
        ],
    ),
];

/// Flags without invalid values.
pub(crate) const EXEMPT: &[(&str, &str)] = &[
    ("--prompt", "any text is a prompt"),
    ("--negative-prompt", "any text is a prompt"),
    ("--hires-prompt", "any text is a prompt"),
    ("--hires-negative-prompt", "any text is a prompt"),
    ("--overwrite", "a switch"),
    ("--keep-comments", "a switch"),
    ("--cfg-zero-star", "a switch"),
    ("--block-cache-predict", "a switch"),
    ("--no-t5", "a switch"),
    ("--offline", "a switch"),
    ("--medvram", "a switch"),
    ("--lowvram", "a switch"),
    ("--highvram", "a switch"),
    ("--vae-slicing", "a switch"),
    ("--vae-tiling", "a switch"),
    ("--verbose", "a switch, given any number of times"),
    ("--quiet", "a switch, given any number of times"),
    ("--help", "a switch that ends the program"),
];
