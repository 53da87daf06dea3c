//! Tests of refused files, of unused tensors, and of weights without patches.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_ops::Packing;

use super::*;
use crate::load::{Placement, load};
use crate::segment::{Param, SegmentModule, Segments};
use crate::source::{MapSource, ParamSource};

/// A block with a matrix, a convolution and a normalization.
fn network() -> (Segments, SegmentModule<[Param; 4]>) {
    let mut segments = Segments::default();
    let block = segments.add("mid_block", |p| {
        let p = p.pp("mid_block").pp("resnets").pp("0");
        [
            p.pp("time_emb_proj").param("weight", &[4, 6], Packing::AsStored),
            p.pp("time_emb_proj").param("bias", &[4], Packing::AsStored),
            p.pp("conv1").param("weight", &[4, 4, 3, 3], Packing::AsStored),
            p.pp("norm1").param("weight", &[4], Packing::AsStored),
        ]
    });
    (segments, block)
}

/// The U-Net of Stable Diffusion.
const UNET: Network = Network {
    id: "unet",
    kind: NetworkKind::Denoiser,
    underscored: &["lora_unet_", "oft_unet_", "lycoris_"],
    omitted: None,
    original: Some(unet_names),
};

fn targets() -> Targets {
    Targets::new(&[(UNET, &network().0)])
}

fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 23.0 - 0.5).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn source(tensors: &[(&str, &[usize])]) -> Arc<dyn ParamSource> {
    let tensors = tensors.iter().enumerate().map(|(i, (key, shape))| (key.to_string(), tensor(shape, i)));
    Arc::new(MapSource::from_iter(tensors))
}

fn read(tensors: &[(&str, &[usize])]) -> crate::Result<Lora> {
    Lora::read(source(tensors), &BTreeMap::new(), None, &targets())
}

/// The error from reading such a file.
fn refusal(tensors: &[(&str, &[usize])]) -> String {
    read(tensors).err().unwrap_or_else(|| panic!("{tensors:?} was read")).to_string()
}

const LINEAR: &str = "lora_unet_mid_block_resnets_0_time_emb_proj";

#[test]
fn a_file_that_matches_nothing_is_an_error() {
    let message =
        refusal(&[("lora_unet_other.lora_up.weight", &[4, 2]), ("lora_unet_other.lora_down.weight", &[2, 6])]);
    assert!(message.contains("none of its 2 tensors belongs to a layer of the model"), "{message}");
    assert!(message.contains("`lora_unet_other.lora_down.weight`: the model has no such layer"), "{message}");
    assert!(refusal(&[("a", &[1])]).contains("its name is not a LoRA name"));
    assert!(refusal(&[]).contains("none of its 0 tensors"));
}

#[test]
fn unused_tensors_are_listed_with_a_reason() {
    let lora = read(&[
        (&format!("{LINEAR}.lora_up.weight"), &[4, 2]),
        (&format!("{LINEAR}.lora_down.weight"), &[2, 6]),
        (&format!("{LINEAR}.hada_w1_a"), &[4, 2]),
        ("lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha", &[]),
        ("lora_unet_mid_block_resnets_0_conv1.lora_up.weight", &[4, 2]),
        ("lora_unet_mid_block_resnets_0_conv9.alpha", &[]),
        ("something", &[3]),
    ])
    .unwrap();
    assert_eq!(lora.patches().len(), 1);
    let reasons: Vec<(&str, UnusedReason)> = lora.unused().iter().map(|u| (u.key.as_str(), u.reason)).collect();
    assert_eq!(
        reasons,
        [
            ("lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha", UnusedReason::Network),
            ("lora_unet_mid_block_resnets_0_conv1.lora_up.weight", UnusedReason::Form),
            ("lora_unet_mid_block_resnets_0_conv9.alpha", UnusedReason::Layer),
            ("lora_unet_mid_block_resnets_0_time_emb_proj.hada_w1_a", UnusedReason::Form),
            ("something", UnusedReason::Name),
        ]
    );
}

#[test]
fn changes_of_another_size_are_refused_with_both_sizes() {
    let up_and_down = |up: &[usize], down: &[usize]| {
        refusal(&[(&format!("{LINEAR}.lora_up.weight"), up), (&format!("{LINEAR}.lora_down.weight"), down)])
    };
    let message = up_and_down(&[4, 2], &[2, 7]);
    assert!(message.contains("has shape [4, 7], expected [4, 6]; is it from another model?"), "{message}");
    assert!(up_and_down(&[5, 2], &[2, 6]).contains("has shape [5, 6]"));
    assert!(up_and_down(&[4, 3], &[2, 6]).contains("do not match"));
    assert!(up_and_down(&[], &[]).contains("has shape [1, 1]"));
}

#[test]
fn factors_that_do_not_fit_each_other_are_refused() {
    let conv = "lora_unet_mid_block_resnets_0_conv1";
    let one = |layer: &str, tensors: &[(&str, &[usize])]| {
        let names: Vec<String> = tensors.iter().map(|(name, _)| format!("{layer}.{name}")).collect();
        let tensors: Vec<(&str, &[usize])> =
            names.iter().zip(tensors).map(|(name, (_, shape))| (name.as_str(), *shape)).collect();
        refusal(&tensors)
    };
    for (layer, tensors) in [
        (LINEAR, &[("oft_blocks", &[2, 3, 3][..])][..]),
        (LINEAR, &[("oft_blocks", &[4, 0, 0])]),
        (LINEAR, &[("oft_blocks", &[2, 2, 3])]),
        (LINEAR, &[("oft_blocks", &[64, 2, 2, 2])]),
        (LINEAR, &[("oft_blocks", &[2, 4, 1, 1])]),
        (LINEAR, &[("oft_diag", &[2, 2, 2]), ("rescale", &[3])]),
        (LINEAR, &[("lokr_w1", &[2, 2]), ("lokr_w2", &[2, 2])]),
        (conv, &[("lokr_w1", &[2, 12]), ("lokr_w2", &[2, 3])]),
        (LINEAR, &[("diff", &[4, 5])]),
        (LINEAR, &[("diff_b", &[5])]),
        (conv, &[("diff_b", &[4])]),
        (LINEAR, &[("diff", &[4, 6]), ("dora_scale", &[5, 1])]),
        (LINEAR, &[("diff", &[4, 6]), ("alpha", &[2])]),
        (conv, &[("lora_up.weight", &[4, 2]), ("lora_mid.weight", &[2, 3, 3, 3]), ("lora_down.weight", &[2, 4])]),
    ] {
        let message = one(layer, tensors);
        let known = ["do not match", "is it from another model?", "expected one finite number"];
        assert!(known.iter().any(|part| message.contains(part)), "{tensors:?}: {message}");
    }
}

#[test]
fn rank_zero_changes_nothing() {
    let names = [format!("{LINEAR}.lora_up.weight"), format!("{LINEAR}.lora_down.weight")];
    let lora = read(&[(&names[0], &[4, 0]), (&names[1], &[0, 6])]).unwrap();
    let weight = tensor(&[4, 6], 9);
    let merged = lora.patches()[0].merge(&weight, 1.0).unwrap();
    assert_eq!(merged.to_vec2::<f32>().unwrap(), weight.to_vec2::<f32>().unwrap());
}

/// Every form on one layer: strength 0 is the same weight, 1 is another, and 0.5 lies in between.
#[test]
fn strength_zero_is_the_weight_itself() {
    let forms: [&[(&str, &[usize])]; 7] = [
        &[("lora_up.weight", &[4, 2]), ("lora_down.weight", &[2, 6])],
        &[("lora_up.weight", &[4, 2]), ("lora_down.weight", &[2, 6]), ("dora_scale", &[4, 1])],
        &[("lora_up.weight", &[4, 2]), ("lora_down.weight", &[2, 6]), ("dora_scale", &[1, 6])],
        &[("lokr_w1", &[2, 3]), ("lokr_w2", &[2, 2])],
        &[("oft_blocks", &[2, 2, 2])],
        &[("oft_blocks", &[2, 2, 2, 2])],
        &[("diff", &[4, 6])],
    ];
    let weight = tensor(&[4, 6], 5);
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for form in forms {
        let names: Vec<String> = form.iter().map(|(name, _)| format!("{LINEAR}.{name}")).collect();
        let tensors: Vec<(&str, &[usize])> =
            names.iter().zip(form).map(|(name, (_, shape))| (name.as_str(), *shape)).collect();
        let lora = read(&tensors).unwrap();
        let merged = |strength| values(&lora.patches()[0].merge(&weight, strength).unwrap());
        assert_eq!(merged(0.0), values(&weight), "{form:?}");
        let far =
            |values: Vec<f32>, from: &[f32]| values.iter().zip(from).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(far(merged(1.0), &values(&weight)) > 0.01, "{form:?}");
        assert!(merged(1.0).iter().all(|value| value.is_finite()), "{form:?}");
        assert!(far(merged(0.5), &values(&weight)) > 0.001, "{form:?}");
    }
}

#[test]
fn patches_change_only_their_own_parameters() {
    let (segments, block) = network();
    let keys = segments[0].params().iter().map(|param| (param.key.clone(), tensor(&param.shape, param.key.len())));
    let patched = Patched::new(MapSource::from_iter(keys));
    let names =
        [format!("{LINEAR}.diff"), format!("{LINEAR}.diff_b"), "lora_unet_mid_block_resnets_0_norm1.w_norm".into()];
    let lora = read(&[(&names[0], &[4, 6]), (&names[1], &[4]), (&names[2], &[4])]).unwrap();
    assert_eq!(lora.patches().len(), 3);
    let loaded = || -> Vec<Vec<f32>> {
        load(&segments, &patched, &Placement::new(Device::Cpu, DType::F32)).unwrap();
        let values = |param: &Param| param.tensor().unwrap().flatten_all().unwrap().to_vec1().unwrap();
        block.enter().unwrap().iter().map(values).collect()
    };
    let all = |strength: f32| lora.patches().iter().map(move |patch| (patch.clone(), strength));
    let before = loaded();
    assert_eq!(patched.set(all(0.5)).len(), 3);
    let with = loaded();
    assert!(with[0] != before[0] && with[1] != before[1] && with[2] == before[2] && with[3] != before[3]);
    let key = &segments[0].params()[0].key;
    let rows = patched.rows(key, 1..3).unwrap().unwrap().to_f32().unwrap();
    assert_eq!(rows, with[0][6..18], "rows of a parameter with patches have them");
    assert!(patched.set(all(0.5)).is_empty(), "the same again");
    assert_eq!(patched.set(all(0.25)).len(), 3);
    assert_eq!(patched.set(all(0.25).take(2)).len(), 1);
    assert_eq!(patched.set([]).len(), 2);
    assert_eq!(loaded(), before);
    assert!(patched.set(all(0.0)).is_empty(), "strength 0 is none");
}

/// A scale that cannot be read must not become 1.
#[test]
fn damaged_settings_of_peft_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (file, config) = (folder.path().join("a.safetensors"), folder.path().join("adapter_config.json"));
    let tensors: &[(&str, &[usize])] = &[
        ("base_model.model.mid_block.resnets.0.time_emb_proj.lora_A.weight", &[2, 6]),
        ("base_model.model.mid_block.resnets.0.time_emb_proj.lora_B.weight", &[4, 2]),
    ];
    let read = || Lora::read(source(tensors), &BTreeMap::new(), Some(&file), &targets());
    let weight = tensor(&[4, 6], 3);
    let merged = |lora: &Lora| lora.patches()[0].merge(&weight, 1.0).unwrap().to_vec2::<f32>().unwrap();
    let plain = merged(&read().unwrap());
    std::fs::write(&config, r#"{"lora_alpha": 64, "r": 2, "rank_pattern": {}, "alpha_pattern": null}"#).unwrap();
    assert_ne!(merged(&read().unwrap()), plain);
    for damaged in [
        r#"{"lora_alpha":64,"r":2"#,
        "[]",
        "",
        r#"{"lora_alpha":"64","r":2}"#,
        r#"{"r":[2]}"#,
        r#"{"use_rslora":1}"#,
        r#"{"rank_pattern":{"a":"4"}}"#,
    ] {
        std::fs::write(&config, damaged).unwrap();
        let message = read().err().unwrap_or_else(|| panic!("{damaged} was read")).to_string();
        assert!(message.contains("adapter_config.json: "), "{damaged}: {message}");
    }
    for (wrong, field) in [
        (r#"{"lora_alpha":64,"r":0}"#, "has 0 for `r`, expected a rank above 0"),
        (r#"{"lora_alpha":64,"unet.r":-2}"#, "has -2 for `unet.r`"),
        (r#"{"lora_alpha":1e308,"r":2}"#, "has 1e+308 for `lora_alpha`, expected a number from -1000000 to 1000000"),
        (r#"{"lora_alpha":4,"r":2,"rank_pattern":{"to_q":0}}"#, "has 0 for `rank_pattern.to_q`"),
        (r#"{"lora_alpha":4,"r":2,"alpha_pattern":{"to_q":-1e9}}"#, "for `alpha_pattern.to_q`"),
    ] {
        std::fs::write(&config, wrong).unwrap();
        let message = read().err().unwrap_or_else(|| panic!("{wrong} was read")).to_string();
        assert!(message.contains("adapter_config.json: ") && message.contains(field), "{wrong}: {message}");
    }
    std::fs::write(&config, r#"{"r":0,"oft_block_size":2}"#).unwrap();
    assert!(read().is_ok());
    std::fs::write(&config, " ".repeat((crate::MAX_CONFIG_BYTES + 1) as usize)).unwrap();
    assert!(read().err().unwrap().to_string().contains("adapter_config.json: is larger than 1 MiB"));
    std::fs::remove_file(&config).unwrap();
    let note = |text: &str| BTreeMap::from([("lora_adapter_metadata".to_string(), text.to_string())]);
    let read = |text| Lora::read(source(tensors), &note(text), Some(&file), &targets());
    assert!(read(r#"{"unet.lora_alpha": 4, "unet.r": 2}"#).is_ok());
    let message = read(r#"{"unet.lora_alpha": "#).err().unwrap().to_string();
    assert!(message.contains("a.safetensors: the metadata `lora_adapter_metadata` is not a valid JSON"), "{message}");
}

/// PEFT's `lora_bias`: a bias for a linear layer that has none, and an error for a layer that cannot have one.
#[test]
fn a_linear_layer_without_a_bias_may_get_one() {
    let mut segments = Segments::default();
    let block = segments.add("attn1", |p| {
        let p = p.pp("attn1");
        [p.pp("to_q").param("weight", &[4, 6], Packing::Linear), p.pp("conv").param("weight", &[4], Packing::AsStored)]
    });
    let targets = Targets::new(&[(UNET, &segments)]);
    let keys = segments[0].params().iter().map(|param| (param.key.clone(), tensor(&param.shape, 1)));
    let patched = Patched::new(MapSource::from_iter(keys));
    let tensors: &[(&str, &[usize])] = &[
        ("attn1.to_q.lora_A.weight", &[2, 6]),
        ("attn1.to_q.lora_B.bias", &[4]),
        ("attn1.to_q.lora_B.weight", &[4, 2]),
    ];
    let notes = BTreeMap::from([("lora_adapter_metadata".into(), r#"{"lora_alpha": 6, "r": 2}"#.to_string())]);
    let lora = Lora::read(source(tensors), &notes, None, &targets).unwrap();
    let placement = Placement::new(Device::Cpu, DType::F32);
    let set = |strength: f32| {
        let changed = patched.set(lora.patches().iter().map(|patch| (patch.clone(), strength)));
        segments[0].set_added_biases(&patched.added().unwrap(), &placement).unwrap();
        changed.len()
    };
    assert_eq!(set(0.5), 2);
    load(&segments, &patched, &placement).unwrap();
    let bias = |block: &SegmentModule<[Param; 2]>| {
        block.enter().unwrap()[0].added_bias().map(|bias| bias.to_vec1::<f32>().unwrap())
    };
    let expected: Vec<f32> = tensor(&[4], 1).to_vec1::<f32>().unwrap().iter().map(|value| value * 3.0 * 0.5).collect();
    assert_eq!(bias(&block), Some(expected), "times alpha over the rank, and the strength");
    set(0.0);
    assert_eq!(bias(&block), None);
    let wrong = Lora::read(source(&[("attn1.conv.diff_b", &[4])]), &BTreeMap::new(), None, &targets).err().unwrap();
    assert!(wrong.to_string().contains("has a bias for `attn1.conv`, but the model's layer has none"), "{wrong}");
    let wrong = Lora::read(source(&[("attn1.to_q.diff_b", &[5])]), &BTreeMap::new(), None, &targets).err().unwrap();
    assert!(wrong.to_string().contains("is it from another model?"), "{wrong}");
}
