//! What `hf-hub` 1.0.0 does with servers that are cut, wrong or hostile. Every test says which test of
//! `crates/hub/tests/pull` asks for something else.

use std::path::PathBuf;
use std::time::Duration;

use hf_hub::{HFClient, HFClientSync, HFResult};
use kiln_testkit::{Fault, HubServer, sha256};
use tempfile::TempDir;

/// The name of a large file, which the Hub redirects to another server.
const LARGE: &str = "model.safetensors";

struct World {
    server: HubServer,
    folder: TempDir,
    content: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let server = HubServer::start("owner/tiny-model");
        let content: Vec<u8> = (0..700_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        server.add(LARGE, content.clone()).add("README.md", vec![7; 1000]);
        Self { server, folder: tempfile::tempdir().unwrap(), content }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    fn client(&self, endpoint: &str) -> HFClientSync {
        HFClient::builder()
            .endpoint(endpoint)
            .token("hf_secret")
            .cache_dir(self.cache())
            .retry_base_delay(Duration::from_millis(1))
            .retry_max_attempts(5)
            .build_sync()
            .unwrap()
    }

    fn download(&self, name: &str) -> HFResult<PathBuf> {
        let repository = self.client(&self.server.endpoint()).model("owner", "tiny-model");
        repository.download_file().filename(name).revision(HubServer::COMMIT).send()
    }

    fn incomplete(&self) -> PathBuf {
        let name = format!("models--owner--tiny-model/blobs/{}.incomplete", sha256(&self.content));
        self.cache().join(name)
    }
}

/// Kiln: `resume::a_cut_download_is_resumed`, `resume::an_interrupted_pull_is_resumed_by_the_next_one`.
#[test]
fn a_cut_download_fails_and_the_next_one_starts_at_the_first_byte() {
    let world = World::new();
    world.server.fault("/large/model.safetensors", &[Fault::Cut(300_000)]);
    assert!(world.download(LARGE).is_err());
    assert_eq!(world.incomplete().metadata().unwrap().len(), 300_000);
    world.server.asked();
    assert!(std::fs::read(world.download(LARGE).unwrap()).unwrap() == world.content);
    assert!(world.server.asked().iter().all(|asked| !asked.headers.contains_key("range")));
}

/// Kiln: `hostile::wrong_content_is_not_kept`.
#[test]
fn wrong_content_is_kept() {
    let world = World::new();
    world.server.fault("/large/model.safetensors", &[Fault::Wrong]);
    let path = world.download(LARGE).unwrap();
    assert!(std::fs::read(path).unwrap() != world.content);
}

/// Kiln: `hostile::sizes_that_do_not_agree_are_refused`.
#[test]
fn bytes_after_the_end_of_a_file_are_kept() {
    let world = World::new();
    world.server.fault("/large/model.safetensors", &[Fault::Long(5000)]);
    assert_eq!(world.download(LARGE).unwrap().metadata().unwrap().len(), 705_000);
}

/// Kiln: `hostile::names_that_lead_out_of_the_cache_are_refused`. `snapshot_download` takes such names from a listing.
#[test]
#[cfg(unix)]
fn names_lead_out_of_the_cache() {
    let world = World::new();
    world.server.add("evil.txt", b"evil".to_vec());
    // The address has no `..` any more, so that the server has the file; the path in the cache has them.
    world.download("../../../../evil.txt").unwrap();
    assert!(world.folder.path().join("evil.txt").symlink_metadata().is_ok());
}

/// Kiln: `cache::links_in_a_shared_cache_are_not_followed`.
#[test]
#[cfg(unix)]
fn links_in_a_shared_cache_are_followed() {
    let world = World::new();
    let victim = world.folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::fs::create_dir_all(world.incomplete().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&victim, world.incomplete()).unwrap();
    world.download(LARGE).unwrap();
    assert!(std::fs::read(&victim).unwrap() == world.content);
}

/// Kiln: `hostile::only_the_hub_may_send_a_listing`.
#[test]
fn another_server_may_send_a_listing() {
    let world = World::new();
    let path = "/api/models/owner/tiny-model/revision/main";
    world.server.fault("/revision/main", &[Fault::Redirect(world.server.elsewhere(path))]);
    let repository = world.client(&world.server.endpoint()).model("owner", "tiny-model");
    let _ = repository.info().revision("main").send();
    assert!(world.server.asked().iter().any(|asked| asked.elsewhere && asked.path.starts_with(path)));
}
