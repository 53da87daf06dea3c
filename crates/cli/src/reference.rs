//! `docs/cli.md` and `docs/options.md`: every command and flag, from the definitions that parse them, and every option of a
//! request, from its row.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use kiln_engine::{InfotextKey, OPTIONS, OptionGroup, OptionRow};

use crate::flags::spell;
use crate::help::command;

/// The section about `--log-format json`.
const EVENTS: &str = r#"
## Events

With `--log-format json` each line on the standard error is an object with an `event`. A name means the same in all commands; times are
seconds.

| Event | Of | Fields |
| --- | --- | --- |
| `job` | txt2img, img2img | `model`, `all` (images), `width`, `height`, `steps`, `sampler`, `cfg_scale`, `seed` |
| `stage` | txt2img, img2img | `stage`: load, encode, denoise, decode, save and others |
| `step` | txt2img, img2img | `step`, `steps`, `seconds` since the stage began, `step_seconds` of this step, `eta_seconds`: null after the first step |
| `made` | txt2img, img2img, batch | `number`, `file`, `seed`; of batch also `seconds` of its stages and `progress` of the set |
| `failed` | batch, upscale | `number`, `error`; of batch `line` and `progress`, of upscale `image` |
| `problem` | batch --check | `file`, `line`, `error` |
| `done` | txt2img, img2img, batch | `all`, `made`, `stages` (the seconds of each); of one request `steps` and `skipped` (evaluations with the first-block cache in place of blocks), of batch `known`, `failed`, `seconds`, `peak_memory`, `devices` |
| `interrupted` | batch | as `done` |
| `saved`, `done` | upscale | `number`, `file`, `width`, `height`; `done`, `load`, `upscale`, `save` |
| `download`, `download-file`, `download-progress` | all that download | `files`, `bytes`; `file`, `bytes`; `done`, `bytes`, `eta_seconds` |
| `calibrated` | calibrate | `file` and counts of layers |
| `message`, `warning`, `error`, `info`, `debug` | all | `message` |

`kiln serve` writes its log instead, an object a line with `timestamp`, `level` and `message`.
"#;

/// The page, in Markdown.
pub fn page() -> String {
    let mut command = command();
    command.build();
    let mut page = String::from("# Commands and flags\n\nThis page is generated from the program's own definitions.\n");
    let globals: Vec<&Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).collect();
    page += "\nEvery command takes:\n\n";
    flags(&mut page, globals.into_iter());
    page += EVENTS;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        section(&mut page, subcommand, "kiln", 2);
    }
    page
}

/// The page of options, in Markdown.
pub fn options() -> String {
    let mut page = String::from(
        "# Options of a request\n\nThis page is made from the table of options (`crates/request/src/options/table.rs`). An \
         option has its field's name in batch files, in the JSON of images and in the library, a flag of `kiln txt2img`, and a \
         key in the infotext of images, as AUTOMATIC1111 has it. All fields but `prompt` may be left out.\n",
    );
    for (group, title) in [
        (OptionGroup::Prompt, "Prompt"),
        (OptionGroup::Image, "Image"),
        (OptionGroup::Sampling, "Sampler, guidance and noise"),
        (OptionGroup::Input, "Input image (`kiln img2img`)"),
        (OptionGroup::Hires, "Hires fix (`kiln txt2img`)"),
        (OptionGroup::Internal, "Written by Kiln into the settings of images"),
    ] {
        let _ = write!(page, "\n## {title}\n\n| Field | Flag | Infotext key | Type | Default | Meaning |\n");
        page += "| --- | --- | --- | --- | --- | --- |\n";
        for row in OPTIONS.iter().filter(|row| row.group == group) {
            page += &option(row);
        }
    }
    page
}

/// The row of an option.
fn option(row: &OptionRow) -> String {
    let code = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let names: Vec<&str> = row.names().collect();
    let flag = spell(row.name).filter(|_| row.group != OptionGroup::Internal);
    let flag = flag.map(|flag| format!("`{flag}`")).unwrap_or_default();
    let keys: Vec<&str> = row.infotext_keys().collect();
    let infotext = match row.infotext {
        InfotextKey::Text => "the text".into(),
        InfotextKey::Within(key) => format!("in `{key}`"),
        _ => code(&keys),
    };
    let cells = [&code(&names), &flag, &infotext, &row.kind.described(), row.default, &row.help()];
    format!("| {} |\n", cells.map(cell).join(" | "))
}

/// A command, then its own commands.
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
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
        .replace('<', "&lt;")
        .replace("__", "\\_\\_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `KILN_UPDATE_DOCS=1 cargo test --release -p kiln-cli reference` writes the pages.
    fn check(name: &str, new: &str) {
        let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("KILN_UPDATE_DOCS").is_some_and(|value| value == "1") {
            std::fs::write(&path, new).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default().replace('\r', "");
        let old: Vec<&str> = committed.lines().collect();
        let changed = new.lines().enumerate().find(|(i, line)| old.get(*i) != Some(line));
        let same = changed.is_none() && old.len() == new.lines().count();
        assert!(same, "docs/{name} is not up to date at {changed:?}; set KILN_UPDATE_DOCS=1 and run this test again");
    }

    #[test]
    fn the_committed_page_is_what_the_program_takes() {
        check("cli.md", &page());
    }

    #[test]
    fn the_committed_options_are_the_tables() {
        check("options.md", &options());
    }

    /// A row for every option, and a flag for every one that is not Kiln's own.
    #[test]
    fn every_option_has_a_row() {
        let page = options();
        for row in OPTIONS {
            let line = page.lines().find(|line| line.starts_with(&format!("| `{}`", row.name))).unwrap();
            assert_eq!(line.contains("| `--"), row.group != OptionGroup::Internal, "{line}");
        }
    }

    #[test]
    fn a_row_has_names_help_and_default() {
        let page = page();
        let row = page.lines().find(|line| line.contains("`--cfg-scale")).unwrap();
        assert!(row.starts_with("| `--cfg-scale "), "{row}");
        assert!(page.contains("## kiln txt2img") && page.contains("### kiln memory replay"), "{page}");
    }
}
