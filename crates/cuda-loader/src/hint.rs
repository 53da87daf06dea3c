//! Advice for a library that is missing.

use crate::places::Environment;

/// The state of NVIDIA's driver on this machine.
pub(crate) fn driver() -> String {
    const VERSION: &str = "/proc/driver/nvidia/version";
    match std::fs::read_to_string(VERSION) {
        Ok(text) => {
            let version = text.lines().next().unwrap_or_default().trim();
            format!("its kernel module is loaded ({version}), and its library libcuda.so.1 was not found")
        }
        Err(_) if cfg!(windows) => "nvcuda.dll was not found".into(),
        Err(_) => format!("libcuda.so.1 was not found, and its kernel module is not loaded ({VERSION} is missing)"),
    }
}

/// A command that installs cuBLAS and cuDNN for this version of CUDA in a place that is searched.
pub(crate) fn command(environment: &Environment, version: i32) -> String {
    let packages =
        if version >= 13 { "nvidia-cublas nvidia-cudnn-cu13" } else { "nvidia-cublas-cu12 nvidia-cudnn-cu12" };
    let root = environment.python_environment();
    let is_in = |folder: &str| root.is_some_and(|root| root.components().any(|part| part.as_os_str() == folder));
    match (root, environment.user_folder()) {
        (Some(_), _) if is_in("pipx") => format!("pipx inject kiln-diffusion {packages}"),
        (Some(_), _) if is_in("uv") => {
            let with: Vec<String> = packages.split(' ').map(|package| format!("--with {package}")).collect();
            format!("uv tool install kiln-diffusion {}", with.join(" "))
        }
        (None, Some(folder)) => format!("pip install --target {:?} {packages}", folder.display().to_string()),
        _ => format!("pip install {packages}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_fits_how_the_program_was_installed() {
        let root = tempfile::tempdir().unwrap();
        let installed = |folder: &str| {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("pyvenv.cfg"), "").unwrap();
            Environment {
                program: Some(folder.join("bin/kiln")),
                data: Some("/home/user/.local/share".into()),
                ..Environment::default()
            }
        };
        assert!(command(&installed("pipx/venvs/kiln-diffusion"), 13).starts_with("pipx inject kiln-diffusion nvidia-"));
        assert!(command(&installed("uv/tools/kiln-diffusion"), 13).contains("--with nvidia-cudnn-cu13"));
        assert_eq!(command(&installed("venv"), 12), "pip install nvidia-cublas-cu12 nvidia-cudnn-cu12");
        let elsewhere = Environment { program: Some("/usr/bin/kiln".into()), ..installed("venv") };
        let target = std::path::Path::new("/home/user/.local/share").join("kiln").join("cuda");
        let expected =
            format!("pip install --target {:?} nvidia-cublas nvidia-cudnn-cu13", target.display().to_string());
        assert_eq!(command(&elsewhere, 13), expected);
    }
}
