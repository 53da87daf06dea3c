//! Configurations derived from tensors, compared with those of folders.

use kiln_families::{flux_config, sd3_config, t5_config};
use kiln_testkit::shared_data;
use kiln_weights::ldm::{FluxShape, Sd3Shape, T5Shape};
use kiln_weights::open_component;
use serde_json::Value;

/// Compares the derived configuration of `component` with the folder's, except for the keys that its tensors do not show.
fn check(component: &str, derived: Value, unknown: &[&str]) {
    let path = shared_data(&format!("families/models/{component}/config.json"));
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for (key, value) in derived.as_object().unwrap() {
        if !unknown.contains(&key.as_str()) {
            assert_eq!(value, &expected[key], "`{key}` of {component}");
        }
    }
    let missing = |key: &&String| !derived.as_object().unwrap().contains_key(*key) && *key != "_diffusers_version";
    let missing: Vec<&String> = expected.as_object().unwrap().keys().filter(missing).collect();
    assert!(missing.is_empty() || component.contains("text_encoder"), "{component}: {missing:?}");
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_configurations_follow_from_tensors() {
    let open = |name: &str| open_component(&shared_data(&format!("families/models/{name}"))).unwrap();
    let sd3 = |name: &str, unknown: &[&str]| {
        let name = format!("{name}/transformer");
        check(&name, sd3_config(&Sd3Shape::read(&open(&name)).unwrap()), unknown);
    };
    sd3("sd3", &["sample_size", "attention_head_dim", "num_attention_heads"]); // without norms the heads are not known
    sd3("sd35_medium", &["sample_size"]);
    for name in ["flux_dev/transformer", "flux_schnell/transformer"] {
        check(name, flux_config(&FluxShape::read(&open(name)).unwrap()), &["axes_dims_rope"]);
    }
    for name in ["sd3/text_encoder_3", "flux_dev/text_encoder_2"] {
        check(name, t5_config(&T5Shape::read(&open(name)).unwrap()), &[]);
    }
}
