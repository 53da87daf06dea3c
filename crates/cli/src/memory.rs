//! `kiln memory`: replays and plots memory traces.

use kiln_bench::{plot_memory, replay_memory};

use crate::args::MemoryCommand;
use crate::failure::Result;
use crate::output::{print, print_json};
use crate::table::{size, table, thousands};

/// Runs the command.
pub fn run(command: &MemoryCommand) -> Result<()> {
    match command {
        MemoryCommand::Plot { file, output } => {
            plot_memory(file, output)?;
            tell!("{}", output.display());
        }
        MemoryCommand::Replay { files, json } => {
            let rows = replay_memory(files)?;
            if *json {
                print_json(&serde_json::json!(rows));
                return Ok(());
            }
            let head =
                ["trace", "pool", "policy", "requests", "driver calls", "peak used", "peak reserved", "ratio", "ms"];
            let mut lines = vec![head.map(String::from).to_vec()];
            lines.extend(rows.into_iter().map(|row| {
                vec![
                    row.file,
                    row.pool.into(),
                    row.policy.into(),
                    thousands(row.allocations as usize),
                    thousands(row.driver_calls as usize),
                    size(row.peak_used),
                    size(row.peak_reserved),
                    format!("{:.3}", row.ratio),
                    format!("{:.2}", row.seconds * 1e3),
                ]
            }));
            print(&table(&lines, 3));
        }
    }
    Ok(())
}
