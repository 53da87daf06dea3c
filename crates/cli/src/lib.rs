//! The `kiln` command: arguments, progress, exit codes. It contains no tensor code.
//!
//! Exit status: 0 if everything was generated, 2 for invalid arguments, 1 for other errors, 130 if the user interrupted
//! the run.
#![forbid(unsafe_code)]

#[macro_use]
mod status;

mod address_space;
mod args;
mod bar;
mod batch;
mod batch_args;
mod bench;
mod bench_args;
mod calibrate;
mod calibrate_args;
mod compare;
mod compare_args;
mod completions;
mod convert;
mod devices;
mod failure;
mod flags;
mod foreign_flags;
mod generate;
mod help;
mod img2img_args;
mod inspect;
mod interrupt;
mod log;
mod memory;
mod memory_args;
mod models;
mod option_args;
mod option_flags;
mod output;
mod place_args;
mod plan;
mod preprocess;
mod preprocess_args;
mod preview;
mod preview_args;
mod progress;
mod pull;
#[cfg(test)]
mod reference;
mod run_args;
mod samplers;
mod selftest;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod serve_args;
mod small_model;
mod table;
mod terminal;
mod terminal_image;
mod tested;
mod txt2img_args;
mod update;
mod upscale;
mod upscale_args;
mod usage;
mod values;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::args::{Args, Command};
use crate::failure::Failure;
use crate::generate::Kind;

/// Runs the command of this process.
pub fn main() -> ExitCode {
    started().map_or_else(|code| code, run)
}

/// The arguments, or the exit status if they are invalid; the log exists from here on.
fn started() -> Result<Args, ExitCode> {
    if address_space::refuses() {
        return Err(ExitCode::FAILURE);
    }
    kiln_engine::ignore_file_size_signal();
    let mut command = help::command();
    let args = command
        .try_get_matches_from_mut(std::env::args_os())
        .and_then(|matches| Args::from_arg_matches(&matches))
        .map_err(|error| usage::report(error.format(&mut command)))?;
    status::set_format(args.log_format);
    status::set_quiet(args.quiet);
    start_log(args.verbose, args.command.is_server());
    Ok(args)
}

fn run(args: Args) -> ExitCode {
    let is_verbose = args.verbose > 0;
    small_model::provide();
    let result = match args.command {
        Command::Txt2img(args) => {
            let args = *args;
            generate::run(args.common, Kind::Text(&args.hires))
        }
        Command::Img2img(args) => {
            let args = *args;
            generate::run(args.common, Kind::Images(&args.inputs))
        }
        Command::Batch(args) => batch::run(*args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(*args),
        Command::Upscale(args) => upscale::run(*args),
        Command::Preprocess(args) => preprocess::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Devices(args) => {
            devices::run(&args);
            Ok(())
        }
        Command::Completions { shell } => {
            completions::completions(shell);
            Ok(())
        }
        Command::Man => completions::man().map_err(|error| kiln_engine::Error::output(error).into()),
        Command::Samplers(args) => {
            samplers::run(&args);
            Ok(())
        }
        Command::Inspect(args) => inspect::run(&args, is_verbose).map_err(Failure::from),
        Command::Convert(args) => convert::run(&args).map_err(Failure::from),
        Command::Pull(args) => pull::run(&args).map_err(Failure::from),
        Command::Models(args) => models::run(&args).map_err(Failure::from),
        Command::Itself { command } => update::run(&command),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Plan(args) => plan::run(&args).map_err(Failure::from),
        Command::Memory { command } => memory::run(&command),
    };
    small_model::clean_up();
    let printed = || output::failure().map_or(Ok(()), |error| Err(kiln_engine::Error::output(error).into()));
    match result.and_then(|()| printed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            status::error(format_args!("{}", error.message()));
            error.status()
        }
    }
}

/// Logs to the error stream: warnings, with `-v` also progress, with `-vv` also debug messages, with `-qq` errors alone. JSON logs
/// of a server always contain progress.
fn start_log(verbose: u8, is_server: bool) {
    let level = match verbose {
        0 if status::is_silent() => tracing::Level::ERROR,
        0 if status::is_json() && is_server => tracing::Level::INFO,
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false).log_internal_errors(false);
    match (is_server, status::is_json()) {
        (true, true) => log.with_writer(log::JsonLines::default).json().flatten_event(true).init(),
        (true, false) => {
            let is_terminal = std::io::stderr().is_terminal();
            log.with_writer(std::io::stderr).fmt_fields(log::ShownFields).with_ansi(is_terminal).init();
        }
        (false, _) => {
            let log = log.with_writer(std::io::stderr).with_ansi(false);
            log.fmt_fields(log::ShownFields).event_format(log::Messages).init();
        }
    }
}
