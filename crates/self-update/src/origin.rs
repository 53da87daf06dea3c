//! How a program without a receipt was probably installed, by its path.

use std::path::Path;

/// A part of a path, and what updates a program there. The first that is found counts.
const ORIGINS: &[(&str, &str)] = &[
    ("/pipx/venvs/", "it is pipx's: pipx upgrade kiln-diffusion"),
    ("/uv/tools/", "it is uv's: uv tool upgrade kiln-diffusion"),
    ("/uv/archive-", "uvx runs it from its cache: uvx --refresh --from kiln-diffusion kiln"),
    ("/cellar/", "it is Homebrew's: brew upgrade kiln"),
    ("/homebrew/", "it is Homebrew's: brew upgrade kiln"),
    ("/linuxbrew/", "it is Homebrew's: brew upgrade kiln"),
    ("/nix/store/", "it is Nix's: update the flake or the profile that it is from"),
    ("/winget/", "it is winget's: winget upgrade kiln"),
    ("/scoop/", "it is Scoop's: scoop update kiln"),
    ("/.cargo/bin/", "it is cargo's: cargo install --path crates/cli --bin kiln in an updated clone"),
    ("/target/", "cargo built it in the sources: build it again"),
    ("/site-packages/", "it is a Python package's: pip install --upgrade kiln-diffusion"),
    ("/venv/", "it is in an environment of Python: pip install --upgrade kiln-diffusion there"),
    ("/.venv/", "it is in an environment of Python: pip install --upgrade kiln-diffusion there"),
    ("/usr/bin/", "the system's package manager may have put it there"),
];

/// Advice about the update of the program at this path.
pub(crate) fn advice(program: &Path) -> String {
    let path = program.to_string_lossy().replace('\\', "/").to_lowercase();
    let is_environment = || program.ancestors().take(3).any(|folder| folder.join("pyvenv.cfg").is_file());
    match ORIGINS.iter().find(|(part, _)| path.contains(part)) {
        Some((_, advice)) => (*advice).into(),
        None if is_environment() => {
            "it is in an environment of Python: pip install --upgrade kiln-diffusion there".into()
        }
        None => "replace it by the program of a newer archive, or use what installed it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_says_what_installed_a_program() {
        for (path, expected) in [
            ("/home/a/.local/share/pipx/venvs/kiln-diffusion/bin/kiln", "pipx upgrade"),
            ("/home/a/.local/share/uv/tools/kiln-diffusion/bin/kiln", "uv tool upgrade"),
            ("/home/a/.cargo/bin/kiln", "cargo install"),
            ("/opt/homebrew/bin/kiln", "brew upgrade"),
            ("/usr/local/Cellar/kiln/0.1.0/bin/kiln", "brew upgrade"),
            (r"C:\Users\A\.cargo\bin\kiln.exe", "cargo install"),
            ("/nix/store/abc-kiln/bin/kiln", "flake"),
            ("/src/kiln/target/release/kiln", "build it again"),
            ("/opt/kiln", "newer archive"),
        ] {
            let advice = advice(Path::new(path));
            assert!(advice.contains(expected), "{path}: {advice}");
        }
    }
}
