//! The project's own checks, run as `cargo xtask NAME`. Nothing imports this crate.
#![forbid(unsafe_code)]

mod chart;
mod code;
mod cuda;
mod deny;
mod features;
mod floors;
mod packages;
mod parity;
mod png_file;
mod release;
mod sentences;
mod size;
mod words;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask NAME: the project's own checks

  check              everything that continuous integration runs, cheapest first (.ci/run)
  floors             which crate may import which
  features           whether every selection of crates builds dependencies with the same features
  deny               licenses, duplicate versions and sources of all packages, by deny.toml
  size [--files]     lines and unsafe code, by crate (and by file)
  words [--all]      phrases and sentence patterns that plain English avoids
  chart              generates the chart of the README from benches/speed.json
  parity             runs the parity tests and writes docs/parity.md
  check-cuda         type-checks and lints the feature cuda, without a GPU
  bundle-cuda        packs kiln with CUDA and its tests for a machine with a GPU: .bundle/kiln-cuda.tar.xz
  about KEY          a value of the whole workspace: version, repository
  notices TARGET FOLDER [FEATURES]
                     licenses and bill of materials of the program for a platform (scripts/release.sh)
  release-ready      what is left to do before a release
  png FILE SIZE      whether FILE is an image of SIZE (256x256, ...) with something on it
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["check"] => workspace::run("bash", &[".ci/run"], &[]),
        ["floors"] => floors::check(),
        ["features"] => features::check(),
        ["deny"] => deny::check(),
        ["size"] => size::check(false),
        ["size", "--files"] => size::check(true),
        ["words"] => words::check(false),
        ["words", "--all"] => words::check(true),
        ["chart"] => chart::write(),
        ["parity"] => parity::write(),
        ["check-cuda"] => cuda::check(),
        ["bundle-cuda"] => cuda::bundle(),
        ["about", key] => release::about(key),
        ["notices", target, folder] => release::notices(target, folder, ""),
        ["notices", target, folder, features] => release::notices(target, folder, features),
        ["release-ready"] => release::ready(),
        ["png", file, size] => png_file::check(file, size),
        [] | ["help" | "-h" | "--help"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The result of a check.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
