//! The fields of `/v1/jobs`: every option of the table, and the fields of LoRAs, control networks and IP-Adapters in them.

use kiln_engine::OPTIONS;
use serde_json::{Value, json};

use super::Does::{self, Answer, Bits, Nothing, Refused, Warns};
use super::{Outcome, Rig, check, image, mask, none, other_image, report, texts, with};

/// A text-to-image job with noise in every step.
fn base() -> Value {
    json!({
        "prompt": "a pear", "negative_prompt": "a plum", "steps": 3, "width": 64, "height": 64, "seed": 5, "sampler": "euler_a",
        "preview_every": 0,
    })
}

fn send(rig: &Rig, body: &Value) -> Outcome {
    rig.once(&body.to_string(), || {
        let answer = rig.served.post("/v1/jobs", body.to_string().as_bytes());
        let status = answer.status;
        let answer = answer.json();
        if status != 202 {
            let message = answer["error"]["message"].as_str().unwrap().to_string();
            return Outcome { refused: Some(message), answer, ..Outcome::default() };
        }
        let job = rig.served.finished(answer["id"].as_str().unwrap());
        if let Some(message) = job["error"]["message"].as_str() {
            return Outcome { refused: Some(message.into()), answer: job.clone(), ..Outcome::default() };
        }
        let images = (0..job["images"].as_array().unwrap().len()).map(|i| rig.served.image(&job, i)).collect();
        Outcome { images, warnings: texts(&job["warnings"]), refused: None, answer: job }
    })
}

/// Each option of the table: what has to be there besides, a value that matters, and what comes of it; and what comes of the option
/// alone where that is something else.
#[rustfmt::skip]
fn options() -> Vec<(&'static str, Value, Value, Does, Option<Does>)> {
    let init = || json!({ "init": image(), "sampler": "euler" });
    let masked = || json!({ "init": image(), "mask": mask(), "sampler": "euler" });
    let soft = || json!({ "init": image(), "mask": mask(), "sampler": "euler", "soft_inpainting": true });
    let hires = || json!({ "hires_scale": 1.5, "hires_steps": 2, "sampler": "euler" });
    let sampler = |name: &str| json!({ "sampler": name });
    let karras = || json!({ "sampler": "euler", "scheduler": "karras" });
    // Its steps begin below the highest noise level.
    let leading = || with(&karras(), &json!({ "model": "sdxl" }));
    let xl = || json!({ "model": "sdxl" });
    let refined = |more: Value| with(&json!({ "refiner": "sd1_half", "sampler": "euler", "steps": 4 }), &more);
    let on = |name: &str, value: Value| { let mut on = none(); on[name] = value; on };
    let two: fn(&Outcome, &Outcome) -> bool = |_, found| found.images.len() == 2;
    let no_init = || Some(Refused("`init` too"));
    let large = |more: Value| with(&json!({ "width": 128, "height": 128 }), &more);
    vec![
        ("prompt", none(), json!("a fig"), Bits, None),
        ("negative_prompt", none(), json!("a fig"), Bits, None),
        ("steps", none(), json!(2), Bits, None),
        ("sampler", none(), json!("heun"), Bits, None),
        ("scheduler", none(), json!("karras"), Bits, None),
        ("cfg_scale", none(), json!(3), Bits, None),
        ("cfg_schedule", none(), json!([9, 1]), Bits, None),
        ("seed", none(), json!(6), Bits, None),
        ("width", none(), json!(96), Bits, None),
        ("height", none(), json!(96), Bits, None),
        ("loras", none(), json!(["kohya:0.8"]), Bits, None),
        ("controls", none(), json!([{ "net": "canny", "image": image() }]), Bits, None),
        ("ip_adapters", none(), json!([{ "model": "plain", "image": image() }]), Bits, None),
        ("batch_count", none(), json!(2), Answer(two), None),
        ("batch_size", none(), json!(2), Answer(two), None),
        ("sigmas", none(), json!([14.0, 3.0, 1.0, 0.0]), Bits, None),
        ("convention", leading(), json!("a1111"), Bits, None),
        ("sigma_range", leading(), json!("table"), Bits, Some(Refused("sigma_range"))),
        ("sigma_min", karras(), json!(0.5), Bits, Some(Refused("sigma_min"))),
        ("sigma_max", karras(), json!(5), Bits, Some(Refused("sigma_max"))),
        ("discard_penultimate_sigma", none(), json!(true), Bits, None),
        ("initial_noise", none(), json!("variance"), Bits, None),
        ("unipc_variant", sampler("unipc"), json!("bh1"), Bits, Some(Refused("unipc_variant"))),
        ("eta", none(), json!(0.5), Bits, None),
        ("s_churn", sampler("euler"), json!(2), Bits, Some(Refused("s_churn"))),
        ("s_tmin", json!({ "sampler": "euler", "s_churn": 2 }), json!(10), Bits, Some(Refused("s_tmin"))),
        ("s_tmax", json!({ "sampler": "euler", "s_churn": 2 }), json!(1), Bits, Some(Refused("s_tmax"))),
        ("s_noise", none(), json!(0.9), Bits, None),
        ("rho", karras(), json!(5), Bits, Some(Refused("rho"))),
        ("guidance_rescale", none(), json!(0.7), Bits, None),
        ("guidance_start", none(), json!(0.5), Bits, None),
        ("guidance_end", none(), json!(0.5), Bits, None),
        ("apg_eta", none(), json!(0), Bits, None),
        ("apg_threshold", on("apg_eta", json!(1)), json!(0.1), Bits, Some(Refused("apg_threshold"))),
        ("apg_momentum", on("apg_eta", json!(1)), json!(-0.5), Bits, Some(Refused("apg_momentum"))),
        ("mimic_scale", on("dynamic_thresholding", json!(0.9)), json!(2), Bits, Some(Refused("mimic_scale"))),
        ("dynamic_thresholding", none(), json!(0.9), Bits, None),
        ("pag_scale", large(none()), json!(3), Bits, None),
        ("pag_adaptive_scale", large(on("pag_scale", json!(3))), json!(0.005), Bits, Some(Refused("pag_adaptive_scale"))),
        ("pag_layers", large(on("pag_scale", json!(3))), json!("up_blocks.1"), Bits, Some(Refused("pag_layers"))),
        ("freeu", none(), json!("1.5,1.6,0.9,0.2"), Bits, None),
        ("freeu_version", on("freeu", json!("1.5,1.6,0.9,0.2")), json!("v2"), Bits, Some(Refused("freeu_version"))),
        ("sag_scale", large(none()), json!(0.75), Bits, None),
        ("sag_sigma", large(on("sag_scale", json!(0.75))), json!(3), Bits, Some(Refused("sag_sigma"))),
        ("sag_threshold", large(on("sag_scale", json!(0.75))), json!(0.5), Bits, Some(Refused("sag_threshold"))),
        ("cache", none(), json!("deepcache:2"), Bits, None),
        ("block_cache", none(), json!(0.1), Refused("block_cache"), None),
        ("block_cache_predict", none(), json!(true), Refused("block_cache_predict"), None),
        ("deep_shrink", none(), json!(2), Bits, None),
        ("deep_shrink_block", on("deep_shrink", json!(2)), json!(1), Bits, Some(Refused("deep_shrink_block"))),
        ("deep_shrink_start", on("deep_shrink", json!(2)), json!(0.3), Bits, Some(Refused("deep_shrink_start"))),
        ("deep_shrink_end", on("deep_shrink", json!(2)), json!(1), Bits, Some(Refused("deep_shrink_end"))),
        ("subseed", on("subseed_strength", json!(0.5)), json!(7), Bits, Some(Warns("`subseed_strength` is 0"))),
        ("subseed_strength", on("subseed", json!(9)), json!(0.5), Bits, None),
        ("seed_resize_from", none(), json!([32, 32]), Bits, None),
        ("noise_part", none(), json!("2/2"), Bits, None),
        ("clip_skip", none(), json!(2), Bits, None),
        ("ensd", none(), json!(31337), Bits, None),
        ("rng", none(), json!("cuda"), Bits, None),
        ("emphasis", on("prompt", json!("a (pear:1.4)")), json!("comfy"), Bits, Some(Nothing("no weights in the prompt"))),
        ("pad_conds", on("prompt", json!("a, ".repeat(60))), json!(false), Bits, Some(Nothing("both prompts have one chunk"))),
        ("comma_backtrack", on("prompt", json!(format!("{}, b b b b", "a ".repeat(72)))), json!(0), Bits, Some(Nothing("one chunk"))),
        ("chunk_cut", on("prompt", json!(format!("{}, b b b b", "a ".repeat(72)))), json!("word"), Bits, Some(Nothing("one chunk"))),
        ("max_length", none(), json!(77), Refused("max_length"), None),
        ("regions", on("prompt", json!("a pear AND a fig")), json!([{}, { "share": [0, 0, 0.5, 1] }]), Bits, Some(Refused("AND separates"))),
        ("references", none(), json!([image()]), Refused("references"), None),
        ("shift", none(), json!(5), Refused("shift"), None),
        ("guidance", none(), json!(2.5), Refused("guidance"), None),
        ("slg_scale", none(), json!(2.8), Refused("slg_scale"), None),
        ("slg_layers", none(), json!("1,2"), Refused("slg_layers"), None),
        ("slg_start", none(), json!(0.1), Refused("slg_start"), None),
        ("slg_end", none(), json!(0.5), Refused("slg_end"), None),
        ("cfg_zero_star", none(), json!(true), Refused("cfg_zero_star"), None),
        ("cfg_norm", none(), json!(0.5), Refused("cfg_norm"), None),
        ("reference_size", none(), json!("own"), Refused("reference_size"), None),
        ("keep_comments", on("prompt", json!("a pear # ripe")), json!(true), Bits, Some(Nothing("no comments in the prompt"))),
        ("wildcards_dir", none(), json!("lists"), Refused("wildcards_dir"), None),
        ("literal_prompt", on("prompt", json!("a {pear|fig}")), json!(true), Bits, Some(Nothing("no choices in the prompt"))),
        ("literal_negative_prompt", on("negative_prompt", json!("a {pear|fig}")), json!(true), Bits, Some(Nothing("no choices"))),
        ("strength", init(), json!(0.4), Bits, no_init()),
        ("rule", init(), json!("a1111"), Bits, Some(Warns("`rule` has no effect"))),
        ("resize_mode", init(), json!("crop"), Bits, no_init()),
        ("init_noise", init(), json!("mean"), Bits, no_init()),
        ("noise_multiplier", init(), json!(0.8), Bits, no_init()),
        ("mask_blur", masked(), json!(3), Bits, no_init()),
        ("mask_content", masked(), json!("noise"), Bits, no_init()),
        ("inpaint_area", masked(), json!("masked"), Bits, no_init()),
        ("inpaint_padding", with(&masked(), &json!({ "inpaint_area": "masked" })), json!(2), Bits, no_init()),
        ("mask_weight", masked(), json!(0.5), Warns("the model takes no mask"), no_init()),
        ("soft_inpainting", masked(), json!(true), Bits, no_init()),
        ("soft_schedule_bias", soft(), json!(3), Bits, no_init()),
        ("soft_preservation", soft(), json!(4), Bits, no_init()),
        ("soft_contrast_boost", soft(), json!(1), Bits, no_init()),
        ("soft_mask_influence", soft(), json!(1), Bits, no_init()),
        ("soft_difference_threshold", soft(), json!(4), Bits, no_init()),
        ("soft_difference_contrast", soft(), json!(0), Bits, no_init()),
        ("paste_back", masked(), json!(false), Bits, no_init()),
        ("init", sampler("euler"), json!(image()), Bits, None),
        ("mask", init(), json!(mask()), Bits, Some(Refused("mask"))),
        ("mask_invert", masked(), json!(true), Bits, no_init()),
        ("extend", json!({ "init": other_image(), "sampler": "euler" }), json!("left=32"), Bits, Some(Refused("extend"))),
        ("hires_scale", sampler("euler"), json!(1.5), Bits, None),
        ("hires_size", sampler("euler"), json!([96, 96]), Bits, None),
        ("hires_upscaler", hires(), json!("lanczos"), Bits, Some(Refused("hires_scale"))),
        ("hires_steps", json!({ "hires_scale": 1.5, "sampler": "euler" }), json!(2), Bits, Some(Refused("hires_scale"))),
        ("hires_strength", hires(), json!(0.4), Bits, Some(Refused("hires_scale"))),
        ("hires_cfg_scale", hires(), json!(2), Bits, Some(Refused("hires_scale"))),
        ("hires_sampler", hires(), json!("heun"), Bits, Some(Refused("hires_scale"))),
        ("hires_scheduler", with(&hires(), &json!({ "hires_steps": 4 })), json!("karras"), Bits, Some(Refused("hires_scale"))),
        ("hires_prompt", hires(), json!("a fig"), Bits, Some(Refused("hires_scale"))),
        ("hires_negative_prompt", hires(), json!("a fig"), Bits, Some(Refused("hires_scale"))),
        ("upscaler_dir", none(), json!("upscalers"), Refused("upscaler_dir"), None),
        ("refiner_switch", refined(none()), json!(0.3), Bits, Some(Refused("refiner"))),
        ("refiner_switch_by", refined(json!({ "rule": "a1111", "refiner_switch": 0.3, "scheduler": "karras" })), json!("timesteps"), Bits,
            Some(Warns("there is no `refiner`"))),
        // Of SDXL's refiner alone: crates/engine/tests/engine/refiner.rs.
        ("aesthetic_score", none(), json!(3), Warns("there is no `refiner`"), None),
        ("negative_aesthetic_score", none(), json!(6), Warns("there is no `refiner`"), None),
        ("original_size", xl(), json!([32, 32]), Bits, Some(Refused("SDXL"))),
        ("crop", xl(), json!("16,8"), Bits, Some(Refused("SDXL"))),
        ("target_size", xl(), json!([32, 32]), Bits, Some(Refused("SDXL"))),
        ("negative_original_size", xl(), json!([32, 32]), Bits, Some(Refused("SDXL"))),
        ("negative_crop", xl(), json!("16,8"), Bits, Some(Refused("SDXL"))),
        ("negative_target_size", xl(), json!([32, 32]), Bits, Some(Refused("SDXL"))),
        ("refiner", json!({ "sampler": "euler", "steps": 4 }), json!("sd1_half"), Bits, None),
    ]
}

#[test]
fn every_option_does_something_or_is_named() {
    let rig = Rig::start();
    let rows = options();
    let listed: Vec<&str> = rows.iter().map(|row| row.0).collect();
    for row in OPTIONS {
        assert!(listed.contains(&row.name), "{} is a new option: say here what it does", row.name);
    }
    let mut wrong = Vec::new();
    for (name, context, value, does, alone) in rows {
        let usual = with(&base(), &context);
        let mut set = usual.clone();
        set[name] = value.clone();
        wrong.extend(check(name, does, &send(&rig, &usual), &send(&rig, &set)));
        if let Some(does) = alone {
            let mut set = base();
            set[name] = value;
            let name = format!("{name} alone");
            wrong.extend(check(&name, does, &send(&rig, &base()), &send(&rig, &set)));
        }
    }
    report(wrong);
}

#[test]
fn every_field_of_a_network_does_something_or_is_named() {
    let rig = Rig::start();
    let control = |more: Value| json!([with(&json!({ "net": "canny", "image": image() }), &more)]);
    let prompt = |more: Value| json!([with(&json!({ "model": "plain", "image": image() }), &more)]);
    let lora = |more: Value| json!([with(&json!({ "lora": { "named": "kohya" }, "text": 1.0, "unet": 1.0 }), &more)]);
    let hires = json!({ "hires_scale": 1.5, "hires_steps": 2, "sampler": "euler" });
    let parts = || json!({ "prompt": "a pear AND a fig" });
    let second = |more: Value| json!([{}, more]);
    let masked = |more: Value| second(with(&json!({ "mask": mask() }), &more));
    let cases: Vec<(&str, Value, Value, Value, Does)> = vec![
        ("regions", parts(), second(json!({})), second(json!({ "pixels": [0, 0, 32, 64] })), Bits),
        ("regions", parts(), second(json!({})), second(json!({ "share": [0, 0, 0.5, 1] })), Bits),
        ("regions", parts(), second(json!({})), masked(none()), Bits),
        ("regions", parts(), second(json!({})), second(json!({ "strength": 0.5 })), Bits),
        (
            "regions",
            parts(),
            second(json!({})),
            second(json!({ "blend": [{ "text": "a plum", "weight": 0.5 }] })),
            Bits,
        ),
        ("regions", parts(), masked(none()), masked(json!({ "bounds": true })), Bits),
        ("regions", parts(), second(json!({})), second(json!({ "mask": "/etc/hostname" })), Refused("regions")),
        ("controls", none(), control(none()), control(json!({ "image": other_image() })), Bits),
        ("controls", none(), control(none()), control(json!({ "weight": 0.5 })), Bits),
        ("controls", none(), control(none()), control(json!({ "start": 0.4 })), Bits),
        ("controls", none(), control(none()), control(json!({ "end": 0.5 })), Bits),
        ("controls", none(), control(none()), control(json!({ "mode": "prompt" })), Bits),
        ("controls", none(), control(none()), control(json!({ "guess": true })), Bits),
        ("controls", none(), control(none()), control(json!({ "resize": "crop" })), Bits),
        ("controls", none(), control(none()), control(json!({ "preprocess": "invert" })), Bits),
        ("controls", none(), control(none()), control(json!({ "type": "depth" })), Refused("type")),
        ("controls", hires, control(none()), control(json!({ "passes": "first" })), Bits),
        ("controls", none(), control(none()), control(json!({ "passes": "first" })), Refused("passes")),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "image": other_image() })), Bits),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "weight": 0.5 })), Bits),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "start": 0.4 })), Bits),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "end": 0.5 })), Bits),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "mask": mask() })), Bits),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "blocks": "mid" })), Bits),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "encoder": "nope" })), Refused("image_encoder")),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "shortcut": true })), Refused("shortcut")),
        ("ip_adapters", none(), prompt(none()), prompt(json!({ "embeds": "aGFsbG8=" })), Refused("safetensors")),
        ("loras", none(), lora(none()), lora(json!({ "text": 0.2 })), Bits),
        ("loras", none(), lora(none()), lora(json!({ "unet": 0.2 })), Bits),
    ];
    let mut wrong = Vec::new();
    for (field, context, usual, set, does) in cases {
        let of = |value: &Value| {
            let mut body = with(&base(), &context);
            body[field] = value.clone();
            send(&rig, &body)
        };
        let name = set[0].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(",");
        wrong.extend(check(&format!("{field} {name}"), does, &of(&usual), &of(&set)));
    }
    report(wrong);
}

/// The fields of a job that are no options.
#[test]
fn every_field_of_a_job_does_something_or_is_named() {
    let rig = Rig::start();
    let usual = send(&rig, &base());
    let mut wrong = Vec::new();
    for (name, value, does) in [
        ("model", json!("sd2v"), Bits),
        ("output", json!("a.png"), Refused("output")),
        ("preview_every", json!(1), Nothing("previews are events")),
        ("priority", json!(5), Nothing("the order of jobs")),
        ("timeout", json!(1e-9), Refused("timeout")),
        ("promt", json!("a"), Refused("did you mean")),
    ] {
        let mut body = base();
        body[name] = value;
        wrong.extend(check(name, does, &usual, &send(&rig, &body)));
    }
    for (text, does) in [
        ("a pear<hypernet:x:1>", Warns("<hypernet:x:1>")),
        ("a pear<style:x>", Warns("<style:x>")),
        ("a __colour__ pear", Answer(|_, found| found.warnings[0].starts_with("__colour__ stays text"))),
        ("a pear<lora:nope:1>", Refused("<lora:nope:1>")),
    ] {
        wrong.extend(check(text, does, &usual, &send(&rig, &with(&base(), &json!({ "prompt": text })))));
    }
    report(wrong);
}
