//! `kiln models` and `kiln pull` without a name.

use std::fs;

use kiln_testkit::{HubServer, fixtures, repository};
use serde_json::Value;

use crate::sandbox::Sandbox;

#[test]
fn tested_models_are_listed_with_what_they_need() {
    let sandbox = Sandbox::new();
    let text = sandbox.kiln(&["pull"]).succeeds().stdout;
    for part in
        ["Stable Diffusion 1.5\n", "FLUX.1\n", "hf:Tongyi-MAI/Z-Image-Turbo", "Apache-2.0", "~6.9 GB", "(gated)", "GiB"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: Value = serde_json::from_str(&sandbox.kiln(&["pull", "--json"]).succeeds().stdout).unwrap();
    let models = json["models"].as_array().unwrap();
    assert!(models.len() >= 12 && json["here"]["memory"].as_u64().unwrap() > 0, "{json}");
    for model in models {
        let bytes = |name: &str| model[name].as_u64().unwrap();
        assert!(bytes("gpu_bytes_least") < bytes("gpu_bytes") && bytes("download_bytes") > 1 << 30, "{model}");
        assert!(model["model"].as_str().unwrap().starts_with("hf:"), "{model}");
    }
    sandbox.kiln(&["pull", "a/b", "--json"]).refused(&["--json"]);
}

/// The entries of all places.
fn models(json: &Value) -> Vec<&Value> {
    json["places"].as_array().unwrap().iter().flat_map(|place| place["models"].as_array().unwrap()).collect()
}

#[test]
fn models_of_this_machine_have_arguments_that_open_them() {
    let sandbox = Sandbox::new();
    let small = fixtures("models/sd1");
    // A file in ComfyUI's folder below a home folder, one in the current folder, one in the Hub's cache.
    let comfy = sandbox.path("home/ComfyUI/models/checkpoints");
    fs::create_dir_all(&comfy).unwrap();
    fs::create_dir_all(sandbox.path("models")).unwrap();
    let file = comfy.join("tiny model.safetensors");
    sandbox.kiln(&["convert", small.to_str().unwrap(), file.to_str().unwrap()]).succeeds();
    fs::copy(&file, sandbox.path("models/here.safetensors")).unwrap();
    fs::write(sandbox.path("models/broken.safetensors"), [255; 64]).unwrap();
    let server = HubServer::start("kiln/emoji");
    server.add_folder(&repository().join("models/emoji"));
    sandbox.shell_kiln(&format!("HF_ENDPOINT={} exec \"$@\"", server.endpoint()), &["pull", "kiln/emoji"]).succeeds();

    let home = format!("HOME='{}' exec \"$@\"", sandbox.path("home").display());
    let text = sandbox.shell_kiln(&home, &["models"]).succeeds().stdout;
    for part in
        ["-m models/here.safetensors", "tiny model.safetensors'", "-m hf:kiln/emoji", "  models/broken.safetensors"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: Value =
        serde_json::from_str(&sandbox.shell_kiln(&home, &["models", "--json"]).succeeds().stdout).unwrap();
    let of = |name: &str| {
        let found = models(&json).into_iter().find(|model| model["argument"].as_str().unwrap().ends_with(name));
        found.unwrap_or_else(|| panic!("{name}: {json:#}")).clone()
    };
    for name in ["here.safetensors", "tiny model.safetensors", "hf:kiln/emoji"] {
        let model = of(name);
        assert_eq!(
            (model["option"].as_str(), model["what"].as_str()),
            (Some("model"), Some("Stable Diffusion 1 or 2")),
            "{model}"
        );
        assert!(model["bytes"].as_u64().unwrap() > 1000 && model["problem"].is_null(), "{model}");
        let plan = sandbox.kiln(&["plan", "--device", "cpu", "-m", model["argument"].as_str().unwrap()]);
        assert!(plan.status.success(), "{plan}");
    }
    assert_eq!(of("hf:kiln/emoji")["dtype"], "F16");
    assert!(of("broken.safetensors")["problem"].is_string());

    let one = sandbox.kiln(&["models", sandbox.path("home/ComfyUI").to_str().unwrap(), "--json"]).succeeds().stdout;
    assert_eq!(models(&serde_json::from_str(&one).unwrap()).len(), 1);
    sandbox.kiln(&["models", "missing"]).fails(1, &["missing: not found; looked for a folder with models"]);
}

#[test]
fn a_name_in_the_folder_of_models_is_the_argument() {
    let sandbox = Sandbox::new();
    let script = format!("KILN_MODELS='{}' HOME=/nonexistent exec \"$@\"", repository().join("models").display());
    let text = sandbox.shell_kiln(&script, &["models"]).succeeds().stdout;
    assert!(text.starts_with("KILN_MODELS: ") && text.contains("\n  -m emoji-sd3 ") && text.contains("F16"), "{text}");
    assert!(text.contains("4 files that are no models"), "{text}");
}
