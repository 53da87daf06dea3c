//! LoRAs of reference models, merged and compared with the formula.

use kiln_families::{TRANSFORMER_FLUX, TRANSFORMER_SD3};
use kiln_testkit::shared_data;
use kiln_weights::ldm::{FluxShape, Named};
use kiln_weights::{Checkpoint, Lora, ParamSource, Patched, Targets, open_component};

use super::{shapes, targets, values};

/// `scale up down` for `up` `(n, r)` and `down` `(r, k)`, summed in f64.
fn product(up: &[f32], down: &[f32], rank: usize, scale: f64) -> Vec<f64> {
    let columns = down.len() / rank;
    let row = |up: &[f32]| -> Vec<f64> {
        let sum = |k: usize| {
            up.iter().enumerate().map(|(i, up)| f64::from(*up) * f64::from(down[i * columns + k])).sum::<f64>()
        };
        (0..columns).map(|k| scale * sum(k)).collect()
    };
    up.chunks(rank).flat_map(row).collect()
}

fn far(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).fold(0.0, |far, (a, b)| f64::max(far, (f64::from(*a) - b).abs()))
}

fn open(name: &str, targets: &Targets) -> Lora {
    let lora = Lora::open(&shared_data(&format!("families/lora/{name}")), targets).unwrap();
    assert!(lora.unused().is_empty(), "{:?}", lora.unused());
    lora
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_a_lora_of_peft_is_merged_into_stable_diffusion_3() {
    let base = open_component(&shared_data("families/models/sd3/transformer")).unwrap();
    let shapes = shapes(&base);
    let lora = open("sd3_peft.safetensors", &targets(TRANSFORMER_SD3, &shapes));
    let factors = Checkpoint::open(&shared_data("families/lora/sd3_peft.safetensors")).unwrap();
    assert_eq!(2 * lora.patches().len(), lora.tensors());
    let patched = Patched::new(base);
    patched.set(lora.patches().iter().map(|patch| (patch.clone(), 0.9)));
    let mut changed = 0;
    for (key, _) in &shapes {
        let mut expected: Vec<f64> = values(patched.inner(), key).into_iter().map(f64::from).collect();
        let module = format!("transformer.{}", key.strip_suffix(".weight").unwrap_or("none"));
        let factor = |name: &str| format!("{module}.lora_{name}.weight");
        if factors.info(&factor("A")).is_some() {
            let delta = product(&values(&factors, &factor("B")), &values(&factors, &factor("A")), 4, 0.9);
            expected.iter_mut().zip(delta).for_each(|(value, delta)| *value += delta);
            changed += 1;
        }
        assert!(far(&values(&patched, key), &expected) < 2e-6, "{key}");
    }
    assert_eq!(changed, lora.patches().len());
}

/// The rows that a declared layer has in its fused matrix, in units of the width.
fn rows(path: &str) -> std::ops::Range<usize> {
    let ends = |names: &[&str]| names.iter().any(|name| path.ends_with(name));
    match () {
        () if ends(&["to_q", "add_q_proj"]) => 0..1,
        () if ends(&["to_k", "add_k_proj"]) => 1..2,
        () if ends(&["to_v", "add_v_proj"]) => 2..3,
        () => 3..7,
    }
}

/// kohya's fused names on plain and on quantized weights.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_a_lora_of_kohya_is_split_over_the_layers_of_flux() {
    const WIDTH: usize = 64;
    let folder = open_component(&shared_data("families/models/flux_dev/transformer")).unwrap();
    let shapes_of_dev = shapes(&folder);
    let names = [
        ("attn.to_q", "img_attn_qkv"),
        ("attn.to_k", "img_attn_qkv"),
        ("attn.to_v", "img_attn_qkv"),
        ("attn.add_q_proj", "txt_attn_qkv"),
        ("attn.add_k_proj", "txt_attn_qkv"),
        ("attn.add_v_proj", "txt_attn_qkv"),
        ("attn.to_out.0", "img_attn_proj"),
        ("attn.to_add_out", "txt_attn_proj"),
        ("ff.net.0.proj", "img_mlp_0"),
        ("ff.net.2", "img_mlp_2"),
        ("ff_context.net.0.proj", "txt_mlp_0"),
        ("ff_context.net.2", "txt_mlp_2"),
        ("norm1.linear", "img_mod_lin"),
        ("norm1_context.linear", "txt_mod_lin"),
    ];
    let single = [
        ("attn.to_q", "linear1"),
        ("attn.to_k", "linear1"),
        ("attn.to_v", "linear1"),
        ("proj_mlp", "linear1"),
        ("proj_out", "linear2"),
        ("norm.linear", "modulation_lin"),
    ];
    let theirs = |path: &str| -> Option<String> {
        let (kind, rest) = path.split_once('.')?;
        let (i, rest) = rest.split_once('.')?;
        let (kind, names) = match kind {
            "transformer_blocks" => ("double", &names[..]),
            "single_transformer_blocks" => ("single", &single[..]),
            _ => return None,
        };
        let (_, name) = names.iter().find(|(ours, _)| *ours == rest)?;
        Some(format!("lora_unet_{kind}_blocks_{i}_{name}"))
    };
    let quantized = Checkpoint::open(&shared_data("families/files/flux_schnell-Q8_0.gguf")).unwrap();
    let names_of_file = FluxShape::read(&quantized).unwrap().names();
    let bases: [(Box<dyn ParamSource>, &str); 2] =
        [(folder, "flux_dev"), (Box::new(Named::new(quantized, names_of_file)), "flux_schnell, quantized")];
    let factors = Checkpoint::open(&shared_data("families/lora/flux_kohya.safetensors")).unwrap();
    let lora = open("flux_kohya.safetensors", &targets(TRANSFORMER_FLUX, &shapes_of_dev));
    for (base, label) in bases {
        let patched = Patched::new(base);
        patched.set(lora.patches().iter().map(|patch| (patch.clone(), 0.8)));
        let mut changed = 0;
        for (key, _) in shapes(patched.inner()) {
            let mut expected: Vec<f64> = values(patched.inner(), &key).into_iter().map(f64::from).collect();
            let module = key.strip_suffix(".weight").and_then(theirs);
            if let Some(module) = module.filter(|module| factors.info(&format!("{module}.alpha")).is_some()) {
                let [up, down] = ["up", "down"].map(|name| values(&factors, &format!("{module}.lora_{name}.weight")));
                let alpha = f64::from(values(&factors, &format!("{module}.alpha"))[0]);
                assert_eq!(alpha, 2.0);
                let all = product(&up, &down, 4, 0.8 * alpha / 4.0);
                let columns = down.len() / 4;
                let is_fused = module.ends_with("qkv") || module.ends_with("linear1");
                let rows = if is_fused { rows(&key[..key.len() - 7]) } else { 0..all.len() / columns / WIDTH };
                let delta = &all[rows.start * WIDTH * columns..rows.end * WIDTH * columns];
                expected.iter_mut().zip(delta).for_each(|(value, delta)| *value += delta);
                changed += 1;
            }
            assert!(far(&values(&patched, &key), &expected) < 2e-6, "{key} of {label}");
        }
        assert!(changed >= 40, "{changed} of {label}");
    }
}
