//! `docs/cli.md`: every command and flag, from the definitions that parse them.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::args::Args;

/// The page, in Markdown.
pub fn page() -> String {
    let mut command = Args::command();
    command.build();
    let mut page = String::from("# Commands and flags\n\nThis page is generated from the program's own definitions.\n");
    let globals: Vec<&Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).collect();
    page += "\nEvery command takes:\n\n";
    flags(&mut page, globals.into_iter());
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        section(&mut page, subcommand, "kiln", 2);
    }
    page
}

/// A command, then its subcommands.
fn section(page: &mut String, command: &Command, parents: &str, level: usize) {
    let name = format!("{parents} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n{} {name}\n\n{about}\n", "#".repeat(level));
    let own: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set()).collect();
    let is_heading = |arg: &&Arg, heading: Option<&str>| arg.get_help_heading() == heading;
    let mut headings = vec![None];
    for arg in &own {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        let listed = own.iter().copied().filter(|arg| is_heading(arg, heading) && arg.get_id() != "help");
        let mut table = String::new();
        flags(&mut table, listed);
        if !table.is_empty() {
            let title = heading.map(|heading| format!("**{heading}**\n\n")).unwrap_or_default();
            let _ = write!(page, "\n{title}{table}");
        }
    }
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        section(page, subcommand, &name, level + 1);
    }
}

/// A table with a row for each argument; empty without arguments.
fn flags<'a>(page: &mut String, args: impl Iterator<Item = &'a Arg>) {
    let mut head = "| Argument | Meaning | Default |\n| --- | --- | --- |\n";
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| format!("`{}`", value.display())).collect();
        let defaults = if arg.get_action().takes_values() { defaults.join(" ") } else { String::new() };
        let _ = writeln!(page, "{head}| {} | {} | {defaults} |", spelling(arg), cell(&help));
        head = "";
    }
}

/// The names of an argument on the command line: `-s`, `--seed N`.
fn spelling(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().iter().map(|name| format!(" {name}")).collect::<String>();
    let values = if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) { values } else { String::new() };
    if arg.is_positional() {
        return format!("`{}`", values.trim_start());
    }
    let long = arg.get_long().map(|long| format!("--{long}"));
    let aliases = arg.get_visible_aliases().unwrap_or_default().into_iter().map(|alias| format!("--{alias}"));
    let mut names: Vec<String> =
        arg.get_short().map(|short| format!("-{short}")).into_iter().chain(long).chain(aliases).collect();
    if let Some(last) = names.last_mut() {
        *last += &values;
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A text on one line, with escaped column separators.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `KILN_UPDATE_DOCS=1 cargo test --release -p kiln-cli reference` writes the page.
    #[test]
    fn the_committed_page_matches_the_definitions() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        if std::env::var_os("KILN_UPDATE_DOCS").is_some_and(|value| value == "1") {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default().replace('\r', "");
        let (old, new): (Vec<&str>, String) = (committed.lines().collect(), page());
        let changed = new.lines().enumerate().find(|(i, line)| old.get(*i) != Some(line));
        let same = changed.is_none() && old.len() == new.lines().count();
        assert!(same, "docs/cli.md is not up to date at {changed:?}; set KILN_UPDATE_DOCS=1 and run this test again");
    }

    #[test]
    fn a_row_has_names_help_and_default() {
        let page = page();
        let row = page.lines().find(|line| line.contains("`--cfg-scale")).unwrap();
        assert!(row.starts_with("| `--cfg-scale "), "{row}");
        assert!(page.contains("## kiln txt2img") && page.contains("### kiln memory replay"), "{page}");
    }
}
