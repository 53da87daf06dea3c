//! Servers that send other content, sizes, names and redirects than they should.

use kiln_testkit::{Fault, HubServer, git_blob, sha256};

use crate::world::{LARGE, REPOSITORY, World, content, files, full, names};

#[test]
fn wrong_content_is_not_kept() {
    let world = World::new();
    world.server.fault(LARGE, &[Fault::Wrong]).fault("README.md", &[Fault::Wrong]);
    for name in [LARGE, "README.md"] {
        let message = world.refused(name);
        assert!(message.contains(name) && message.contains("checksum") && message.contains("try again"), "{message}");
        assert!(names(&world.repository()).iter().all(|name| !name.starts_with("snapshots")), "{message}");
        assert!(names(&world.repository()).iter().all(|name| !name.starts_with("blobs")), "{message}");
    }
    world.pull(&files(&[LARGE, "README.md"])).unwrap();
    world.check(&[LARGE, "README.md"]);
}

#[test]
fn sizes_that_do_not_agree_are_refused() {
    for (fault, told) in [
        (Fault::Long(5000), "more than the 700000 bytes"),
        (Fault::Length(600_000), "sends 600000 bytes, expected 700000"),
        (Fault::Length(u64::MAX), "expected 700000"),
    ] {
        let world = World::new();
        world.server.fault(LARGE, std::slice::from_ref(&fault));
        let message = world.refused(LARGE);
        assert!(message.contains(told), "{fault:?}: {message}");
        let bytes: u64 =
            names(&world.repository()).iter().map(|name| world.repository().join(name).metadata().unwrap().len()).sum();
        assert!(bytes <= 700_000, "{fault:?}: {bytes} were written");
    }
    let world = World::new();
    world.server.fault(LARGE, &[Fault::Cut(10_000), Fault::OtherPart]);
    assert!(world.refused(LARGE).contains("bytes from 9999 of 700000, expected from 10000 of 700000"));
    // A listing that says another size than the file's own headers, and one of a size that no disk has.
    let world = World::new();
    let checksum = sha256(&content(20, 5000));
    world.server.add("big.bin", content(20, 5000));
    let lie =
        |size: &str| format!(r#"{{"rfilename":"{size}.bin","size":5,"lfs":{{"sha256":"{checksum}","size":{size}}}}}"#);
    world.server.add("6000.bin", content(20, 5000)).list(&lie("18446744073709551615"));
    let message = world.refused("18446744073709551615.bin");
    assert!(message.contains("free") && message.contains("HF_HUB_CACHE"), "{message}");
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused() {
    for name in
        ["../../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "a\\\\..\\\\evil.txt", "C:/evil.txt", "a//b.txt", "."]
    {
        let world = World::new();
        world.server.list(&format!(r#"{{"rfilename":"{name}","size":4,"blobId":"{}"}}"#, git_blob(b"evil")));
        let message = world.pull(&full()).unwrap_err().to_string();
        assert!(message.contains("refused") && message.contains("could lead out of its folder"), "{name}: {message}");
        assert!(names(world.folder.path()).is_empty());
    }
}

#[test]
fn redirects_to_files_and_without_end_are_refused() {
    let world = World::new();
    world.server.fault("README.md", &[Fault::Redirect("file:///etc/passwd".into())]);
    let message = world.refused("README.md");
    assert!(message.contains("refused: a redirect") && message.contains("file:///etc/passwd"), "{message}");

    let world = World::new();
    let circle = Fault::Redirect(format!("/{REPOSITORY}/resolve/{}/README.md", HubServer::COMMIT));
    world.server.fault("README.md", &vec![circle; 20]);
    assert!(world.refused("README.md").contains("more than 8 redirects"));

    // What another server says of a file counts for nothing: its bytes have to be right.
    let world = World::new();
    world.server.add("other.bin", content(50, 1000));
    world.server.fault("README.md", &[Fault::Redirect(world.server.elsewhere("/large/other.bin"))]);
    assert!(world.refused("README.md").contains("checksum"));
}

#[test]
fn only_the_hub_may_send_a_listing() {
    let world = World::new();
    let path = format!("/api/models/{REPOSITORY}/revision/main?blobs=true");
    world.server.fault("/revision/main", &[Fault::Redirect(world.server.elsewhere(&path))]);
    let message = world.pull(&full()).unwrap_err().to_string();
    assert!(message.contains("refused: a redirect to another server") && message.contains("HF_ENDPOINT"), "{message}");
    assert!(world.server.asked().iter().all(|asked| !asked.elsewhere));
}
