//! The ControlNet extension: its units in `alwayson_scripts`, and its routes.

mod modules;
mod prompts;
mod routes;
mod units;

pub(super) use routes::routes;
pub(super) use units::{Place, Units};
