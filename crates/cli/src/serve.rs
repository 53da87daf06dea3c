//! `kiln serve`: images over HTTP.

use std::sync::Arc;

use kiln_engine::{ModelFolder, locate_model};
use kiln_serve::Server;

use crate::failure::Result;
use crate::interrupt;
use crate::output::print;
use crate::pull::located;
use crate::serve_args::ServeArgs;
use crate::small_model;

/// Runs the command until a signal ends it.
pub fn run(mut args: ServeArgs) -> Result<()> {
    let served = &mut args.served;
    served.run.start_threads()?;
    served.run.fetch(&mut [], &mut [], &mut [])?;
    let mut models = Vec::new();
    for model in &served.models {
        located(model, &served.run.hub())?;
        models.push(locate_model(Some(model))?);
    }
    if models.is_empty() {
        let model = locate_model(None)?;
        small_model::announce(&ModelFolder::open(&model)?);
        models.push(model);
    }
    if args.is_open_to_others() {
        caution!("everybody who reaches this machine can use the server; --api-key or --api-auth asks for a secret");
    }
    let server = Arc::new(Server::start(args.options(models)?)?);
    let (first, second) = (server.clone(), server.clone());
    interrupt::listen_twice(
        move || {
            // A line of the log, as all others of a server. Without -v the log has warnings alone.
            tracing::warn!("finishing the jobs that were accepted; a second signal cancels them");
            first.drain();
        },
        move || match second.stop() {
            1 => tracing::warn!("canceling 1 job"),
            count => tracing::warn!("canceling {count} jobs"),
        },
    );
    print(&format!("{}\n", server.url()));
    Ok(server.wait()?)
}
