//! Models on the Hub by name, from a local server that behaves like it.

use kiln_testkit::{Fault, HubServer, fixtures, repository, sha256};

use crate::sandbox::{Run, Sandbox};

const NAME: &str = "kiln/emoji";
const UNET: &str = "unet/diffusion_pytorch_model.safetensors";

/// The model that comes with Kiln, among unneeded files.
fn emoji() -> HubServer {
    let server = HubServer::start(NAME);
    server.add_folder(&repository().join("models/emoji"));
    server.add("emoji.ckpt", "a model in one file").add("unet/diffusion_pytorch_model.bin", "a pickle");
    server.add("safety_checker/model.safetensors", "a checker").add("unet/model.onnx", "a graph");
    server
}

/// Runs `kiln` with the server as the Hub.
fn kiln(sandbox: &Sandbox, server: &HubServer, args: &[&str]) -> Run {
    sandbox.shell_kiln(&with(server), args)
}

fn with(server: &HubServer) -> String {
    format!("HF_ENDPOINT={} exec \"$@\"", server.endpoint())
}

/// The arguments of a small image of a model.
fn draw<'a>(model: &'a str, file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["txt2img", "a red apple", "-W", "64", "-H", "64", "--steps", "1", "-s", "1", "--device", "cpu", "-m"];
    [&args, &[model, "-o", file][..], more].concat()
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn a_pulled_model_runs_offline() {
    let (sandbox, server) = (Sandbox::new(), emoji());
    server.fault(UNET, &[Fault::Cut(9_000_000)]);
    let run = kiln(&sandbox, &server, &["pull", NAME]).succeeds();
    let folder = sandbox.path("hf/hub/models--kiln--emoji/snapshots").join(HubServer::COMMIT);
    assert_eq!(run.stdout, format!("{}\n", folder.display()));
    assert!(run.stderr.contains("31.4 MiB") && run.stderr.contains("the connection was cut"), "{run}");
    let fetched = server.fetched();
    assert!(fetched.iter().all(|name| !name.contains("onnx") && !name.contains("bin") && !name.contains("ckpt")));
    assert!(!fetched.contains(&"README.md".to_string()), "{fetched:?}");

    let again = kiln(&sandbox, &server, &["pull", NAME]).succeeds();
    assert!(again.stderr.contains("0 of them downloaded now"), "{again}");
    assert!(server.fetched().is_empty());

    let path = repository().join("models/emoji");
    sandbox.kiln(&draw(path.to_str().unwrap(), "folder.png", &[])).succeeds();
    kiln(&sandbox, &server, &draw("hf:kiln/emoji", "hub.png", &[])).succeeds();
    assert!(server.asked().is_empty());
    drop(server);
    sandbox.kiln(&draw("hf:kiln/emoji", "offline.png", &["--offline"])).succeeds();
    sandbox.kiln(&["inspect", "hf:kiln/emoji"]).succeeds();
    let image = |name| std::fs::read(sandbox.path(name)).unwrap();
    assert!(image("folder.png") == image("hub.png")); // the metadata too: it has the model's name on the Hub
    assert!(image("folder.png") == image("offline.png"));
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn named_files_are_downloaded_on_demand() {
    let sandbox = Sandbox::new();
    let server = HubServer::start("owner/tiny");
    server.add_folder(&fixtures("models/sd1"));
    let run = kiln(&sandbox, &server, &draw("hf:owner/tiny", "a.png", &[])).succeeds();
    assert!(run.stderr.starts_with("downloading "), "{run}");
    // A component of a model, and a file of it.
    let vae = std::fs::read_dir(fixtures("models/sd1/vae")).unwrap().flatten();
    let vae = vae.map(|entry| entry.file_name().into_string().unwrap()).find(|name| name.ends_with(".safetensors"));
    let part = format!("hf:owner/tiny/vae/{}", vae.unwrap());
    kiln(&sandbox, &server, &draw("hf:owner/tiny", "b.png", &["--vae", &part])).succeeds();
    let lora = ["--lora", "hf:owner/tiny/nowhere.safetensors:0.5"];
    kiln(&sandbox, &server, &draw("hf:owner/tiny", "c.png", &lora))
        .fails(1, &["owner/tiny: there is no file nowhere.safetensors; there are "]);
    let files = kiln(&sandbox, &server, &["pull", "owner/tiny", "unet/config.json", "tokenizer"]).succeeds();
    assert!(files.stdout.lines().next().unwrap().ends_with("tokenizer/merges.txt"), "{files}");
    assert!(files.stdout.lines().last().unwrap().ends_with("unet/config.json"), "{files}");
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn invalid_names_are_refused() {
    let sandbox = Sandbox::new();
    for name in ["hf:emoji", "hf:", "hf:a/b/../../../etc/passwd", "hf:https://huggingface.co/a/b"] {
        sandbox.txt2img(&["an apple", "-m", name]).refused(&[name, "expected OWNER/NAME"]);
        sandbox.kiln(&["pull", name]).refused(&[name, "expected OWNER/NAME"]);
        sandbox.kiln(&["inspect", name]).refused(&[name, "expected OWNER/NAME"]);
    }
    let refused =
        |script: &str, expected: &[&str]| drop(sandbox.shell_kiln(script, &["pull", "a/b"]).refused(expected));
    refused("HF_ENDPOINT=huggingface.co exec \"$@\"", &["HF_ENDPOINT", "expected an address"]);
    refused("HF_TOKEN='two words' exec \"$@\"", &["HF_TOKEN has no token"]);
    assert!(sandbox.names().is_empty());
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn offline_only_the_cache_is_used() {
    let sandbox = Sandbox::new();
    let told = ["a/b: revision main was never downloaded", "kiln pull a/b downloads it"];
    sandbox.txt2img(&["an apple", "-m", "hf:a/b", "--offline"]).fails(1, &told);
    sandbox.kiln(&["pull", "a/b", "--offline"]).fails(1, &told);
    sandbox.shell_kiln("HF_HUB_OFFLINE=1 exec \"$@\"", &["pull", "a/b"]).fails(1, &told);
    // Commands that draw nothing fetch nothing either.
    sandbox.kiln(&["inspect", "hf:a/b"]).fails(1, &told);
    sandbox.kiln(&["plan", "-m", "hf:a/b"]).fails(1, &told);
    sandbox.kiln(&["convert", "hf:a/b", "b.gguf"]).fails(1, &told);
    assert!(sandbox.names().is_empty());
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn an_interrupt_keeps_partial_downloads() {
    let (sandbox, server) = (Sandbox::new(), emoji());
    let unet = std::fs::read(repository().join("models/emoji").join(UNET)).unwrap();
    let partial = sandbox.path("hf/hub/models--kiln--emoji/blobs").join(format!("{}.incomplete", sha256(&unet)));
    server.fault(UNET, &[Fault::Stall(2 << 20)]);
    let running = sandbox.start_shell(&with(&server), &["pull", NAME]);
    let here = || partial.metadata().map_or(0, |metadata| metadata.len());
    for _ in 0..3000 {
        if here() >= 2 << 20 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    running.signal("INT");
    let run = running.finish();
    assert_eq!(run.status.code(), Some(130), "{run}");
    assert!(run.error().contains("interrupted") && run.stderr.contains("partial downloads are kept"), "{run}");
    assert_eq!(here(), 2 << 20);
    server.asked();
    kiln(&sandbox, &server, &["pull", NAME]).succeeds();
    let parts = server
        .asked()
        .into_iter()
        .filter(|asked| asked.elsewhere)
        .filter_map(|asked| asked.headers.get("range").cloned());
    assert_eq!(parts.collect::<Vec<_>>(), [format!("bytes={}-", 2 << 20)]);
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn the_help_explains_the_sources_of_models() {
    let help = Sandbox::new().kiln(&["txt2img", "--help"]).succeeds().stdout;
    assert!(help.contains("hf:OWNER/NAME") && help.contains("--offline"), "{help}");
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn jobs_of_a_batch_name_models_on_the_hub() {
    let sandbox = Sandbox::new();
    let server = HubServer::start("owner/tiny");
    server.add_folder(&fixtures("models/sd1"));
    let size = ["--set", "width=64", "--set", "height=64", "--set", "steps=1", "--device", "cpu", "-o", "out"];
    let jobs = [
        r#"{"prompt": "a cat", "seed": 1, "model": "hf:owner/tiny"}"#,
        r#"{"prompt": "a dog", "seed": 2, "model": "hf:owner/other"}"#,
    ];
    std::fs::write(sandbox.path("jobs.jsonl"), jobs.join("\n")).unwrap();
    let batch = || kiln(&sandbox, &server, &[&["batch", "jobs.jsonl"][..], &size].concat());
    batch().fails(1, &["owner/other: is not on the Hub under this name"]);
    assert!(!sandbox.path("out").exists(), "nothing is made while a model is missing");
    std::fs::write(sandbox.path("jobs.jsonl"), jobs[0]).unwrap();
    assert_eq!(batch().succeeds().images().len(), 1);
}
