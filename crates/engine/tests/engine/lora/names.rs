//! Layer names: real ones, and CompVis' names compared with the key maps of the official models.

use std::collections::BTreeMap;

use kiln_families::UNET;
use kiln_testkit::shared_data;
use kiln_weights::UnusedReason;

use super::networks::Networks;

#[derive(serde::Deserialize)]
struct KeyMap {
    ldm_diffusers_keymap: BTreeMap<String, String>,
}

/// Every real name of LoRA, LoHa, LoKr and OFT files is one of Stable Diffusion 1.5's or XL's layers.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_every_known_name_is_supported() {
    let list = shared_data("lora/lora_inspector_keys.json");
    let [sd1, sdxl] =
        ["stable-diffusion-v1-5", "stable-diffusion-xl-base-1.0"].map(|name| shared_data(&format!("configs/{name}")));
    let names: Vec<String> = serde_json::from_str(&std::fs::read_to_string(list).unwrap()).unwrap();
    assert_eq!(names.len(), 9025);
    let models = [("SD 1.5", Networks::of(&sd1).targets()), ("SDXL", Networks::of(&sdxl).targets())];
    let mut table: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let mut unknown = Vec::new();
    for name in &names {
        let found = models.iter().find_map(|(model, targets)| Some((*model, targets.resolve_name(name).ok()?)));
        match found {
            Some((model, (network, _))) => *table.entry((model, format!("{network:?}"))).or_default() += 1,
            None => {
                let reason = models[1].1.resolve_name(name).err().unwrap_or(UnusedReason::Name);
                *table.entry(("none", reason.to_string())).or_default() += 1;
                unknown.push(name);
            }
        }
    }
    for ((model, what), count) in &table {
        println!("{count:5}  {model}  {what}");
    }
    println!("not understood: {unknown:?}");
    assert!(unknown.is_empty(), "{} of {} names are not understood: {unknown:?}", unknown.len(), names.len());
}

/// CompVis' names are those of the key maps, for every layer of the denoiser.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_compvis_names_are_those_of_the_key_maps() {
    for (map, config) in [
        ("stable_diffusion_sd1", "stable-diffusion-v1-5"),
        ("stable_diffusion_sd2", "stable-diffusion-2-1"),
        ("stable_diffusion_sdxl", "stable-diffusion-xl-base-1.0"),
        ("stable_diffusion_refiner", "stable-diffusion-xl-refiner-1.0"),
    ] {
        let (map_path, config) =
            (shared_data(&format!("keymaps/{map}.json")), shared_data(&format!("configs/{config}")));
        let map: KeyMap = serde_json::from_str(&std::fs::read_to_string(map_path).unwrap()).unwrap();
        let targets = Networks::of(&config).targets();
        let mut count = 0;
        for (ldm, diffusers) in &map.ldm_diffusers_keymap {
            let (Some(ldm), Some(path)) = (
                ldm.strip_prefix("model.diffusion_model.").and_then(|name| name.strip_suffix(".weight")),
                diffusers.strip_prefix("unet_").and_then(|name| name.strip_suffix(".weight")),
            ) else {
                continue;
            };
            for name in [format!("lora_unet_{}", ldm.replace('.', "_")), format!("diffusion_model.{ldm}")] {
                let found = targets.resolve_name(&format!("{name}.lora_up.weight"));
                assert_eq!(found, Ok((UNET, path.to_string())), "{name}");
            }
            count += 1;
        }
        println!("{name}: {count} layers", name = config.display());
        assert!(count > 250);
    }
}
