//! The effects of the prompt dialect on images of the tiny models.

use kiln_engine::{Emphasis, Engine, GeneratedImage, Request, Setup};
use kiln_scheduler::SamplerKind;
use kiln_testkit::fixtures;

use crate::support::{cpu, images, load, tiny, try_images};

const MODELS: [&str; 2] = ["models/sd1", "models/sdxl"];

fn engine(model: &str) -> Engine {
    load(&fixtures(model), &cpu())
}

fn request(prompt: &str) -> Request {
    Request {
        prompt: prompt.into(),
        negative_prompt: Some("blurry".into()),
        width: Some(64),
        height: Some(64),
        steps: Some(4),
        cfg_scale: Some(5.0),
        seed: Some(7),
        sampler: Some(SamplerKind::Euler.into()),
        ..Request::default()
    }
}

fn pixels(engine: &mut Engine, request: &Request) -> Vec<u8> {
    images(engine, request).remove(0).rgb
}

/// The largest difference between two images' bytes.
fn difference(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}

#[test]
fn schedules_change_the_prompt_during_the_run() {
    for model in MODELS {
        let engine = &mut engine(model);
        let mut of = |prompt: &str| pixels(engine, &request(prompt));
        let (cat, dog) = (of("a cat"), of("a dog"));
        assert_eq!(of("a [cat:dog:0]"), dog);
        assert_eq!(of("a [cat:dog:4]"), cat);
        assert_eq!(of("a [cat|cat]"), cat);
        let switched = of("a [cat:dog:0.5]");
        assert!(switched != cat && switched != dog);
        assert_eq!(of("a [cat:dog:2]"), switched);
        assert_eq!(of("a [cat::2][:dog:2]"), switched);
        assert_ne!(of("a [cat|dog]"), switched);
    }
}

/// Heun calls the denoiser twice in a step: a prompt changes at the same step as with one call.
#[test]
fn both_calls_of_a_step_use_one_prompt() {
    let engine = &mut engine("models/sd1");
    let mut of = |prompt: &str| pixels(engine, &Request { sampler: Some(SamplerKind::Heun.into()), ..request(prompt) });
    let last = of("a [cat:dog:2]");
    assert!(last != of("a cat") && last != of("a dog"));
    assert_eq!(of("a [cat:dog:3]"), of("a cat"));
}

#[test]
fn parts_add_up() {
    for model in MODELS {
        let engine = &mut engine(model);
        let alone = pixels(engine, &request("a cat"));
        // Half of the guidance, twice; and a part with weight 0.
        let half = Request { cfg_scale: Some(2.5), ..request("a cat AND a cat") };
        assert!(difference(&pixels(engine, &half), &alone) <= 1);
        assert!(difference(&pixels(engine, &request("a cat AND a dog :0")), &alone) <= 1);
        assert!(difference(&pixels(engine, &request("a cat AND a dog")), &alone) > 1);
        let stronger = Request { cfg_scale: Some(2.5), ..request("a cat :2") };
        assert!(difference(&pixels(engine, &stronger), &alone) <= 1);
        // Without guidance the parts are still used.
        let unguided = |prompt: &str| Request { cfg_scale: Some(1.0), ..request(prompt) };
        let one = pixels(engine, &unguided("a cat"));
        assert!(difference(&pixels(engine, &unguided("a cat :0.5 AND a cat :0.5")), &one) <= 1);
    }
}

#[test]
fn emphasis_modes_are_applied() {
    for model in MODELS {
        let engine = &mut engine(model);
        let mut of = |prompt: &str, emphasis| pixels(engine, &Request { emphasis, ..request(prompt) });
        let plain = of("a red cat", Emphasis::Original);
        assert_eq!(of("a (red:1.5) cat", Emphasis::Ignore), plain);
        assert_eq!(of("a (red:1) cat", Emphasis::Original), plain);
        let all = Emphasis::ALL.map(|emphasis| of("a (red:1.6) [cat]", emphasis));
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one), "{model}: {:?}", Emphasis::ALL[i]);
        }
    }
}

/// A weight that no number of the network holds is named; others damage the image alone.
#[test]
fn a_weight_that_is_too_large_is_named() {
    let engine = &mut engine("models/sd1");
    for (digits, shown) in [(38, "1e38"), (40, "inf")] {
        let prompt = format!("a (red:{}) cat", "9".repeat(digits));
        let heavy = Request { emphasis: Emphasis::NoNorm, ..request(&prompt) };
        let error = try_images(engine, &heavy).unwrap_err().to_string();
        assert!(error.contains(&format!("the weight {shown} of a word in a prompt is too large")), "{error}");
        assert!(!error.contains("f32"), "{error}");
    }
    try_images(engine, &request("a (red:100) cat")).unwrap();
}

#[test]
fn layers_are_counted_from_the_last() {
    for (model, own) in MODELS.into_iter().zip([1, 2]) {
        let engine = &mut engine(model);
        let mut of = |clip_skip| pixels(engine, &Request { clip_skip, ..request("a cat") });
        assert_eq!(of(Some(own)), of(None), "{model}");
        assert_ne!(of(Some(3 - own)), of(None), "{model}");
    }
}

#[test]
fn every_image_has_its_own_choices() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("colour.txt"), "red\ngreen\nblue\n").unwrap();
    for model in MODELS {
        let engine = &mut engine(model);
        let batch = Request {
            wildcards_dir: Some(folder.path().into()),
            batch_size: Some(3),
            batch_count: Some(2),
            ..request("a __colour__ {cat|dog|fox AND bird}, {x|y}")
        };
        let together = images(engine, &batch);
        let prompt = |image: &GeneratedImage| image.parameters.lines().next().unwrap_or_default().to_string();
        let prompts: std::collections::BTreeSet<String> = together.iter().map(prompt).collect();
        assert!(prompts.len() > 1, "{prompts:?}");
        for image in &together {
            assert!(!prompt(image).contains(['{', '_']) && image.parameters.contains("Template: "));
            // The settings in the image generate it again, alone.
            let alone = pixels(engine, &Request { seed: Some(image.seed), ..request(&prompt(image)) });
            assert!(difference(&image.rgb, &alone) <= 1, "{model}: {}", prompt(image));
        }
    }
}

#[test]
fn prompts_of_any_length_share_a_batch() {
    let long = "a red apple, ".repeat(30);
    for model in MODELS {
        let engine = &mut engine(model);
        let with = |prompt: &str, negative: &str| Request { negative_prompt: Some(negative.into()), ..request(prompt) };
        let requests = [
            with(&long, "blurry"),
            with("a cat", &long),
            with(&format!("a cat AND {long}"), "blurry"),
            with(&format!("a [cat:{long}:2] BREAK b"), ""),
            Request { negative_prompt: None, ..request(&long) },
        ];
        for request in requests {
            pixels(engine, &request);
        }
    }
}

#[test]
fn encoded_prompts_are_cached() {
    let engine = &mut engine("models/sd1");
    pixels(engine, &request("a [cat:dog:2]"));
    let first = engine.timings();
    assert_eq!((first.texts_encoded, first.texts_known), (3, 0));
    pixels(engine, &request("a dog"));
    let second = engine.timings();
    assert_eq!((second.texts_encoded, second.texts_known), (3, 2));
}

#[test]
fn no_prompt_fails() {
    let engine = &mut engine("models/sd1");
    for prompt in [
        "",
        "AND",
        "BREAK",
        "((((",
        "]|[",
        "a\\",
        "(:0)",
        "[a|b",
        "{a|b",
        "(a:1.2.3)",
        "<hypernet:x:1>",
        "a :-1e9 AND :",
        "\u{301}\u{0}",
    ] {
        pixels(engine, &Request { steps: Some(1), ..request(prompt) });
    }
}

/// Guidance outside of the step, with an end, or with both outputs, combined with parts and schedules.
#[test]
fn all_kinds_of_guidance_work_with_parts_and_schedules() {
    for model in MODELS {
        let engine = &mut engine(model);
        let plain = "a [cat:dog:2]";
        // One part with weight 1, but combined: a second one has weight 0.
        let combined = "a [cat:dog:2] AND a fox :0";
        let ways: [fn(Request) -> Request; 6] = [
            |request| Request { guidance_end: Some(0.5), ..request },
            |request| Request { guidance_start: Some(0.3), ..request },
            |request| Request { guidance_rescale: Some(0.7), ..request },
            |request| Request { guidance_rescale: Some(0.7), guidance_end: Some(0.5), ..request },
            |request| Request { dynamic_thresholding: Some(0.99), mimic_scale: Some(3.0), ..request },
            |request| Request {
                sampler: Some(SamplerKind::EulerCfgPp.into()),
                cfg_scale: Some(1.0),
                guidance_end: Some(0.75),
                ..request
            },
        ];
        let usual = pixels(engine, &request(plain));
        for (i, way) in ways.into_iter().enumerate() {
            let [one, same, other] =
                [plain, combined, "a cat AND a dog"].map(|prompt| pixels(engine, &way(request(prompt))));
            assert_ne!(one, usual, "{model} {i}");
            assert!(difference(&one, &same) <= 1, "{model} {i}");
            assert!(difference(&one, &other) > 1, "{model} {i}");
        }
        // Where guidance is always off, a combined prompt has strength 1.
        let both = "a cat AND a dog";
        let off = pixels(engine, &Request { guidance_end: Some(0.0), ..request(both) });
        assert!(difference(&off, &pixels(engine, &Request { cfg_scale: Some(1.0), ..request(both) })) <= 1);
        let unguided = pixels(engine, &Request { cfg_scale: Some(1.0), ..request(plain) });
        assert_eq!(pixels(engine, &Request { guidance_end: Some(0.0), ..request(plain) }), unguided, "{model}");
    }
}

/// A token with its own embedding, and LoRAs, within the dialect; prompts that they change are encoded again.
#[test]
fn embeddings_and_loras_work_in_the_dialect() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures("lora/embedding.safetensors"), folder.path().join("cat-toy (old).safetensors")).unwrap();
    let setup = |embeddings: bool| Setup {
        lora_dir: Some(fixtures("lora/sd1")),
        embeddings_dir: embeddings.then(|| folder.path().into()),
        ..cpu()
    };
    let (engine, bare) = (&mut tiny("sd1", &setup(true)), &mut tiny("sd1", &setup(false)));
    let mut of = |prompt: &str| pixels(engine, &request(prompt));
    // The name is found after escapes, with a weight, and in a schedule.
    let word = of(r"a cat-toy \(old\)");
    assert_ne!(word, pixels(bare, &request(r"a cat-toy \(old\)")));
    assert_ne!(of(r"a (cat-toy \(old\):1.4)"), word);
    assert_eq!(of(r"a [cat-toy \(old\):dog:4]"), word);
    assert_ne!(of(r"a [cat-toy \(old\):dog:2]"), word);
    // A tag at any position applies to the whole image and is removed from the text.
    let plain = of("a [cat:dog:2]");
    let with = of("a [cat:dog:2]<lora:kohya:0.8>");
    assert_ne!(with, plain);
    assert_eq!(of("a [cat<lora:kohya:0.8>:dog:2]"), with);
    assert_eq!(of("a [cat:dog:2]"), plain);
}

/// Another strength for the text encoders changes embeddings of the same prompts; with the same LoRA they stay cached.
#[test]
fn loras_in_text_encoders_invalidate_the_cache() {
    let setup = Setup { lora_dir: Some(fixtures("lora/sd1")), ..cpu() };
    let engine = &mut tiny("sd1", &setup);
    let mut encoded = |prompt: &str| {
        let before = engine.timings().texts_encoded;
        pixels(engine, &request(prompt));
        engine.timings().texts_encoded - before
    };
    assert_eq!(encoded("a cat"), 2);
    assert_eq!(encoded("a cat<lora:kohya:1>"), 2);
    assert_eq!(encoded("a cat<lora:kohya:1>"), 0);
    assert_eq!(encoded("a cat<lora:kohya:0.5>"), 2);
    assert_eq!(encoded("a cat<lora:kohya:0.5:1>"), 0); // only the denoiser
    assert_eq!(encoded("a cat"), 2);
}
