//! Connections that are cut, servers that are busy or gone, and downloads that are resumed.

use std::cell::RefCell;
use std::ops::ControlFlow;

use kiln_hub::{Error, Event, Wants};
use kiln_testkit::{Fault, sha256};

use crate::world::{LARGE, REPOSITORY, World, content, files};

#[test]
fn a_cut_download_is_resumed() {
    let world = World::new();
    world.server.fault(LARGE, &[Fault::Cut(100_000), Fault::Silence, Fault::Cut(300_000)]);
    let retries = RefCell::new(0);
    let listen = &mut |event: Event<'_>| {
        *retries.borrow_mut() += usize::from(matches!(event, Event::Retry { .. }));
        ControlFlow::Continue(())
    };
    world.hub().pull(&REPOSITORY.parse().unwrap(), &files(&[LARGE]), listen).unwrap();
    world.check(&[LARGE]);
    assert_eq!(*retries.borrow(), 3);
    let asked = world.server.asked().into_iter().filter(|asked| asked.elsewhere);
    let parts: Vec<Option<String>> = asked.map(|asked| asked.headers.get("range").cloned()).collect();
    let from = |at: usize| Some(format!("bytes={at}-"));
    assert_eq!(parts, [None, from(100_000), from(100_000), from(400_000)]);
}

#[test]
fn an_interrupted_pull_is_resumed_by_the_next_one() {
    let world = World::new();
    // Less than a piece comes before the cut, so that what was there when we stopped is known.
    world.server.fault(LARGE, &[Fault::Cut(200_000)]);
    let stop = &mut |event: Event<'_>| match event {
        Event::Retry { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stopped = world.hub().pull(&REPOSITORY.parse().unwrap(), &files(&[LARGE]), stop);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    let partial = world.repository().join(format!("blobs/{}.incomplete", sha256(&content(11, 700_000))));
    assert_eq!(partial.metadata().unwrap().len(), 200_000);
    assert!(!world.repository().join("refs/main").exists());

    let first = RefCell::new(None);
    let listen = &mut |event: Event<'_>| {
        if let Event::Progress { done, total: 700_000 } = event {
            first.borrow_mut().get_or_insert(done);
        }
        ControlFlow::Continue(())
    };
    world.hub().pull(&REPOSITORY.parse().unwrap(), &files(&[LARGE]), listen).unwrap();
    world.check(&[LARGE]);
    assert!(!partial.exists());
    assert!(first.into_inner().unwrap() >= 200_000);
    assert!(world.server.asked().iter().any(|asked| asked.headers.get("range").is_some_and(|r| r == "bytes=200000-")));
}

#[test]
fn a_server_without_ranges_sends_the_whole_file() {
    let world = World::new();
    world.server.fault(LARGE, &[Fault::Cut(300_000), Fault::Whole]);
    world.pull(&files(&[LARGE])).unwrap();
    world.check(&[LARGE]);
}

#[test]
fn bytes_of_another_file_are_discarded() {
    let world = World::new();
    let partial = world.repository().join(format!("blobs/{}.incomplete", sha256(&content(11, 700_000))));
    for (what, size) in [("another file's begin", 1000), ("another file as long", 700_000), ("a longer one", 800_000)] {
        std::fs::create_dir_all(partial.parent().unwrap()).unwrap();
        std::fs::write(&partial, content(99, size)).unwrap();
        world.pull(&files(&[LARGE])).unwrap_or_else(|error| panic!("{what}: {error}"));
        world.check(&[LARGE]);
        std::fs::remove_dir_all(world.cache()).unwrap();
    }
}

#[test]
fn busy_servers_are_asked_again() {
    let world = World::new();
    let wait = || vec![("Retry-After", "0".to_string())];
    let busy = [Fault::Status(429, wait()), Fault::Status(503, Vec::new())];
    world.server.fault("/revision/main", &busy).fault("/large/whole.safetensors", &busy).fault("README.md", &busy);
    world.pull(&files(&["whole.safetensors", "README.md"])).unwrap();
    world.check(&["whole.safetensors", "README.md"]);

    let world = World::new();
    world.server.fault(LARGE, &vec![Fault::Status(503, Vec::new()); 9]);
    let message = world.refused(LARGE);
    assert!(message.contains("503") && message.contains("nothing was downloaded; the same command tries"), "{message}");
    assert_eq!(world.server.asked().iter().filter(|asked| asked.elsewhere).count(), 6);
}

#[test]
fn a_few_bytes_for_each_connection_are_no_progress() {
    let world = World::new();
    world.server.fault(LARGE, &vec![Fault::Cut(10); 50]);
    let message = world.refused(LARGE);
    assert!(message.contains("the same command continues it"), "{message}");
    assert_eq!(world.server.asked().iter().filter(|asked| asked.elsewhere).count(), 6);
}

#[test]
fn permanent_failures_are_not_repeated() {
    let asked = |fault: Fault| {
        let world = World::new();
        world.server.fault("/large/whole.safetensors", &vec![fault; 9]);
        let message = world.refused("whole.safetensors");
        (message, world.server.asked().iter().filter(|asked| asked.elsewhere).count())
    };
    let (message, times) = asked(Fault::Redirect("http://127.0.0.1:99999/x".into()));
    assert!(
        times == 1 && message.contains("99999") && message.contains("no address of a server"),
        "{times}: {message}"
    );
    let (message, times) = asked(Fault::Status(204, Vec::new()));
    assert!(times == 1 && message.contains("204"), "{times}: {message}");
    let (message, times) = asked(Fault::Status(200, vec![("Bad header", "x".into())]));
    assert!(times == 1 && message.contains("no HTTP"), "{times}: {message}");
}

#[test]
fn an_unreachable_server_is_named() {
    let world = World::new();
    let hub = world.hub();
    let endpoint = world.server.endpoint();
    drop(world.server);
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    let error = hub.pull(&REPOSITORY.parse().unwrap(), &Wants::default(), go_on).unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains(&endpoint), "{error}");
}
