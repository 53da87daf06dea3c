//! The names of layers in the files of all programs.

use candle_core::{DType, Device, Tensor};
use kiln_families::{TEXT_ENCODER, TEXT_ENCODER_2_T5, TEXT_ENCODER_3, TRANSFORMER_FLUX};
use kiln_weights::UnusedReason;

use super::{D, flux, merged, pair, read, same, targets, tensor};

/// A fused change and the changes of its parts, in the names of every program.
#[test]
fn names_of_all_programs_give_the_same_weights() {
    let shapes = flux();
    let (up, down) = (tensor(&[7 * D, 2], 1), tensor(&[2, D], 2));
    let (qkv, out) = (tensor(&[3 * D, 2], 3), tensor(&[D, 2], 4));
    let parts = |prefix: &str, dots: bool, is_peft: bool| {
        let name = |path: &str| format!("{prefix}{}", if dots { path.into() } else { path.replace('.', "_") });
        let mut tensors = Vec::new();
        let single = "single_transformer_blocks.1";
        for (path, from, rows) in [("attn.to_q", 0, 1), ("attn.to_k", 1, 1), ("attn.to_v", 2, 1), ("proj_mlp", 3, 4)] {
            let up = up.narrow(0, from * D, rows * D).unwrap();
            tensors.extend(pair(&name(&format!("{single}.{path}")), is_peft, &up, &down));
        }
        for (i, path) in ["to_q", "to_k", "to_v"].into_iter().enumerate() {
            let up = qkv.narrow(0, i * D, D).unwrap();
            tensors.extend(pair(&name(&format!("transformer_blocks.0.attn.{path}")), is_peft, &up, &down));
        }
        tensors.extend(pair(&name("transformer_blocks.0.attn.to_add_out"), is_peft, &out, &down));
        tensors
    };
    let fused = |prefix: &str, dots: bool, is_peft: bool| {
        let name = |path: &str| format!("{prefix}{}", if dots { path.into() } else { path.replace('.', "_") });
        let mut tensors = pair(&name("single_blocks.1.linear1"), is_peft, &up, &down);
        tensors.extend(pair(&name("double_blocks.0.img_attn.qkv"), is_peft, &qkv, &down));
        tensors.extend(pair(&name("double_blocks.0.txt_attn.proj"), is_peft, &out, &down));
        tensors
    };
    let peft = merged(TRANSFORMER_FLUX, &shapes, parts("transformer.", true, true));
    let base = merged(
        TRANSFORMER_FLUX,
        &shapes,
        pair(
            "transformer.x_embedder",
            true,
            &Tensor::zeros((D, 1), DType::F32, &Device::Cpu).unwrap(),
            &tensor(&[1, 8], 1),
        ),
    );
    let changed = peft.iter().filter(|(key, values)| base[*key] != **values).count();
    assert_eq!(changed, 8);
    for (what, tensors) in [
        ("kohya", fused("lora_unet_", false, false)),
        ("ComfyUI", fused("diffusion_model.", true, true)),
        ("ComfyUI, down and up", fused("diffusion_model.", true, false)),
        ("Black Forest Labs", fused("", true, true)),
        ("LyCORIS over kohya's names", fused("lycoris_", false, false)),
        ("PEFT's wrapper", parts("base_model.model.", true, true)),
        ("DiffSynth", parts("", true, true)),
        ("OneTrainer", parts("lora_transformer_", false, false)),
        ("SimpleTuner", parts("lycoris_", false, false)),
    ] {
        same(&peft, &merged(TRANSFORMER_FLUX, &shapes, tensors), what);
    }
}

#[test]
fn xlabs_names_the_attention_of_a_block() {
    let shapes = flux();
    let (qkv, out, down) = (tensor(&[3 * D, 2], 3), tensor(&[D, 2], 4), tensor(&[2, D], 2));
    let wide = tensor(&[2, 5 * D], 6);
    let named = |name: &str, up: &Tensor, down: &Tensor| {
        [(format!("{name}.down.weight"), down.clone()), (format!("{name}.up.weight"), up.clone())]
    };
    let part = "processor"; // XLabs names its modules so
    let block = format!("double_blocks.1.{part}");
    let theirs = [
        named(&format!("{block}.qkv_lora1"), &qkv, &down),
        named(&format!("{block}.qkv_lora2"), &qkv, &down),
        named(&format!("{block}.proj_lora1"), &out, &down),
        named(&format!("{block}.proj_lora2"), &out, &down),
        named(&format!("diffusion_model.single_blocks.0.{part}.qkv_lora"), &qkv, &down),
        named(&format!("diffusion_model.single_blocks.0.{part}.proj_lora"), &out, &wide),
    ];
    let mut ours = Vec::new();
    let parts = ["to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"].into_iter().enumerate();
    for (i, name) in parts {
        let up = qkv.narrow(0, i % 3 * D, D).unwrap();
        ours.extend(pair(&format!("transformer.transformer_blocks.1.attn.{name}"), true, &up, &down));
        if i < 3 {
            ours.extend(pair(&format!("transformer.single_transformer_blocks.0.attn.{name}"), true, &up, &down));
        }
    }
    for name in ["to_out.0", "to_add_out"] {
        ours.extend(pair(&format!("transformer.transformer_blocks.1.attn.{name}"), true, &out, &down));
    }
    ours.extend(pair("transformer.single_transformer_blocks.0.proj_out", true, &out, &wide));
    let theirs = merged(TRANSFORMER_FLUX, &shapes, theirs.concat());
    same(&merged(TRANSFORMER_FLUX, &shapes, ours), &theirs, "XLabs");
}

#[test]
fn files_for_other_models_are_refused() {
    let targets = targets(TRANSFORMER_FLUX, &flux());
    let refusal = |tensors| read(&targets, tensors).err().unwrap().to_string();
    let message = refusal(pair("img_in", true, &tensor(&[D, 2], 1), &tensor(&[2, 16], 2)));
    assert!(
        message.contains("is a control LoRA: it widens the image input `img_in` from 8 to 16 channels"),
        "{message}"
    );
    let message = refusal(pair("lora_unet_single_blocks_0_linear1", false, &tensor(&[7, 2], 1), &tensor(&[2, D], 2)));
    assert!(message.contains("has shape [7, 4], expected [28, 4]; is it from another model?"), "{message}");
    let message =
        refusal(pair("lora_unet_double_blocks_2_img_attn_qkv", false, &tensor(&[12, 2], 1), &tensor(&[2, 4], 2)));
    assert!(message.contains("the model has no such layer"), "{message}");
}

#[test]
fn t5_has_names_by_its_kind_and_by_its_place() {
    let key = "encoder.block.0.layer.0.SelfAttention.q";
    let shapes = vec![(format!("{key}.weight"), vec![D, D])];
    let find =
        |network, name: &str| targets(network, &shapes).resolve_name(name).map(|(network, path)| (network.id, path));
    let kohya = "lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_up.weight";
    assert_eq!(find(TEXT_ENCODER_3, kohya), Ok(("text_encoder_3", key.to_string())));
    assert_eq!(find(TEXT_ENCODER_2_T5, kohya), Ok(("text_encoder_2", key.to_string())));
    assert_eq!(find(TEXT_ENCODER_2_T5, &kohya.replace("te3", "te2")).map(|found| found.0), Ok("text_encoder_2"));
    assert_eq!(
        find(TEXT_ENCODER_3, &format!("text_encoder_3.{key}.lora_A.weight")).map(|found| found.0),
        Ok("text_encoder_3")
    );
    assert_eq!(find(TEXT_ENCODER, kohya), Err(UnusedReason::Network));
    assert_eq!(find(TEXT_ENCODER_3, &kohya.replace('0', "1")), Err(UnusedReason::Layer));
}
