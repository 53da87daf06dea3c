//! The feature `cuda` on machines without a GPU: checks it, and packs its programs for a machine with one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::workspace::{cargo, root, run};

/// The target folder of builds with CUDA, separate from the others because the same crates have other features.
const TARGET: &str = "target/cuda";
/// The folder of the bundle.
const BUNDLE: &str = ".bundle";
const ARCHIVE: &str = "kiln-cuda.tar.xz";
/// The test programs that run on a GPU if the environment selects one: those that compare with diffusers, streamed
/// weights with resident ones, and tiled images with whole ones; the operators' own, which compare kernels with
/// references; and those of the pools and of failed allocations.
const TESTED: [&str; 7] = ["parity", "unet", "kiln_ops", "tiling", "gpu", "memory", "beside"];
/// Always the whole workspace with this feature: another selection would resolve other features and rebuild everything.
const FEATURES: &str = "kiln-cli/cuda";

/// Type-checks and lints the workspace with the feature `cuda`, and compiles Kiln's kernels: for the architectures of
/// `KILN_CUDA_ARCHS`, or for one.
///
/// candle's kernels are empty files (`scripts/empty-nvcc.sh`) for an architecture that does not exist: their build keeps what it
/// compiled for an architecture, and a later build in the same folder must not use empty files.
pub fn check() -> Result {
    let mut environment = toolkit("target")?; // crates without the feature are those of other checks
    if let Some((_, arch)) = environment.iter_mut().find(|(name, _)| name == "CUDA_COMPUTE_CAP") {
        let own = std::env::var_os("KILN_CUDA_ARCHS").unwrap_or_else(|| arch.clone());
        *arch = "999".into();
        environment.push(("KILN_CUDA_ARCHS".into(), own));
    }
    environment.push(("NVCC".into(), root().join("scripts/empty-nvcc.sh").into()));
    let args = ["clippy", "--workspace", "--release", "--all-targets", "--features", FEATURES, "--", "-D", "warnings"];
    run(&cargo(), &args, &borrowed(&environment))
}

/// Builds `kiln` and the test programs with the feature `cuda`, and packs them with a script that runs the tests into one archive.
pub fn bundle() -> Result {
    let environment = toolkit(TARGET)?;
    let folder = root().join(BUNDLE).join("kiln-cuda");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(folder.join("tests"))?;

    let build = ["build", "--workspace", "--release", "--features", FEATURES, "--bin", "kiln"];
    run(&cargo(), &build, &borrowed(&environment))?;
    pack(&root().join(TARGET).join("release/kiln"), &folder.join("kiln"))?;
    for (name, program) in test_programs(&environment)? {
        pack(&program, &folder.join("tests").join(name))?;
    }
    std::fs::copy(root().join("scripts/cuda-tests.sh"), folder.join("cuda-tests.sh"))?;
    let archive = root().join(BUNDLE).join(ARCHIVE);
    let (archive, parent) = (archive.display().to_string(), root().join(BUNDLE).display().to_string());
    // The programs share candle's kernels. A compression window that spans all programs stores those once.
    run("tar", &["-C", &parent, "-I", "xz -T1 --lzma2=preset=4,dict=512MiB", "-cf", &archive, "kiln-cuda"], &[])?;
    println!("{BUNDLE}/{ARCHIVE}: {} KiB", std::fs::metadata(&archive)?.len() / 1024);
    Ok(())
}

/// The environment from the toolkit's script, which installs the toolkit if it is missing, with a separate target
/// folder, because another toolkit would recompile all kernels.
fn toolkit(target: &str) -> Result<Vec<(String, OsString)>> {
    let script = "eval \"$(scripts/cuda-toolkit.sh)\" && env -0";
    let output = Command::new("bash").args(["-euc", script]).current_dir(root()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("scripts/cuda-toolkit.sh: {}", output.status).into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = ["CUDA_HOME", "CUDA_PATH", "CUDA_COMPUTE_CAP", "PATH"];
    let mut environment: Vec<(String, OsString)> = text
        .split('\0')
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| names.contains(name))
        .map(|(name, value)| (name.to_string(), value.into()))
        .collect();
    environment.push(("CARGO_TARGET_DIR".into(), root().join(target).into()));
    Ok(environment)
}

fn borrowed(environment: &[(String, OsString)]) -> Vec<(&str, &OsStr)> {
    environment.iter().map(|(name, value)| (name.as_str(), value.as_os_str())).collect()
}

/// Builds the test programs. Returns each by a name that contains package and target.
fn test_programs(environment: &[(String, OsString)]) -> Result<BTreeMap<String, PathBuf>> {
    let args = ["test", "--workspace", "--release", "--no-run", "--message-format=json", "--features", FEATURES];
    let output = Command::new(cargo())
        .args(args)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", args.join(" "), output.status).into());
    }
    let messages = String::from_utf8(output.stdout)?;
    let programs = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter_map(|message| {
        let program = PathBuf::from(message["executable"].as_str()?);
        let target = message["target"]["name"].as_str()?;
        let package =
            message["manifest_path"].as_str().and_then(|path| Path::new(path).parent()?.file_name()?.to_str())?;
        let tested = message["profile"]["test"].as_bool()? && TESTED.contains(&target) && package != "scheduler";
        tested.then(|| (format!("{package}-{target}"), program))
    });
    Ok(programs.collect())
}

/// Copies a program without its symbols.
fn pack(program: &Path, to: &Path) -> Result {
    std::fs::copy(program, to)?;
    run("strip", &[&to.display().to_string()], &[])
}
