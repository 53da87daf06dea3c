//! `kiln self update`.

use kiln_self_update::{Release, newest};

use crate::args::SelfCommand;
use crate::failure::Result;
use crate::output::print;
use crate::table::size;

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command.
pub fn run(command: &SelfCommand) -> Result<()> {
    let SelfCommand::Update { check } = command;
    let program = std::env::current_exe().map_err(kiln_engine::Error::output)?;
    let release = newest(&program, VERSION)?;
    if !release.is_newer() {
        print(&format!("kiln {VERSION} is the newest release\n"));
        return Ok(());
    }
    if *check {
        print(&format!("kiln {} can be installed: kiln self update\n", release.version));
        return Ok(());
    }
    install(release)
}

fn install(release: Release) -> Result<()> {
    tell!("replacing kiln {VERSION} by {}", release.version);
    let mut fifths = 0;
    let version = release.install(&mut |have, all| {
        // A line for each fifth.
        if let Some(all) = all.filter(|all| *all > 0 && have * 5 / all > fifths) {
            fifths = have * 5 / all;
            tell!("{} of {}", size(have), size(all));
        }
    })?;
    print(&format!("kiln {version} is installed\n"));
    Ok(())
}
