//! `kiln convert`: a model in another layout.

use kiln_engine::{ModelOptions, Result, convert, locate_model};

use crate::args::ConvertArgs;

/// How many tensors that were left out are named.
const NAMED: usize = 5;

/// Runs the command.
pub fn run(args: &ConvertArgs) -> Result<()> {
    let options = ModelOptions { config: args.config.clone(), ..ModelOptions::default() };
    let input = locate_model(Some(&args.input))?;
    let done = convert(&input, &args.output, &options, args.weight_type, args.overwrite)?;
    tell!("{}: {} tensors", done.path.display(), done.tensors);
    if !done.left_out.is_empty() {
        let some: Vec<&str> = done.left_out.iter().take(NAMED).map(String::as_str).collect();
        let more = if done.left_out.len() > some.len() { ", ..." } else { "" };
        tell!("left out, since they belong to no part of a model: {}{more}", some.join(", "));
    }
    Ok(())
}
