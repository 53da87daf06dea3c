//! Every dialect on the tiny models: the merged weights are those of diffusers, PEFT, LyCORIS and kohya's formula.

use std::collections::HashMap;
use std::path::PathBuf;

use kiln_testkit::{Fixture, fixtures};
use kiln_weights::{KeyRule, Lora, Network, ParamSource, Patch, Patched, Renamed, open_component};

use super::networks::{FOLDERS, Networks};

/// The fixtures contain every n-th value of a merged weight.
const STRIDE: usize = 7;
/// The largest error of a merged weight, whose values are of order 0.1 to 1: about eight roundings of f32.
const BOUND: f32 = 1e-6;

fn file_of(kind: &str, dialect: &str) -> PathBuf {
    let folder = fixtures(&format!("lora/{kind}"));
    let file = folder.join(format!("{dialect}.safetensors"));
    if file.exists() { file } else { folder.join(dialect).join("adapter_model.safetensors") }
}

/// The values of a parameter as f32.
fn values(source: &dyn ParamSource, key: &str) -> Vec<f32> {
    let data = source.data(key).unwrap().unwrap_or_else(|| panic!("no `{key}`"));
    data.to_f32().unwrap()
}

/// All dialects of the fixtures of `kind`, each on the model's own weights.
fn check(kind: &str) {
    let model = fixtures(&format!("models/{kind}"));
    let targets = Networks::of(&model).targets();
    let merged = Fixture::open(&format!("lora/merged_{kind}.safetensors"));
    let strengths: HashMap<String, f32> = merged.note("strengths");
    let sources: HashMap<Network, Patched<_>> = FOLDERS
        .iter()
        .filter(|(_, folder)| model.join(folder).is_dir())
        .map(|&(network, folder)| {
            let source = open_component(&model.join(folder)).unwrap();
            (network, Patched::new(Renamed::new(source, KeyRule::TEXT_MODEL)))
        })
        .collect();
    let mut dialects: Vec<&String> = strengths.keys().collect();
    dialects.sort_unstable();
    for dialect in dialects {
        let lora = Lora::open(&file_of(kind, dialect), &targets).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(lora.unused(), [], "{kind} {dialect}");
        let weight_of = |patch: &Patch| values(&sources[&patch.network()], patch.key());
        let before: HashMap<(Network, &str), Vec<f32>> =
            lora.patches().iter().map(|patch| ((patch.network(), patch.key()), weight_of(patch))).collect();
        for (network, source) in &sources {
            let patches = lora.patches().iter().filter(|patch| patch.network() == *network);
            source.set(patches.map(|patch| (patch.clone(), strengths[dialect])));
        }
        let (mut worst, mut moved, mut count) = (0f32, f32::MAX, 0);
        for name in merged.keys().iter().filter_map(|name| name.strip_prefix(&format!("{dialect}/"))) {
            let (folder, key) = name.split_once('.').unwrap();
            let network = FOLDERS.iter().find(|(_, name)| *name == folder).unwrap().0;
            let found = values(&sources[&network], key);
            let expected = merged.values(&format!("{dialect}/{name}"));
            assert_eq!(found.len().div_ceil(STRIDE), expected.len(), "{name}");
            let error = |values: &[f32]| {
                let values = values.iter().step_by(STRIDE).zip(&expected);
                values.map(|(found, expected)| (found - expected).abs()).fold(0f32, f32::max)
            };
            assert!(error(&found) <= BOUND, "{kind} {dialect} {name}: {:.1e} over {BOUND:.0e}", error(&found));
            worst = worst.max(error(&found));
            moved = moved.min(error(&before[&(network, key)]));
            count += 1;
        }
        println!("{kind} {dialect}: {count} weights, the farthest {worst:.1e} off; changes of at least {moved:.2}");
        assert!(count > 1 && moved > 0.001, "{kind} {dialect} changes nothing");
        sources.values().for_each(|source| {
            source.set([]);
        });
        for patch in lora.patches() {
            assert!(weight_of(patch) == before[&(patch.network(), patch.key())], "removed, but not exactly");
        }
    }
}

#[test]
fn every_dialect_merges_as_its_own_package_does_on_sd1() {
    check("sd1");
}

#[test]
fn every_dialect_merges_as_its_own_package_does_on_sdxl() {
    check("sdxl");
}
