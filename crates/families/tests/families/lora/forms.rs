//! All forms of changes of fused matrices, and of modulations in another order.

use candle_core::{DType, Device, Tensor};
use kiln_families::{TRANSFORMER_FLUX, TRANSFORMER_SD3};
use kiln_weights::UnusedReason;

use super::{D, flux, merged, pair, read, same, sd3, targets, tensor};

/// The authors have the shift first in modulations without a gate, diffusers the scale.
#[test]
fn halves_of_the_last_modulations_are_exchanged() {
    let (up, down, six) = (tensor(&[2 * D, 2], 1), tensor(&[2, D], 2), tensor(&[6 * D, 2], 3));
    let exchanged = Tensor::cat(&[up.narrow(0, D, D).unwrap(), up.narrow(0, 0, D).unwrap()], 0).unwrap();
    let theirs = [
        pair("lora_unet_final_layer_adaLN_modulation_1", false, &up, &down),
        pair("lora_unet_joint_blocks_1_context_block_adaLN_modulation_1", false, &up, &down),
        pair("lora_unet_joint_blocks_0_context_block_adaLN_modulation_1", false, &six, &down),
    ];
    let ours = [
        pair("transformer.norm_out.linear", true, &exchanged, &down),
        pair("transformer.transformer_blocks.1.norm1_context.linear", true, &exchanged, &down),
        pair("transformer.transformer_blocks.0.norm1_context.linear", true, &six, &down),
    ];
    let shapes = sd3();
    let ours_in_sd3 = merged(TRANSFORMER_SD3, &shapes, ours.concat());
    same(&ours_in_sd3, &merged(TRANSFORMER_SD3, &shapes, theirs.concat()), "SD3");
    let shapes = flux();
    let ours = merged(TRANSFORMER_FLUX, &shapes, ours[0].clone());
    same(&ours, &merged(TRANSFORMER_FLUX, &shapes, theirs[0].clone()), "FLUX.1");
}

#[test]
fn other_forms_of_a_fused_change_are_split_too() {
    let shapes = sd3();
    let attentions = ["x_block.attn.qkv", "context_block.attn.qkv", "x_block.attn2.qkv"];
    let layers = [
        ["attn.to_q", "attn.to_k", "attn.to_v"],
        ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
        ["attn2.to_q", "attn2.to_k", "attn2.to_v"],
    ];
    for (attention, layers) in attentions.into_iter().zip(layers) {
        let name = format!("lora_unet_joint_blocks_0_{}", attention.replace('.', "_"));
        let diff = tensor(&[3 * D, D], 7);
        let whole = merged(TRANSFORMER_SD3, &shapes, vec![(format!("{name}.diff"), diff.clone())]);
        let parts = layers.iter().enumerate().map(|(i, layer)| {
            (format!("transformer.transformer_blocks.0.{layer}.diff"), diff.narrow(0, i * D, D).unwrap())
        });
        same(&whole, &merged(TRANSFORMER_SD3, &shapes, parts.collect()), attention);
        // kron(1, W) and W * 1 are W.
        let ones = |shape: (usize, usize)| Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let lokr = vec![(format!("{name}.lokr_w1"), ones((1, 1))), (format!("{name}.lokr_w2"), diff.clone())];
        same(&whole, &merged(TRANSFORMER_SD3, &shapes, lokr), "LoKr");
        let eye = Tensor::eye(D, DType::F32, &Device::Cpu).unwrap();
        let loha = vec![
            (format!("{name}.hada_w1_a"), diff.clone()),
            (format!("{name}.hada_w1_b"), eye.clone()),
            (format!("{name}.hada_w2_a"), ones((3 * D, 1))),
            (format!("{name}.hada_w2_b"), ones((1, D))),
        ];
        same(&whole, &merged(TRANSFORMER_SD3, &shapes, loha), "LoHa");
    }
}

/// DoRA's magnitudes and biases are split; rotations and norms of columns cannot be.
#[test]
fn magnitudes_and_biases_of_a_fused_change_are_split() {
    let shapes = flux();
    let (up, down) = (tensor(&[3 * D, 2], 1), tensor(&[2, D], 2));
    let (scales, biases) = (tensor(&[3 * D, 1], 4), tensor(&[3 * D], 5));
    let name = "lora_unet_double_blocks_0_img_attn_qkv";
    let mut whole = pair(name, false, &up, &down);
    whole.extend([(format!("{name}.dora_scale"), scales.clone()), (format!("{name}.diff_b"), biases.clone())]);
    let mut parts = Vec::new();
    for (i, layer) in ["to_q", "to_k", "to_v"].into_iter().enumerate() {
        let name = format!("transformer.transformer_blocks.0.attn.{layer}");
        let part = |tensor: &Tensor| tensor.narrow(0, i * D, D).unwrap();
        parts.extend(pair(&name, true, &part(&up), &down));
        parts.extend([(format!("{name}.dora_scale"), part(&scales)), (format!("{name}.diff_b"), part(&biases))]);
    }
    let expected = merged(TRANSFORMER_FLUX, &shapes, parts);
    same(&expected, &merged(TRANSFORMER_FLUX, &shapes, whole), "DoRA");
    let targets = targets(TRANSFORMER_FLUX, &shapes);
    let mut columns = pair(name, false, &up, &down);
    columns.push((format!("{name}.dora_scale"), tensor(&[1, D], 4)));
    columns.push((format!("{}.oft_blocks", name.replace("img", "txt")), tensor(&[3, D, D], 4)));
    columns.extend(pair("transformer.x_embedder", true, &tensor(&[D, 2], 1), &tensor(&[2, 8], 1)));
    let lora = read(&targets, columns).unwrap();
    assert_eq!(lora.patches().len(), 1);
    assert_eq!(lora.unused().len(), 4);
    assert!(lora.unused().iter().all(|unused| unused.reason == UnusedReason::Form));
}
