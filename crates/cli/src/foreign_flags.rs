//! Flags of other programs, and what Kiln has for them.
//!
//! The names are those of stable-diffusion.cpp, AUTOMATIC1111 and Forge, ComfyUI, and diffusers' arguments written as flags.

/// Names of flags, and the advice about them. A flag that an advice names exists.
const FLAGS: &[(&[&str], &str)] = &[
    (&["sampling-method", "sampler-name"], "use --sampler NAME; kiln samplers lists the names"),
    (&["schedule", "schedule-type"], "use --scheduler NAME; kiln samplers lists the names"),
    (&["num-inference-steps", "ddim-steps", "sample-steps"], "use --steps N"),
    (&["guidance-scale", "cfg", "scale"], "use --cfg-scale X"),
    (&["neg-prompt", "negative", "neg", "n-prompt"], "use -n or --negative-prompt TEXT"),
    (&["n-iter", "num-images", "num-images-per-prompt"], "use -b or --batch-count N"),
    (&["n-samples"], "use --batch-size N"),
    (
        &["strength"],
        "use it with kiln img2img, which begins with an image; the first pass of kiln txt2img has no strength",
    ),
    (&["denoise", "denoising-strength"], "use --strength X, of kiln img2img"),
    (&["mode"], "use a command: kiln txt2img, kiln img2img, kiln upscale, kiln convert"),
    (&["ckpt", "checkpoint", "model-path", "pretrained-model-name-or-path"], "use -m or --model"),
    (&["ckpt-dir", "models-dir", "model-dir", "data-dir", "base-directory"], "set KILN_MODELS to the folder of models"),
    (&["high-noise-diffusion-model"], "use --unet FILE for a denoiser alone, or -m for a whole model"),
    (&["vae-path", "vae-dir"], "use --vae FILE"),
    (&["clip"], "use --text-encoder FILE, once for each text encoder"),
    (&["clip-vision"], "give the image encoder as `encoder` of --ip-adapter"),
    (&["taesd-path", "tae"], "use --taesd FILE"),
    (&["lora-model-dir", "lora-path"], "use --lora-dir DIR"),
    (&["embd-dir", "textual-inversion-dir"], "use --embeddings-dir DIR"),
    (
        &["upscale-model", "esrgan-models-path", "realesrgan-models-path"],
        "use --upscaler-dir DIR, or kiln upscale -m FILE",
    ),
    (&["upscale-repeats"], "use kiln upscale with --scale X"),
    (&["control-net", "control-image", "control-strength"], "use --control net=FILE,image=FILE,weight=0.9"),
    (&["canny"], "use --control net=FILE,image=FILE,preprocess=canny"),
    (&["init-image", "image", "init-images"], "use -i or --init IMAGE, of kiln img2img"),
    (&["type", "wtype"], "use --weight-type TYPE"),
    (&["precision"], "use --dtype TYPE"),
    (&["no-half", "force-fp32", "fp32-unet", "fp32"], "use --dtype f32"),
    (&["force-fp16", "fp16-unet", "fp16"], "use --dtype f16"),
    (&["bf16-unet"], "use --dtype bf16"),
    (&["fp8-e4m3fn-unet", "fp8-e5m2-unet"], "use --weight-type f8"),
    (
        &["no-half-vae", "fp16-vae", "fp32-vae", "bf16-vae", "force-upcast-attention", "upcast-sampling"],
        "it is not needed: an image that overflows in the VAE is decoded again in a wider type",
    ),
    (
        &[
            "xformers",
            "opt-sdp-attention",
            "opt-sdp-no-mem-attention",
            "opt-split-attention",
            "diffusion-fa",
            "fa",
            "use-pytorch-cross-attention",
            "use-split-cross-attention",
            "use-quad-cross-attention",
            "use-sage-attention",
            "use-flash-attention",
            "disable-xformers",
            "enable-xformers-memory-efficient-attention",
            "cuda-graphs",
        ],
        "it is not needed: attention is always fused",
    ),
    (&["dont-upcast-attention"], "it is not needed: attention runs in the type of --dtype, and sums in f32"),
    (&["opt-channelslast"], "it is not needed: channels are always last"),
    (&["fast"], "use --dtype f16 and --compute fp8 or int8; nothing else is left out to be faster"),
    (&["disable-nan-check"], "it is not needed: the check is part of decoding"),
    (&["no-hashing"], "it is not needed: the hash of a file is computed once, and kept"),
    (&["skip-torch-cuda-test"], "it is not needed: Kiln runs without PyTorch, and without a GPU on the CPU"),
    (&["tensor-type-rules"], "use --weight-type TYPE, which is the type of all matrices"),
    (&["disable-smart-memory"], "use --medvram, which keeps one network on the GPU"),
    (&["medvram-sdxl"], "use --medvram, for every model"),
    (&["novram", "lowram", "offload-to-cpu", "enable-model-cpu-offload", "always-offload-from-vram"], "use --lowvram"),
    (&["normalvram"], "it is not needed: Kiln selects the fastest mode that fits"),
    (&["gpu-only", "always-gpu"], "use --highvram"),
    (&["reserve-vram", "max-vram"], "use --vram-budget SIZE"),
    (&["vae-on-cpu", "clip-on-cpu", "control-net-cpu", "cpu-vae"], "use --lowvram, which needs less memory"),
    (&["vae-conv-direct", "diffusion-conv-direct"], "it is not needed"),
    (&["async-offload"], "it is not needed: weights are copied while the GPU computes"),
    (&["cpu", "always-cpu", "use-cpu"], "use --device cpu"),
    (&["cuda-device", "device-id", "gpu"], "use --device cuda:N"),
    (&["deterministic"], "it is not needed: the same request gives the same image"),
    (&["output-directory", "output-path", "outdir", "output-dir"], "use -o or --output"),
    (&["preview-path"], "use --preview FILE.png or --preview terminal"),
    (&["preview-interval"], "use --preview-every N"),
    (&["listen", "port", "server-name", "host", "listen-ip"], "use --listen HOST:PORT, of kiln serve"),
    (&["api", "nowebui"], "it is not needed: kiln serve has the APIs and the page"),
    (&["share", "autolaunch", "auto-launch", "browser"], "use kiln serve, and open its address in a browser"),
    (&["gradio-auth"], "use --api-auth USER:PASSWORD, of kiln serve"),
    (&["cors-allow-origins", "enable-cors-header"], "use --cors ORIGIN, of kiln serve"),
    (&["tls-keyfile"], "use --tls-key FILE, of kiln serve"),
    (&["tls-certfile"], "use --tls-cert FILE, of kiln serve"),
    (&["dont-print-server", "silent"], "use -q or --quiet"),
    (&["skip-layers"], "use --slg-layers LIST"),
    (&["video-frames", "fps"], "Kiln does not run the models that it is for"),
    (&["dry-run", "estimate"], "use kiln plan"),
    (&["img-cfg-scale"], "Kiln has no models that are instructed by a text, which it is for; use --cfg-scale X"),
    (&["enable-hr", "hr-scale"], "use --hires-scale X"),
    (&["restore-faces"], "Kiln has no restoration of faces; kiln img2img with --mask makes a part of an image again"),
    (&["tiling"], "Kiln makes no images that repeat without a seam; --vae-tiling saves memory"),
    (&["styles"], "write the style into the prompt; the page of kiln serve has styles"),
    (&["photo-maker"], "use --ip-adapter model=FILE,image=FILE; Kiln has no PhotoMaker"),
    (
        &["extra-model-paths-config"],
        "set KILN_MODELS to the folder of models, and use --lora-dir, --embeddings-dir and others",
    ),
    (&["color"], "it is not needed: messages are plain text"),
    (&["theme"], "it is not needed: the page has the colors that the browser asks for, light or dark"),
];

/// Short flags, where they are none of Kiln's.
const SHORT: &[(&str, &str)] = &[("-M", "use a command: kiln txt2img, kiln img2img, kiln upscale, kiln convert")];

/// The advice for the flag `given`, with its hyphens, and with underscores or hyphens in it.
pub fn advice(given: &str) -> Option<&'static str> {
    let Some(name) = given.strip_prefix("--") else {
        return SHORT.iter().find(|(flag, _)| *flag == given).map(|(_, advice)| *advice);
    };
    let name = name.split('=').next().unwrap_or_default().replace('_', "-").to_lowercase();
    FLAGS.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::spell;
    use crate::help::command;

    #[test]
    fn advice_names_flags_that_exist() {
        let short = SHORT.iter().map(|(flag, advice)| (std::slice::from_ref(flag), advice));
        for (names, advice) in FLAGS.iter().map(|(names, advice)| (*names, advice)).chain(short) {
            for flag in advice.split([' ', ',', ';']).filter_map(|word| word.strip_prefix("--")) {
                assert!(spell(flag).is_some(), "--{flag} for {names:?}");
            }
        }
    }

    /// A flag of the command itself never needs advice; other commands may have it.
    #[test]
    fn names_are_no_flags_of_txt2img_and_no_name_is_there_twice() {
        let command = command();
        let txt2img = command.find_subcommand("txt2img").unwrap();
        let own: Vec<&str> = txt2img.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let names: Vec<&str> = FLAGS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!own.contains(name) && !names[..i].contains(name), "{name}");
        }
        let short: Vec<String> =
            txt2img.get_arguments().filter_map(|arg| arg.get_short()).map(|c| format!("-{c}")).collect();
        for (flag, _) in SHORT {
            assert!(!short.iter().any(|own| own == flag), "{flag}");
        }
    }

    #[test]
    fn underscores_and_values_do_not_matter() {
        assert_eq!(advice("--sampling_method=euler"), advice("--sampling-method"));
        assert!(advice("--xformers").unwrap().contains("not needed"));
        assert!(advice("-M").unwrap().contains("kiln img2img") && advice("-m").is_none() && advice("x").is_none());
        assert_eq!(advice("--no-such-flag"), None);
    }
}
