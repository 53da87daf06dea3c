//! The official configurations, converted to the names and shapes of single files and back.

use std::collections::HashMap;
use std::path::Path;

use kiln_clip::{TextEncoder, TextEncoderConfig};
use kiln_families::{SD, SDXL, of_unet, unet_shape};
use kiln_testkit::shared_data;
use kiln_unet::{Unet, UnetConfig};
use kiln_vae::{Decoder, Encoder, VaeConfig};
use kiln_weights::ldm::{ClipDialect, ClipShape, Names, UnetShape, VaeDialect, VaeShape};
use kiln_weights::{NewTensor, ParamData, ParamInfo, ParamSource, Result, Segments, write_safetensors};

use super::SingleFile;
use super::configs::{text_config, unet_config};
use super::kind::{ModelInput, Prediction, prediction};
use super::vae_config::vae_config;

/// Tensors with names and shapes only.
struct Shapes(HashMap<String, Vec<usize>>);

impl Shapes {
    /// The tensors of some networks, with the names and shapes of a single file.
    fn of(networks: &[&Segments], names: &Names) -> Self {
        let mut shapes = HashMap::new();
        for param in networks.iter().flat_map(|segments| segments.iter()).flat_map(|segment| segment.params()) {
            let place = names.place(&param.key).unwrap_or_else(|| panic!("{} has no place", param.key));
            let shape = place.piece.stored_shape(&param.shape);
            shapes.insert(place.name, shape);
        }
        Self(shapes)
    }
}

impl ParamSource for Shapes {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        let shape = self.0.get(key)?.clone();
        Some(ParamInfo { shape, dtype: safetensors::Dtype::F16.into() })
    }

    fn data(&self, _key: &str) -> Result<Option<ParamData<'_>>> {
        Ok(None)
    }

    fn origin(&self, _key: &str) -> String {
        "shapes".into()
    }

    fn keys(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn check_unet(config: &UnetConfig, kind: &str, input: ModelInput, prediction: Prediction) {
    let mut shape = unet_shape(config);
    let network = Unet::new(config.clone());
    let mut tensors = Shapes::of(&[network.segments()], &shape.names());
    if !config.use_linear_projection {
        // Networks declare matrices; files of this kind have 1x1 convolutions.
        let outer = |key: &str| key.ends_with("proj_in.weight") || key.ends_with("proj_out.weight");
        tensors.0.iter_mut().filter(|(key, _)| outer(key)).for_each(|(_, shape)| shape.extend([1, 1]));
    }
    let found = UnetShape::read(&tensors).unwrap();
    shape.linear_projection = found.linear_projection;
    assert_eq!(found, shape);
    assert_eq!((of_unet(&found).variant(&found).id, ModelInput::of(&found)), (kind, input));
    assert_eq!(UnetConfig::from_json(&unet_config(&found, prediction).to_string()).unwrap(), *config);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_official_configurations_follow_from_the_shapes() {
    use ModelInput::{Inpainting, Latents};
    for (name, kind, input, prediction) in [
        ("stable-diffusion-v1-5", "sd1", Latents, Prediction::Epsilon),
        ("stable-diffusion-inpainting", "sd1", Inpainting, Prediction::Epsilon),
        ("stable-diffusion-2-1", "sd2", Latents, Prediction::V),
        ("stable-diffusion-xl-base-1.0", "sdxl", Latents, Prediction::Epsilon),
        ("stable-diffusion-xl-1.0-inpainting-0.1", "sdxl", Inpainting, Prediction::Epsilon),
        ("stable-diffusion-xl-refiner-1.0", "sdxl_refiner", Latents, Prediction::Epsilon),
    ] {
        let folder = shared_data(&format!("configs/{name}"));
        let config = UnetConfig::from_json(&read(&folder, "unet/config.json")).unwrap();
        check_unet(&config, kind, input, prediction);
        let is_xl = config.added_embedding.is_some();

        let vae = VaeConfig::from_json(&read(&folder, "vae/config.json")).unwrap();
        let (decoder, encoder) = (Decoder::new(&vae), Encoder::new(&vae));
        let tensors = Shapes::of(&[decoder.segments(), encoder.segments()], &VaeShape::ldm_names(4));
        let found = VaeShape::read(&tensors).unwrap();
        assert_eq!((found.dialect, found.channels.as_slice()), (VaeDialect::Ldm, [128, 256, 512, 512].as_slice()));
        let mut derived = VaeConfig::from_json(&vae_config(&found, if is_xl { SDXL } else { SD }).to_string()).unwrap();
        derived.force_upcast = vae.force_upcast; // only used for XL
        assert_eq!(derived, vae, "{name}");

        for (i, part) in ["text_encoder", "text_encoder_2"].into_iter().enumerate() {
            let path = format!("{part}/config.json");
            if !folder.join(&path).exists() {
                continue;
            }
            let config = TextEncoderConfig::from_json(&read(&folder, &path)).unwrap();
            let encoder = TextEncoder::new(config.clone()).unwrap();
            for dialect in [ClipDialect::Transformers, ClipDialect::OpenClip, ClipDialect::Fused] {
                let tensors = Shapes::of(&[encoder.segments()], &dialect.names());
                let found = ClipShape::read(&tensors).unwrap();
                assert_eq!((found.dialect, found.layers), (dialect, config.num_hidden_layers));
                let projected = i == 1 || kind == "sdxl_refiner";
                let mut derived =
                    TextEncoderConfig::from_json(&text_config(&found, projected, !is_xl).to_string()).unwrap();
                if !config.has_projection() {
                    derived.projection_dim = config.projection_dim; // not used
                }
                assert_eq!(derived, config, "{name} {part}");
            }
        }
    }
}

/// segmind's `config.json` in short: the depths differ between down and up blocks.
fn distilled(down: &str, up: &str) -> UnetConfig {
    let json = format!(
        r#"{{"block_out_channels": [320, 640, 1280], "cross_attention_dim": 2048, "attention_head_dim": [5, 10, 20],
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], "layers_per_block": 2,
            "mid_block_type": "UNetMidBlock2D", "use_linear_projection": true, "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816,
            "transformer_layers_per_block": {down}, "reverse_transformer_layers_per_block": {up}}}"#
    );
    UnetConfig::from_json(&json).unwrap()
}

#[test]
fn distilled_shapes_are_known() {
    let ssd = distilled("[1, [2, 2], [4, 4]]", "[[4, 4, 10], [2, 1, 1], 1]");
    check_unet(&ssd, "ssd1b", ModelInput::Latents, Prediction::Epsilon);
    let vega = distilled("[1, [1, 1], [2, 2]]", "[[2, 2, 2], [1, 1, 1], 1]");
    check_unet(&vega, "vega", ModelInput::Latents, Prediction::Epsilon);
}

/// A file with a part of a Stable Diffusion 2 that shows its prediction type. The elements of its bias alternate
/// between `bias` and `-bias`.
fn second(extra: &[&str], notes: &[(&str, &str)], channels: usize, bias: f32) -> Prediction {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let f32s = |shape: &[usize], value: f32| -> Vec<u8> {
        let signs = (0..shape.iter().product()).map(|i: usize| if i.is_multiple_of(2) { value } else { -value });
        signs.flat_map(f32::to_le_bytes).collect()
    };
    let mut tensors = vec![
        ("input_blocks.0.0.weight".to_string(), vec![2, channels, 1, 1], 0.0),
        ("input_blocks.1.0.out_layers.3.weight".into(), vec![2, 2, 1, 1], 0.0),
        ("input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight".into(), vec![2, 1024], 0.0),
        ("out.2.weight".into(), vec![4, 2, 1, 1], 0.0),
        ("output_blocks.11.1.transformer_blocks.0.norm1.bias".into(), vec![64], bias),
    ];
    for (name, ..) in &mut tensors {
        *name = format!("model.diffusion_model.{name}");
    }
    tensors.extend(extra.iter().map(|name| (name.to_string(), vec![0], 0.0)));
    let new = tensors.iter().map(|(name, shape, value)| NewTensor {
        name: name.clone(),
        shape: shape.clone(),
        dtype: safetensors::Dtype::F32.into(),
        bytes: Box::new(|| Ok(f32s(shape, *value).into())),
    });
    let notes = notes.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    write_safetensors(&mut std::fs::File::create(&path).unwrap(), new.collect(), &notes).unwrap();
    prediction(&SingleFile::open(&path).unwrap())
}

#[test]
fn prediction_types_follow_from_notes_markers_and_values() {
    use Prediction::{Epsilon, V};
    assert_eq!(second(&[], &[], 4, 0.2), V);
    assert_eq!(second(&[], &[], 4, 0.05), Epsilon);
    assert_eq!(second(&[], &[], 9, 0.2), Epsilon, "inpainting models of this width predict noise");
    assert_eq!(second(&[], &[("global_step", "875000")], 4, 0.2), Epsilon);
    assert_eq!(second(&["v_pred"], &[], 4, 0.05), V);
    assert_eq!(second(&["v_pred"], &[("modelspec.prediction_type", "epsilon")], 4, 0.2), Epsilon);
    assert_eq!(second(&[], &[("modelspec.prediction_type", "v")], 9, 0.0), V);
}
