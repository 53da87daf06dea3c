//! The limit of this process's address space (`ulimit -v`), which no plan of memory knows.

use std::fs::File;
use std::io::{Read, Write};

/// The least with which a command that makes images ends with an image or with an error, in MiB: code, the stacks and heaps of
/// threads, the tables of a model, the mapped files of the smallest one, and these as a part of the program. Below it small allocations
/// fail, and those end the process. The emoji model makes an image of 64x64 from 189 MiB on, and of 256x256 from 190.
const LEAST_MIB: u64 = 192;

/// The commands that make images.
const MAKERS: [&str; 4] = ["txt2img", "img2img", "batch", "serve"];
/// The other ones, which need less.
const OTHERS: [&str; 16] = [
    "upscale",
    "preprocess",
    "compare",
    "devices",
    "completions",
    "man",
    "samplers",
    "inspect",
    "convert",
    "pull",
    "models",
    "self",
    "calibrate",
    "bench",
    "plan",
    "memory",
];

/// Whether the limit is too small for the command of this process. The reason was written then. This comes before all else, and
/// writes without an allocation, which may be the one that fails.
pub fn refuses() -> bool {
    let Some(bytes) = soft_limit().filter(|bytes| *bytes < LEAST_MIB << 20) else { return false };
    if !makes_images(std::env::args_os().filter_map(|arg| arg.into_string().ok())) {
        return false;
    }
    // An error stream that is closed is ignored.
    let _ = writeln!(
        std::io::stderr(),
        "error: the address space of this process is limited to {} MiB (ulimit -v); images take at least {LEAST_MIB} MiB and the \
         model's files, which are mapped. Raise the limit, or limit memory with --vram-budget or a control group",
        bytes >> 20
    );
    true
}

/// Whether a command line's command makes images: the first of its arguments that is a command's name.
fn makes_images(mut args: impl Iterator<Item = String>) -> bool {
    let commands = |arg: &String| MAKERS.contains(&arg.as_str()) || OTHERS.contains(&arg.as_str());
    args.find(commands).is_some_and(|command| MAKERS.contains(&command.as_str()))
}

/// The soft limit in bytes; `None` for no limit, and on systems that do not describe it.
fn soft_limit() -> Option<u64> {
    let (mut buffer, mut length) = ([0; 4096], 0);
    let mut file = File::open("/proc/self/limits").ok()?; // on Linux alone
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read(rest).ok()? {
            0 => break,
            read => length += read,
        }
    }
    limit(std::str::from_utf8(buffer.get(..length)?).ok()?)
}

fn limit(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_read() {
        let limits = |value: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                     Max cpu time              unlimited            unlimited            seconds\n\
                     Max address space         {value}            unlimited            bytes\n"
            )
        };
        assert_eq!(limit(&limits("83886080")), Some(80 << 20));
        assert_eq!(limit(&limits("unlimited")), None);
        assert_eq!(limit(""), None);
        assert!(!refuses());
    }

    #[test]
    fn the_command_is_the_first_name_of_one() {
        let makes = |args: &[&str]| makes_images(args.iter().map(|arg| arg.to_string()));
        assert!(makes(&["kiln", "-q", "--log-format", "json", "txt2img", "inspect"]));
        assert!(!makes(&["kiln", "inspect", "txt2img"]) && !makes(&["kiln", "--version"]));
        let all: Vec<&str> = MAKERS.into_iter().chain(OTHERS).collect();
        let command = crate::help::command();
        let missing: Vec<&str> =
            command.get_subcommands().map(clap::Command::get_name).filter(|name| !all.contains(name)).collect();
        assert_eq!(missing, ["help"; 0]);
    }
}
