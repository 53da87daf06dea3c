//! Names of tensors: mapping a name to its declared tensors and back yields the same name.
#![no_main]

use kiln_weights::ldm::{ClipDialect, FluxDialect, Names, Sd3Shape, T5Dialect, UnetLevel, UnetShape, VaeShape};
use libfuzzer_sys::fuzz_target;

fn tables() -> Vec<Names> {
    let level = |depth| UnetLevel { channels: 8, depths: vec![depth; 2] };
    let unet = UnetShape {
        in_channels: 4,
        out_channels: 4,
        down: vec![level(0), level(2), level(3)],
        middle: Some(3),
        up: vec![level(3), level(2), level(0)],
        context_dim: 8,
        linear_projection: true,
        added_dim: None,
        guidance_dim: None,
    };
    let clip = [ClipDialect::Transformers, ClipDialect::Bare, ClipDialect::OpenClip, ClipDialect::Fused];
    let clip = clip.into_iter().map(ClipDialect::names);
    let transformers = [Sd3Shape::authors_names(2), FluxDialect::Authors.names(2, 2), T5Dialect::Gguf.names()];
    [unet.names(), VaeShape::ldm_names(4)].into_iter().chain(clip).chain(transformers).collect()
}

fuzz_target!(|name: &str| {
    for names in tables() {
        let _ = names.place(name);
        for (key, piece) in names.declared(name) {
            let place = names.place(&key).expect("what is declared has a place");
            assert_eq!(place.piece, piece, "{name} is {key}");
        }
    }
});
