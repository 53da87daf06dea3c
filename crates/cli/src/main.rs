//! `kiln`.

use std::process::ExitCode;

/// CPU memory of tensors is reused from step to step.
#[global_allocator]
static ALLOCATOR: kiln_engine::HostPool = kiln_engine::HostPool;

fn main() -> ExitCode {
    kiln_cli::main()
}
