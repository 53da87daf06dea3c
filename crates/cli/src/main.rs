//! `kiln`.

use std::process::ExitCode;

/// Tensors of the processor are reused from step to step.
#[global_allocator]
static ALLOCATOR: kiln_engine::HostPool = kiln_engine::HostPool;

fn main() -> ExitCode {
    kiln_cli::main_or_handover()
}
