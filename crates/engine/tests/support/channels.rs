//! Tiny models with another number of input channels.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use kiln_testkit::fixtures;

/// Values of a token of the latents: 16 channels of 2 by 2.
pub const LATENTS: usize = 64;
/// Values of a token that has a masked image's latents, too, and a mask with 64 pixels for each latent.
pub const FILL: usize = 384;
/// Values of a token that has a control image's latents, too.
pub const CONTROL: usize = 128;

/// A copy of the tiny transformer that takes `columns` values for each token.
pub fn widened(columns: usize, folder: &Path) {
    copy_model("tiny-dit", folder);
    let config = folder.join("transformer/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let channels = format!("\"in_channels\": {columns}, \"out_channels\": {LATENTS}");
    std::fs::write(&config, text.replace("\"in_channels\": 64", &channels)).unwrap();
    let weights = folder.join("transformer/diffusion_pytorch_model.safetensors");
    let mut tensors: HashMap<String, Tensor> = candle_core::safetensors::load(&weights, &Device::Cpu).unwrap();
    let own = tensors.remove("x_embedder.weight").unwrap();
    let more = |c: usize| (own.narrow(1, (7 * c + 3) % LATENTS, 1).unwrap() * 0.5).unwrap();
    let wide = Tensor::cat(&[vec![own.clone()], (LATENTS..columns).map(more).collect()].concat(), 1).unwrap();
    tensors.insert("x_embedder.weight".into(), wide);
    candle_core::safetensors::save(&tensors, &weights).unwrap();
}

/// Copies a tiny model to `folder`.
pub fn copy_model(kind: &str, folder: &Path) {
    let from = fixtures(&format!("models/{kind}"));
    let copy = |from: &Path, to: &Path| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copy(&from, folder);
    for part in std::fs::read_dir(&from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        copy(&part.path(), &folder.join(part.file_name()));
    }
}
