//! `kiln`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln_cli::main()
}
