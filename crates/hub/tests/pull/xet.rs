//! Files that come from the Xet storage, and what happens when that fails.

use std::cell::RefCell;
use std::ops::ControlFlow;

use kiln_hub::{Error, Event, Precision, Token, Wants};
use kiln_testkit::{Asked, Fault, HubServer, sha256};

use crate::world::{LARGE, REPOSITORY, World, content, files};

const CHUNKS: &str = "/cas/container/";
const TERMS: &str = "/cas/v1/reconstructions/";

fn world() -> World {
    let mut world = World::new();
    world.xet = true;
    world.server.xet();
    world
}

fn hash() -> String {
    sha256(&content(11, 700_000))
}

/// Pulls the large file; returns why attempts failed.
fn pull(world: &World) -> Vec<String> {
    let problems = RefCell::new(Vec::new());
    let listen = &mut |event: Event<'_>| {
        if let Event::Retry { problem, .. } = event {
            problems.borrow_mut().push(problem.to_string());
        }
        ControlFlow::Continue(())
    };
    world.hub().pull(&REPOSITORY.parse().unwrap(), &files(&[LARGE]), listen).unwrap();
    world.check(&[LARGE]);
    problems.into_inner()
}

fn of<'a>(asked: &'a [Asked], begin: &str) -> Vec<&'a Asked> {
    asked.iter().filter(|asked| asked.path.starts_with(begin)).collect()
}

#[test]
fn large_files_come_in_chunks_and_small_files_over_http() {
    let mut world = world();
    world.token = Token::new("hf_secret", "").unwrap();
    world.server.private("hf_secret");
    let wants = Wants { precision: Precision::Full, ..Wants::default() };
    let pulled = world.pull(&wants).unwrap();
    assert_eq!(pulled.files.len(), 10);
    world.check(&[LARGE, "text_encoder/model.safetensors", "unet/config.json", "tokenizer/vocab.json"]);
    let asked = world.server.asked();
    assert!(of(&asked, "/large/").is_empty(), "{asked:?}");
    // 700,000 bytes are 14 chunks.
    let parts = of(&asked, &format!("{CHUNKS}{}", hash()));
    assert!(parts.len() > 1, "one request for all chunks");
    assert!(asked.iter().any(|asked| asked.path.ends_with("/resolve-cache/unet/config.json")));
    // The storage gets a token of its own, and the servers that have the chunks get none.
    let terms = of(&asked, TERMS);
    assert!(terms.iter().all(|asked| asked.headers["authorization"] == "Bearer xet-token") && !terms.is_empty());
    assert!(parts.iter().all(|asked| !asked.headers.contains_key("authorization")));
    let elsewhere = asked.iter().filter(|asked| asked.elsewhere);
    assert!(elsewhere.into_iter().all(|asked| !format!("{asked:?}").contains("hf_secret")));
    // Nothing is sent but requests for files.
    assert!(asked.iter().all(|asked| asked.method != "POST"), "{asked:?}");
}

#[test]
fn a_transfer_begins_at_the_first_missing_byte() {
    let world = world();
    let partial = world.repository().join(format!("blobs/{}.incomplete", hash()));
    std::fs::create_dir_all(partial.parent().unwrap()).unwrap();
    std::fs::write(&partial, &content(11, 700_000)[..333_333]).unwrap();
    assert!(pull(&world).is_empty());
    let asked = world.server.asked();
    let terms = of(&asked, TERMS);
    assert!(terms.iter().all(|asked| asked.headers["range"].starts_with("bytes=333333-")), "{terms:?}");
    assert!(of(&asked, "/large/").is_empty());
}

#[test]
fn an_interrupted_transfer_is_resumed() {
    let world = world();
    let stop = &mut |event: Event<'_>| match event {
        Event::Progress { done, .. } if done > 0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stopped = world.hub().pull(&REPOSITORY.parse().unwrap(), &files(&[LARGE]), stop);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    let partial = world.repository().join(format!("blobs/{}.incomplete", hash()));
    let have = partial.metadata().unwrap().len();
    assert!(have > 0 && std::fs::read(&partial).unwrap() == content(11, 700_000)[..have as usize]);
    assert!(pull(&world).is_empty());
}

#[test]
fn a_file_comes_over_http_where_the_storage_fails() {
    let unavailable = || vec![Fault::Status(500, Vec::new()); 30];
    for (end, faults, expected) in [
        (format!("/xet-read-token/{}", HubServer::COMMIT), vec![Fault::Status(403, Vec::new())], "is gated"),
        (hash(), unavailable(), "the Xet storage: "),
        (hash(), vec![Fault::Status(404, Vec::new()); 30], "the Xet storage: "),
        (format!("container/{}", hash()), vec![Fault::Cut(100); 60], "the Xet storage: "),
    ] {
        let world = world();
        world.server.fault(&end, &faults);
        let problems = pull(&world);
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{end}: {problems:?}");
        assert_eq!(of(&world.server.asked(), "/large/").len(), 1, "{end}");
    }
}

#[test]
fn wrong_bytes_of_the_storage_are_not_kept() {
    let world = world();
    world.server.fault(&format!("container/{}", hash()), &[Fault::Wrong]);
    let problems = pull(&world);
    assert_eq!(problems, ["the Xet storage sent other bytes than those of this file"]);
    assert_eq!(of(&world.server.asked(), "/large/").len(), 1);
}

#[test]
fn addresses_of_the_storage_are_checked() {
    for address in ["file:///etc", "ftp://127.0.0.1/", "http://127.0.0.1:99999", "nowhere:"] {
        let mut world = World::new();
        world.xet = true;
        world.server.xet_at(address);
        let problems = pull(&world);
        assert!(
            problems.len() == 1 && problems[0].contains("the address of the Xet storage"),
            "{address}: {problems:?}"
        );
    }
}

#[test]
fn the_storage_can_be_disabled() {
    let mut world = world();
    world.xet = false;
    assert!(pull(&world).is_empty());
    let asked = world.server.asked();
    assert!(of(&asked, "/cas/").is_empty() && asked.iter().all(|asked| !asked.path.contains("xet-read-token")));
}
