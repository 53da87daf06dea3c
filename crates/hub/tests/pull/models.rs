//! Which files of a repository are downloaded.

use kiln_hub::Wants;
use kiln_testkit::HubServer;

use crate::world::{LARGE, World, content, files, full, names};

#[test]
fn a_model_is_downloaded_once_and_without_unused_files() {
    let world = World::new();
    let pulled = world.pull(&full()).unwrap();
    assert_eq!(pulled.path, world.snapshot());
    assert_eq!(pulled.commit, HubServer::COMMIT);
    let expected = [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "tokenizer/merges.txt",
        "tokenizer/vocab.json",
        "unet/config.json",
        LARGE,
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ];
    assert_eq!(names(&world.snapshot()), expected);
    world.check(&expected);
    let mut fetched = world.server.fetched();
    fetched.sort();
    // One of the two configurations with the same content is enough.
    assert_eq!(fetched.len(), expected.len() - 1, "{fetched:?}");

    let again = world.pull(&full()).unwrap();
    assert_eq!((again.path, again.fetched), (pulled.path, 0));
    assert!(world.server.fetched().is_empty());

    // The other type of the same part is one file more.
    world.pull(&Wants::default()).unwrap();
    assert_eq!(world.server.fetched(), ["unet/diffusion_pytorch_model.fp16.safetensors"]);
}

#[test]
fn other_kinds_of_models_are_refused_before_the_download() {
    let world = World::new();
    let wants = Wants { pipelines: vec!["StableDiffusionXLPipeline"], ..Wants::default() };
    let message = world.pull(&wants).unwrap_err().to_string();
    assert!(
        message.contains("diffusers' StableDiffusionPipeline, expected one for StableDiffusionXLPipeline"),
        "{message}"
    );
    assert_eq!(world.server.fetched(), ["model_index.json"]);
}

#[test]
fn official_files_must_have_their_published_checksums() {
    let world = World::empty("stabilityai/stable-diffusion-xl-base-1.0");
    let name = "vae/diffusion_pytorch_model.safetensors";
    world.server.add(name, content(30, 5000));
    let reference = "stabilityai/stable-diffusion-xl-base-1.0";
    let message = world.pull_of(reference, &files(&[name])).unwrap_err().to_string();
    assert!(message.contains("1598f3d24932bcfe") && message.contains(&format!("@{}", HubServer::COMMIT)), "{message}");
    assert!(world.server.fetched().is_empty());
    // Whoever names a commit gets what that has.
    world.pull_of(&format!("{reference}@{}", HubServer::COMMIT), &files(&[name])).unwrap();
}

#[test]
fn checksums_of_mirrors_come_from_headers() {
    let world = World::new();
    world.server.plain_listing();
    let pulled = world.pull(&full()).unwrap();
    assert_eq!(pulled.files.len(), 10);
    world.check(&["model_index.json", LARGE, "tokenizer/merges.txt"]);
    assert!(world.server.asked().iter().filter(|asked| asked.method == "HEAD").count() >= 10);
}

#[test]
fn revisions_are_stored_under_their_names() {
    let world = World::new();
    let pulled = world.pull_of("owner/tiny-model@refs/pr/1", &files(&["README.md"])).unwrap();
    assert_eq!(pulled.commit, HubServer::COMMIT);
    let refs = world.repository().join("refs");
    assert_eq!(names(&refs), ["refs/pr/1"]);
    world.pull_of(&format!("owner/tiny-model@{}", HubServer::COMMIT), &files(&["README.md"])).unwrap();
    assert_eq!(names(&refs), ["refs/pr/1"]); // a commit is its own name
}
