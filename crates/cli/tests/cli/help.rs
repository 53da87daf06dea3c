//! The help of the command, and the forms of a prompt.

use crate::images::{self, Text};
use crate::sandbox::Sandbox;

/// The commands that `kiln --help` lists: the first words of lines with an indentation of two. Continued lines have a
/// larger indentation.
fn commands() -> Vec<String> {
    let help = Sandbox::new().kiln(&["--help"]).succeeds().stdout;
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let entries = list.filter_map(|line| line.strip_prefix("  ").filter(|entry| !entry.starts_with(' ')));
    entries.map(|entry| entry.split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn help_describes_kiln_and_its_commands() {
    let run = Sandbox::new().kiln(&["--help"]).succeeds();
    assert!(run.stdout.starts_with("Stable Diffusion, natively"), "{run}");
    assert!(run.stderr.is_empty(), "{run}");
    assert!(commands().contains(&"txt2img".to_string()), "{run}");
}

#[test]
fn every_command_has_a_help() {
    let sandbox = Sandbox::new();
    for command in commands().iter().filter(|command| *command != "help") {
        let run = sandbox.kiln(&[command, "--help"]).succeeds();
        assert!(run.stdout.contains(&format!("Usage: kiln {command}")) && run.stderr.is_empty(), "{run}");
        let long = sandbox.kiln(&["help", command]).succeeds();
        assert_eq!(long.stdout, run.stdout);
    }
}

#[test]
fn version_is_the_packages() {
    let expected = format!("kiln {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(Sandbox::new().kiln(&["-V"]).succeeds().stdout, expected);
    // The long form also has what the build and the machine can do.
    let long = Sandbox::new().kiln(&["--version"]).succeeds().stdout;
    assert!(long.starts_with(expected.trim_end()) && long.contains("\nCPU: ") && long.contains("\nCUDA: "), "{long}");
}

#[test]
fn no_arguments_are_an_error_that_shows_the_help() {
    let run = Sandbox::new().kiln::<&str>(&[]);
    assert_eq!(run.status.code(), Some(2), "{run}");
    assert!(run.stdout.is_empty(), "{run}");
    for command in commands() {
        assert!(run.stderr.contains(&command), "{run}");
    }
}

#[test]
fn an_unknown_command_suggests_the_nearest() {
    Sandbox::new().kiln(&["txt2imgs", "a red apple"]).refused(&["'txt2imgs'", "'txt2img'"]);
    Sandbox::new().kiln(&["a red apple"]).refused(&["'a red apple'"]);
}

#[test]
fn a_prompt_is_needed_once() {
    let sandbox = Sandbox::new();
    sandbox.txt2img(&[]).refused(&["PROMPT"]);
    sandbox.txt2img(&["-n", "blurry"]).refused(&["PROMPT"]);
    sandbox.txt2img(&["a red apple", "-p", "a green apple"]).refused(&["PROMPT", "--prompt"]);
    sandbox.txt2img(&["-p", "a red apple", "-p", "a green apple"]).refused(&["--prompt"]);
    sandbox.txt2img(&["a", "red", "apple"]).refused(&["'red'"]); // missing quotation marks
    assert!(sandbox.names().is_empty());
}

#[test]
fn a_prompt_may_begin_with_a_hyphen_or_be_empty() {
    for (i, (args, begin)) in [
        (&["-p", "-1 apples"][..], "-1 apples\n"),
        (&["-p", "--steps"], "--steps\n"),
        (&["--prompt=-W"], "-W\n"),
        (&["an apple", "-n", "-5 pears"], "an apple\nNegative prompt: -5 pears\n"),
        (&["an apple", "-n", "--seed"], "an apple\nNegative prompt: --seed\n"),
        (&["-p", ""], "\nSteps: 1"),
        (&[""], "\nSteps: 1"),
    ]
    .into_iter()
    .enumerate()
    {
        let sandbox = Sandbox::new();
        let name = format!("{i}.png");
        sandbox.txt2img(&[args, &["-o", &name]].concat()).succeeds();
        let Text::Latin1(text) = images::read(&sandbox.path(&name)).parameters else { panic!("{args:?}: iTXt") };
        assert!(text.starts_with(begin), "{args:?}: {text:?}");
    }
    // After `--` there are no flags.
    let sandbox = Sandbox::new();
    sandbox.txt2img(&["-o", "x.png", "--", "--steps"]).succeeds();
    let Text::Latin1(text) = images::read(&sandbox.path("x.png")).parameters else { panic!("iTXt") };
    assert!(text.starts_with("--steps\n"), "{text:?}");
}
