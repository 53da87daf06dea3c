//! Output for a command line that does not run a command: help, the version, and errors.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use kiln_engine::Error;

use crate::output;
use crate::status::{self, LogFormat};
use crate::terminal::is_shown;

/// Prints clap's text and returns the exit status.
pub fn report(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help and the version are the requested output.
        return match output::written(|| error.print()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tell!("error: {}", Error::output(error));
                ExitCode::FAILURE
            }
        };
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if wants_json(&arguments) {
        status::set_format(LogFormat::Json);
    }
    let text = match error.kind() {
        ErrorKind::InvalidUtf8 => not_utf8(&arguments),
        _ => error.render().to_string(),
    };
    // clap writes colors, and repeats the given arguments unchanged between them.
    let is_plain = arguments.iter().all(|argument| argument.to_str().is_some_and(|text| text.chars().all(is_shown)));
    if status::is_json() || !is_plain {
        tell!("{}", text.trim_end());
    } else {
        let _ = error.print(); // without a reader the exit status shows the error
    }
    ExitCode::from(2)
}

/// Whether JSON lines are requested, as far as an invalid command line shows it.
fn wants_json(arguments: &[OsString]) -> bool {
    let flags = arguments.iter().take_while(|argument| *argument != "--");
    let pairs = flags.clone().zip(flags.clone().skip(1));
    flags.clone().any(|flag| flag == "--log-format=json")
        || pairs.into_iter().any(|(flag, value)| flag == "--log-format" && value == "json")
}

/// Names the arguments that are not UTF-8.
fn not_utf8(arguments: &[OsString]) -> String {
    let bad = arguments.iter().enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let bad: Vec<String> = bad.map(|(i, argument)| format!("{} ({argument:?})", i + 1)).collect();
    let (noun, verb) = if bad.len() == 1 { ("argument", "is") } else { ("arguments", "are") };
    format!("error: {noun} {} {verb} not UTF-8; only names of files and folders may be other bytes", bad.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_requested_in_two_ways() {
        let asks = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(asks("--log-format json txt2img") && asks("txt2img --log-format=json --steps x"));
        assert!(!asks("txt2img json --log-format text") && !asks("txt2img -- --log-format=json"));
    }
}
