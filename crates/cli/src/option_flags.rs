//! Flags that follow from the table of options.
//!
//! An option's flag is its name with hyphens, its help, range and default are those of its row. The constants here hold
//! what only the command line knows: letters, environment variables, conflicts. The headings are in [`crate::help`].

use std::path::PathBuf;

use clap::builder::PathBufValueParser;
use clap::{Arg, ArgAction, value_parser};
use kiln_engine::{OptionKind, OptionRow, Request, find_option, respell};

use crate::flags::{flag, spell};
use crate::values::Named;

/// Flags of one letter.
const SHORT: [(&str, char); 5] =
    [("negative_prompt", 'n'), ("width", 'W'), ("height", 'H'), ("seed", 's'), ("batch_count", 'b')];
/// Options with an environment variable.
const VARIABLES: [(&str, &str); 1] = [("upscaler_dir", "KILN_UPSCALERS")];
/// Options that cannot be given together.
const CONFLICTS: [(&str, &str); 1] = [("sigmas", "scheduler")];

/// The argument of an option.
pub fn argument(row: &'static OptionRow) -> Arg {
    let find = |pairs: &[(&str, char)]| pairs.iter().find(|(name, _)| *name == row.name).map(|(_, short)| *short);
    let aliases: Vec<String> = row.aliases.iter().map(|alias| flag(alias)).collect();
    let mut arg = Arg::new(row.name).long(flag(row.name)).help(help(row)).visible_aliases(aliases);
    if let Some(short) = find(&SHORT) {
        arg = arg.short(short);
    }
    for (name, other) in CONFLICTS {
        if name == row.name {
            arg = arg.conflicts_with(other);
        }
    }
    if let Some((_, variable)) = VARIABLES.iter().find(|(name, _)| *name == row.name) {
        arg = arg.env(variable);
    }
    let parser = move |text: &str| {
        let read = row.value_mut(&mut Request::default()).read(text);
        read.map(|()| text.to_string()).map_err(|problem| respell(&problem, &spell))
    };
    match row.kind {
        OptionKind::Flag => return arg.action(ArgAction::SetTrue),
        OptionKind::File => return arg.value_name("IMAGE").value_parser(value_parser!(PathBuf)),
        OptionKind::Model => return arg.value_name("PATH").value_parser(value_parser!(PathBuf)),
        OptionKind::Folder => return arg.value_name("DIR").value_parser(value_parser!(PathBuf)),
        OptionKind::Upscaler(names) => {
            let parser = Named::new(PathBufValueParser::new(), names());
            return arg.value_name("NAME|FILE").hide_possible_values(true).value_parser(parser);
        }
        OptionKind::Text | OptionKind::Seed | OptionKind::Offset => arg = arg.allow_hyphen_values(true),
        OptionKind::Whole { .. } | OptionKind::Number { .. } | OptionKind::Side { .. } => {
            arg = arg.allow_negative_numbers(true)
        }
        _ => {}
    }
    let arg = arg.value_name(value_name(row.kind));
    let names = match row.kind {
        OptionKind::Switch => vec!["on", "off"],
        kind => kind.names(),
    };
    match names.is_empty() {
        true => arg.value_parser(parser),
        false => arg.hide_possible_values(true).value_parser(Named::new(parser, names)),
    }
}

/// How help texts show a value.
fn value_name(kind: OptionKind) -> &'static str {
    match kind {
        OptionKind::Whole { .. } | OptionKind::Seed | OptionKind::Offset => "N",
        OptionKind::Number { .. } => "X",
        OptionKind::Side { .. } => "PIXELS",
        OptionKind::Size => "WxH",
        OptionKind::Choice(_) | OptionKind::Name(_) => "NAME",
        OptionKind::Numbers => "LIST",
        OptionKind::Switch => "on|off",
        OptionKind::Folder => "DIR",
        OptionKind::File => "IMAGE",
        OptionKind::Model => "PATH",
        OptionKind::Borders => "SIDES",
        _ => "TEXT",
    }
}

/// The help of an option: its sentences, its values and its default.
fn help(row: &OptionRow) -> String {
    let mut help = respell(&row.help(), &spelled_by_rule);
    let names = row.kind.names();
    if !names.iter().all(|name| help.contains(name)) {
        help += &format!(" One of {}.", names.join(", "));
    }
    match row.kind {
        OptionKind::Whole { max: usize::MAX, .. } => {}
        OptionKind::Whole { min, max } => help += &format!(" From {min} to {max}."),
        OptionKind::Number { min, max } => help += &format!(" From {min} to {max}."),
        _ => {}
    }
    if !row.default.is_empty() {
        help += &format!(" Default: {}.", row.default);
    }
    help.pop(); // help texts have no full stop at their end
    help
}

/// The flag of an option in a help text, from which the list of flags is made.
fn spelled_by_rule(name: &str) -> Option<String> {
    find_option(name).map(|row| format!("--{}", flag(row.name)))
}

#[cfg(test)]
mod tests {
    use kiln_engine::OPTIONS;

    use super::*;

    #[test]
    fn constants_name_options() {
        let pairs = CONFLICTS.iter().flat_map(|(a, b)| [*a, *b]);
        let variables = VARIABLES.map(|(name, _)| name);
        for name in SHORT.map(|(name, _)| name).into_iter().chain(variables).chain(pairs) {
            assert!(OPTIONS.iter().any(|row| row.name == name), "{name}");
        }
    }

    #[test]
    fn help_has_values_range_and_default() {
        let help = |name| help(find_option(name).unwrap());
        assert!(help("rng").ends_with("One of cpu, cuda. Default: cpu"), "{}", help("rng"));
        assert!(help("subseed_strength").ends_with("From 0 to 1. Default: 0"), "{}", help("subseed_strength"));
        assert!(help("chunk_cut").contains("(see --comma-backtrack)"), "{}", help("chunk_cut"));
    }
}
