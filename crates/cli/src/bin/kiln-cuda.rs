//! `kiln-cuda`: the same program, built with the feature `cuda`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln_cli::main()
}
