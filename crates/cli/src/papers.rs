//! `kiln completions` and `kiln man`: what clap makes of the command line.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::output::print_bytes;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kiln", &mut script);
    print_bytes(&script);
}

/// Prints the manual page: the command's, and those of its subcommands after it.
pub fn man() -> io::Result<()> {
    let mut command = Args::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        clap_mangen::Man::new(subcommand.clone()).render(&mut page)?;
    }
    print_bytes(&page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_the_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "kiln", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("negative-prompt"), "{shell}");
        }
    }
}
