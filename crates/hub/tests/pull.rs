//! Pulling from a server that behaves like the Hub, and from one that does not. No test leaves this machine.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln_hub::{Error, Event, Hub, Precision, Pulled, Reference, Result, Settings, Token, Wants};
use kiln_testkit::{Fault, HubServer, git_blob, sha256};
use tempfile::TempDir;

const REPOSITORY: &str = "owner/tiny-model";
const LARGE: &str = "unet/diffusion_pytorch_model.safetensors";

/// A server with a model, and an empty cache.
struct World {
    server: HubServer,
    folder: TempDir,
    token: Option<Token>,
}

/// Bytes that are not all alike.
fn content(seed: u64, size: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some((*state >> 56) as u8)
    };
    let mut state = seed;
    std::iter::from_fn(|| next(&mut state)).take(size).collect()
}

/// The model: a part in two types, and what nobody needs.
fn model() -> Vec<(&'static str, Vec<u8>)> {
    let index = br#"{"_class_name": "StableDiffusionPipeline", "tokenizer": ["transformers", "CLIPTokenizer"],
        "text_encoder": ["transformers", "CLIPTextModel"], "unet": ["diffusers", "U"], "vae": ["diffusers", "V"]}"#;
    vec![
        (".gitattributes", content(1, 100)),
        ("README.md", content(2, 1000)),
        ("model_index.json", index.to_vec()),
        ("safety_checker/model.safetensors", content(3, 9000)),
        ("scheduler/scheduler_config.json", content(4, 200)),
        ("text_encoder/config.json", content(5, 200)),
        ("text_encoder/model.safetensors", content(6, 30_000)),
        ("tokenizer/merges.txt", content(7, 3000)),
        ("tokenizer/vocab.json", content(8, 1000)),
        ("unet/config.json", content(9, 300)),
        ("unet/diffusion_pytorch_model.fp16.safetensors", content(10, 350_000)),
        (LARGE, content(11, 700_000)),
        ("vae/config.json", content(9, 300)), // the same content twice
        ("vae/diffusion_pytorch_model.safetensors", content(12, 50_000)),
        ("whole.safetensors", content(13, 90_000)),
    ]
}

impl World {
    fn new() -> Self {
        let world = Self::empty(REPOSITORY);
        for (name, content) in model() {
            world.server.add(name, content);
        }
        world
    }

    fn empty(repository: &str) -> Self {
        Self { server: HubServer::start(repository), folder: tempfile::tempdir().unwrap(), token: None }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    /// The repository's folder in the cache.
    fn repository(&self) -> PathBuf {
        self.cache().join("models--owner--tiny-model")
    }

    fn snapshot(&self) -> PathBuf {
        self.repository().join("snapshots").join(HubServer::COMMIT)
    }

    fn hub(&self) -> Hub {
        self.hub_with(false)
    }

    fn hub_with(&self, offline: bool) -> Hub {
        Hub::new(Settings {
            endpoint: self.server.endpoint(),
            cache: self.cache(),
            token: self.token.clone(),
            offline,
            certificates: None,
            pause: Duration::from_millis(1),
        })
        .unwrap()
    }

    fn pull(&self, wants: &Wants) -> Result<Pulled> {
        self.pull_of(REPOSITORY, wants)
    }

    fn pull_of(&self, reference: &str, wants: &Wants) -> Result<Pulled> {
        self.hub().pull(&reference.parse().unwrap(), wants, &mut |_| ControlFlow::Continue(()))
    }

    /// What goes wrong with a file that is fetched alone.
    fn refused(&self, file: &str) -> String {
        self.pull(&files(&[file])).unwrap_err().to_string()
    }

    /// All content that is in the cache is whole.
    #[track_caller]
    fn check(&self, names: &[&str]) {
        for (name, content) in model().iter().filter(|(name, _)| names.contains(name)) {
            assert!(std::fs::read(self.snapshot().join(name)).unwrap() == *content, "{name} is not what was served");
        }
    }
}

fn files(names: &[&str]) -> Wants {
    Wants { files: names.iter().map(|name| name.to_string()).collect(), ..Wants::default() }
}

fn full() -> Wants {
    Wants { precision: Precision::Full, pipelines: vec!["StableDiffusionPipeline"], ..Wants::default() }
}

/// The names below a folder, sorted, links not followed.
fn names(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap()) {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    let mut names: Vec<String> =
        found.iter().map(|path| path.strip_prefix(folder).unwrap().to_str().unwrap().to_string()).collect();
    names.sort();
    names
}

#[test]
fn a_model_comes_once_and_without_what_nobody_needs() {
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

/// The layout is that of Python's huggingface_hub: names, links, references, and no more.
#[test]
#[cfg(unix)]
fn the_cache_is_laid_out_as_other_tools_have_it() {
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
fn what_other_tools_fetched_is_found_and_not_fetched_again() {
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
fn a_cut_goes_on_where_it_was() {
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
fn an_interrupted_pull_goes_on_in_the_next_one() {
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
fn a_server_without_parts_sends_everything_again() {
    let world = World::new();
    world.server.fault(LARGE, &[Fault::Cut(300_000), Fault::Whole]);
    world.pull(&files(&[LARGE])).unwrap();
    world.check(&[LARGE]);
}

#[test]
fn what_is_left_of_another_file_is_thrown_away() {
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
fn busy_servers_get_time() {
    let world = World::new();
    let wait = || vec![("Retry-After", "0".to_string())];
    let busy = [Fault::Status(429, wait()), Fault::Status(503, Vec::new())];
    world.server.fault("/revision/main", &busy).fault("/large/whole.safetensors", &busy).fault("README.md", &busy);
    world.pull(&files(&["whole.safetensors", "README.md"])).unwrap();
    world.check(&["whole.safetensors", "README.md"]);

    let world = World::new();
    world.server.fault(LARGE, &vec![Fault::Status(503, Vec::new()); 9]);
    let message = world.refused(LARGE);
    assert!(message.contains("503") && message.contains("goes on from there"), "{message}");
    assert_eq!(world.server.asked().iter().filter(|asked| asked.elsewhere).count(), 6);
}

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
fn the_token_goes_to_the_hub_alone() {
    let mut world = World::new();
    world.token = Token::new("hf_secret", "").unwrap();
    world.server.private("hf_secret");
    world.server.fault("/api/resolve-cache/README.md", &[Fault::Redirect(world.server.elsewhere("/large/README.md"))]);
    world.pull(&files(&["README.md", LARGE])).unwrap();
    world.check(&["README.md", LARGE]);
    let (elsewhere, own): (Vec<_>, Vec<_>) = world.server.asked().into_iter().partition(|asked| asked.elsewhere);
    assert!(
        own.iter().all(|asked| asked.headers.get("authorization").is_some_and(|value| value == "Bearer hf_secret"))
    );
    assert_eq!(elsewhere.len(), 2);
    assert!(elsewhere.iter().all(|asked| !format!("{asked:?}").contains("hf_secret")), "{elsewhere:?}");
}

#[test]
fn what_the_hub_denies_is_told_with_what_to_do() {
    let world = World::new();
    world.server.private("hf_right");
    let message = world.pull(&full()).unwrap_err().to_string();
    assert!(message.contains("HF_TOKEN") && message.contains("check the spelling"), "{message}");
    let mut world = world;
    world.token = Token::new("hf_wrong", "").unwrap();
    let message = world.pull(&full()).unwrap_err().to_string();
    assert!(message.contains("your token") && !message.contains("hf_wrong"), "{message}");

    let gated = |status| Fault::Status(status, vec![("X-Error-Code", "GatedRepo".into())]);
    for (token, told) in
        [(None, "then put a token of your account into HF_TOKEN"), (Some("hf_x"), "your token has no access")]
    {
        let mut world = World::new();
        world.token = token.and_then(|token| Token::new(token, "").unwrap());
        world.server.fault("README.md", &[gated(if token.is_some() { 403 } else { 401 })]);
        let message = world.refused("README.md");
        assert!(message.contains("accept its licence on http://") && message.contains(told), "{message}");
    }

    let world = World::new();
    for (reference, told) in [
        ("owner/tiny-modle", "owner/tiny-modle: is not on the Hub under this name"),
        ("owner/tiny-model@v9", "there is no revision v9"),
        (
            "owner/tiny-model/config.json",
            "there is no file config.json; there are text_encoder/config.json, unet/config.json",
        ),
    ] {
        let message = world.pull_of(reference, &Wants::default()).unwrap_err().to_string();
        assert!(message.contains(told), "{reference}: {message}");
    }
    world.server.fault("README.md", &[Fault::Status(404, vec![("X-Error-Code", "EntryNotFound".into())])]);
    assert!(world.refused("README.md").contains("there is no file README.md"));
}

#[test]
fn other_models_are_told_before_they_are_fetched() {
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
fn a_mirror_without_checksums_in_its_listing_has_them_in_its_headers() {
    let world = World::new();
    world.server.plain_listing();
    let pulled = world.pull(&full()).unwrap();
    assert_eq!(pulled.files.len(), 10);
    world.check(&["model_index.json", LARGE, "tokenizer/merges.txt"]);
    assert!(world.server.asked().iter().filter(|asked| asked.method == "HEAD").count() >= 10);
}

#[test]
fn revisions_are_noted_by_their_names() {
    let world = World::new();
    let pulled = world.pull_of("owner/tiny-model@refs/pr/1", &files(&["README.md"])).unwrap();
    assert_eq!(pulled.commit, HubServer::COMMIT);
    let refs = world.repository().join("refs");
    assert_eq!(names(&refs), ["refs/pr/1"]);
    world.pull_of(&format!("owner/tiny-model@{}", HubServer::COMMIT), &files(&["README.md"])).unwrap();
    assert_eq!(names(&refs), ["refs/pr/1"]); // a commit is its own name
}

#[test]
fn offline_nobody_is_asked() {
    let world = World::new();
    let reference: Reference = REPOSITORY.parse().unwrap();
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    let message = world.hub_with(true).pull(&reference, &full(), go_on).unwrap_err().to_string();
    assert!(message.contains("revision main was never fetched") && message.contains("kiln pull"), "{message}");
    world.pull(&files(&["model_index.json", "unet"])).unwrap();
    let message = world.hub_with(true).find(&reference, &full()).unwrap_err().to_string();
    assert!(message.contains("what is there has no scheduler/scheduler_config.json"), "{message}");
    world.pull(&full()).unwrap();
    world.server.asked();
    let found = world.hub_with(true).find(&reference, &full()).unwrap();
    assert_eq!(found.path, world.snapshot());
    assert!(world.server.asked().is_empty());
}

#[test]
fn what_is_in_the_cache_is_used_without_asking() {
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
fn official_files_are_held_to_what_was_published() {
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
fn two_at_once_fetch_once() {
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
fn a_server_that_is_gone_is_named() {
    let world = World::new();
    let hub = world.hub();
    let endpoint = world.server.endpoint();
    drop(world.server);
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    let error = hub.pull(&REPOSITORY.parse().unwrap(), &Wants::default(), go_on).unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains(&endpoint), "{error}");
}

#[test]
fn a_way_back_to_the_hub_is_gone_without_the_token() {
    let mut world = World::new();
    world.token = Token::new("hf_secret", "").unwrap();
    let back = format!("{}/api/resolve-cache/README.md", world.server.endpoint());
    let there = world.server.elsewhere("/large/back/README.md");
    world.server.fault("/api/resolve-cache/README.md", &[Fault::Redirect(there)]);
    world.server.fault("/large/back/README.md", &[Fault::Redirect(back)]);
    world.pull(&files(&["README.md"])).unwrap();
    world.check(&["README.md"]);
    let asked = world.server.asked();
    let cached: Vec<bool> = asked
        .iter()
        .filter(|asked| asked.path == "/api/resolve-cache/README.md")
        .map(|asked| asked.headers.contains_key("authorization"))
        .collect();
    assert_eq!(cached, [true, false], "{asked:?}");
}

#[test]
fn a_listing_comes_from_the_hub_alone() {
    let world = World::new();
    let path = format!("/api/models/{REPOSITORY}/revision/main?blobs=true");
    world.server.fault("/revision/main", &[Fault::Redirect(world.server.elsewhere(&path))]);
    let message = world.pull(&full()).unwrap_err().to_string();
    assert!(message.contains("refused: a redirect to another server") && message.contains("HF_ENDPOINT"), "{message}");
    assert!(world.server.asked().iter().all(|asked| !asked.elsewhere));
}

#[test]
fn what_will_not_go_better_is_not_tried_again() {
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
fn a_few_bytes_a_connection_are_no_progress() {
    let world = World::new();
    world.server.fault(LARGE, &vec![Fault::Cut(10); 50]);
    let message = world.refused(LARGE);
    assert!(message.contains("goes on from there"), "{message}");
    assert_eq!(world.server.asked().iter().filter(|asked| asked.elsewhere).count(), 6);
}

#[test]
#[cfg(unix)]
fn links_in_a_shared_cache_lead_nowhere() {
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

#[test]
fn the_endpoints_password_is_in_no_message() {
    let world = World::new();
    let endpoint = world.server.endpoint().replace("http://", "http://user:PW@");
    let settings = Settings { endpoint, ..world.hub().settings().clone() };
    let pull = |name: &str| {
        let hub = Hub::new(settings.clone()).unwrap();
        hub.pull(&REPOSITORY.parse().unwrap(), &files(&[name]), &mut |_| ControlFlow::Continue(()))
    };
    pull("README.md").unwrap();
    world.server.fault("unet/config.json", &[Fault::Status(418, Vec::new())]);
    world.server.fault("whole.safetensors", &[Fault::Status(403, Vec::new())]);
    let mut messages = vec![pull("unet/config.json"), pull("whole.safetensors")];
    drop(world.server);
    messages.push(pull("README.md"));
    for message in messages {
        let message = message.unwrap_err();
        assert!(!format!("{message} {message:?}").contains("PW") && message.to_string().contains("http://127.0.0.1"));
    }
    let wrong = Settings { endpoint: "http://u:PW@hub.example:99999".into(), ..settings };
    let message = Hub::new(wrong).err().unwrap().to_string();
    assert!(message.contains("http://hub.example:99999") && !message.contains("PW"), "{message}");
}
