//! Where libraries are searched, in this order:
//!
//! 1. `KILN_CUDA_LIBS`: a folder, or several in the form of `PATH`
//! 2. with the program: its folder, `lib` there, and `../lib/kiln`
//! 3. the user's data folder, `~/.local/share/kiln/cuda`
//! 4. NVIDIA's Python packages in the environment that the program or the shell is in
//! 5. the system's loader: `LD_LIBRARY_PATH`, and the folders of `ld.so.conf`
//! 6. CUDA toolkits: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`, `/opt/cuda`
//! 7. NVIDIA's Python packages of the user and the system, which PyTorch brings

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The parts of a process's environment that the search depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    /// The program, with links resolved.
    pub(crate) program: Option<PathBuf>,
    /// The user's home folder.
    pub(crate) home: Option<PathBuf>,
    /// The folder of the user's data: `~/.local/share`.
    pub(crate) data: Option<PathBuf>,
    /// `KILN_CUDA_LIBS`.
    pub(crate) folders: Option<OsString>,
    /// Active Python environments: `VIRTUAL_ENV` and `CONDA_PREFIX`.
    pub(crate) environments: Vec<PathBuf>,
    /// CUDA toolkits: `CUDA_HOME` and `CUDA_PATH`.
    pub(crate) toolkits: Vec<PathBuf>,
}

impl Environment {
    pub(crate) fn of_this_process() -> Self {
        let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = folder(if cfg!(windows) { "USERPROFILE" } else { "HOME" });
        let data = match cfg!(windows) {
            true => folder("LOCALAPPDATA"),
            false => folder("XDG_DATA_HOME").or_else(|| Some(home.as_ref()?.join(".local/share"))),
        };
        let program = std::env::current_exe().ok();
        Self {
            program: program.map(|program| program.canonicalize().unwrap_or(program)),
            home,
            data,
            folders: std::env::var_os("KILN_CUDA_LIBS").filter(|value| !value.is_empty()),
            environments: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(folder).collect(),
            toolkits: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(folder).collect(),
        }
    }

    /// The user's folder for NVIDIA's libraries.
    pub(crate) fn user_folder(&self) -> Option<PathBuf> {
        Some(self.data.as_ref()?.join("kiln").join("cuda"))
    }

    /// The Python environment that the program is installed in: the parent of its folder, if that has `pyvenv.cfg`.
    pub(crate) fn python_environment(&self) -> Option<&Path> {
        let root = self.program.as_ref()?.parent()?.parent()?;
        root.join("pyvenv.cfg").is_file().then_some(root)
    }
}

/// The names with which the driver is loaded.
pub(crate) fn driver() -> Vec<PathBuf> {
    match cfg!(windows) {
        true => vec!["nvcuda.dll".into()],
        // The last one: Linux in Windows.
        false => vec!["libcuda.so.1".into(), "libcuda.so".into(), "/usr/lib/wsl/lib/libcuda.so.1".into()],
    }
}

/// The files that may be this version of a library, in the order of the search. `stem` is its name without prefix and
/// extension.
pub(crate) fn files(stem: &str, version: i32, environment: &Environment) -> Vec<PathBuf> {
    let name = match cfg!(windows) {
        true => format!("{stem}64_{version}.dll"),
        false => format!("lib{stem}.so.{version}"),
    };
    let (near, far) = folders(environment);
    let mut files: Vec<PathBuf> = near.into_iter().map(|folder| folder.join(&name)).collect();
    files.push(PathBuf::from(&name));
    files.extend(far.into_iter().map(|folder| folder.join(&name)));
    files
}

/// The folders before the system's loader, and those after it.
fn folders(environment: &Environment) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut near = Vec::new();
    for folder in environment.folders.iter().flat_map(std::env::split_paths) {
        near.push(folder.clone());
        near.extend(packages(&folder));
    }
    if let Some(folder) = environment.program.as_deref().and_then(Path::parent) {
        near.extend([folder.to_path_buf(), folder.join("lib"), folder.join("../lib/kiln")]);
    }
    near.extend(environment.user_folder().iter().flat_map(|folder| packages(folder)));
    let around_program = environment.python_environment().map(Path::to_path_buf);
    for root in around_program.iter().chain(&environment.environments) {
        near.extend(site_packages(root).iter().flat_map(|site| packages(site)));
        near.push(root.join("lib")); // conda's packages
    }

    let mut far = Vec::new();
    let toolkits = ["/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12", "/opt/cuda"].map(PathBuf::from);
    for toolkit in environment.toolkits.iter().chain(&toolkits) {
        far.extend(["lib64", "lib", "bin", "bin/x64"].map(|folder| toolkit.join(folder)));
    }
    let users = environment.home.as_ref().map(|home| home.join(".local"));
    for root in users.into_iter().chain(["/usr/local", "/usr"].map(PathBuf::from)) {
        far.extend(site_packages(&root).iter().flat_map(|site| packages(site)));
    }
    (near, far)
}

/// The folders of Python packages below `root`.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    if cfg!(windows) {
        return vec![root.join("Lib").join("site-packages")];
    }
    let pythons = subfolders(&root.join("lib")).into_iter();
    let pythons =
        pythons.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")));
    pythons.flat_map(|python| [python.join("site-packages"), python.join("dist-packages")]).collect()
}

/// The library folders of NVIDIA's packages in a folder of Python packages: `nvidia/cu13/lib`, `nvidia/cudnn/lib`.
fn packages(site: &Path) -> Vec<PathBuf> {
    let lib = if cfg!(windows) { "bin" } else { "lib" };
    subfolders(&site.join("nvidia")).into_iter().map(|package| package.join(lib)).filter(|lib| lib.is_dir()).collect()
}

/// The folders in a folder, sorted, the last name first: a newer version before an older one.
fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The position of a file among those that are tried.
    fn position(files: &[PathBuf], file: &Path) -> usize {
        files
            .iter()
            .position(|found| found == file)
            .unwrap_or_else(|| panic!("{} is not tried: {files:?}", file.display()))
    }

    #[test]
    fn places_are_tried_in_the_order_of_the_documentation() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let folders = ["venv/lib/python3.12/site-packages/nvidia/cu13/lib", "data/kiln/cuda/nvidia/cu13/lib", "set"];
        for folder in folders {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("venv/pyvenv.cfg"), "").unwrap();
        let environment = Environment {
            program: Some(root.join("venv/bin/kiln")),
            data: Some(root.join("data")),
            folders: Some(root.join("set").into()),
            toolkits: vec![root.join("toolkit")],
            ..Environment::default()
        };
        let files = files("cublas", 13, &environment);
        let tried = [
            root.join("set/libcublas.so.13"),
            root.join("venv/bin/lib/libcublas.so.13"),
            root.join("data/kiln/cuda/nvidia/cu13/lib/libcublas.so.13"),
            root.join("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublas.so.13"),
            PathBuf::from("libcublas.so.13"),
            root.join("toolkit/lib64/libcublas.so.13"),
            PathBuf::from("/usr/local/cuda/lib64/libcublas.so.13"),
        ];
        let positions: Vec<usize> = tried.iter().map(|file| position(&files, file)).collect();
        assert!(positions.is_sorted(), "{positions:?}: {files:?}");
    }

    #[test]
    fn a_folder_of_python_packages_may_be_set() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("nvidia/cudnn/lib")).unwrap();
        let environment = Environment { folders: Some(root.path().into()), ..Environment::default() };
        position(&files("cudnn", 9, &environment), &root.path().join("nvidia/cudnn/lib/libcudnn.so.9"));
    }
}
