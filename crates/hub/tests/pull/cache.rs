//! The cache that other tools share.

use std::ops::ControlFlow;
use std::path::Path;

use kiln_hub::{Event, Reference, Wants};
use kiln_testkit::{Fault, HubServer, git_blob, sha256};

use crate::world::{LARGE, REPOSITORY, World, content, files, full, model, names};

/// The layout is that of Python's huggingface_hub: names, links, references, and no more.
#[test]
#[cfg(unix)]
fn the_cache_has_the_layout_of_other_tools() {
    let world = World::new();
    world.pull(&files(&["unet/config.json", LARGE])).unwrap();
    let [config, large] = [content(9, 300), content(11, 700_000)];
    let mut expected = vec![
        format!("blobs/{}", git_blob(&config)),
        format!("blobs/{}", sha256(&large)),
        "refs/main".into(),
        format!("snapshots/{}/unet/config.json", HubServer::COMMIT),
        format!("snapshots/{}/{LARGE}", HubServer::COMMIT),
    ];
    expected.sort();
    assert_eq!(names(&world.repository()), expected);
    assert_eq!(std::fs::read_to_string(world.repository().join("refs/main")).unwrap(), HubServer::COMMIT);
    let link = std::fs::read_link(world.snapshot().join(LARGE)).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(sha256(&large)));
    let locks = names(&world.cache().join(".locks/models--owner--tiny-model"));
    assert!(locks.contains(&format!("{}.lock", sha256(&large))), "{locks:?}");
}

/// A cache that another tool made: files, links and the reference by hand, as Python's huggingface_hub makes them.
#[test]
#[cfg(unix)]
fn files_of_other_tools_are_found_and_not_downloaded_again() {
    let world = World::new();
    for (name, content) in model() {
        let checksum = if content.len() >= 2048 { sha256(&content) } else { git_blob(&content) };
        let blob = world.repository().join("blobs").join(&checksum);
        let link = world.snapshot().join(name);
        std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::fs::write(&blob, content).unwrap();
        let up = "../".repeat(2 + name.matches('/').count());
        std::os::unix::fs::symlink(format!("{up}blobs/{checksum}"), link).unwrap();
    }
    std::fs::create_dir_all(world.repository().join("refs")).unwrap();
    std::fs::write(world.repository().join("refs/main"), HubServer::COMMIT).unwrap();

    let reference: Reference = REPOSITORY.parse().unwrap();
    let found = world.hub_with(true).find(&reference, &full()).unwrap();
    assert_eq!((found.path, found.files.len()), (world.snapshot(), 10));
    let pinned: Reference = format!("{REPOSITORY}@{}", HubServer::COMMIT).parse().unwrap();
    assert!(world.hub_with(true).find(&pinned, &full()).is_ok());
    let file: Reference = format!("hf:{REPOSITORY}/whole.safetensors").parse().unwrap();
    assert_eq!(world.hub_with(true).find(&file, &full()).unwrap().path, world.snapshot().join("whole.safetensors"));
    assert!(world.server.asked().is_empty());

    let before = names(&world.repository());
    assert_eq!(world.pull(&full()).unwrap().fetched, 0);
    assert!(world.server.fetched().is_empty());
    assert_eq!(names(&world.repository()), before);
}

#[test]
fn offline_makes_no_connection() {
    let world = World::new();
    let reference: Reference = REPOSITORY.parse().unwrap();
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    let message = world.hub_with(true).pull(&reference, &full(), go_on).unwrap_err().to_string();
    assert!(message.contains("revision main was never downloaded") && message.contains("kiln pull"), "{message}");
    world.pull(&files(&["model_index.json", "unet"])).unwrap();
    let message = world.hub_with(true).find(&reference, &full()).unwrap_err().to_string();
    assert!(message.contains("the cached part has no scheduler/scheduler_config.json"), "{message}");
    world.pull(&full()).unwrap();
    world.server.asked();
    let found = world.hub_with(true).find(&reference, &full()).unwrap();
    assert_eq!(found.path, world.snapshot());
    assert!(world.server.asked().is_empty());
}

#[test]
fn cached_models_are_used_without_a_connection() {
    let world = World::new();
    let reference: Reference = REPOSITORY.parse().unwrap();
    let go_on = || |_: Event<'_>| ControlFlow::Continue(());
    let get = |wants: &Wants| world.hub().find_or_pull(&reference, wants, &mut go_on());
    assert!(get(&Wants::default()).unwrap().fetched > 0);
    world.server.asked();
    assert_eq!(get(&Wants::default()).unwrap().fetched, 0);
    assert!(world.server.asked().is_empty());
    // Half precision is there and full is asked for: the Hub may have it. If it cannot be reached, half has to do.
    world.server.fault("/revision/main", &vec![Fault::Status(503, Vec::new()); 6]);
    assert_eq!(get(&full()).unwrap().path, world.snapshot());
    assert_eq!(get(&full()).unwrap().fetched, 1);
    world.server.asked();
    assert_eq!(get(&full()).unwrap().fetched, 0);
    assert!(world.server.asked().is_empty());
}

#[test]
fn parallel_pulls_download_once() {
    let world = World::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| world.pull(&files(&[LARGE])).unwrap());
        }
    });
    world.check(&[LARGE]);
    assert_eq!(world.server.fetched(), [LARGE]);
}

#[test]
#[cfg(unix)]
fn links_in_a_shared_cache_are_not_followed() {
    let world = World::new();
    let victim = world.folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let partial = world.repository().join(format!("blobs/{}.incomplete", sha256(&content(11, 700_000))));
    std::fs::create_dir_all(partial.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&victim, &partial).unwrap();
    let refs = world.repository().join("refs");
    std::fs::create_dir_all(&refs).unwrap();
    std::os::unix::fs::symlink(&victim, refs.join("main")).unwrap();
    let predictable = refs.join(format!("main.{}.new", std::process::id()));
    std::os::unix::fs::symlink(&victim, &predictable).unwrap();
    world.pull(&files(&[LARGE])).unwrap();
    world.check(&[LARGE]);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(std::fs::read_to_string(refs.join("main")).unwrap(), HubServer::COMMIT);
}
