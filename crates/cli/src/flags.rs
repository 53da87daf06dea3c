//! Flags by the names that the engine has for what they set.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use clap::Command;
use kiln_engine::respell;

use crate::help::command;

/// Fields of the engine whose flags have another name.
const OTHER: [(&str, &str); 4] =
    [("loras", "lora"), ("controls", "control"), ("ip_adapters", "ip-adapter"), ("references", "reference")];

/// The flag of a field, without its hyphens before it: `cfg-scale` for `cfg_scale`.
pub fn flag(field: &str) -> String {
    OTHER.iter().find(|(name, _)| *name == field).map_or_else(|| field.replace('_', "-"), |(_, flag)| flag.to_string())
}

/// All flags of all commands.
static FLAGS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut flags = BTreeSet::new();
    collect(&command(), &mut flags);
    flags
});

fn collect(command: &Command, flags: &mut BTreeSet<String>) {
    flags.extend(command.get_arguments().filter_map(|arg| arg.get_long()).map(String::from));
    command.get_subcommands().for_each(|command| collect(command, flags));
}

/// The flag that sets `field`, if any: `--cfg-scale`.
pub fn spell(field: &str) -> Option<String> {
    let flag = flag(field);
    FLAGS.contains(&flag).then(|| format!("--{flag}"))
}

/// Replaces fields by flags in a message or warning of the engine.
pub fn with_flags(text: &str) -> String {
    respell(text, &spell)
}

/// A message about a job of a batch file, whose options are fields of that file.
pub fn in_job(text: &str) -> String {
    kiln_batch::in_job(text, &spell)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::failure::{Failure, message};

    #[test]
    fn errors_name_flags() {
        let error = kiln_request::Error::Value {
            name: "guidance_start",
            found: "0.8".into(),
            expected: "at most `guidance_end`".into(),
        };
        assert_eq!(message(&error.into()), "--guidance-start is 0.8, expected at most --guidance-end");
        let exists = kiln_files::Error::Exists("`steps`.png".into());
        assert_eq!(message(&exists.into()), "`steps`.png exists already; choose another name, or add --overwrite");
        assert_eq!(in_job("`steps` and `dtype`"), "`steps` and --dtype");
        assert_eq!(with_flags("`loras`, `nothing` and `text_encoder`"), "--lora, `nothing` and --text-encoder");
        let job = kiln_batch::Error::Job { file: "a".into(), line: 1, problem: "`width` is 7".into() };
        assert_eq!(Failure::from(job).message(), "a:1: `width` is 7");
        let job = kiln_batch::Error::Job { file: "a".into(), line: 1, problem: "no folder; see `lora_dir`".into() };
        assert_eq!(Failure::from(job).message(), "a:1: no folder; see --lora-dir");
    }
}
