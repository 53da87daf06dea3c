//! Output for a command line that does not run a command: help, the version, and errors.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use kiln_engine::{Error, devices};

use crate::foreign_flags;
use crate::output;
use crate::status::{self, LogFormat};
use crate::terminal::is_shown;

/// The most changes of letters that turn an unknown name into one that is suggested for it, as a part of its length.
const FARTHEST: f64 = 0.34;

/// Prints clap's text and returns the exit status.
pub fn report(error: clap::Error) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !error.use_stderr() {
        // Help and the version are the requested output.
        let is_long =
            error.kind() == ErrorKind::DisplayVersion && arguments.iter().any(|argument| argument == "--version");
        return match output::written(
            || if is_long { write!(std::io::stdout(), "{}", version()) } else { error.print() },
        ) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                status::error(format_args!("{}", Error::output(error)));
                ExitCode::FAILURE
            }
        };
    }
    if wants_json(&arguments) {
        status::set_format(LogFormat::Json);
    }
    let error = with_advice(error);
    let text = match error.kind() {
        ErrorKind::InvalidUtf8 => not_utf8(&arguments),
        _ => error.render().to_string(),
    };
    // clap writes colors, and repeats the given arguments unchanged between them.
    let is_plain = arguments.iter().all(|argument| argument.to_str().is_some_and(|text| text.chars().all(is_shown)));
    let has_prefix = text.starts_with("error: ");
    if has_prefix && (status::is_json() || !is_plain) {
        status::error(format_args!("{}", text.trim_end().trim_start_matches("error: ")));
    } else {
        let _ = error.print(); // without a reader the exit status shows the error
    }
    ExitCode::from(2)
}

/// The commit of the build, if the build knew it (`build.rs`).
pub(crate) fn commit() -> Option<&'static str> {
    Some(env!("KILN_BUILD_COMMIT")).filter(|commit| !commit.is_empty())
}

/// The version, the commit, and what the build and the machine can do.
fn version() -> String {
    let commit = commit().map_or_else(String::new, |commit| format!(" ({commit})"));
    let features = match env!("KILN_BUILD_FEATURES") {
        "" => "none",
        features => features,
    };
    let devices = devices();
    format!(
        "kiln {}{commit}\nfeatures: {features}\nCPU: {}\nCUDA: {}\n",
        env!("CARGO_PKG_VERSION"),
        devices.features.join(" "),
        devices.cuda
    )
}

/// The error without clap's usage line, which names flags of other groups as if they were required, and for an unknown flag
/// with advice for flags of other programs. A suggestion that is far from the flag is left out.
fn with_advice(mut error: clap::Error) -> clap::Error {
    let text = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return error; // the usage names the flag that needs the missing one
    }
    error.remove(ContextKind::Usage);
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(given) = text(&error, ContextKind::InvalidArg) else { return error };
    if let Some(advice) = foreign_flags::advice(&given) {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    } else if text(&error, ContextKind::SuggestedArg).is_some_and(|suggested| !is_close(&given, &suggested)) {
        error.remove(ContextKind::SuggestedArg);
    }
    // A flag is not meant to be a value.
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested).filter(|_| given.starts_with('-')) {
        let tips = tips.iter().filter(|tip| !tip.to_string().contains("as a value")).cloned().collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// Whether `given` may be `name` with a mistake.
fn is_close(given: &str, name: &str) -> bool {
    let [given, name] = [given, name].map(|flag| flag.trim_start_matches('-'));
    let is_begin = given.len() >= 3 && name.starts_with(given);
    is_begin || strsim::damerau_levenshtein(given, name) as f64 <= FARTHEST * given.chars().count() as f64
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
    fn only_close_names_are_suggested() {
        for (given, name) in
            [("--step", "--steps"), ("--samplr", "--sampler"), ("--heigth", "--height"), ("--out", "--output")]
        {
            assert!(is_close(given, name), "{given} {name}");
        }
        for (given, name) in [("--sampling-method", "--apg-eta"), ("--x", "--rng"), ("--novideo", "--no-vae")] {
            assert!(!is_close(given, name), "{given} {name}");
        }
    }

    /// The text of the error for a command line.
    fn text(line: &str) -> String {
        let words = std::iter::once("kiln").chain(line.split(' '));
        with_advice(crate::help::command().try_get_matches_from(words).unwrap_err()).render().to_string()
    }

    #[test]
    fn an_error_has_no_usage_and_advises_no_values() {
        for (line, expected) in [
            ("txt2img x --sampling-method euler", "use --sampler NAME"),
            ("txt2img x -M img_gen", "use a command: kiln txt2img"),
            ("txt2img x --clip-vision a", "encoder"),
            ("txt2img x --strength 0.5", "use it with kiln img2img"),
            ("txt2img x --samplr euler", "'--sampler'"),
            ("txt2img x --no-such-flag", "'--no-such-flag' found"),
            ("txt2img x y", "'y' found"),
            ("img2img x --steps", "'--steps <N>'"),
            ("nothing", "'nothing'"),
        ] {
            let text = text(line);
            assert!(text.contains(expected), "{line}: {text}");
            assert!(!text.contains("Usage:") && !text.contains("as a value"), "{line}: {text}");
        }
    }

    #[test]
    fn json_is_requested_in_two_ways() {
        let asks = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(asks("--log-format json txt2img") && asks("txt2img --log-format=json --steps x"));
        assert!(!asks("txt2img json --log-format text") && !asks("txt2img -- --log-format=json"));
    }
}
