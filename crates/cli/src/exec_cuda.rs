//! `kiln` runs `kiln-cuda` if that program is in the same folder and starts.
//!
//! `kiln-cuda` is linked with the CUDA libraries including the driver's, so it starts only if the system's loader finds
//! all of them. A call with `--version` is therefore a complete test for a driver: no paths are guessed, and a machine
//! without a driver, or with some of the libraries, runs `kiln`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use kiln_engine::DeviceChoice;

use crate::args::{Args, Command as Subcommand};

/// The name of the CUDA program.
const PROGRAM: &str = "kiln-cuda";
/// Prevents the call if it is set and neither empty nor 0. It is also set for the other program, so that links between
/// the names cannot cause a loop.
const STAY: &str = "KILN_NO_HANDOVER";
/// The loader's message contains this if the driver is missing. That is not a reason for a warning, because many
/// machines have none.
const DRIVER: &str = "libcuda.so";

/// Runs `kiln-cuda` with the arguments of this process if it can use a GPU for them. Returns its exit status; on Unix
/// the call replaces this process and does not return.
pub fn exec_cuda(args: &Args) -> Option<ExitCode> {
    let stays = std::env::var_os(STAY).is_some_and(|value| !value.is_empty() && value != "0");
    if stays || !args.may_use_gpu() {
        return None;
    }
    let program = sibling(&std::env::current_exe().ok()?)?;
    match check_version(&program) {
        Ok(()) => {
            tracing::info!("running {}", program.display());
            let mut command = Command::new(&program);
            command.args(std::env::args_os().skip(1)).env(STAY, "1");
            run(command).inspect_err(|problem| warn(&program, problem)).ok()
        }
        Err(problem) if problem.contains(DRIVER) => {
            tracing::info!("{} does not start without a driver: {problem}", program.display());
            None
        }
        Err(problem) => {
            warn(&program, &problem);
            None
        }
    }
}

fn warn(program: &Path, problem: &str) {
    tracing::warn!("continuing without CUDA: {} does not start: {problem}", program.display());
}

impl Args {
    /// Whether `kiln-cuda` could run the command on another device than `kiln`.
    fn may_use_gpu(&self) -> bool {
        match &self.command {
            Subcommand::Txt2img(args) => args.common.run.place.devices().may_be_gpu(),
            Subcommand::Img2img(args) => args.common.run.place.devices().may_be_gpu(),
            Subcommand::Batch(args) => !args.per_node && args.run.place.devices().may_be_gpu(),
            Subcommand::Serve(args) => args.served.run.place.devices().may_be_gpu(),
            Subcommand::Upscale(args) => args.device() != DeviceChoice::Cpu,
            Subcommand::Bench(args) => args.place.devices().may_be_gpu(),
            Subcommand::Plan(args) => args.place.devices().may_be_gpu(),
            Subcommand::Devices(_) => true,
            Subcommand::Samplers(_)
            | Subcommand::Inspect(_)
            | Subcommand::Preprocess(_)
            | Subcommand::Calibrate(_)
            | Subcommand::Convert(_)
            | Subcommand::Pull(_)
            | Subcommand::Models(_)
            | Subcommand::Itself { .. }
            | Subcommand::Completions { .. }
            | Subcommand::Man
            | Subcommand::Memory { .. } => false,
        }
    }
}

/// The CUDA program in the folder of this one.
fn sibling(this: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(PROGRAM);
    name.push(std::env::consts::EXE_SUFFIX);
    let program = this.with_file_name(name);
    program.is_file().then_some(program)
}

/// Fails if the program does not start or has another version.
fn check_version(program: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg("--version").env(STAY, "1").stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let expected = concat!("kiln ", env!("CARGO_PKG_VERSION"));
    let version = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(format!("{line} ({})", output.status));
    }
    if version.trim() != expected {
        return Err(format!("its version is {:?}, expected {expected:?}", version.trim()));
    }
    Ok(())
}

/// Replaces this process by the command; returns only on failure.
#[cfg(unix)]
fn run(mut command: Command) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().to_string())
}

/// Runs the command and returns its exit status.
#[cfg(not(unix))]
fn run(mut command: Command) -> Result<ExitCode, String> {
    let status = command.status().map_err(|error| error.to_string())?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
