//! `kiln convert`: a model in another layout.

use kiln_engine::{ModelOptions, Result, convert, locate_model};

use crate::args::ConvertArgs;
use crate::interrupt;

/// How many tensors that were left out are named.
const NAMED: usize = 5;

/// Runs the command.
pub fn run(args: &ConvertArgs) -> Result<()> {
    let options = ModelOptions { config: args.config.clone(), ..ModelOptions::default() };
    let input = locate_model(Some(&args.input))?;
    interrupt::listen_and_say("stopping; nothing is left of the new model");
    let done = convert(&input, &args.output, &options, args.weight_type, args.overwrite, &interrupt::proceed)?;
    tell!("{}: {} tensors", done.path.display(), done.tensors);
    if !done.left_out.is_empty() {
        let some: Vec<&str> = done.left_out.iter().take(NAMED).map(String::as_str).collect();
        let more = if done.left_out.len() > some.len() { ", ..." } else { "" };
        tell!("left out, since they belong to no part of a model: {}{more}", some.join(", "));
    }
    if !done.not_kept.is_empty() {
        tell!(
            "warning: too large to be kept in the file: {}; add --config with the model's folder where the file is used",
            done.not_kept.join(", ")
        );
    }
    Ok(())
}
