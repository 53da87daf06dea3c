//! Finding the model that comes with Kiln, and models by name.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::hub;

/// The model that comes with Kiln.
const DEFAULT: &str = "emoji";
/// The environment variable with a folder of models.
const MODELS: &str = "KILN_MODELS";
/// The environment variable in which cargo names the package that it runs or tests.
const MANIFEST: &str = "CARGO_MANIFEST_DIR";
/// The name of a folder of models.
const FOLDER: &str = "models";
/// Maximum number of folders between a binary and cargo's target folder: `TRIPLE/PROFILE/deps`, and that folder.
const DEEPEST: usize = 4;
/// Maximum bytes of a package manifest that are read.
const LONGEST_MANIFEST: u64 = 64 << 10;

/// Writes the files of the model that the program contains, unless they are there, and returns their folder.
pub type BuiltIn = fn() -> kiln_files::Result<PathBuf>;

/// The model that the program contains. It belongs to the process, as the program does.
static BUILT_IN: OnceLock<BuiltIn> = OnceLock::new();

/// Says that the program contains the model that comes with Kiln. It is used if no folder of models has it. The first call counts.
pub fn set_built_in(model: BuiltIn) {
    let _ = BUILT_IN.set(model);
}

/// The name of the model that the program contains, if it contains one.
pub fn built_in_name() -> Option<&'static str> {
    BUILT_IN.get().map(|_| DEFAULT)
}

/// The folder of the model that comes with Kiln, if `name` is its name and the program contains it.
fn built_in(name: &Path) -> Option<Result<PathBuf>> {
    let model = BUILT_IN.get().filter(|_| name == Path::new(DEFAULT))?;
    Some(model().map_err(Error::from))
}

/// The path of the model `name`: a path, or the name of a folder in `KILN_MODELS`, in `models/` next to the binary, or
/// in `models/` of the sources if cargo built the binary in them or runs it; `hf:OWNER/NAME` is looked up in the Hub's
/// cache. Without a name the model that comes with Kiln: from these folders, else the one that the program contains.
///
/// # Errors
/// [`Error::Files`] with all tried paths, also for a device or a FIFO, and if the files of the model in the program cannot be
/// written; [`Error::Hub`] with the files that the cache lacks; [`Error::NoModel`] if there is no name and no such model.
pub fn locate_model(name: Option<&Path>) -> Result<PathBuf> {
    match name {
        Some(name) => locate(name, "a model folder or file"),
        None => in_folders(Path::new(DEFAULT))
            .or_else(|_| built_in(Path::new(DEFAULT)).unwrap_or(Err(Error::NoModel { name: DEFAULT }))),
    }
}

/// Finds a file or folder of any kind, as `kiln inspect` takes it.
///
/// # Errors
/// See [`locate_model`].
pub fn locate_input(name: &Path) -> Result<PathBuf> {
    locate(name, "a file or folder")
}

/// The path with this name; `what` is looked for.
fn locate(name: &Path, what: &str) -> Result<PathBuf> {
    if let Some(path) = hub::cached(name)? {
        return Ok(path);
    }
    if let Ok(found) = name.metadata() {
        if found.is_dir() || found.is_file() {
            return Ok(name.to_path_buf());
        }
        let problem = "is a device or a FIFO, expected a folder or a regular file";
        return Err(Error::read(name)(std::io::Error::new(std::io::ErrorKind::InvalidInput, problem)));
    }
    in_folders(name).or_else(|tried| {
        if let Some(found) = built_in(name) {
            return found;
        }
        let hint = hub::suggested(name).map(|name| format!("; for the model of the Hugging Face Hub, give {name}"));
        let hint = hint.or_else(|| advice(name, &folders())).unwrap_or_default();
        Err(Error::not_found(name.to_path_buf(), format!("{what} at {}{hint}", tried.join(", "))))
    })
}

/// Advice for a name without a folder that is not found: a file with this name and an extension, or how names are found.
fn advice(name: &Path, folders: &[PathBuf]) -> Option<String> {
    if name.components().count() != 1 || name.has_root() {
        return None;
    }
    let here = [PathBuf::new()];
    let with_ending = here.iter().chain(folders).find_map(|folder| {
        let mut files = ENDINGS.iter().map(|ending| {
            let mut file = name.as_os_str().to_owned();
            file.push(".");
            file.push(ending);
            PathBuf::from(file)
        });
        files.find(|file| folder.join(file).is_file())
    });
    Some(match with_ending {
        Some(file) => format!("; did you mean {}?", file.display()),
        None => format!(
            "; give its path, set {MODELS} to the folder that has it, or give hf:OWNER/NAME of the Hugging Face Hub"
        ),
    })
}

/// The path of a name in the folders of models, or all tried paths.
fn in_folders(name: &Path) -> std::result::Result<PathBuf, Vec<String>> {
    let mut tried = vec![name.display().to_string()];
    if name.components().count() == 1 {
        for candidate in folders().into_iter().map(|folder| folder.join(name)) {
            if candidate.exists() {
                return Ok(candidate);
            }
            tried.push(candidate.display().to_string());
        }
    }
    Err(tried)
}

/// The extensions of model files.
pub(crate) const ENDINGS: [&str; 5] = ["safetensors", "ckpt", "gguf", "pt", "bin"];

/// The model with the name that an image contains: the name of a folder, or of a file without its extension. Images are
/// untrusted, so the current folder is not searched.
pub fn locate_named(name: &Path) -> Option<PathBuf> {
    let names = std::iter::once(name.to_path_buf()).chain(ENDINGS.iter().map(|ending| {
        let mut name = name.as_os_str().to_owned();
        name.push(".");
        name.push(ending);
        PathBuf::from(name)
    }));
    let names: Vec<PathBuf> = names.collect();
    let candidates =
        folders().into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)).collect::<Vec<_>>());
    candidates.into_iter().find(|candidate| candidate.exists()).or_else(|| built_in(name)?.ok())
}

/// The folders to search for models, the most specific first.
pub(crate) fn folders() -> Vec<PathBuf> {
    let binary = std::env::current_exe().ok();
    folders_of(variable(MODELS), binary.as_deref(), variable(MANIFEST).as_deref())
}

/// The folder that `KILN_MODELS` names.
pub(crate) fn variable_folder() -> Option<PathBuf> {
    variable(MODELS)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The shortest argument that names the model at `path`: its name, if that leads to it, else the path, from the current folder
/// if it is in that.
pub(crate) fn argument(path: &Path) -> String {
    let is_same = |found: PathBuf| matches!((found.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b);
    let name = path.file_name().map(Path::new).filter(|name| !name.exists());
    if let Some(name) = name.filter(|name| in_folders(name).is_ok_and(is_same)) {
        return name.display().to_string();
    }
    let current = std::env::current_dir().ok();
    let below = current.and_then(|current| path.strip_prefix(current).ok().map(Path::to_path_buf));
    below.unwrap_or_else(|| path.to_path_buf()).display().to_string()
}

/// The folders for given variables, a binary, and the package that cargo runs or tests. No other folder above the
/// binary is searched, because anyone may own it.
fn folders_of(named: Option<PathBuf>, binary: Option<&Path>, manifest: Option<&Path>) -> Vec<PathBuf> {
    let next_to_binary = binary.and_then(Path::parent).map(|folder| folder.join(FOLDER));
    let built = binary.and_then(|binary| {
        let target = binary.ancestors().skip(1).take(DEEPEST).find(|folder| folder.ends_with("target"));
        target?.parent().filter(|folder| is_sources(folder))
    });
    let run = || manifest.and_then(|package| package.ancestors().take(3).find(|folder| is_sources(folder)));
    let sources = built.or_else(run).map(|sources| sources.join(FOLDER));
    named.into_iter().chain(next_to_binary).chain(sources).collect()
}

/// Whether a folder contains Kiln's sources.
fn is_sources(folder: &Path) -> bool {
    let mut text = String::new();
    let read = std::fs::File::open(folder.join("crates/models/Cargo.toml"))
        .and_then(|file| file.take(LONGEST_MANIFEST).read_to_string(&mut text));
    read.is_ok() && text.lines().any(|line| line == concat!("name = \"", env!("CARGO_PKG_NAME"), "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_hub_is_suggested() {
        let suggested = |name: &str| hub::suggested(Path::new(name));
        assert_eq!(suggested("stabilityai/sd-turbo").as_deref(), Some("hf:stabilityai/sd-turbo"));
        for name in ["emoji", "a/b/c", "./emoji", "../emoji", "/emoji", "models/a.safetensors", "a b/c", "a/"] {
            assert_eq!(suggested(name), None, "{name}");
        }
        let error = locate_model(Some(Path::new("no-owner/no-name"))).unwrap_err().to_string();
        assert!(error.contains("give hf:no-owner/no-name"), "{error}");
    }

    #[test]
    fn a_bare_name_has_advice() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("dream.safetensors"), "").unwrap();
        let advice = |name: &str| advice(Path::new(name), &[root.path().to_path_buf()]);
        assert_eq!(advice("dream").as_deref(), Some("; did you mean dream.safetensors?"));
        assert!(advice("dreams").unwrap().contains("set KILN_MODELS to the folder that has it, or give hf:OWNER/NAME"));
        assert!(advice("a/dream").is_none() && advice("/dream").is_none());
        let error = locate_model(Some(Path::new("no-such-model"))).unwrap_err().to_string();
        assert!(error.contains("set KILN_MODELS"), "{error}");
    }

    #[test]
    fn models_are_searched_next_to_the_binary_and_in_its_sources() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let file = |name: &str, content: &str| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), content).unwrap();
        };
        file("src/crates/models/Cargo.toml", "[package]\nname = \"kiln-models\"\n");
        file("other/crates/models/Cargo.toml", "[package]\nname = \"models\"\n");
        let folders = |binary: &str| folders_of(None, Some(&path(binary)), None);
        // Installed: no folder above the binary's own folder is searched.
        assert_eq!(folders("opt/bin/kiln"), [path("opt/bin/models")]);
        assert_eq!(folders("src/tools/bin/kiln"), [path("src/tools/bin/models")]);
        assert_eq!(folders("other/target/release/kiln"), [path("other/target/release/models")]);
        // Built in the sources, for this machine or another, or as a test.
        for binary in ["release/kiln", "debug/deps/cli-1", "x86_64-unknown-linux-gnu/release/deps/cli-1"] {
            let binary = format!("src/target/{binary}");
            assert_eq!(folders(&binary).last(), Some(&path("src/models")), "{binary}");
        }
        assert_eq!(folders("src/target/a/b/c/d/kiln").len(), 1);
        // Built elsewhere, and run by cargo.
        let run = |package: &str| folders_of(None, Some(&path("cache/release/kiln")), Some(&path(package)));
        assert_eq!(run("src/crates/cli"), [path("cache/release/models"), path("src/models")]);
        assert_eq!(run("other/crates/cli"), [path("cache/release/models")]);
        // Folders of the user have priority.
        assert_eq!(folders_of(Some("/mine".into()), Some(&path("bin/kiln")), None)[0], Path::new("/mine"));
    }
}
