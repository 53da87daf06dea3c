//! What is printed where the command line is no command that can run: help, the version, and errors.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use kiln_engine::Error;

use crate::output;
use crate::tell::{self, LogFormat};
use crate::terminal::is_shown;

/// Prints what clap says, and gives the exit status.
pub fn report(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help and the version are the output that was asked for.
        return match output::written(|| error.print()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell!("error: {}", Error::output(error));
                ExitCode::FAILURE
            }
        };
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if asks_for_json(&arguments) {
        tell::set_format(LogFormat::Json);
    }
    let text = match error.kind() {
        ErrorKind::InvalidUtf8 => not_utf8(&arguments),
        _ => error.render().to_string(),
    };
    // clap writes in colors, between which it repeats what it was given as it is.
    let is_plain = arguments.iter().all(|argument| argument.to_str().is_some_and(|text| text.chars().all(is_shown)));
    if tell::is_json() || !is_plain {
        tell!("{}", text.trim_end());
    } else {
        let _ = error.print(); // where nobody reads errors, the exit status tells
    }
    ExitCode::from(2)
}

/// Whether lines are wanted as JSON, as far as a command line that is none tells.
fn asks_for_json(arguments: &[OsString]) -> bool {
    let flags = arguments.iter().take_while(|argument| *argument != "--");
    let pairs = flags.clone().zip(flags.clone().skip(1));
    flags.clone().any(|flag| flag == "--log-format=json")
        || pairs.into_iter().any(|(flag, value)| flag == "--log-format" && value == "json")
}

/// Which arguments are no text.
fn not_utf8(arguments: &[OsString]) -> String {
    let bad = arguments.iter().enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let bad: Vec<String> = bad.map(|(i, argument)| format!("{} ({argument:?})", i + 1)).collect();
    let (noun, verb) = if bad.len() == 1 { ("argument", "is") } else { ("arguments", "are") };
    format!("error: {noun} {} {verb} not UTF-8; only names of files and folders may be so", bad.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_in_two_ways() {
        let asks = |line: &str| asks_for_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(asks("--log-format json txt2img") && asks("txt2img --log-format=json --steps x"));
        assert!(!asks("txt2img json --log-format text") && !asks("txt2img -- --log-format=json"));
    }
}
