//! Trained files for the shape of Stable Diffusion 1.5.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_families::{TEXT_ENCODER, TEXT_ENCODER_2};
use kiln_testkit::{fixtures, shared_data};
use kiln_weights::{Lora, MapSource, Patched, Placement, RandomSource, Segments, Targets, TextualInversion, load};

use super::networks::Networks;

/// `(file, patches, words)`.
const FILES: [(&str, usize, &[&str]); 4] = [
    ("catundchat_sd15", 128, &[]),
    ("derived_kohya_catundchat_sd15", 128, &[]),
    ("cloneofsimo_analog_svd_rank4", 192, &[]),
    ("cloneofsimo_lora_disney", 192, &["<s1>", "<s2>"]),
];

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_every_tensor_of_real_files_is_used() {
    let (folder, model) = (shared_data("lora"), shared_data("configs/stable-diffusion-v1-5"));
    let targets = Networks::of(&model).targets();
    for (name, patches, words) in FILES {
        let lora = Lora::open(&folder.join(format!("{name}.safetensors")), &targets).unwrap();
        println!("{name}: {} tensors, {} patches, words {:?}", lora.tensors(), lora.patches().len(), lora.words());
        assert_eq!(lora.unused(), [], "{name}");
        assert_eq!(lora.patches().len(), patches, "{name}");
        assert_eq!(lora.words(), words, "{name}");
        for word in words {
            let vectors = lora.vectors(word, TEXT_ENCODER).unwrap().unwrap();
            assert_eq!(vectors.dims(), [1, 768]);
        }
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_the_same_file_in_two_dialects_changes_the_same_layers() {
    let (folder, model) = (shared_data("lora"), shared_data("configs/stable-diffusion-v1-5"));
    let targets = Networks::of(&model).targets();
    let keys = |name: &str| {
        let lora = Lora::open(&folder.join(format!("{name}.safetensors")), &targets).unwrap();
        let mut keys: Vec<String> = lora.patches().iter().map(|patch| patch.key().to_string()).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(keys("catundchat_sd15"), keys("derived_kohya_catundchat_sd15"));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_a_file_for_another_model_is_reported() {
    let (folder, model) = (shared_data("lora"), shared_data("configs/stable-diffusion-xl-base-1.0"));
    let targets = Networks::of(&model).targets();
    let error = Lora::open(&folder.join("catundchat_sd15.safetensors"), &targets).err().unwrap().to_string();
    assert!(error.contains("is it from another model") || error.contains("changes nothing of this model"), "{error}");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_real_embeddings_are_read() {
    let folder = shared_data("embeddings");
    for (file, names, vectors) in [
        ("invoke_test_embedding.safetensors", &["invoke_test_embedding"][..], 5),
        ("fastai_learned_embeds.bin", &["fastai_learned_embeds", "<birb-style>"], 1),
    ] {
        let embedding = TextualInversion::open(&folder.join(file)).unwrap();
        assert_eq!(embedding.names().collect::<Vec<_>>(), names);
        assert_eq!(embedding.vectors(TEXT_ENCODER).unwrap().unwrap().dims(), [vectors, 768]);
        assert!(embedding.vectors(TEXT_ENCODER_2).unwrap().is_none());
    }
}

/// AUTOMATIC1111's `.pt`, and the same vectors without its metadata.
#[test]
fn an_embedding_of_automatic1111_has_its_vectors() {
    let values = |name: &str| {
        let embedding = TextualInversion::open(&fixtures("lora").join(name)).unwrap();
        let vectors = embedding.vectors(TEXT_ENCODER).unwrap().unwrap();
        assert_eq!(vectors.dims(), [2, 32]);
        vectors.to_vec2::<f32>().unwrap()
    };
    assert_eq!(values("embedding.pt"), values("embedding.safetensors"));
}

/// CPU seconds of this process so far in all threads, independent of other programs.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap(); // utime and stime: fields 14 and 15 of the line
    (ticks(11) + ticks(12)) / 100.0
}

/// Prints the additional load time with LoRAs. `cargo test -p kiln-engine --release --test engine -- --ignored
/// --nocapture measure_`
#[test]
#[ignore = "a measurement, needs ../shared/data"]
fn measure_how_long_merging_takes() {
    let (folder, model) = (shared_data("lora"), shared_data("configs/stable-diffusion-v1-5"));
    let networks = Networks::of(&model);
    let (_, unet) = &networks.all[0];
    let placement = Placement::new(Device::Cpu, DType::F16);
    let source = Patched::new(RandomSource::new(unet, 0));
    let seconds = || {
        unet.unload();
        let start = processor_seconds();
        load(unet, &source, &placement).unwrap();
        processor_seconds() - start
    };
    let lora = Lora::open(&folder.join("catundchat_sd15.safetensors"), &networks.targets()).unwrap();
    let wide = wide(unet, &networks.targets(), 64);
    seconds();
    for round in 0..3 {
        let plain = seconds();
        for (name, lora) in [("rank 4 in attention", &lora), ("rank 64 in every layer", &wide)] {
            source.set(lora.patches().iter().map(|patch| (patch.clone(), 0.8)));
            let with = seconds();
            println!("round {round}: {plain:.2} s without, {with:.2} s with {name}, {:.2} times", with / plain);
            source.set([]);
        }
    }
}

/// A LoRA of this rank in every matrix and convolution.
fn wide(unet: &Segments, targets: &Targets, rank: usize) -> Lora {
    let params = unet.iter().flat_map(|segment| segment.params()).filter(|param| param.shape.len() > 1);
    let tensors = params.flat_map(|param| {
        let path = param.key.strip_suffix(".weight").unwrap();
        let down: Vec<usize> = std::iter::once(rank).chain(param.shape[1..].iter().copied()).collect();
        let tensor = |shape: &[usize]| Tensor::full(0.01f32, shape, &Device::Cpu).unwrap();
        let up = tensor(&[param.shape[0], rank]);
        [(format!("unet.{path}.lora_B.weight"), up), (format!("unet.{path}.lora_A.weight"), tensor(&down))]
    });
    let source = MapSource::from_iter(tensors);
    Lora::read(Arc::new(source), &BTreeMap::new(), None, targets).unwrap()
}
