//! Texts that are encoded on a GPU by Vulkan, Metal or DirectX 12, compared with those of the CPU by the images that they make.

use std::path::{Path, PathBuf};

use kiln_engine::{
    DTypeChoice, Emphasis, LoraName, LoraUse, ModeChoice, ModelFolder, Overlap, Planner, Request, Setup,
};
use kiln_testkit::{deviation, fixtures};

use crate::support::{bits, cpu, images, latents, load, qwen_edit, request, sd3, tiny};
use crate::vulkan::gpu;

/// More than a chunk of 75 tokens, with weights.
fn long() -> String {
    format!("a (pear:1.3), [a fig], {} BREAK a (cat:0.6)", "a photo of a cat, ".repeat(20))
}

/// The folders of tiny models with one and two of CLIP's text encoders, and with T5.
fn models(sd3: &Path) -> Vec<PathBuf> {
    sd3::write_model(sd3);
    vec![fixtures("models/sd1"), fixtures("models/sdxl"), sd3.to_path_buf()]
}

/// Draws `request` on the CPU and on the GPU in f32 and f16, and compares.
#[track_caller]
fn check(folder: &Path, setup: &dyn Fn(Setup) -> Setup, request: &Request) {
    let expected = images(&mut load(folder, &setup(cpu())), request);
    for (dtype, bound) in [(DTypeChoice::F32, 1e-4), (DTypeChoice::F16, 4e-2)] {
        let setup = setup(gpu(dtype, ModeChoice::Full));
        let model = ModelFolder::open(folder).unwrap();
        let (on, _) = Planner::new(&model, None).unwrap().target(&setup).unwrap();
        assert!(on.has_texts_on_gpu(), "{}", on.device());
        let found = images(&mut load(folder, &setup), request);
        let error = deviation(&latents(&found), &latents(&expected)).error;
        println!("{} {dtype:?}: {error:.1e}", folder.display());
        assert!(error < bound, "{} in {dtype:?}: {error:e} standard deviations", folder.display());
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_encodes_long_texts() {
    let folder = tempfile::tempdir().unwrap();
    for model in models(folder.path()) {
        for prompt in ["a photo of a cat".to_string(), long()] {
            check(&model, &|setup| setup, &request(&prompt, (64, 64), 2, 3));
        }
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_texts_have_the_same_bits_in_every_memory_mode() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(&long(), (64, 64), 2, 5);
    for model in models(folder.path()) {
        let draw = |mode| {
            let mut engine = load(&model, &gpu(DTypeChoice::F16, mode));
            let first = bits(&images(&mut engine, &request));
            // With weights that are there, and with those that come back.
            let other = Request { prompt: "a pear".into(), ..request.clone() };
            (first, bits(&images(&mut engine, &other)))
        };
        let expected = draw(ModeChoice::Full);
        for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
            assert!(draw(mode) == expected, "{} in {mode:?}", model.display());
        }
    }
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_text_encoders_take_loras() {
    for kind in ["sd1", "sdxl"] {
        let setup = |setup| Setup { lora_dir: Some(fixtures(&format!("lora/{kind}"))), ..setup };
        // The denoiser has none of it.
        let with = request("a cat<lora:kohya:0.8:0>", (64, 64), 2, 3);
        check(&fixtures(&format!("models/{kind}")), &setup, &with);
        for mode in [ModeChoice::Full, ModeChoice::Lowvram] {
            let mut engine = tiny(kind, &setup(gpu(DTypeChoice::F32, mode)));
            let mut draw = |request: &Request| bits(&images(&mut engine, request));
            let without = request("a cat", (64, 64), 2, 3);
            let (before, changed, after) = (draw(&without), draw(&with), draw(&without));
            assert!(before != changed && before == after, "{kind} in {mode:?}");
        }
    }
    // Biases of layers that have none.
    let lora = LoraName::File(fixtures("lora/bias/adapter_model.safetensors"));
    let loras = vec![LoraUse { lora, text: 0.8, unet: 0.8 }];
    check(&fixtures("models/sd1"), &|setup| setup, &Request { loras, ..request("a cat", (64, 64), 2, 3) });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_texts_have_embeddings_masks_and_skipped_layers() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures("lora/embedding.safetensors"), folder.path().join("cat-toy.safetensors")).unwrap();
    let setup = |setup| Setup { embeddings_dir: Some(folder.path().into()), ..setup };
    let plain = request("a (cat-toy:0.7) on a (red:1.4) chair", (64, 64), 2, 3);
    for (emphasis, clip_skip) in [(Emphasis::Compel, None), (Emphasis::Comfy, Some(2)), (Emphasis::Original, Some(1))] {
        check(&fixtures("models/sd1"), &setup, &Request { emphasis, clip_skip, ..plain.clone() });
    }
}

/// The language model of Qwen with its vision tower.
#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_language_models_see_images() {
    let folder = tempfile::tempdir().unwrap();
    qwen_edit::write_model(folder.path(), "QwenImageEditPlusPipeline", false);
    let references = vec![fixtures("inpaint/image.png"), qwen_edit::second()];
    check(folder.path(), &|setup| setup, &Request { references, ..request("make it night", (64, 64), 2, 3) });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_texts_are_encoded_while_steps_run() {
    let setup = |overlap| Setup { overlap, ..gpu(DTypeChoice::F32, ModeChoice::Full) };
    let requests = ["a pear", "a fig", "a cat"].map(|prompt| request(prompt, (64, 64), 2, 3));
    let mut alone = tiny("sdxl", &setup(Overlap::Never));
    let expected = requests.each_ref().map(|request| bits(&images(&mut alone, request)));
    let mut engine = tiny("sdxl", &setup(Overlap::Always));
    let jobs = requests.each_ref().map(|request| request.resolve(engine.model()).unwrap());
    engine.foresee(jobs.iter());
    let networks = engine.overlapped().expect("all networks stay in memory");
    let found = std::thread::scope(|scope| {
        let thread = scope.spawn(move || while networks.encode_next(1).unwrap() > 0 {});
        let found = requests.each_ref().map(|request| bits(&images(&mut engine, request)));
        thread.join().unwrap();
        found
    });
    assert!(found == expected);
}
