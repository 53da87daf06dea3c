//! Files that people trained, on the shape of Stable Diffusion 1.5.

use kiln_testkit::shared_data;
use kiln_weights::{Lora, Network};

use crate::networks::Networks;

/// `(file, patches, words)`.
const FILES: [(&str, usize, &[&str]); 4] = [
    ("catundchat_sd15", 128, &[]),
    ("derived_kohya_catundchat_sd15", 128, &[]),
    ("cloneofsimo_analog_svd_rank4", 192, &[]),
    ("cloneofsimo_lora_disney", 192, &["<s1>", "<s2>"]),
];

#[test]
fn every_tensor_of_real_files_is_used() {
    let (Some(folder), Some(model)) = (shared_data("lora"), shared_data("configs/stable-diffusion-v1-5")) else {
        return;
    };
    let targets = Networks::of(&model).targets();
    for (name, patches, words) in FILES {
        let lora = Lora::open(&folder.join(format!("{name}.safetensors")), &targets).unwrap();
        println!("{name}: {} tensors, {} patches, words {:?}", lora.tensors(), lora.patches().len(), lora.words());
        assert_eq!(lora.unused(), [], "{name}");
        assert_eq!(lora.patches().len(), patches, "{name}");
        assert_eq!(lora.words(), words, "{name}");
        for word in words {
            let vectors = lora.vectors(word, Network::TextEncoder).unwrap().unwrap();
            assert_eq!(vectors.dims(), [1, 768]);
        }
    }
}

#[test]
fn the_same_file_in_two_dialects_changes_the_same_layers() {
    let (Some(folder), Some(model)) = (shared_data("lora"), shared_data("configs/stable-diffusion-v1-5")) else {
        return;
    };
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
fn a_file_for_another_model_says_so() {
    let (Some(folder), Some(model)) = (shared_data("lora"), shared_data("configs/stable-diffusion-xl-base-1.0")) else {
        return;
    };
    let targets = Networks::of(&model).targets();
    let error = Lora::open(&folder.join("catundchat_sd15.safetensors"), &targets).err().unwrap().to_string();
    assert!(error.contains("is it from another model") || error.contains("changes nothing of this model"), "{error}");
}
