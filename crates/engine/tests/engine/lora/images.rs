//! LoRAs and embeddings in a running engine.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, LatentsFile, LoraName, LoraUse, MemoryOptions, ModeChoice, ModelFolder,
    Request, Setup,
};
use kiln_testkit::fixtures;

use crate::support::{cpu, request, tiny, try_images};

/// The folder of the fixtures for a model.
fn loras(kind: &str) -> PathBuf {
    fixtures(&format!("lora/{kind}"))
}

fn engine_in(kind: &str, mode: ModeChoice, lora_dir: Option<PathBuf>, embeddings_dir: Option<PathBuf>) -> Engine {
    let memory = MemoryOptions { mode, ..MemoryOptions::default() };
    tiny(kind, &Setup { memory, lora_dir, embeddings_dir, ..cpu() })
}

fn engine(kind: &str) -> Engine {
    engine_in(kind, ModeChoice::Full, Some(loras(kind)), None)
}

/// The pixels and the settings of an image.
fn generate(engine: &mut Engine, prompt: &str, loras: &[LoraUse]) -> kiln_engine::Result<(Vec<u8>, String)> {
    let request = Request { loras: loras.to_vec(), ..request(prompt, (64, 64), 2, 7) };
    let image = try_images(engine, &request)?.remove(0);
    Ok((image.rgb, image.parameters))
}

fn pixels(engine: &mut Engine, prompt: &str) -> Vec<u8> {
    generate(engine, prompt, &[]).unwrap().0
}

#[test]
fn a_lora_changes_the_image_and_is_removed_exactly() {
    for kind in ["sd1", "sdxl"] {
        let mut engine = engine(kind);
        let plain = pixels(&mut engine, "a red apple");
        let with = pixels(&mut engine, "a red apple<lora:kohya:0.8>");
        assert_ne!(with, plain, "{kind}");
        assert_eq!(pixels(&mut engine, "a red apple"), plain, "{kind}: removed");
        assert_eq!(pixels(&mut engine, "a red apple<lora:kohya:0>"), plain, "{kind}: strength 0");
        let both = pixels(&mut engine, "a red apple<lora:kohya:0.8><lora:loha:0.5>");
        assert_ne!(both, with, "{kind}");
        assert_eq!(pixels(&mut engine, "a red apple<lora:kohya:0.8>"), with, "{kind}: one of two removed");
        let unet_alone = pixels(&mut engine, "a red apple<lora:kohya:0:0.8>");
        assert!(unet_alone != with && unet_alone != plain, "{kind}");
    }
}

#[test]
fn modes_and_files_at_load_give_the_same_image() {
    let kind = "sdxl";
    let expected = pixels(&mut engine(kind), "a red apple<lora:kohya_sgm:0.8>");
    for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
        let mut engine = engine_in(kind, mode, Some(loras(kind)), None);
        let plain = pixels(&mut engine, "a red apple");
        assert_eq!(pixels(&mut engine, "a red apple<lora:kohya_sgm:0.8>"), expected, "{mode:?}");
        assert_eq!(pixels(&mut engine, "a red apple"), plain, "{mode:?}");
    }

    let lora: LoraUse = format!("{}:0.8", loras(kind).join("kohya.safetensors").display()).parse().unwrap();
    let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() };
    let model = ModelFolder::open(&fixtures("models/sdxl")).unwrap();
    let uses = [lora.clone()];
    let mut loaded = Engine::load_with(model, &setup, &uses, &mut |_| ControlFlow::Continue(())).unwrap();
    let (found, parameters) = generate(&mut loaded, "a red apple", &uses).unwrap();
    // The same changes with other layer names.
    assert_eq!(found, pixels(&mut engine(kind), "a red apple<lora:kohya:0.8>"));
    assert!(parameters.starts_with("a red apple <lora:kohya:0.8>\n"), "{parameters}");
}

#[test]
fn the_tag_stays_in_the_settings() {
    let (_, parameters) = generate(&mut engine("sd1"), "a <lora:kohya:0.5>cat", &[]).unwrap();
    assert!(parameters.starts_with("a <lora:kohya:0.5>cat\n"), "{parameters}");
}

#[test]
fn missing_and_mismatched_files_are_named() {
    let mut engine = engine("sd1");
    let plain = pixels(&mut engine, "a red apple");
    let mut message = |prompt: &str, loras: &[LoraUse]| generate(&mut engine, prompt, loras).unwrap_err().to_string();
    let found = message("a <lora:ink:1>", &[]);
    assert!(
        found.contains("looked for ink.safetensors in that folder or below, for <lora:ink> in the prompt"),
        "{found}"
    );
    let other = LoraUse { lora: LoraName::File(loras("sdxl").join("kohya.safetensors")), text: 1.0, unet: 1.0 };
    let found = message("a cat", &[other]);
    assert!(found.contains("is it from another model?"), "{found}");
    let vae = fixtures("models/sd1/vae/diffusion_pytorch_model.safetensors");
    let found = message("a cat", &[LoraUse { lora: LoraName::File(vae), text: 1.0, unet: 1.0 }]);
    assert!(found.contains("changes nothing of this model"), "{found}");
    assert_eq!(pixels(&mut engine, "a red apple"), plain, "a refused file leaves the weights alone");
}

/// A folder with embeddings for the model: one that is the token `apple`, one of three vectors, one for another model.
fn embeddings(kind: &str, folder: &Path) {
    let table = |encoder: &str| {
        let path = fixtures(&format!("models/{kind}/{encoder}/model.safetensors"));
        let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
        let table = tensors.into_iter().find(|(key, _)| key.ends_with("token_embedding.weight")).unwrap().1;
        table.to_dtype(candle_core::DType::F32).unwrap()
    };
    let encoders: &[(&str, &str, &str)] = match kind {
        "sdxl" => &[("clip_l", "text_encoder", "tokenizer"), ("clip_g", "text_encoder_2", "tokenizer_2")],
        _ => &[("emb_params", "text_encoder", "tokenizer")],
    };
    let save = |name: &str, text: &str| {
        let vectors = |&(key, encoder, tokenizer): &(&str, &str, &str)| {
            let tokenizer = kiln_clip::Tokenizer::open(&fixtures(&format!("models/{kind}/{tokenizer}"))).unwrap();
            let ids = Tensor::new(tokenizer.encode(text).unwrap(), &Device::Cpu).unwrap();
            (key.to_string(), table(encoder).index_select(&ids, 0).unwrap())
        };
        let tensors = encoders.iter().map(vectors).collect();
        candle_core::safetensors::save(&tensors, folder.join(format!("{name}.safetensors"))).unwrap();
    };
    save("apple-emb", "apple");
    save("threefold", "an old red apple tree");
    let wrong = Tensor::zeros((1, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&[("<wrong>", wrong)].into_iter().collect(), folder.join("wrong.safetensors"))
        .unwrap();
}

#[test]
fn an_embedding_of_tokens_is_those_tokens() {
    for kind in ["sd1", "sdxl"] {
        let folder = tempfile::tempdir().unwrap();
        embeddings(kind, folder.path());
        let mut engine = engine_in(kind, ModeChoice::Full, None, Some(folder.path().into()));
        for (named, spelt) in [
            ("a green Apple-Emb, on a table", "a green apple, on a table"),
            ("threefold.", "an old red apple tree."),
            ("wrong <wrong>", "wrong <wrong>"),
        ] {
            let mut without = engine_in(kind, ModeChoice::Full, None, None);
            assert_eq!(pixels(&mut engine, named), pixels(&mut without, spelt), "{kind}: {named}");
        }
        assert_ne!(pixels(&mut engine, "threefold"), pixels(&mut engine, "apple-emb"));
        // Vectors count as tokens: fifty times five are four chunks.
        pixels(&mut engine, &"threefold ".repeat(50));
    }
}

#[test]
fn a_lora_provides_its_tokens() {
    let mut engine = engine("sd1");
    let with = pixels(&mut engine, "a photo of <s1><lora:cloneofsimo:0.8>");
    let other = pixels(&mut engine, "a photo of <s2><lora:cloneofsimo:0.8>");
    assert_ne!(with, other);
    let gone = pixels(&mut engine, "a photo of <s1>");
    assert_ne!(with, gone);
    assert_eq!(pixels(&mut engine, "a photo of <s1><lora:cloneofsimo:0.8>"), with);
}

/// PEFT's `lora_bias` in projections without a bias, compared with diffusers with the adapter in its layers; without it
/// the image is unchanged.
#[test]
fn biases_of_layers_without_any() {
    use kiln_testkit::{Fixture, Parity};
    let fixture = Fixture::open("lora/bias/pipeline.safetensors");
    let parity = Parity::new("lora", "bias");
    for mode in [ModeChoice::Full, ModeChoice::Lowvram] {
        let mut engine = engine_in("sd1", mode, None, None);
        let file = fixtures("lora/bias").join("adapter_model.safetensors");
        let mut latents = |loras: Vec<LoraUse>| {
            let request = Request {
                prompt: "a red apple".into(),
                width: Some(64),
                height: Some(64),
                steps: Some(3),
                cfg_scale: Some(3.0),
                seed: Some(42),
                sampler: Some("ddim".parse().unwrap()),
                loras,
                ..Request::default()
            };
            let job = request.resolve(engine.model()).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("latents.safetensors");
            let mut file = LatentsFile::plan(&path).unwrap();
            let watch = &mut |event| {
                if let Event::Image(image) = event {
                    file.push(&image);
                }
                Ok(ControlFlow::Continue(()))
            };
            engine.txt2img(&job, watch).unwrap();
            file.write().unwrap();
            Fixture::read("latents", &path).tensor("latents")
        };
        let with = LoraUse { lora: LoraName::File(file), text: 1.0, unet: 1.0 };
        parity.check("without", &latents(Vec::new()), &fixture.tensor("without"), 1e-3);
        parity.check("with", &latents(vec![with]), &fixture.tensor("with"), 1e-3);
        parity.check("without again", &latents(Vec::new()), &fixture.tensor("without"), 1e-3);
    }
}
