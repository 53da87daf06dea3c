//! A test server with a model, an empty cache, and what tests ask of them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln_hub::{Hub, Precision, Pulled, Result, Settings, Token, Wants};
use kiln_testkit::HubServer;
use tempfile::TempDir;

pub const REPOSITORY: &str = "owner/tiny-model";
pub const LARGE: &str = "unet/diffusion_pytorch_model.safetensors";

/// A server with a model, and an empty cache.
pub struct World {
    pub server: HubServer,
    pub folder: TempDir,
    pub token: Option<Token>,
    /// Whether the Xet storage may be used.
    pub xet: bool,
}

/// Pseudorandom bytes.
pub fn content(seed: u64, size: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some((*state >> 56) as u8)
    };
    let mut state = seed;
    std::iter::from_fn(|| next(&mut state)).take(size).collect()
}

/// The model: one component in two types, and files that no pipeline uses.
pub fn model() -> Vec<(&'static str, Vec<u8>)> {
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
    pub fn new() -> Self {
        let world = Self::empty(REPOSITORY);
        for (name, content) in model() {
            world.server.add(name, content);
        }
        world
    }

    pub fn empty(repository: &str) -> Self {
        Self { server: HubServer::start(repository), folder: tempfile::tempdir().unwrap(), token: None, xet: false }
    }

    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    /// The repository's folder in the cache.
    pub fn repository(&self) -> PathBuf {
        self.cache().join("models--owner--tiny-model")
    }

    pub fn snapshot(&self) -> PathBuf {
        self.repository().join("snapshots").join(HubServer::COMMIT)
    }

    pub fn hub(&self) -> Hub {
        self.hub_with(false)
    }

    pub fn hub_with(&self, offline: bool) -> Hub {
        Hub::new(Settings {
            endpoint: self.server.endpoint(),
            cache: self.cache(),
            token: self.token.clone(),
            offline,
            certificates: None,
            xet: self.xet,
            pause: Duration::from_millis(1),
        })
        .unwrap()
    }

    pub fn pull(&self, wants: &Wants) -> Result<Pulled> {
        self.pull_of(REPOSITORY, wants)
    }

    pub fn pull_of(&self, reference: &str, wants: &Wants) -> Result<Pulled> {
        self.hub().pull(&reference.parse().unwrap(), wants, &mut |_| ControlFlow::Continue(()))
    }

    /// The error of a pull of one file.
    pub fn refused(&self, file: &str) -> String {
        self.pull(&files(&[file])).unwrap_err().to_string()
    }

    /// Checks the content of files in the cache.
    #[track_caller]
    pub fn check(&self, names: &[&str]) {
        for (name, content) in model().iter().filter(|(name, _)| names.contains(name)) {
            assert!(std::fs::read(self.snapshot().join(name)).unwrap() == *content, "{name} is not what was served");
        }
    }
}

pub fn files(names: &[&str]) -> Wants {
    Wants { files: names.iter().map(|name| name.to_string()).collect(), ..Wants::default() }
}

pub fn full() -> Wants {
    Wants { precision: Precision::Full, pipelines: vec!["StableDiffusionPipeline"], ..Wants::default() }
}

/// The names below a folder, sorted, links not followed.
pub fn names(folder: &Path) -> Vec<String> {
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
