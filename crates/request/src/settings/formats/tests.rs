//! Settings of other programs and their conversion.

use kiln_media::Infotext;
use kiln_prompt::spans;
use kiln_scheduler::SamplerKind;

use super::*;

fn image(texts: &[(&str, &str)]) -> Vec<ImageText> {
    let text =
        |(key, text): &(&str, &str)| ImageText { place: "tEXt".into(), key: (*key).into(), text: (*text).into() };
    texts.iter().map(text).collect()
}

fn taken(texts: &[(&str, &str)]) -> Taken {
    find(&image(texts)).unwrap().1.unwrap()
}

fn refused(texts: &[(&str, &str)]) -> String {
    find(&image(texts)).unwrap().1.unwrap_err()
}

/// The text for the encoders.
fn read(prompt: &str) -> Vec<(String, f64)> {
    let spans = spans(prompt).into_iter().map(|span| (span.text.trim().to_string(), span.weight));
    spans.filter(|(text, _)| !text.is_empty()).collect()
}

/// `parameters` of Fooocus 2.4.3 as it writes them, with weights that AUTOMATIC1111's parser would read as fields.
const FOOOCUS: &str = r#"{"adm_guidance": "(1.5, 0.8, 0.3)", "base_model": "juggernautXL_v8Rundiffusion",
    "base_model_hash": "aeb7e9e689", "clip_skip": 2, "full_negative_prompt": ["(worst quality, bad art:1.4), (name:1.2)",
    "anime, (blur, bokeh)"], "full_prompt": ["cinematic still a goldfish", "a goldfish, (deep focus:1.1)"],
    "guidance_scale": 4, "loras": [["sd_xl_offset_example-lora_1.0", 0.1, "4852686128"]], "metadata_scheme": "fooocus",
    "negative_prompt": "", "performance": "Speed", "prompt": "a goldfish", "refiner_model": "None", "refiner_switch": 0.5,
    "resolution": "(768, 1280)", "sampler": "dpmpp_2m_sde_gpu", "scheduler": "karras", "seed": "6952411511246973023",
    "sharpness": 2, "steps": 30, "styles": "['Fooocus V2']", "vae": "Default (model)", "version": "Fooocus v2.4.3"}"#;

#[test]
fn fooocus_is_understood() {
    assert_eq!(Infotext::parse(FOOOCUS), None);
    let Taken { request, model, model_hash, vae, unknown, warnings } = taken(&[("parameters", FOOOCUS)]);
    assert_eq!((request.width, request.height, request.steps), (Some(768), Some(1280), Some(30)));
    assert_eq!(
        (request.seed, request.cfg_scale, request.clip_skip),
        (Some(6_952_411_511_246_973_023), Some(4.0), Some(2))
    );
    assert_eq!((request.sampler.unwrap().kind, request.scheduler), (SamplerKind::Dpmpp2mSde, SigmaSchedule::Karras));
    assert_eq!((request.emphasis, request.rng, request.pad_conds), (Emphasis::Original, Rng::Cpu, Some(false)));
    assert_eq!(request.loras.len(), 1);
    assert_eq!(model.as_deref(), Some("juggernautXL_v8Rundiffusion"));
    assert_eq!((model_hash.as_deref(), vae, unknown), (Some("aeb7e9e689"), None, None));
    assert_eq!(request.prompt, "cinematic still a goldfish BREAK a goldfish, (deep focus:1.1)");
    let weighed = read(request.negative_prompt.as_deref().unwrap());
    assert_eq!(weighed[0], ("worst quality, bad art".to_string(), 1.4));
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (warning, expected) in
        warnings.iter().zip(["dpmpp_2m_sde_gpu draws", "adm_guidance: (1.5, 0.8, 0.3)", "sharpness: 2"])
    {
        assert!(warning.starts_with(expected), "{warning}");
    }
}

#[test]
fn swarmui_is_understood() {
    let json = r#"{"sui_image_params": {"prompt": "a (cat:1.2) [x] AND b", "negativeprompt": "(a:1.3), (b:1.1), (c:1.4)",
        "model": "OfficialStableDiffusion/sd_xl_base_1.0", "seed": 7, "steps": 20, "cfgscale": 7.5, "aspectratio": "1:1",
        "width": 1024, "height": 768, "sampler": "dpmpp_2m", "scheduler": "karras", "loras": ["a/ink"], "loraweights":
        ["0.5"], "swarm_version": "0.9.2", "refinerupscale": 1.5}, "sui_extra_data": {}}"#;
    assert_eq!(Infotext::parse(json), None);
    let Taken { request, model, warnings, .. } = taken(&[("parameters", json)]);
    assert_eq!(read(&request.prompt), [("a".into(), 1.0), ("cat".into(), 1.2), ("[x] AND b".into(), 1.0)]);
    assert_eq!((request.seed, request.steps, request.cfg_scale), (Some(7), Some(20), Some(7.5)));
    assert_eq!((request.width, request.height), (Some(1024), Some(768)));
    assert_eq!((request.sampler.unwrap().kind, request.scheduler), (SamplerKind::Dpmpp2m, SigmaSchedule::Karras));
    assert_eq!((request.loras[0].text, request.loras[0].unet, request.emphasis), (0.5, 0.5, Emphasis::Comfy));
    assert_eq!(model.as_deref(), Some("sd_xl_base_1.0"));
    assert_eq!(warnings, ["refinerupscale: 1.5 is ignored: its meaning is unknown"]);
    let found = taken(&[("parameters", r#"{"sui_image_params": {"prompt": "a"}}"#)]).request;
    assert_eq!((found.sampler.unwrap().kind, found.scheduler), (SamplerKind::Euler, SigmaSchedule::Normal));
    let segment = r#"{"sui_image_params": {"prompt": "a <segment:face> b"}}"#;
    assert_eq!(refused(&[("parameters", segment)]), "its prompt has <segment..>, which Kiln does not support");
}

#[test]
fn invokeai_is_understood() {
    let json = r#"{"generation_mode":"sdxl_txt2img","positive_prompt":"oil painting, (strokes)1.2","negative_prompt":
        "grainy+, photo","width":1024,"height":1024,"seed":3293022630,"rand_device":"cuda","cfg_scale":8.0,
        "cfg_rescale_multiplier":0.0,"steps":35,"scheduler":"euler_k","model":{"model_name":"juggernautXL"},
        "ipAdapters":[{"weight":0.45}],"vae":{"name":"VAEFix"},"positive_style_prompt":"","loras":[{"model":{"name":"ink"},
        "weight":0.75}],"seamless_x":false}"#;
    let Taken { request, model, vae, warnings, .. } = taken(&[("invokeai_metadata", json)]);
    assert_eq!(read(&request.prompt), [("oil painting,".into(), 1.0), ("strokes".into(), 1.2)]);
    assert_eq!(read(request.negative_prompt.as_deref().unwrap()), [("grainy".into(), 1.1), (", photo".into(), 1.0)]);
    assert_eq!((request.sampler.unwrap().kind, request.scheduler), (SamplerKind::Euler, SigmaSchedule::Karras));
    assert_eq!((request.rng, request.guidance_rescale, request.steps), (Rng::Cuda, None, Some(35)));
    assert_eq!((request.pad_conds, request.loras[0].unet), (None, 0.75));
    assert_eq!((model.as_deref(), vae.as_deref()), (Some("juggernautXL"), Some("VAEFix")));
    assert_eq!(warnings, ["ipAdapters: a list of 1 is ignored: its meaning is unknown"]);
    assert!(refused(&[("invokeai_metadata", r#"{"generation_mode": "img2img"}"#)]).contains("generated by img2img"));
    let old = r#"{"model_weights": "deliberate", "model_hash": "56d1442a0f", "image": {"prompt": [{"prompt":
        "a woman, (imperfect skin) [rendering, skinny]", "weight": 1.0}], "steps": 50, "cfg_scale": 5, "height": 768, "width":
        512, "seed": 2980747362, "type": "txt2img", "postprocessing": null, "sampler": "k_lms", "variations": []}}"#;
    let Taken { request, model, warnings, .. } = taken(&[("sd-metadata", old)]);
    assert_eq!(read(request.negative_prompt.as_deref().unwrap()), [("rendering, skinny".into(), 1.0)]);
    assert_eq!((request.sampler.unwrap().kind, request.height), (SamplerKind::Lms, Some(768)));
    assert_eq!((model.as_deref(), warnings.len()), (Some("deliberate"), 0));
}

#[test]
fn novelai_is_understood() {
    let comment = r#"{"steps": 50, "sampler": "k_euler_ancestral", "seed": 2253955223, "strength": 0.4, "noise": 0.0,
        "scale": 10.0, "uc": "lowres, {bad anatomy}"}"#;
    let texts = [("Description", "masterpiece,  {{cat}}, (space)"), ("Software", "NovelAI"), ("Comment", comment)];
    let Taken { request, warnings, .. } = taken(&texts);
    assert_eq!(read(&request.prompt)[1], ("cat".into(), 1.05 * 1.05));
    assert_eq!(read(&request.prompt)[2], (", (space)".into(), 1.0));
    assert_eq!((request.sampler.unwrap().kind, request.scheduler), (SamplerKind::EulerA, SigmaSchedule::Normal));
    assert_eq!((request.steps, request.cfg_scale, request.seed), (Some(50), Some(10.0), Some(2_253_955_223)));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let hidden = serde_json::json!({"Description": "a cat", "Software": "NovelAI", "Comment": comment}).to_string();
    assert_eq!(taken(&[("stealth_pngcomp", &hidden)]).request.prompt, "a cat");
}

#[test]
fn unsupported_samplers_are_named() {
    for (key, json, expected) in [
        ("parameters", FOOOCUS.replace("dpmpp_2m_sde_gpu", "dpm_fast"), ("sampler", "dpm_fast")),
        ("parameters", FOOOCUS.replace("\"karras\"", "\"edm_playground_v2.5\""), ("scheduler", "edm_playground_v2.5")),
        ("parameters", r#"{"sui_image_params": {"sampler": "dpm_adaptive"}}"#.into(), ("sampler", "dpm_adaptive")),
        ("invokeai_metadata", r#"{"scheduler": "dpmpp_2s"}"#.into(), ("scheduler", "dpmpp_2s")),
    ] {
        let found = taken(&[(key, &json)]);
        let unknown = found.unknown.unwrap();
        assert_eq!((unknown.field, &*unknown.name), expected, "{json}");
    }
}

/// ComfyUI's own example of LoRAs (`lora/lora.png` of its examples), with a second LoRA and a layer.
const GRAPH: &str = r#"{"3": {"inputs": {"seed": 851616030078638, "steps": 20, "cfg": 8.0, "sampler_name": "euler", "scheduler":
    "normal", "denoise": 1.0, "model": ["11", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]},
    "class_type": "KSampler"}, "4": {"inputs": {"ckpt_name": "sd\\v1-5-pruned-emaonly.ckpt"}, "class_type":
    "CheckpointLoaderSimple"}, "5": {"inputs": {"width": 512, "height": 768, "batch_size": 1}, "class_type": "EmptyLatentImage"},
    "6": {"inputs": {"text": "masterpiece (best:1.2) [girl] embedding:SDA768.pt, x", "clip": ["12", 0]}, "class_type":
    "CLIPTextEncode"}, "7": {"inputs": {"text": "bad hands", "clip": ["12", 0]}, "class_type": "CLIPTextEncode"}, "8":
    {"inputs": {"samples": ["3", 0], "vae": ["4", 2]}, "class_type": "VAEDecode"}, "9": {"inputs": {"filename_prefix":
    "ComfyUI", "images": ["8", 0]}, "class_type": "SaveImage"}, "10": {"inputs": {"lora_name": "noise.safetensors",
    "strength_model": 1.0, "strength_clip": 0.5, "model": ["4", 0], "clip": ["4", 1]}, "class_type": "LoraLoader"},
    "11": {"inputs": {"lora_name": "ink.safetensors", "strength_model": 0.25, "model": ["10", 0]}, "class_type":
    "LoraLoaderModelOnly"}, "12": {"inputs": {"stop_at_clip_layer": -2, "clip": ["10", 1]}, "class_type":
    "CLIPSetLastLayer"}, "20": {"inputs": {}, "class_type": "Note"}}"#;

#[test]
fn simple_graphs_are_supported() {
    let Taken { request, model, unknown, warnings, .. } = taken(&[("prompt", GRAPH), ("workflow", "{}")]);
    let expected = [("masterpiece".into(), 1.0), ("best".into(), 1.2), ("[girl] SDA768, x".into(), 1.0)];
    assert_eq!(read(&request.prompt), expected);
    assert_eq!(request.negative_prompt.as_deref(), Some("bad hands"));
    assert_eq!((request.seed, request.steps, request.cfg_scale), (Some(851_616_030_078_638), Some(20), Some(8.0)));
    assert_eq!((request.width, request.height, request.clip_skip), (Some(512), Some(768), Some(2)));
    assert_eq!((request.sampler.unwrap().kind, request.scheduler), (SamplerKind::Euler, SigmaSchedule::Normal));
    let loras: Vec<_> = request.loras.iter().map(|lora| (lora.lora.clone(), lora.text, lora.unet)).collect();
    let named = |name: &str| crate::lora::LoraName::Named(name.into());
    assert_eq!(loras, [(named("noise"), 0.5, 1.0), (named("ink"), 0.0, 0.25)]);
    assert_eq!(
        (request.emphasis, request.chunk_cut, request.pad_conds),
        (Emphasis::Comfy, ChunkCut::Word, Some(false))
    );
    assert_eq!((model.as_deref(), unknown, warnings.len()), (Some("v1-5-pruned-emaonly"), None, 0));
    let advanced = GRAPH.replace("\"KSampler\"", "\"KSamplerAdvanced\"").replace("\"seed\"", "\"noise_seed\"").replace(
        "\"denoise\": 1.0",
        r#""add_noise": "enable", "start_at_step": 0, "end_at_step": 10000, "return_with_leftover_noise": "disable""#,
    );
    assert_eq!(taken(&[("prompt", &advanced)]).request, request);
}

/// `CLIPTextEncodeSDXL` has the sizes of a text; one without has those of the image.
#[test]
fn sizes_of_texts_are_taken() {
    let text = r#""text": "bad hands", "clip": ["12", 0]}, "class_type": "CLIPTextEncode""#;
    let sizes = r#""text_g": "bad hands", "text_l": "bad hands", "width": 2048, "height": 1024, "crop_w": 16, "crop_h": 32,
        "target_width": 640, "target_height": 480, "clip": ["12", 0]}, "class_type": "CLIPTextEncodeSDXL""#;
    let graph = GRAPH.replacen(text, sizes, 1);
    assert_ne!(graph, GRAPH);
    let request = taken(&[("prompt", &graph)]).request;
    assert_eq!(request.negative_prompt.as_deref(), Some("bad hands"));
    assert_eq!((request.original_size, request.target_size), (Some((512, 768)), Some((512, 768))));
    assert_eq!((request.negative_original_size, request.negative_target_size), (Some((2048, 1024)), Some((640, 480))));
    assert_eq!([request.crop, request.negative_crop].map(|crop| crop.unwrap().to_string()), ["0,0", "16,32"]);
    let other = graph.replacen(r#""text_l": "bad hands""#, r#""text_l": "ugly""#, 1);
    let expected = "text_g and text_l of node 7 (CLIPTextEncodeSDXL) differ, and Kiln has one prompt";
    assert_eq!(refused(&[("prompt", &other)]), expected);
}

#[test]
fn other_graphs_are_refused_with_the_unsupported_node() {
    for (from, to, expected) in [
        ("\"denoise\": 1.0", "\"denoise\": 0.87", "denoise of node 3 (KSampler) is 0.87"),
        ("EmptyLatentImage", "VAEEncode", "node 5 (VAEEncode) is not supported"),
        ("\"seed\": 851616030078638", "\"seed\": [\"20\", 0]", "seed of node 3 (KSampler) comes from node 20 (Note)"),
        (
            "\"text\": \"bad hands\"",
            "\"text\": [\"20\", 0]",
            "text of node 7 (CLIPTextEncode) comes from node 20 (Note)",
        ),
        ("CLIPSetLastLayer", "CLIPMergeSimple", "node 12 (CLIPMergeSimple) is not supported"),
        ("VAEDecode", "ImageScale", "node 8 (ImageScale) is not supported"),
        ("\"vae\": [\"4\", 2]", "\"vae\": [\"20\", 0]", "node 20 (Note) is not supported"),
        ("SaveImage", "Other", "no node saves an image"),
        ("\"steps\": 20", "\"steps\": -1", "steps of node 3 (KSampler) is -1, expected a whole number"),
        ("\"model\": [\"4\", 0]", "\"model\": [\"10\", 0]", "do not end"),
        (
            "\"class_type\": \"Note\"",
            "\"class_type\": \"SaveImage\"",
            "images of node 20 (SaveImage) comes from no node",
        ),
    ] {
        let graph = GRAPH.replacen(from, to, 1);
        let found = refused(&[("prompt", &graph)]);
        assert!(found.contains(expected), "{found}");
    }
    let unknown = taken(&[("prompt", &GRAPH.replace("\"euler\"", "\"dpm_adaptive\""))]).unknown;
    let expected = Unknown { is_schedule: false, field: "sampler_name", name: "dpm_adaptive".into() };
    assert_eq!(unknown, Some(expected));
}

#[test]
fn parentheses_have_comfyuis_weights() {
    // The results of `token_weights` in comfy/sd1_clip.py.
    for (text, expected) in [
        ("a (b) c", vec![("a ", 1.0), ("b", 1.1), (" c", 1.0)]),
        ("((a))", vec![("a", 1.1 * 1.1)]),
        ("(a (b:1.5) c:1.2)", vec![("a ", 1.2), ("b", 1.5), (" c", 1.2)]),
        ("(a", vec![("(a", 1.0)]),
        ("a) (b)", vec![("a) (b)", 1.0)]),
        (r"\(a\) (b\))", vec![("(a) ", 1.0), ("b)", 1.1)]),
        ("(a:b)", vec![("a:b", 1.1)]),
        ("(:1.2)", vec![(":1.2", 1.1)]),
        ("(a:1e-1)", vec![("a", 0.1)]),
    ] {
        let found = crate::comfy::text::spans(text);
        let found: Vec<(&str, f64)> = found.iter().map(|(text, weight)| (text.as_str(), *weight)).collect();
        assert_eq!(found, expected, "{text}");
    }
    for text in ["(", "(a", "(a:1)", ")(", "()"] {
        crate::comfy::text::spans(&text.repeat(50_000));
    }
    crate::comfy::text::spans(&format!("{}{}", "(".repeat(50_000), ")".repeat(50_000)));
}

#[test]
fn other_texts_are_not_settings() {
    for (key, text) in [
        ("parameters", "{}"),
        ("parameters", "[1]"),
        ("prompt", "{\"a\": 1}"),
        ("prompt", "class_type"),
        ("Comment", "{\"steps\": 1}"),
        ("Dream", "\"a\" -s 50"),
    ] {
        assert!(find(&image(&[(key, text)])).is_none(), "{key} {text}");
    }
}
