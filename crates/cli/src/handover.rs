//! `kiln` hands over to `kiln-cuda` where that is beside it and starts.
//!
//! `kiln-cuda` is linked with CUDA's libraries, the driver's among them, so it starts exactly where the system's loader
//! finds them all. Asking it for its version is therefore the whole test for a driver: nothing is guessed from paths,
//! and a machine without a driver, or with half of the libraries, keeps what it has.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use kiln_engine::DeviceChoice;

use crate::args::{Args, Command as Subcommand};

/// The other program's name.
const PROGRAM: &str = "kiln-cuda";
/// Stays with this program where it is set, to anything but nothing and 0. It is set for the other one too, so that no
/// link from one name to the other makes a circle.
const STAY: &str = "KILN_NO_HANDOVER";
/// What the loader says of a missing driver: no reason for a warning, since many machines have none.
const DRIVER: &str = "libcuda.so";

/// Runs `kiln-cuda` with the arguments of this process where it can do more for them than this program. Where it runs,
/// this returns its exit status, or on Unix never: it takes this process's place.
pub fn hand_over(args: &Args) -> Option<ExitCode> {
    let stays = std::env::var_os(STAY).is_some_and(|value| !value.is_empty() && value != "0");
    if stays || !args.asks_for_a_card() {
        return None;
    }
    let program = beside(&std::env::current_exe().ok()?)?;
    match answers(&program) {
        Ok(()) => {
            tracing::info!("handing over to {}", program.display());
            let mut command = Command::new(&program);
            command.args(std::env::args_os().skip(1)).env(STAY, "1");
            run(command).inspect_err(|problem| warn(&program, problem)).ok()
        }
        Err(problem) if problem.contains(DRIVER) => {
            tracing::info!("{} does not start, since there is no driver: {problem}", program.display());
            None
        }
        Err(problem) => {
            warn(&program, &problem);
            None
        }
    }
}

fn warn(program: &Path, problem: &str) {
    tracing::warn!("going on without CUDA, since {} does not start: {problem}", program.display());
}

impl Args {
    /// Whether `kiln-cuda` could do this otherwise than `kiln`.
    fn asks_for_a_card(&self) -> bool {
        let device = match &self.command {
            Subcommand::Txt2img(args) => args.run.setup().device,
            Subcommand::Img2img(args) => args.common.run.setup().device,
            Subcommand::Batch(args) => args.run.setup().device,
            Subcommand::Bench(args) => args.plan().setup.device,
            Subcommand::Plan(args) => args.setup().device,
            Subcommand::Devices(_) => DeviceChoice::Auto,
            Subcommand::Inspect(_)
            | Subcommand::Convert(_)
            | Subcommand::Pull(_)
            | Subcommand::Completions { .. }
            | Subcommand::Man
            | Subcommand::Memory { .. } => DeviceChoice::Cpu,
        };
        device != DeviceChoice::Cpu
    }
}

/// The other program in the folder of this one.
fn beside(this: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(PROGRAM);
    name.push(std::env::consts::EXE_SUFFIX);
    let program = this.with_file_name(name);
    program.is_file().then_some(program)
}

/// Whether the program starts and is of this version; if not, why.
fn answers(program: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg("--version").env(STAY, "1").stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let expected = concat!("kiln ", env!("CARGO_PKG_VERSION"));
    let told = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        return Err(format!("{line} ({})", output.status));
    }
    if told.trim() != expected {
        return Err(format!("it is {:?}, expected {expected:?}", told.trim()));
    }
    Ok(())
}

/// Puts the command in the place of this process; returns where that fails.
#[cfg(unix)]
fn run(mut command: Command) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().to_string())
}

/// Runs the command and gives its exit status.
#[cfg(not(unix))]
fn run(mut command: Command) -> Result<ExitCode, String> {
    let status = command.status().map_err(|error| error.to_string())?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
