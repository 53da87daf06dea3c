//! `kiln convert`: converts a model to another layout.

use kiln_engine::{ModelOptions, Result, convert, locate_model};

use crate::args::ConvertArgs;
use crate::interrupt;

/// The maximum number of skipped tensors to name.
const NAMED: usize = 5;

/// Runs the command.
pub fn run(args: &ConvertArgs) -> Result<()> {
    let options = ModelOptions { config: args.config.clone(), ..ModelOptions::default() };
    let input = locate_model(Some(&args.input))?;
    interrupt::listen_with_message("stopping; the new model is deleted");
    let done = convert(&input, &args.output, &options, args.weight_type, args.overwrite, &interrupt::proceed)?;
    tell!("{}: {} tensors", done.path.display(), done.tensors);
    if !done.left_out.is_empty() {
        let some: Vec<&str> = done.left_out.iter().take(NAMED).map(String::as_str).collect();
        let more = if done.left_out.len() > some.len() { ", ..." } else { "" };
        tell!("skipped tensors that belong to no component: {}{more}", some.join(", "));
    }
    if !done.not_kept.is_empty() {
        tell!(
            "warning: too large to store in the file: {}; use the file with --config and the model's folder",
            done.not_kept.join(", ")
        );
    }
    Ok(())
}
