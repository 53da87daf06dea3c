//! Files of transformers and of T5 under the names of their authors, compared with folders of the same models.

use std::collections::BTreeSet;
use std::sync::Arc;

use kiln_testkit::shared_data;
use kiln_weights::ldm::{
    ClipShape, FluxDialect, FluxShape, Named, Names, Sd3Dialect, Sd3Shape, Subset, T5Dialect, T5Shape, VaeDialect,
    VaeShape,
};
use kiln_weights::{Checkpoint, ParamSource, open_component};

fn file(name: &str) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(&shared_data(&format!("families/files/{name}"))).unwrap())
}

fn component(name: &str) -> Box<dyn ParamSource> {
    open_component(&shared_data(&format!("families/models/{name}"))).unwrap()
}

fn values(source: &dyn ParamSource, key: &str) -> Vec<f32> {
    source.data(key).unwrap().unwrap_or_else(|| panic!("{key} is missing")).to_f32().unwrap()
}

/// Checks that the tensors of `stored` below `prefix` are those of the folder `name`, except for `left_out`, up to `bound` of the
/// largest value in every tensor.
fn check(stored: &Arc<Checkpoint>, prefix: &str, names: Names, name: &str, left_out: &[&str], bound: f32) {
    let (found, expected) = (Named::new(Subset::new(stored.clone(), prefix), names), component(name));
    assert_eq!(found.unknown(), [""; 0]);
    let mut keys: BTreeSet<String> = expected.keys().into_iter().collect();
    left_out.iter().for_each(|key| assert!(keys.remove(*key), "{key}"));
    assert_eq!(found.keys().into_iter().collect::<BTreeSet<_>>(), keys);
    for key in keys {
        assert_eq!(found.info(&key).unwrap().shape, expected.info(&key).unwrap().shape, "{key}");
        let (a, b) = (values(&found, &key), values(&expected, &key));
        let largest = b.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let far = a.iter().zip(&b).fold(0f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(far <= bound * largest, "{key}: {far} of {largest}");
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_a_whole_file_of_stable_diffusion_3_has_the_folders_tensors() {
    let stored = file("sd3_all_in_one.safetensors");
    let below = |prefix: &'static str| Subset::new(stored.clone(), prefix);
    let prefix = "model.diffusion_model.";
    let shape = Sd3Shape::read(&below(prefix)).unwrap();
    assert_eq!((shape.dialect, shape.blocks, shape.width, shape.qk_norm), (Sd3Dialect::Authors, 3, 64, false));
    assert_eq!((shape.in_channels, shape.out_channels, shape.patch, shape.positions), (16, 16, 2, 20));
    assert_eq!((shape.context_dim, shape.pooled_dim, shape.dual_blocks.as_slice()), (96, 80, [].as_slice()));
    check(&stored, prefix, shape.names(), "sd3/transformer", &[], 0.0);

    let prefix = "first_stage_model.";
    let shape = VaeShape::read(&below(prefix)).unwrap();
    assert_eq!((shape.dialect, shape.channels.as_slice()), (VaeDialect::Ldm, [8, 12, 16, 16].as_slice()));
    assert_eq!((shape.layers, shape.latent_channels, shape.attention), (1, 16, true));
    assert!(!shape.quant_conv && !shape.post_quant_conv);
    check(&stored, prefix, shape.names(), "sd3/vae", &[], 0.0);

    let prefix = "text_encoders.t5xxl.transformer.";
    let shape = T5Shape::read(&below(prefix)).unwrap();
    let expected = T5Shape {
        dialect: T5Dialect::Transformers,
        vocab_size: 500,
        width: 96,
        heads: 4,
        head_dim: 16,
        hidden: 128,
        layers: 3,
        buckets: 32,
    };
    assert_eq!(shape, expected);
    check(&stored, prefix, shape.dialect.names(), "sd3/text_encoder_3", &[], 0.0);

    for (prefix, name, left_out) in [
        ("text_encoders.clip_l.transformer.", "sd3/text_encoder", &["text_projection.weight"][..]),
        ("text_encoders.clip_g.transformer.", "sd3/text_encoder_2", &[]),
    ] {
        let shape = ClipShape::read(&below(prefix)).unwrap();
        assert_eq!(shape.projection_dim.is_none(), !left_out.is_empty());
        let bare = component(name).info("embeddings.token_embedding.weight").is_some();
        assert!(!bare, "the test compares equal names");
        check(&stored, prefix, shape.dialect.names(), name, left_out, 0.0);
    }
    let prefixes = ["model.diffusion_model.", "first_stage_model.", "text_encoders."];
    assert!(stored.keys().iter().all(|key| prefixes.iter().any(|prefix| key.starts_with(prefix))));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_a_folder_of_stable_diffusion_3_5_has_a_shape() {
    let shape = Sd3Shape::read(&component("sd35_medium/transformer")).unwrap();
    assert_eq!((shape.dialect, shape.blocks, shape.head_dim, shape.qk_norm), (Sd3Dialect::Diffusers, 4, 16, true));
    assert_eq!((shape.dual_blocks.as_slice(), shape.positions), ([0, 1].as_slice(), 32));
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_files_of_flux_have_the_folders_tensors() {
    let expected = FluxShape {
        dialect: FluxDialect::Authors,
        double_blocks: 3,
        single_blocks: 2,
        width: 64,
        head_dim: 32,
        in_channels: 64,
        out_channels: 64,
        context_dim: 96,
        pooled_dim: Some(32),
        guidance: true,
        approximator: None,
    };
    let dev = file("flux_dev_bfl.safetensors");
    let shape = FluxShape::read(&dev).unwrap();
    assert_eq!(shape, expected);
    check(&dev, "", shape.names(), "flux_dev/transformer", &[], 0.0);
    let folder = FluxShape::read(&component("flux_dev/transformer")).unwrap();
    assert_eq!(folder, FluxShape { dialect: FluxDialect::Diffusers, ..expected.clone() });

    let schnell = file("flux_schnell-Q8_0.gguf");
    let shape = FluxShape::read(&schnell).unwrap();
    let expected = FluxShape { double_blocks: 2, single_blocks: 3, head_dim: 16, guidance: false, ..expected };
    assert_eq!(shape, expected);
    // A block has 8 bits for values up to the largest one; its scale is an f16.
    check(&schnell, "", shape.names(), "flux_schnell/transformer", &[], 0.5 / 127.0 + 1e-3);
    let named = Named::new(schnell.clone(), shape.names());
    for (key, name) in [
        ("single_transformer_blocks.1.attn.to_k.weight", "Q8_0"),
        ("norm_out.linear.weight", "Q8_0"),
        ("x_embedder.weight", "F32"),
    ] {
        assert_eq!(named.info(key).unwrap().dtype.to_string(), name, "{key}");
    }
}
